"""Files and parts of open files, several in one compiled call, without the GIL.

Python's `open`, `readinto`, `preadv` and `close` release the GIL and wait for it again each time. With many threads
these waits take longer than the reads.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic as untyped_intrinsic

from .compiled import compiled
from .scratch import Scratch, address_of

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_LEAST = 1 << 16  # bytes of a buffer
_FAILED = -1

cgutils: Any = untyped_cgutils


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba's, of any type: a call leaves out the first argument."""
    return untyped_intrinsic(function)


def read_files(paths: Sequence[str], scratches: Sequence[Scratch]) -> list[memoryview | None]:
    """The contents of files, each valid until its Scratch is used again; None for one that cannot be read so.

    Why it cannot be read, Python's own functions tell.
    """
    names = [os.fsencode(path) + b"\0" for path in paths]
    joined = np.frombuffer(b"".join(names), np.uint8)
    buffers = [scratch.encoded_room(_LEAST) for scratch in scratches]
    begin = address_of(joined)
    rows = []  # address of the name, and of the buffer; its size; bytes read
    for name, buffer in zip(names, buffers, strict=True):
        rows.append((begin, address_of(np.frombuffer(buffer, np.uint8)), len(buffer), 0))
        begin += len(name)
    jobs = np.array(rows, np.int64)
    _read(jobs, _FLAGS)
    found: list[memoryview | None] = []
    for path, buffer, size, scratch in zip(paths, buffers, jobs[:, 3].tolist(), scratches, strict=True):
        if size < len(buffer):
            found.append(None if size == _FAILED else buffer[:size])
        else:  # perhaps larger than the buffer
            found.append(_read_large(path, scratch))
    return found


def fill_parts(descriptors: Sequence[int], views: Sequence[memoryview], offsets: Sequence[int]) -> list[bool]:
    """Fill each of `views` from an open file; whether it is filled to its end. An empty one is, of any descriptor."""
    jobs = np.array(
        [
            (descriptor, address_of(np.frombuffer(view, np.uint8)) if view else 0, len(view), offset)
            for descriptor, view, offset in zip(descriptors, views, offsets, strict=True)
        ],
        np.int64,
    ).reshape(-1, 4)
    filled = np.zeros(len(jobs), np.bool_)
    _fill(jobs, filled)
    found: list[bool] = filled.tolist()
    return found


def _read_large(path: str, scratch: Scratch) -> memoryview | None:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            view = scratch.encoded(size)
            return view if file.readinto(view) == size else None
    except OSError:
        return None


@compiled
def _read(jobs: Any, flags: int) -> None:
    """Fill the last column: how many bytes the file has, at most as many as the buffer, or _FAILED."""
    for i in range(jobs.shape[0]):
        descriptor = _open(jobs[i, 0], flags)
        if descriptor < 0:
            jobs[i, 3] = _FAILED
            continue
        jobs[i, 3] = _read_up_to(descriptor, jobs[i, 1], jobs[i, 2], 0)
        _close(descriptor)


@compiled
def _fill(jobs: Any, filled: Any) -> None:
    for i in range(jobs.shape[0]):
        filled[i] = _read_up_to(jobs[i, 0], jobs[i, 1], jobs[i, 2], jobs[i, 3]) == jobs[i, 2]


@compiled
def _read_up_to(descriptor: int, to: int, size: int, offset: int) -> int:
    """How many bytes were read, fewer than `size` at the file's end; or _FAILED."""
    read = 0
    while read < size:
        count = _pread(descriptor, to + read, size - read, offset + read)
        if count < 0:
            return _FAILED
        if count == 0:
            break
        read += count
    return read


def _external(name: str, result: ir.IntType, *kinds: Any) -> Any:
    """A function of the C library, which takes and returns integers, pointers among them."""

    def declared(builder: Any) -> Any:
        kind = ir.FunctionType(result, kinds)
        return cgutils.get_or_insert_function(builder.module, kind, name)

    return declared


I32, I64 = ir.IntType(32), ir.IntType(64)
POINTER = ir.IntType(8).as_pointer()


@intrinsic
def _open(_: Any, path: Any, flags: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("open", I32, POINTER, I32)(builder)
        path = builder.inttoptr(arguments[0], POINTER)
        return builder.sext(builder.call(function, [path, builder.trunc(arguments[1], I32)]), I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _pread(_: Any, descriptor: Any, to: Any, size: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("pread", I64, I32, POINTER, I64, I64)(builder)
        descriptor, to, size, offset = arguments
        descriptor = builder.trunc(descriptor, I32)
        return builder.call(function, [descriptor, builder.inttoptr(to, POINTER), size, offset])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _close(_: Any, descriptor: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("close", I32, I32)(builder)
        return builder.sext(builder.call(function, [builder.trunc(arguments[0], I32)]), I64)

    return types.int64(types.int64), generate
