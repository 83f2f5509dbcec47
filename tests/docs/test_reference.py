"""The reference is what the source says: flags, keys, docstrings."""

import dataclasses
import importlib.machinery
import importlib.util

import pytest

from fastimg.config.training import Train

from .pages import ROOT


@pytest.fixture(scope="module")
def reference():
    """scripts/reference as a module."""
    loader = importlib.machinery.SourceFileLoader("reference_script", str(ROOT / "scripts/reference"))
    spec = importlib.util.spec_from_loader("reference_script", loader)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.dont_write_bytecode", True)
        patch.setitem(importlib.import_module("sys").modules, "reference_script", module)
        loader.exec_module(module)
        yield module


def test_the_pages_are_current(reference):
    """Otherwise: `uv run scripts/reference`."""
    stale = [path.name for path, text in reference.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == []


def test_every_setting_is_described(reference):
    listed = {flag.name: flag for flag in reference.flags_of(Train)}
    fields = {field.name for field in dataclasses.fields(Train)}
    assert fields - set(listed) == {"augmentation", "kornia"}  # in YAML alone
    assert [name for name, flag in listed.items() if not flag.help] == []


def test_a_flag_as_it_is_shown(reference):
    flags = {flag.name: flag for flag in reference.flags_of(Train)}
    assert flags["batch_size"].shown == "`--batch-size`, `-b`" and flags["batch_size"].value == "INT|auto"
    assert flags["amp"].shown == "`--amp`, `--no-amp`" and flags["amp"].default == "on"
    assert flags["data"].positional and flags["data"].shown == "DATA"
    assert flags["opt"].value == "{adamw,sgd}" and flags["opt"].default == "adamw"
