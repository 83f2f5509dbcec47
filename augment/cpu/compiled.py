"""Machine code without a compiler on the user's machine: numba, cached on disk where possible."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

# NumPy's scalar types for compiled code. Typed as Any, since type checkers do not know that mixing them is exact there.
int32: Any = np.int32
int64: Any = np.int64
uint8: Any = np.uint8
uint32: Any = np.uint32
float32: Any = np.float32
float64: Any = np.float64
position: Any = np.uint64  # an unsigned index needs no check for negative values, which would count from the end

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` at its first call; it runs without the GIL, and never fuses multiplications and additions.

    The code is cached next to the source or in the user's cache directory (see NUMBA_CACHE_DIR). If neither is
    writable, or the disk is full, every process compiles for itself: a slower start, but not an error.

    On one core of a shared server (numba 0.68), the first normalisation takes 1 s and the first plan 6 s; with cached
    code 0.7 s, once per process, most of it spent in numba itself.
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
