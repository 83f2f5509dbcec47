"""Functions compiled by numba, without a C compiler; the machine code is cached on disk if possible."""

import contextlib
import functools
import importlib
import importlib.util
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import binding as llvm
from numba import njit as untyped_njit
from numba.core import environment as untyped_environment
from numba.core import event
from numba.core.caching import IndexDataCacheFile

from .compiling_nothing import compiles_nothing, loads_code
from .made_of import made_of

njit: Any = untyped_njit  # its types leave out an option
environment: Any = untyped_environment

# NumPy's scalar types for compiled code. Any: numba mixes them with int exactly, which type checkers do not know.
int64: Any = np.int64
uint64: Any = np.uint64
uint32: Any = np.uint32
int32: Any = np.int32
uint16: Any = np.uint16
float32: Any = np.float32

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, nogil: bool = True) -> F:
    """`function`, compiled at its first call and run without the GIL. C cannot call it, which would have a price.

    The machine code is cached next to the source or in the user's cache directory (set NUMBA_CACHE_DIR to change that).
    If neither can be written, or the disk is full, every process compiles again: a slower start, but no error. The
    function is also compiled again when it or a function that it calls changes, or a constant that one of them names.

    On one core of a shared server (numba 0.68) the first `tile` takes 5 s, 2 s more for a progressive file, and the
    first `splice` 2 s; with cached code 0.8 s, once per process.
    """
    try:
        dispatcher: Any = njit(nogil=nogil, no_cfunc_wrapper=True, cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        dispatcher = njit(nogil=nogil, no_cfunc_wrapper=True)(function)
    cache = getattr(dispatcher, "_cache", None)
    if cache is not None:
        if hasattr(cache, "_cache_file"):
            cache._cache_file.__class__ = _CacheIndex
            cache._cache_file.dispatcher = dispatcher
        save = cache.save_overload

        def load_kept(signature: object, context: object) -> object:
            return _load_kept(cache, signature, context)

        def save_if_possible(signature: object, result: object) -> None:
            with contextlib.suppress(OSError):
                save(signature, result)

        cache.load_overload = load_kept
        cache.save_overload = save_if_possible
    return cast(F, dispatcher)


def _load_kept(cache: Any, signature: object, context: Any) -> object:
    """A function's machine code from the cache; None where there is none.

    numba would import all that it compiles with before it looks, about 0.2 s and 20 MB for each process. Machine code
    that is there needs none of it, only numba's runtime; what has to be compiled imports it then.
    """
    if hasattr(cache, "_load_overload"):  # otherwise nothing can be kept
        _add_runtime()
        with cache._guard_against_spurious_io_errors():
            kept: object = cache._load_overload(signature, context)
            if kept is not None:
                return kept
    _import_without_scipy()
    return None


@functools.cache
def _add_runtime() -> None:
    """Make the functions of numba's runtime known to LLVM. Compiling what counts references is left to compilation."""
    runtime: Any = importlib.import_module("numba.core.runtime._nrt_python")
    for name, address in runtime.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@functools.cache
def _import_without_scipy() -> None:
    """Import numba's array functions without scipy.linalg.

    They only check that it exists, because matrix products need it when they are compiled. Nothing here computes matrix
    products, and the import costs every process 0.2 s and 30 MB.
    """
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    linalg: Any = importlib.import_module("numba.np.linalg")
    ensure_blas = getattr(linalg, "ensure_blas", None)
    if ensure_blas is None:  # another version of numba, which works differently
        return
    linalg.ensure_blas = lambda: None
    try:
        arraymath: Any = importlib.import_module("numba.np.arraymath")
        arraymath.ensure_blas = ensure_blas
    finally:
        linalg.ensure_blas = ensure_blas


@contextlib.contextmanager
def telling_of_compilation(tell: Callable[[], object]) -> Iterator[None]:
    """Inside the block, call `tell` once, from any thread, before the first compilation if there is one."""

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


@contextlib.contextmanager
def saying_what_is_compiled(what: str, say: Callable[[str], object]) -> Iterator[None]:
    """Inside the block, say before the first compilation that `what` is compiled, and at the end how long that took."""
    began: list[float] = []

    def first() -> None:
        say(f"compiling {what}, once per machine")
        began.append(time.perf_counter())

    with telling_of_compilation(first):
        yield
    if began:
        say(f"compiled    {what} in {time.perf_counter() - began[0]:.1f} s")


def inlined(function: F) -> F:
    """`function`, inlined into the compiled functions that call it. Best for scalars: an array argument costs 10 ns."""
    return cast(F, njit(nogil=True, no_cfunc_wrapper=True, forceinline=True)(function))


def held(function: F) -> F:
    """`function`, compiled and run with the GIL: for calls of a microsecond, as reacquiring the GIL can take longer."""
    return compiled(function, nogil=False)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether a compiled function has its machine code in this process."""
    dispatcher: Any = function
    return bool(dispatcher.overloads)  # `signatures` fails while another thread compiles


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether a compiled function has its machine code already, in this process or in the cache on disk."""
    return is_compiled(function) or bool(_kept_signatures(function))


def _kept_signatures(function: Any) -> list[Any]:
    """The signatures of which the cache on disk has a function's machine code, for this processor."""
    cache = getattr(function, "_cache", None)
    file = getattr(cache, "_cache_file", None)
    if cache is None or file is None:
        return []
    try:
        codegen = function.targetctx.codegen()
        return [key[0] for key in file._load_index() if cache._index_key(key[0], codegen) == key]
    except OSError:  # too many open files, or no right to read it
        return []


def is_ready(function: Callable[..., Any]) -> bool:
    """Whether a compiled function can be called without compiling it, and without loading it where a thread does not.

    The disk is asked once, until `look_again`.
    """
    return is_compiled(function) or (loads_code() and _was_kept(function))


_kept: dict[Callable[..., Any], bool] = {}  # functions that were asked for
_missed: set[Callable[..., Any]] = set()  # functions that threads have done without


def _was_kept(function: Callable[..., Any]) -> bool:
    """Whether it was in the machine's cache when this process last asked."""
    known = _kept.get(function)
    if known is None:
        known = _kept[function] = is_kept(function)
    return known


def lacks_code() -> bool:
    """Whether a thread has done without a function that this process does not have, and neither has the cache."""
    return any(not is_compiled(function) and not _was_kept(function) for function in _missed.copy())


def has_to_load() -> bool:
    """Whether a thread has done without a function that the machine's cache has."""
    return any(not is_compiled(function) and _was_kept(function) for function in _missed.copy())


def load_missed() -> None:
    """Load from the machine's cache what threads have done without, with all signatures that it has there."""
    for function in _missed.copy():
        if not is_compiled(function) and _was_kept(function):
            dispatcher: Any = function
            for signature in _kept_signatures(function):
                dispatcher.compile(signature)
            _kept[function] = is_compiled(function)  # the cache may have been deleted


def look_again() -> None:
    """Have the disk asked again for functions that had no machine code there."""
    _missed.clear()
    for function, known in _kept.copy().items():
        if not known:
            _kept.pop(function, None)


def may_call(function: Callable[..., Any]) -> bool:
    """Whether to call a compiled function, or to do the same without it: see `compiling_nothing`."""
    if not compiles_nothing() or is_ready(function):
        return True
    _missed.add(function)
    return False


def may_call_all(*functions: Callable[..., Any]) -> bool:
    """Whether to call several functions, which are needed together. `may_call` is asked of each: all are missed."""
    missed = [function for function in functions if not may_call(function)]
    return not missed


def miss(function: Callable[..., Any]) -> None:
    """Note that what is at hand would have been for this function, which a thread does not compile."""
    if compiles_nothing():
        _missed.add(function)


class _CacheIndex(IndexDataCacheFile):
    """numba's index of cached code, made to depend on all that the code is made of.

    numba writes the index first, then the code that it names: on a full disk, or with two processes at once, a name can
    stand for older code or for that of another signature. Therefore the code's file says what it is, too.
    """

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

    def _load_data(self, name: str) -> object:
        path: str = self._data_path(name)  # type: ignore[no-untyped-call]
        with open(path, "rb") as file:
            return _KeptCode(file).load()


class _KeptCode(pickle.Unpickler):
    """Reads machine code with the environments of its functions, as numba does.

    numba imports the module of each function that was compiled into the code, such as np.zeros: up to 11 modules of
    its own, 25 ms for each process. Code that handles no Python objects never looks at their globals.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (environment.__name__, "_rebuild_env"):
            return _environment
        return super().find_class(module, name)


def _environment(module: str, constants: list[object], name: str) -> Any:
    """What `numba.core.environment._rebuild_env` makes, without importing modules of numba."""
    known = environment.lookup_environment(name)
    if known is not None or module in sys.modules or not module.startswith("numba."):
        return environment._rebuild_env(module, constants, name)
    made = environment.Environment({"__name__": module})
    made.consts[:] = constants
    made.env_name = name
    environment.Environment._memo[name] = made
    return made
