"""Which packages are installed and whether they can be imported. torch is imported only by `packages`."""

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

from fastimg.loaders.extras import install

# Required packages: distribution -> its module and the oldest supported version, as in pyproject.toml.
NEEDED = {
    "torch": ("torch", "2.11"),
    "torchvision": ("torchvision", "0.26"),
    "timm": ("timm", "1.0.20"),
    "numpy": ("numpy", "1.26"),
    "pillow": ("PIL", "11.0"),
    "simplejpeg": ("simplejpeg", "1.8"),
    "safetensors": ("safetensors", "0.5"),
    "huggingface-hub": ("huggingface_hub", "1.0"),
    "rich": ("rich", "13.7"),
    "shtab": ("shtab", "1.13"),
    "msgspec": ("msgspec", "0.19"),
    "pyyaml": ("yaml", "6.0"),
    "pyarrow": ("pyarrow", "16"),
    "matplotlib": ("matplotlib", "3.8"),
    "scikit-learn": ("sklearn", "1.4"),
    "numba": ("numba", "0.61"),
    "llvmlite": ("llvmlite", "0.44"),
    "xxhash": ("xxhash", "3.0"),
}
_FFCV = f"apt-get install libopencv-dev libturbojpeg0-dev pkg-config && {install('ffcv')}"
# Optional packages: name -> prefix of its distributions, its module, and how to install it.
OPTIONAL = {
    "ffcv": ("ffcv", "ffcv", _FFCV),
    "nvidia-dali": ("nvidia-dali-cuda", "nvidia.dali", install("dali")),
    "nvimgcodec": ("nvidia-nvimgcodec-cu", "nvidia.nvimgcodec", install("gpu")),
    "webdataset": ("webdataset", "webdataset", "pip install webdataset"),
    "kornia": ("kornia", "kornia", install("kornia")),
    "pillow-heif": ("pillow-heif", "pillow_heif", install("heif")),
    "transformers": ("transformers", "transformers", install("text")),
    "onnx": ("onnx", "onnx", install("export")),
    "onnxruntime": ("onnxruntime", "onnxruntime", install("export")),
    "optuna": ("optuna", "optuna", install("tune")),
    "tifffile": ("tifffile", "tifffile", install("tiff")),
    "obstore": ("obstore", "obstore", install("remote")),
    "ray": ("ray", "ray", install("ray")),
    "tensorboard": ("tensorboard", "tensorboard", install("tensorboard")),
    "wandb": ("wandb", "wandb", install("wandb")),
    "mlflow": ("mlflow", "mlflow", install("mlflow")),
    "triton": ("triton", "triton", "pip install triton"),
}
# Compiled against libraries of the system or CUDA, so possibly installed but unusable. Each is tried in a subprocess.
_TRIED = ("ffcv", "nvidia-dali", "nvimgcodec")
_SECONDS = 120  # time limit of such a subprocess


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package. `version` is None if it is not installed."""

    version: str | None
    needed: bool
    install: str  # the command to install it
    fault: str = ""  # why it cannot be imported
    oldest: str = ""  # the oldest supported version, if this one is older


@dataclass(frozen=True, kw_only=True)
class Pillow:
    """Which Pillow is imported, and which ones are installed: they overwrite each other's files."""

    version: str
    simd: bool
    distributions: dict[str, str]
    libjpeg_turbo: str | None  # None if built with another libjpeg


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """The C compiler that Triton calls at run time. It looks for $CC, then gcc, then clang."""

    cc: str | None  # $CC
    command: str | None  # None if it finds none
    other: str | None  # an installed compiler that Triton does not look for
    headers: bool  # whether Python.h is installed


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """fastimg's own machine code, which numba compiles at first use."""

    folder: str | None  # where it is cached; None if every process compiles it again
    made: dict[str, bool]  # purpose -> whether the code that it needs is in the cache


def packages(
    importing: Callable[[str], Any] = importlib.import_module, trying: Callable[[str], str] | None = None
) -> dict[str, Package]:
    """Required packages, then optional ones. `importing` raises on failure; `trying` returns a reason, or nothing."""
    installed = distributions()
    packages = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (module, oldest) in NEEDED.items():
            packages[name] = _needed(name, module, oldest, installed, importing)
    for name, (prefix, module, how) in OPTIONAL.items():
        version = _version(installed, prefix) if _findable(module) else None
        fault = (trying or why_not_importable)(module) if version is not None and name in _TRIED else ""
        packages[name] = Package(version=version, needed=False, install=how, fault=fault)
    return packages


def distributions() -> dict[str, str]:
    """Name (in lower case, with hyphens) -> version of every installed distribution."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(TypeError, KeyError):  # leftovers of an uninstalled package have no metadata
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
    from fastimg.loaders.jpeg.decoding import crops
    from fastimg.loaders.jpeg.decoding.frame import SCANS, UNTILED
    from fastimg.loaders.jpeg.rewriting import huffman
    from fastimg.loaders.runtime.compiled import is_kept

    cache: Any = getattr(crops.crop_tiled, "_cache", None)
    return Compiled(
        folder=getattr(cache, "cache_path", None),
        made={
            "convert": is_kept(huffman.read_scan),
            "tiled JPEGs": is_kept(crops.crop_tiled),
            "untiled JPEGs": crops.is_ready(UNTILED),
            "progressive JPEGs": crops.is_ready(SCANS),
        },
    )


def why_not_importable(module: str) -> str:
    """Why a module cannot be imported, as a process of its own says: it may crash. Empty where it can."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", f"import {module}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {_SECONDS} s"
    if ran.returncode < 0:
        return f"importing it crashes with signal {-ran.returncode}"
    lines = ran.stderr.strip().splitlines()
    return "" if ran.returncode == 0 else lines[-1] if lines else f"importing it ends with exit code {ran.returncode}"


def said(error: BaseException) -> str:
    """An error as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _needed(
    name: str, module: str, oldest: str, installed: Mapping[str, str], importing: Callable[[str], ModuleType]
) -> Package:
    install = f"pip install '{name}>={oldest}'"
    version = installed.get(name)
    try:
        imported = importing(module)
    except Exception as error:  # noqa: BLE001 - the user has to know, whatever it is
        return Package(version=version, needed=True, install=install, fault=said(error))
    version = str(getattr(imported, "__version__", version))  # torch adds its build there
    simd = name == "pillow" and ".post" in version  # Pillow-SIMD numbers its versions differently
    old = not simd and _release(version) < _release(oldest)
    return Package(version=version, needed=True, install=install, oldest=oldest if old else "")


def _version(installed: Mapping[str, str], prefix: str) -> str:
    """The version of the distribution named `prefix` with a number after it (nvidia-dali-cuda130), or else a suffix."""
    for pattern in (rf"{prefix}\d*", rf"{prefix}-.*"):
        for name, version in installed.items():
            if re.fullmatch(pattern, name):
                return version
    return "of an unknown version"


def _findable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # raised by its parent package
        return False


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, re.sub(r"(\.0)+$", "", numbers[0]).split("."))) if numbers else ()
