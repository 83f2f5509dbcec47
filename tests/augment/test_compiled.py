"""Compiled code that is kept on disk is made anew when its source changes, or that of a function that it calls."""

import importlib.util
import os
import sys

from fastimg.augment.cpu import filters, images, masks
from fastimg.augment.cpu.compiled import compiled, sources_of

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
    for step, number in enumerate((1, 2)):
        called.write_text(CALLED.format(number=number))
        os.utime(called, ns=(step + 1, 10**18 + step))  # an edit within the clock's resolution is noticed too
        loaded(tmp_path, "level_by_test")
        image = loaded(tmp_path, "image_by_test").image
        assert image() == 2 * number
        assert image.stats.cache_misses == {(): 1}  # made anew
    again = loaded(tmp_path, "image_by_test").image
    assert again() == 4
    assert again.stats.cache_hits == {(): 1}  # and kept


def test_the_sources_of_a_function_include_those_of_called_functions():
    def names(function):
        return {os.path.basename(file) for file, *_ in sources_of(function)}

    assert names(images._images) == {"images.py", "levels.py", "hues.py", "warps.py"}
    assert names(images._normalise) == {"images.py", "warps.py"}
    assert names(masks._warp) == {"masks.py", "warps.py"}
    assert names(filters._blur) == {"filters.py"}


def test_code_that_cannot_be_kept_is_still_compiled():
    namespace = {}
    exec("def three():\n    return 3\n", namespace)  # no file: numba has no place to keep its code
    assert compiled(namespace["three"])() == 3
