"""Machine code without a compiler on the user's machine: numba, kept on disk where there is a place for it."""

import contextlib
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
    written, or the disk is full, every process compiles for itself: slower to start, no error. numba notices an edited
    file, but not an edited function that another file calls: remove `__pycache__` after editing one of those.

    On one core of a shared server (numba 0.68) the first `tile` takes 5 s, of a progressive file 2 s more, the first
    `splice` 2 s; with the kept code 0.8 s, once per process.
    """
    try:
        dispatcher: Any = njit(nogil=nogil, cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        dispatcher = njit(nogil=nogil)(function)
    cache = getattr(dispatcher, "_cache", None)
    if cache is not None:
        save = cache.save_overload

        def save_if_possible(signature: object, result: object) -> None:
            with contextlib.suppress(OSError):
                save(signature, result)

        cache.save_overload = save_if_possible
    return cast(F, dispatcher)


def inlined(function: F) -> F:
    """`function` as a part of the compiled functions that call it. Of scalars: an array as an argument costs 10 ns."""
    return cast(F, njit(nogil=True, forceinline=True)(function))


def held(function: F) -> F:
    """`function` compiled, and run with the GIL: for what takes a microsecond, when getting it back may take many."""
    return compiled(function, nogil=False)
