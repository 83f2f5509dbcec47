"""Compiled code is kept on disk, and never outlives the source that it was made from."""

import importlib.util
import os
import sys

from fastimg.loaders.runtime.compiled import compiled, is_kept

CALLED = "from fastimg.loaders.runtime.compiled import {kind}\n\n\n@{kind}\ndef number():\n    return {number}\n"
CALLER = (
    "from called_by_test import number\n"
    "from fastimg.loaders.runtime.compiled import compiled\n\n\n"
    "@compiled\ndef doubled():\n    return 2 * number()\n"
)


def loaded(folder, name):
    """The module of a file, as a new process would have it."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_edited_function_in_another_file_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "caller_by_test.py").write_text(CALLER)
    for kind in ("compiled", "inlined"):
        for step, number in enumerate((1, 2)):
            called = tmp_path / "called_by_test.py"
            called.write_text(CALLED.format(kind=kind, number=number))
            os.utime(called, ns=(step + 1, 10**18 + step))  # an edit within the clock's tick is seen too
            loaded(tmp_path, "called_by_test")
            doubled = loaded(tmp_path, "caller_by_test").doubled
            assert not is_kept(doubled)
            assert doubled() == 2 * number
            assert doubled.stats.cache_misses == {(): 1}  # made anew
        again = loaded(tmp_path, "caller_by_test").doubled
        assert is_kept(again)
        assert again() == 4
        assert again.stats.cache_hits == {(): 1}  # and kept
    for name in ("called_by_test", "caller_by_test"):
        del sys.modules[name]


def test_the_sources_of_a_function_are_those_of_what_it_calls_too():
    from fastimg.loaders.jpeg.decoding import tiled

    names = {os.path.basename(file) for file in tiled.crop_tiled.sources}
    assert names == {
        "tiled.py",
        "baseline.py",
        "entropy.py",
        "frame.py",
        "huffman.py",
        "colour.py",
        "filters.py",
        "vectors.py",
    }
    rows = {os.path.basename(file) for file in tiled._crop_rows.sources}
    assert rows == names | {"region.py"}
    peek = {os.path.basename(file) for file in tiled._peek.sources}
    assert peek == {"tiled.py", "frame.py", "exif.py"}


def test_what_cannot_be_kept_is_compiled_all_the_same():
    namespace = {"compiled": compiled}
    exec("def three():\n    return 3\n", namespace)  # no file: numba finds no place for its code
    assert compiled(namespace["three"])() == 3
