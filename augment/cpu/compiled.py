"""Machine code without a compiler on the user's machine: numba, cached on disk where possible.

How the cache notices changes stands in `loaders.runtime.compiled`, too: the two libraries do not know each other.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core.caching import IndexDataCacheFile

# NumPy's scalar types for compiled code. Typed as Any, since type checkers do not know that mixing them is exact there.
int32: Any = np.int32
int64: Any = np.int64
uint8: Any = np.uint8
uint32: Any = np.uint32
float32: Any = np.float32
float64: Any = np.float64
position: Any = np.uint64  # an unsigned index needs no check for negative values, which would count from the end

Stamp = tuple[str, int, int]  # path of a file, its modification time in ns, its size in bytes
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` at its first call; it runs without the GIL, and never fuses multiplications and additions.

    The code is cached next to the source or in the user's cache directory (see NUMBA_CACHE_DIR). If neither is
    writable, or the disk is full, every process compiles for itself: a slower start, but not an error. The function is
    also compiled again when its file changes, or the file of a compiled function that it calls.

    On one core of a shared server (numba 0.68), the first normalisation takes 1 s and the first plan 6 s; with cached
    code 0.7 s, once per process, most of it spent in numba itself.
    """
    try:
        dispatcher: Any = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        dispatcher = njit(nogil=True)(function)
    dispatcher.made_from = stamp_of(function.__code__.co_filename)
    cache = getattr(dispatcher, "_cache", None)
    if cache is not None:
        if hasattr(cache, "_cache_file"):
            cache._cache_file.__class__ = _CacheIndex
            cache._cache_file.dispatcher = dispatcher
        save = cache.save_overload

        def save_if_possible(signature: object, result: object) -> None:
            with contextlib.suppress(OSError):
                save(signature, result)

        cache.save_overload = save_if_possible
    return cast(F, dispatcher)


def stamp_of(file: str) -> Stamp:
    """The current stamp of a source file."""
    try:
        stat = os.stat(file)
    except OSError:  # code from `exec`
        return file, 0, 0
    return file, stat.st_mtime_ns, stat.st_size


def sources_of(function: Callable[..., Any]) -> frozenset[Stamp]:
    """Stamps of the files that a function's machine code depends on: its own, and those of all functions that it calls.

    Looked up when the cache is read or written, not when the function is defined: it may call functions defined later.
    """
    seen: dict[int, Any] = {}
    waiting: list[Any] = [function]
    while waiting:
        called = waiting.pop()
        if id(called) not in seen:
            seen[id(called)] = called
            python = called.py_func
            values = [python.__globals__.get(name) for name in python.__code__.co_names]
            waiting += [value for value in values if hasattr(value, "made_from")]
    return frozenset(called.made_from for called in seen.values())


class _CacheIndex(IndexDataCacheFile):
    """numba's index of cached code, made to depend on several source files."""

    dispatcher: Any

    @property
    def _source_stamp(self) -> tuple[Stamp, ...]:
        stamps = sorted(sources_of(self.dispatcher))
        return tuple((os.path.basename(file), written, size) for file, written, size in stamps)
