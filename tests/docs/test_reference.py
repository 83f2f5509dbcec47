"""The reference matches the source: flags, keys, docstrings."""

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
    """If it fails: `uv run scripts/reference`."""
    stale = [path.name for path, text in reference.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == []


@pytest.mark.parametrize("page", ["cli.md", "config.md"])
def test_every_setting_of_a_training_is_there(page):
    text = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    for field in dataclasses.fields(Train):
        name = f"--{field.name.replace('_', '-')}"
        if field.name not in ("data", "augmentation", "kornia"):  # an argument, and settings only available in YAML
            assert f"`{name}`" in text or (page == "config.md" and name in ("--config", "--dry-run"))


def test_how_a_flag_is_shown():
    rows = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8").splitlines()
    assert any(row.startswith("| **`--batch-size`, `-b`** | `INT\\|auto` | 256 on a GPU") for row in rows)
    assert any(row.startswith("| `--amp`, `--no-amp` |  | on |") for row in rows)
    assert any(row.startswith("| **`--opt`** | `NAME` | `adamw` |") for row in rows)
