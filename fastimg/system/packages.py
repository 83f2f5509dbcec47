"""Which packages are installed and whether they can be imported. Nothing here imports torch before it is called."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# What fastimg needs: name of the distribution -> its module, and the oldest version, as in pyproject.toml.
NEEDED = {
    "torch": ("torch", "2.11"),
    "torchvision": ("torchvision", "0.26"),
    "timm": ("timm", "1.0.20"),
    "numpy": ("numpy", "1.26"),
    "pillow": ("PIL", "11.0"),
    "simplejpeg": ("simplejpeg", "1.8"),
    "safetensors": ("safetensors", "0.5"),
    "rich": ("rich", "13.7"),
    "tyro": ("tyro", "0.9.20"),
    "msgspec": ("msgspec", "0.19"),
    "pyyaml": ("yaml", "6.0"),
    "pyarrow": ("pyarrow", "16"),
    "matplotlib": ("matplotlib", "3.8"),
    "scikit-learn": ("sklearn", "1.4"),
    "numba": ("numba", "0.61"),
    "llvmlite": ("llvmlite", "0.44"),
}
_FFCV = "apt-get install libopencv-dev libturbojpeg0-dev pkg-config && pip install '.[ffcv]'"
# What adds something: name -> how its distributions begin, its module, how it is installed in a clone of fastimg.
OPTIONAL = {
    "ffcv": ("ffcv", "ffcv", _FFCV),
    "nvidia-dali": ("nvidia-dali-cuda", "nvidia.dali", "pip install '.[dali]'"),
    "nvimgcodec": ("nvidia-nvimgcodec-cu", "nvidia.nvimgcodec", "pip install '.[gpu]'"),
    "webdataset": ("webdataset", "webdataset", "pip install webdataset"),
    "kornia": ("kornia", "kornia", "pip install '.[kornia]'"),
    "pillow-heif": ("pillow-heif", "pillow_heif", "pip install '.[heif]'"),
    "transformers": ("transformers", "transformers", "pip install '.[text]'"),
    "onnx": ("onnx", "onnx", "pip install '.[export]'"),
    "onnxruntime": ("onnxruntime", "onnxruntime", "pip install '.[export]'"),
    "optuna": ("optuna", "optuna", "pip install '.[tune]'"),
    "triton": ("triton", "triton", "pip install triton"),
}
# Compiled against libraries of the system or of CUDA: being there is not being usable. Tried in processes of their own.
_TRIED = ("ffcv", "nvidia-dali", "nvimgcodec")
_SECONDS = 120  # that such a process may take


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package. `version` None: it is not installed."""

    version: str | None
    needed: bool
    install: str  # the command
    fault: str = ""  # why it cannot be imported
    oldest: str = ""  # version that fastimg works with, where this one is older


@dataclass(frozen=True, kw_only=True)
class Pillow:
    """Which Pillow is imported, and which are installed: they overwrite each other."""

    version: str
    simd: bool
    distributions: dict[str, str]
    libjpeg_turbo: str | None  # None where it has another libjpeg


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """The C compiler that Triton calls at run time, as it looks for it: $CC, else gcc, else clang."""

    cc: str | None  # $CC
    command: str | None  # None where it finds none
    other: str | None  # one that it does not look for
    headers: bool  # Python's, which it includes


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """fastimg's own machine code, which numba makes at first use."""

    folder: str | None  # where it is kept; None where every process makes it anew
    made: dict[str, bool]  # command -> whether what it needs first lies there


def packages(
    importing: Callable[[str], Any] = importlib.import_module, trying: Callable[[str], str] | None = None
) -> dict[str, Package]:
    """All that fastimg needs, then all that it can use. `importing` raises; `trying` gives a reason, or nothing."""
    there = distributions()
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (module, oldest) in NEEDED.items():
            found[name] = _needed(name, module, oldest, there, importing)
    for name, (prefix, module, install) in OPTIONAL.items():
        version = _version(there, prefix) if _findable(module) else None
        fault = (trying or why_not_importable)(module) if version is not None and name in _TRIED else ""
        found[name] = Package(version=version, needed=False, install=install, fault=fault)
    return found


def distributions() -> dict[str, str]:
    """Name, in lower case and with hyphens -> version of every distribution that is installed."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(TypeError, KeyError):  # what an uninstalling left behind has no metadata
            if "Name" in (metadata := distribution.metadata):
                found.setdefault(re.sub(r"[-_.]+", "-", metadata["Name"]).lower(), distribution.version)
    return found


def pillow(there: Mapping[str, str] | None = None) -> Pillow:
    """The Pillow in use. Raises ImportError."""
    import PIL
    from PIL import features

    there = distributions() if there is None else there
    has_turbo = features.check_feature("libjpeg_turbo")
    return Pillow(
        version=PIL.__version__,
        simd=".post" in PIL.__version__,
        distributions={name: there[name] for name in ("pillow", "pillow-simd") if name in there},
        libjpeg_turbo=features.version_feature("libjpeg_turbo") if has_turbo else None,
    )


def compiler(environ: Mapping[str, str] = os.environ, which: Callable[[str], str | None] = shutil.which) -> Compiler:
    """The C compiler for Triton."""
    cc = environ.get("CC")
    command = which(cc) if cc is not None else which("gcc") or which("clang")
    other = None if command is not None else next(filter(None, map(which, ("gcc", "clang", "cc"))), None)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return Compiler(cc=cc, command=command, other=other, headers=headers.exists())


def compiled() -> Compiled:
    """Where fastimg's machine code is kept, and what of it lies there. Raises ImportError."""
    from fastimg.loaders.jpeg.decoding import tiled
    from fastimg.loaders.jpeg.rewriting import huffman
    from fastimg.loaders.runtime.compiled import is_kept

    cache: Any = getattr(tiled.crop_tiled, "_cache", None)
    return Compiled(
        folder=getattr(cache, "cache_path", None),
        made={"convert": is_kept(huffman.read_scan), "train": is_kept(tiled.crop_tiled)},
    )


def why_not_importable(module: str) -> str:
    """Why a module cannot be imported, as a process of its own says: it may crash. Empty where it can."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", f"import {module}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {_SECONDS} s"
    if ran.returncode < 0:
        return f"importing it ends in signal {-ran.returncode}"
    lines = ran.stderr.strip().splitlines()
    return "" if ran.returncode == 0 else lines[-1] if lines else f"importing it ends with {ran.returncode}"


def said(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _needed(
    name: str, module: str, oldest: str, there: Mapping[str, str], importing: Callable[[str], ModuleType]
) -> Package:
    install = f"pip install '{name}>={oldest}'"
    version = there.get(name)
    try:
        imported = importing(module)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the user has to know
        return Package(version=version, needed=True, install=install, fault=said(error))
    version = str(getattr(imported, "__version__", version))  # torch tells its build there
    simd = name == "pillow" and ".post" in version  # Pillow-SIMD counts differently
    old = not simd and _release(version) < _release(oldest)
    return Package(version=version, needed=True, install=install, oldest=oldest if old else "")


def _version(there: Mapping[str, str], prefix: str) -> str:
    """Of the distribution that is called so, with a number behind it (nvidia-dali-cuda130), or else with a suffix."""
    for pattern in (rf"{prefix}\d*", rf"{prefix}-.*"):
        for name, version in there.items():
            if re.fullmatch(pattern, name):
                return version
    return "of an unknown version"


def _findable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of the package that it would be in
        return False


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, re.sub(r"(\.0)+$", "", numbers[0]).split("."))) if numbers else ()
