"""Machine code without a compiler on the user's machine: numba, kept on disk where there is a place for it."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

# numpy's scalar types as compiled code uses them, where mixing them is exact, which type checkers do not know.
int32: Any = np.int32
int64: Any = np.int64
uint8: Any = np.uint8
float32: Any = np.float32
float64: Any = np.float64
position: Any = np.uint64  # unsigned, an index needs no check for one that counts from the end

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """`function` compiled at its first call, run without the GIL; multiplications and additions are never fused.

    The code is kept beside the source or in the user's cache directory (NUMBA_CACHE_DIR decides). Where neither can be
    written, or the disk is full, every process compiles for itself: slower to start, no error.

    On one core of a shared server (numba 0.68) the first normalisation takes 1 s, the first plan 6 s; with the kept
    code 0.7 s, once per process, most of it numba's own.
    """
    try:
        dispatcher: Any = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        dispatcher = njit(nogil=True)(function)
    cache = getattr(dispatcher, "_cache", None)
    if cache is not None:
        save = cache.save_overload

        def save_if_possible(signature: object, result: object) -> None:
            with contextlib.suppress(OSError):
                save(signature, result)

        cache.save_overload = save_if_possible
    return cast(F, dispatcher)
