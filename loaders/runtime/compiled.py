"""Machine code without a compiler on the user's machine: numba, kept on disk where there is a place for it."""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import event
from numba.core.caching import IndexDataCacheFile

# numpy's scalar types as compiled code uses them: mixing them with int is exact there, which type checkers do not know.
int64: Any = np.int64
uint64: Any = np.uint64
uint32: Any = np.uint32
int32: Any = np.int32
uint16: Any = np.uint16

Stamp = tuple[str, int, int]  # a file, when it was written in ns, its bytes
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, nogil: bool = True) -> F:
    """`function` compiled at its first call, run without the GIL.

    The code is kept beside the source or in the user's cache directory (NUMBA_CACHE_DIR decides). Where neither can be
    written, or the disk is full, every process compiles for itself: slower to start, no error. It is compiled again
    when the function's file is edited, or that of a compiled function that it calls.

    On one core of a shared server (numba 0.68) the first `tile` takes 5 s, of a progressive file 2 s more, the first
    `splice` 2 s; with the kept code 0.8 s, once per process.
    """
    try:
        dispatcher: Any = njit(nogil=nogil, cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        dispatcher = njit(nogil=nogil)(function)
    dispatcher.made_from = stamp_of(function.__code__.co_filename)
    cache = getattr(dispatcher, "_cache", None)
    if cache is not None:
        if hasattr(cache, "_cache_file"):
            cache._cache_file.__class__ = _Kept
            cache._cache_file.dispatcher = dispatcher
        load, save = cache.load_overload, cache.save_overload

        def load_without_scipy(signature: object, context: object) -> object:
            _import_without_scipy()
            return load(signature, context)

        def save_if_possible(signature: object, result: object) -> None:
            with contextlib.suppress(OSError):
                save(signature, result)

        cache.load_overload = load_without_scipy
        cache.save_overload = save_if_possible
    return cast(F, dispatcher)


@functools.cache
def _import_without_scipy() -> None:
    """Import numba's array functions without scipy.linalg.

    They import it to see whether it is there, for matrix products, which take it when they are compiled. Nothing here
    computes any, and the import costs every process 0.2 s and 30 MB.
    """
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    linalg: Any = importlib.import_module("numba.np.linalg")
    ensure_blas = getattr(linalg, "ensure_blas", None)
    if ensure_blas is None:  # a version of numba that does it another way
        return
    linalg.ensure_blas = lambda: None
    try:
        arraymath: Any = importlib.import_module("numba.np.arraymath")
        arraymath.ensure_blas = ensure_blas
    finally:
        linalg.ensure_blas = ensure_blas


@contextlib.contextmanager
def telling_of_compilation(tell: Callable[[], object]) -> Iterator[None]:
    """Inside the block, call `tell` once if anything has to be compiled: from any thread, before it is."""

    class First(event.Listener):  # type: ignore[misc, unused-ignore]
        told = False

        def on_start(self, event: Any) -> None:
            if not self.told:
                self.told = True
                tell()

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", First()):
        yield


def inlined(function: F) -> F:
    """`function` as a part of the compiled functions that call it. Of scalars: an array as an argument costs 10 ns."""
    dispatcher: Any = njit(nogil=True, forceinline=True)(function)
    dispatcher.made_from = stamp_of(function.__code__.co_filename)
    return cast(F, dispatcher)


def held(function: F) -> F:
    """`function` compiled, and run with the GIL: for what takes a microsecond, when getting it back may take many."""
    return compiled(function, nogil=False)


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether the machine code of a compiled function is made already, or lies on disk."""
    dispatcher: Any = function
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    return bool(dispatcher.signatures) or (file is not None and bool(file._load_index()))


def stamp_of(file: str) -> Stamp:
    """What a source file is like now."""
    try:
        stat = os.stat(file)
    except OSError:  # made by `exec`
        return file, 0, 0
    return file, stat.st_mtime_ns, stat.st_size


def sources_of(function: Callable[..., Any]) -> frozenset[Stamp]:
    """The files that the machine code of a function is made from: its own, and those of all that it calls.

    They are looked up when code is kept or sought, not when the function is defined: what it calls may stand below it.
    """
    seen: dict[int, Any] = {}
    waiting: list[Any] = [function]
    while waiting:
        called = waiting.pop()
        if id(called) not in seen:
            seen[id(called)] = called
            python = getattr(called, "py_func", None)
            values = [python.__globals__.get(name) for name in python.__code__.co_names] if python else []
            waiting += [value for value in values if hasattr(value, "made_from")]
    return frozenset(called.made_from for called in seen.values())


class _Kept(IndexDataCacheFile):
    """numba's index of kept code, for more files than one."""

    dispatcher: Any

    @property
    def _source_stamp(self) -> tuple[Stamp, ...]:
        stamps = sorted(sources_of(self.dispatcher))
        return tuple((os.path.basename(file), written, size) for file, written, size in stamps)
