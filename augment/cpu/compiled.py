"""Machine code without a compiler on the user's machine: numba, cached on disk where possible.

How the cache notices changes stands in `loaders.runtime.compiled`, too: the two libraries do not know each other.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core.caching import IndexDataCacheFile

from .made_of import made_of

# NumPy's scalar types for compiled code. Typed as Any, since type checkers do not know that mixing them is exact there.
int32: Any = np.int32
int64: Any = np.int64
uint8: Any = np.uint8
uint16: Any = np.uint16
uint32: Any = np.uint32
float32: Any = np.float32
float64: Any = np.float64
position: Any = np.uint64  # an unsigned index needs no check for negative values, which would count from the end

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile `function` at its first call; it runs without the GIL, and never fuses multiplications and additions.

    The code is cached next to the source or in the user's cache directory (see NUMBA_CACHE_DIR). If neither is
    writable, or the disk is full, every process compiles for itself: a slower start, but not an error. The function is
    also compiled again when it or a function that it calls changes, or a constant that one of them names.

    On one core of a shared server (numba 0.68), the first normalisation takes 1.3 s and the first plan 9 s; with
    cached code 0.7 s, once per process, most of it spent in numba itself.
    """
    try:
        dispatcher: Any = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        dispatcher = njit(nogil=True)(function)
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


def inlined(function: F) -> F:
    """`function`, inlined into the compiled functions that call it: where an array argument, 10 ns, is too much."""
    return cast(F, njit(nogil=True, forceinline=True)(function))


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether a compiled function has its machine code already, in this process or in the cache on disk."""
    dispatcher: Any = function
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if dispatcher.overloads or file is None:
        return bool(dispatcher.overloads)
    try:
        return bool(file._load_index())
    except OSError:  # too many open files, or no right to read it
        return False


class _CacheIndex(IndexDataCacheFile):
    """numba's index of cached code, made to depend on all that the code is made of, and files of code that say so."""

    dispatcher: Any

    @property
    def _source_stamp(self) -> str:
        return made_of(self.dispatcher)

    def save(self, key: object, data: object) -> None:
        super().save(key, (self._source_stamp, key, data))  # type: ignore[no-untyped-call]

    def load(self, key: object) -> object:
        kept = super().load(key)  # type: ignore[no-untyped-call]
        whole = isinstance(kept, tuple) and len(kept) == 3 and kept[:2] == (self._source_stamp, key)
        return kept[2] if whole else None
