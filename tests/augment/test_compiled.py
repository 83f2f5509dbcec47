"""Compiled code that is kept on disk is made anew when its source changes, or that of a function that it calls."""

import importlib.util
import sys

from fastimg.augment.cpu import hues, images, masks
from fastimg.augment.cpu.compiled import compiled
from fastimg.augment.cpu.made_of import made_of

CALLED = "from fastimg.augment.cpu.compiled import compiled\n\n\n@compiled\ndef level():\n    return {number}\n"
CALLER = (
    "from level_by_test import level\n"
    "from fastimg.augment.cpu.compiled import compiled\n\n\n"
    "@compiled\ndef image():\n    return 2 * level()\n"
)


def loaded(folder, name):
    """The module of a file, as a new process imports it."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_edited_function_in_another_file_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("level_by_test", "image_by_test"):
        monkeypatch.setitem(sys.modules, name, None)  # so that they are gone afterwards
    (tmp_path / "image_by_test.py").write_text(CALLER)
    called = tmp_path / "level_by_test.py"
    for number in (1, 2):
        called.write_text(CALLED.format(number=number))
        loaded(tmp_path, "level_by_test")
        image = loaded(tmp_path, "image_by_test").image
        assert image() == 2 * number
        assert image.stats.cache_misses == {(): 1}  # made anew
    again = loaded(tmp_path, "image_by_test").image
    assert again() == 4
    assert again.stats.cache_hits == {(): 1}  # and kept


def test_a_function_is_made_of_those_that_it_calls(monkeypatch):
    before = made_of(images._images), made_of(masks._warp)
    monkeypatch.setattr(hues, "float64", hues.float32)
    assert made_of(images._images) != before[0]
    assert made_of(masks._warp) == before[1]


def test_code_that_cannot_be_kept_is_still_compiled():
    namespace = {}
    exec("def three():\n    return 3\n", namespace)  # no file: numba has no place to keep its code
    assert compiled(namespace["three"])() == 3
