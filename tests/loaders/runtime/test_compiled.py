"""Compiled code is cached on disk, and is recompiled when its source changes."""

import importlib.util
import os
import subprocess
import sys

from fastimg.loaders.runtime.compiled import compiled, is_kept, sources_of, telling_of_compilation

CALLED = "from fastimg.loaders.runtime.compiled import {kind}\n\n\n@{kind}\ndef number():\n    return {number}\n"
CALLER = (
    "from called_by_test import number\n"
    "from fastimg.loaders.runtime.compiled import compiled\n\n\n"
    "@compiled\ndef doubled():\n    return 2 * number()\n"
)


def loaded(folder, name):
    """The module of a file, as a new process imports it."""
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
            os.utime(called, ns=(step + 1, 10**18 + step))  # an edit within the clock's resolution is noticed too
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


def test_called_functions_may_be_defined_below(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first, last = CALLER.split("@compiled\n")
    (tmp_path / "caller_by_test.py").write_text(
        first + "@compiled\ndef quadrupled():\n    return 2 * doubled()\n\n\n@compiled\n" + last
    )
    for step, number in enumerate((1, 2)):
        called = tmp_path / "called_by_test.py"
        called.write_text(CALLED.format(kind="compiled", number=number))
        os.utime(called, ns=(step + 1, 10**18 + step))
        loaded(tmp_path, "called_by_test")
        quadrupled = loaded(tmp_path, "caller_by_test").quadrupled
        assert quadrupled() == 4 * number
        assert quadrupled.stats.cache_misses == {(): 1}
    for name in ("called_by_test", "caller_by_test"):
        del sys.modules[name]


def test_the_sources_of_a_function_include_those_of_called_functions():
    from fastimg.loaders.jpeg.decoding import crops
    from fastimg.loaders.jpeg.rewriting import splice

    def names(function):
        return {os.path.basename(file) for file, *_ in sources_of(function)}

    decoding = {"crops.py", "columns.py", "baseline.py", "lookups.py", "symbols.py", "tiles.py", "dct.py", "colour.py"}
    decoding |= {"filters.py", "frame.py", "vectors.py", "memory.py", "region.py", "scaled_dct.py", "turning.py"}
    decoding.add("exif.py")
    assert names(crops.crop_tiled) == decoding
    assert names(crops._crop_tiled) == decoding
    assert names(crops._crop_untiled) == decoding - {"tiles.py", "scaled_dct.py"} | {"scan.py", "scans.py"}
    assert names(crops.peek) == {"crops.py", "frame.py", "exif.py"}
    assert names(splice._splice) == {"splice.py", "frame.py", "exif.py", "region.py", "huffman.py"}


def test_code_that_cannot_be_cached_is_still_compiled():
    namespace = {"compiled": compiled}
    exec("def three():\n    return 3\n", namespace)  # no file: numba has no place to cache its code
    assert compiled(namespace["three"])() == 3


def test_compiling_is_reported_once_and_loading_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "called_by_test.py").write_text(CALLED.format(kind="compiled", number=3))
    (tmp_path / "caller_by_test.py").write_text(CALLER)
    told = []
    for compilations in (1, 1):  # the second time, cached code is loaded
        loaded(tmp_path, "called_by_test")
        with telling_of_compilation(lambda: told.append("compiling")):
            assert loaded(tmp_path, "caller_by_test").doubled() == 6
        assert told == ["compiling"] * compilations
    for name in ("called_by_test", "caller_by_test"):
        del sys.modules[name]


KEPT = """
import gc, sys
from pathlib import Path
import numpy as np
from numba import njit
from fastimg.loaders.runtime.compiled import compiled

def arrays(n):
    a = np.zeros(n, np.int64)
    for i in range(n):
        a[i] = i
    return a[2:].copy(), a

f = compiled(arrays)
made = [f(10) for _ in range(1000)]
assert made[0][0].tolist() == [2, 3, 4, 5, 6, 7, 8, 9] and sys.getrefcount(made[0][0]) == 2
del made
gc.collect()
print(len(f.stats.cache_hits), "numba.cpython.setobj" in sys.modules)
print(njit(lambda n: [i * 2.0 for i in range(n)])(3))  # compiled after it
"""


def test_kept_code_allocates_and_what_comes_later_is_compiled(tmp_path):
    """Loading does not import numba's compiler, which numba imports on demand."""
    (tmp_path / "kept.py").write_text(KEPT)
    said = [
        subprocess.run([sys.executable, "kept.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert said == ["0 True\n[0.0, 2.0, 4.0]\n", "1 False\n[0.0, 2.0, 4.0]\n"]
