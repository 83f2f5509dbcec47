"""Machine code without a compiler on the user's machine: numba, kept on disk where there is a place for it."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

# numpy's scalar types as compiled code uses them: mixing them with int is exact there, which type checkers do not know.
int64: Any = np.int64
uint64: Any = np.uint64
uint32: Any = np.uint32
int32: Any = np.int32
uint16: Any = np.uint16

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, nogil: bool = True) -> F:
    """`function` compiled at its first call, run without the GIL.

    The code is kept beside the source or in the user's cache directory (NUMBA_CACHE_DIR decides). Where neither can be
    written, or the disk is full, every process compiles for itself: slower to start, no error. It is made anew when
    the function's file is edited, or that of a compiled function that it calls.

    On one core of a shared server (numba 0.68) the first `tile` takes 5 s, of a progressive file 2 s more, the first
    `splice` 2 s; with the kept code 0.8 s, once per process.
    """
    try:
        dispatcher: Any = njit(nogil=nogil, cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        dispatcher = njit(nogil=nogil)(function)
    dispatcher.sources = _sources(function)
    cache = getattr(dispatcher, "_cache", None)
    if cache is not None:
        if hasattr(cache, "_cache_file"):  # numba's own stamp is that of one file
            stamps = ((os.path.basename(file), os.stat(file)) for file in sorted(dispatcher.sources))
            cache._cache_file._source_stamp = tuple((name, s.st_mtime_ns, s.st_size) for name, s in stamps)
        save = cache.save_overload

        def save_if_possible(signature: object, result: object) -> None:
            with contextlib.suppress(OSError):
                save(signature, result)

        cache.save_overload = save_if_possible
    return cast(F, dispatcher)


def inlined(function: F) -> F:
    """`function` as a part of the compiled functions that call it. Of scalars: an array as an argument costs 10 ns."""
    dispatcher: Any = njit(nogil=True, forceinline=True)(function)
    dispatcher.sources = _sources(function)
    return cast(F, dispatcher)


def held(function: F) -> F:
    """`function` compiled, and run with the GIL: for what takes a microsecond, when getting it back may take many."""
    return compiled(function, nogil=False)


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether the machine code of a compiled function is made already, or lies on disk."""
    dispatcher: Any = function
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    return bool(dispatcher.signatures) or (file is not None and bool(file._load_index()))


def _sources(function: Callable[..., Any]) -> frozenset[str]:
    """The files that the machine code of a function is made from."""
    called = (function.__globals__.get(name) for name in function.__code__.co_names)
    return frozenset({function.__code__.co_filename}).union(*(getattr(value, "sources", ()) for value in called))
