"""What a function's machine code is made of, as a digest: machine code of another digest is not used again.

Each of the two libraries has this module, word for word: they do not know each other.
"""

import functools
import hashlib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import ir
from numba.core import config as untyped_config

config: Any = untyped_config

# Their code is told apart by their versions. Python's stands in the names of numba's files, the processor in its keys.
_LIBRARIES = {"numpy", "numba", "llvmlite", *sys.stdlib_module_names}
_PLAIN = {type(None), bool, int, float, complex, str, bytes}


def made_of(function: Any) -> str:
    """A digest of what a compiled function's machine code depends on.

    These are the function and all that it calls, what generates code for them, the values of the constants that they
    name, in whichever module they are defined, and the compiler with its settings. It is looked up when machine code is
    loaded or kept, not when the function is defined: it may call functions that are defined later.
    """
    settings = (config.OPT, config.BOUNDSCHECK, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.DEBUGINFO_DEFAULT)
    versions = (numba.__version__, llvmlite.__version__, np.__version__)
    digest = hashlib.sha256(repr((*versions, *map(str, settings))).encode())
    waiting = [function]
    seen: dict[int, Any] = {}
    while waiting:
        called = waiting.pop()
        if id(called) not in seen:
            seen[id(called)] = called
            digest.update(_text_of(called, waiting).encode())
    return digest.hexdigest()


def _text_of(called: Any, waiting: list[Any]) -> str:
    """A function's code, the options that it is compiled with, and the values that it names."""
    function = _function_of(called)
    code, names = _code_of(function)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = {name: function.__globals__[name] for name in names if name in function.__globals__}
    options = sorted(getattr(called, "targetoptions", {}).items())
    return f"{code} {options} {_value([cells, function.__defaults__, values], names, waiting)}\n"


@functools.cache
def _code_of(function: FunctionType) -> tuple[str, list[str]]:
    """A digest of a function's code, with that of functions in it, and all names in it, sorted."""
    digest = hashlib.sha256()
    names: set[str] = set()
    for code in _codes(function.__code__):
        constants = [None if isinstance(value, CodeType) else value for value in code.co_consts]
        text = f"{code.co_names} {_value(constants, [], [])}".encode()
        for part in (code.co_code, code.co_exceptiontable, text):
            digest.update(b"%d:%b" % (len(part), part))
        names.update(code.co_names)
    return digest.hexdigest(), sorted(names)


def _function_of(value: Any) -> Any:
    """The Python function of a compiled function or of one that generates code; None for all else, and in libraries."""
    function = value if isinstance(value, FunctionType) else getattr(value, "py_func", getattr(value, "_defn", None))
    return function if isinstance(function, FunctionType) and not _is_library(function) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _value(value: Any, names: list[str], waiting: list[Any]) -> str:
    """A value as text. Functions in it are added to `waiting`; of modules and classes only `names` are looked at."""
    if type(value) in _PLAIN:
        return repr(value)
    if _function_of(value) is not None:
        waiting.append(value)
        return _name(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_value(part, names, waiting) for part in value)})"
    if isinstance(value, dict):
        return _value([*value.items()], names, waiting)
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_value(part, names, waiting) for part in value))}}}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, (np.generic, np.dtype, ir.Type, numba.types.Type)):
        return f"{type(value).__name__} {value}"
    kind = value if isinstance(value, (ModuleType, type)) else type(value)
    if _is_library(kind):
        return _name(kind)
    return _name(kind) + _value({name: vars(kind)[name] for name in names if name in vars(kind)}, names, waiting)


def _is_library(value: Any) -> bool:
    """Whether something comes with Python, or with a library whose version is in the digest."""
    return (getattr(value, "__module__", None) or value.__name__).partition(".")[0] in _LIBRARIES


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', None) or value.__name__}"
