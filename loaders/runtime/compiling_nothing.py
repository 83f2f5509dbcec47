"""Threads that compile and load nothing: a loader's, so that no epoch waits in its middle. It does not need numba."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def compiling_nothing(but_tiled: bool = False, loading: bool = True) -> Iterator[None]:
    """Inside the block, `compiled.may_call` tells this thread to do without functions that are not ready.

    `but_tiled`: except for the decoder of tiled JPEGs, where their pixels depend on it. `loading`: those are ready that
    are in the machine's cache, from which this thread loads them.
    """
    before = getattr(_thread, "inside", None)
    _thread.inside = but_tiled, loading
    try:
        yield
    finally:
        _thread.inside = before


def compiles_nothing() -> bool:
    """Whether this thread is inside such a block."""
    return getattr(_thread, "inside", None) is not None


def compiles_tiled() -> bool:
    """Whether this thread compiles the decoder of tiled JPEGs where it is not ready."""
    but_tiled, _ = getattr(_thread, "inside", None) or (True, True)
    return bool(but_tiled)


def loads_code() -> bool:
    """Whether this thread loads machine code from the machine's cache where it is called."""
    _, loading = getattr(_thread, "inside", None) or (True, True)
    return bool(loading)
