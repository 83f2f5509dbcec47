"""Packages that are installed, broken, outdated or missing."""

import importlib
import importlib.metadata
import re
import sys
import sysconfig
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastimg.loaders.backends import selection as backends
from fastimg.loaders.extras import install
from fastimg.loaders.jpeg.decoding import crops
from fastimg.loaders.runtime import compiled
from fastimg.system import packages as installed

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_required_packages_equal_pyproject():
    stated = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", line).groups() for line in PROJECT["dependencies"])
    assert {name: oldest for name, (_, oldest) in installed.NEEDED.items()} == stated


def test_extras_are_those_of_the_project():
    source = Path(__file__).parents[3]
    files = [file for part in ("fastimg", "loaders") for file in (source / part).rglob("*.py")]
    advised = {name for file in files for name in re.findall(r"""\binstall\(["'](\w+)["']\)""", file.read_text())}
    assert advised == set(PROJECT["optional-dependencies"]) - {"simd"}
    commands = " ".join(how for _, _, how in installed.OPTIONAL.values())
    for name in ("dali", "ffcv"):
        for command in re.findall(r"`(.*?)`", backends._INSTALLS[name]):
            assert command in commands


def test_required_packages_can_be_imported_here():
    found = installed.packages(trying=lambda module: "")
    assert not [name for name, package in found.items() if package.needed and (package.fault or package.oldest)]
    assert found["torch"].version == importlib.import_module("torch").__version__
    assert list(found)[: len(installed.NEEDED)] == list(installed.NEEDED)


def test_missing_broken_and_old():
    def importing(module):
        match module:
            case "timm":
                raise ModuleNotFoundError("No module named 'timm'")
            case "torchvision":
                raise RuntimeError("operator torchvision::nms does not exist\nmore")
            case "numpy":
                return SimpleNamespace(__version__="1.25.3")
            case "pyarrow":
                return SimpleNamespace(__version__="16.0.0.dev1")
            case "PIL":
                return SimpleNamespace(__version__="9.5.0.post2")
        return importlib.import_module(module)

    found = installed.packages(importing, lambda module: "")
    assert found["timm"].fault == "ModuleNotFoundError: No module named 'timm'"
    assert found["timm"].install == "pip install 'timm>=1.0.20'"
    assert found["torchvision"].fault == "RuntimeError: operator torchvision::nms does not exist"
    assert (found["numpy"].oldest, found["numpy"].fault) == ("1.26", "")
    assert found["pyarrow"].oldest == "" and found["pillow"].oldest == ""  # Pillow-SIMD counts otherwise


def test_optional_packages(monkeypatch):
    there = {"nvidia-dali-cuda120": "1.50", "onnxruntime-gpu": "1.24", "kornia-rs": "0.2", "kornia": "0.9"}
    tried = []
    modules = {"nvidia.dali", "onnxruntime", "kornia", "webdataset"}
    monkeypatch.setattr(installed, "distributions", lambda: there)
    monkeypatch.setattr(installed, "_findable", lambda module: module in modules)
    found = installed.packages(lambda module: SimpleNamespace(), lambda module: tried.append(module) or "it crashes")
    assert found["nvidia-dali"].version == "1.50" and found["nvidia-dali"].fault == "it crashes"
    assert tried == ["nvidia.dali"]
    assert found["onnxruntime"].version == "1.24" and found["kornia"].version == "0.9"
    assert found["webdataset"].version == "of an unknown version"
    assert found["onnx"].version is None and found["ffcv"].version is None
    assert found["ffcv"].install.endswith(install("ffcv"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("raise ImportError('libopencv_core.so.406: cannot open')", "ImportError: libopencv_core.so.406: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "importing it crashes with signal 11"),
        ("import sys; sys.exit(3)", "importing it ends with exit code 3"),
    ],
)
def test_imports_in_a_process_of_their_own(tmp_path, monkeypatch, text, expected):
    (tmp_path / "module_of_this_test.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installed.why_not_importable("module_of_this_test") == expected
    assert "module_of_this_test" not in sys.modules


def test_an_import_that_hangs(tmp_path, monkeypatch):
    (tmp_path / "module_of_this_test.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(installed, "_SECONDS", 0.5)
    assert installed.why_not_importable("module_of_this_test") == "importing it takes more than 0.5 s"


def test_names_of_distributions(tmp_path, monkeypatch):
    """As package indexes write them; packages without one are skipped."""
    for folder, text in (("Some_Thing-1.2", "Name: Some_Thing\nVersion: 1.2\n"), ("left_behind-1", "")):
        (tmp_path / f"{folder}.dist-info").mkdir()
        (tmp_path / f"{folder}.dist-info" / "METADATA").write_text(text)
    (tmp_path / "~orch-2.dist-info").mkdir()
    found = list(importlib.metadata.distributions(path=[str(tmp_path)]))
    monkeypatch.setattr(installed.importlib.metadata, "distributions", lambda: found)
    assert installed.distributions() == {"some-thing": "1.2"}


@pytest.mark.parametrize(
    ("version", "there", "simd", "count"),
    [
        ("13.0.0", {"pillow": "13.0.0", "numpy": "2"}, False, 1),
        ("9.5.0.post2", {"pillow-simd": "9.5.0.post2"}, True, 1),
        ("9.5.0.post2", {"pillow-simd": "9.5.0.post2", "pillow": "13.0.0"}, True, 2),
    ],
)
def test_which_pillow(monkeypatch, version, there, simd, count):
    import PIL

    monkeypatch.setattr(PIL, "__version__", version)
    found = installed.pillow(there)
    assert (found.version, found.simd, len(found.distributions)) == (version, simd, count)
    assert found.libjpeg_turbo is None or re.match(r"\d+\.\d+", found.libjpeg_turbo)


@pytest.mark.parametrize(
    ("environ", "there", "command", "other"),
    [
        ({}, {"gcc", "clang", "cc"}, "/bin/gcc", None),
        ({}, {"clang", "cc"}, "/bin/clang", None),
        ({}, {"cc"}, None, "/bin/cc"),
        ({}, set(), None, None),
        ({"CC": "clang"}, {"gcc", "clang"}, "/bin/clang", None),
        ({"CC": "cc -mavx2"}, {"gcc", "cc"}, None, "/bin/gcc"),
    ],
)
def test_the_compiler_is_tritons(environ, there, command, other):
    found = installed.compiler(environ, lambda name: f"/bin/{name}" if name in there else None)
    assert (found.command, found.other, found.cc) == (command, other, environ.get("CC"))


@pytest.mark.parametrize("there", [True, False])
def test_pythons_headers(tmp_path, monkeypatch, there):
    if there:
        (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert installed.compiler().headers is there


def test_the_cache_folder_of_machine_code(monkeypatch):
    found = installed.compiled()
    assert found.folder is None or Path(found.folder).is_dir()
    assert set(found.made) == {"convert", "tiled JPEGs", "untiled JPEGs", "progressive JPEGs"}
    monkeypatch.setattr(compiled, "is_kept", lambda function: function.__name__ == "read_scan")
    monkeypatch.setattr(crops, "is_ready", lambda kind: False)
    assert [name for name, made in installed.compiled().made.items() if made] == ["convert"]
