"""Files and parts of open files, several in one compiled call, without the GIL.

Python's `open`, `readinto`, `preadv` and `close` release the GIL and wait for it again each time. With many threads
these waits take longer than the reads.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic as untyped_intrinsic

from .compiled import compiled, int64, may_call
from .scratch import Encoded, address_of

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_FOLDER_FLAGS = _FLAGS | getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0)
_LEAST = 1 << 16  # bytes of a buffer
_FAILED, _MORE = -1, -2  # instead of a number of bytes

cgutils: Any = untyped_cgutils


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba's, of any type: a call leaves out the first argument."""
    return untyped_intrinsic(function)


def read_files(prefix: str, names: Sequence[str], encoded: Encoded) -> None:
    """Read files into `encoded`, but those that cannot be read so: why, Python's own functions tell.

    Names are relative to the folder `prefix`, as `os.path.join` has it.
    """
    if not may_call(_read):
        return
    joined = os.fsencode("\0".join(names)) + b"\0"
    if joined.count(b"\0") != len(names) or "\0" in prefix:  # a name that no file can have
        return
    encoded.reserve(_LEAST)
    flags = _FOLDER_FLAGS, _FLAGS
    if _read(_encoded(prefix), np.frombuffer(joined, np.uint8), encoded.rooms, encoded.spans, flags):
        for place in np.flatnonzero(encoded.spans[:, 1] == _MORE).tolist():
            _read_large(os.path.join(prefix, names[place]), place, encoded)


@functools.lru_cache(maxsize=64)
def _encoded(folder: str) -> npt.NDArray[np.uint8]:
    return np.frombuffer(os.fsencode(folder or os.curdir) + b"\0", np.uint8)


def fill_parts(
    descriptors: Sequence[int], encoded: Encoded, sizes: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Fill the first bytes of each buffer of `encoded` from an open file; whether it is filled, [k].

    Of 0 bytes it is, from any descriptor.
    """
    encoded.reserve(sizes)
    filled = np.zeros(len(descriptors), np.bool_)
    if not may_call(_fill):
        return filled
    _fill(np.array(descriptors, np.int64), encoded.rooms, sizes, offsets, filled)
    return filled


def fill_rows(
    descriptors: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    before: npt.NDArray[np.uint8],
    known: npt.NDArray[np.int64],
    out: npt.NDArray[np.uint8],
) -> npt.NDArray[np.bool_] | None:
    """Fill rows of `out` [k, n] from open files, each behind bytes that equal `before` [m] in the ranges `known`.

    These are [r, 2]: begin and end. Of the descriptor -1 none is read.

    Returns which are filled [k]; None where machine code is not ready.
    """
    if not may_call(_fill_rows):
        return None
    filled = np.zeros(len(out), np.bool_)
    _fill_rows(descriptors, offsets, before, known, np.empty_like(before), np.empty((2, 2), np.int64), out, filled)
    return filled


def advise(descriptors: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> bool:
    """Ask the system to read parts [k] of open files ahead, where it has `posix_fadvise`.

    Returns False, and asks for nothing, where machine code is not ready. Raises OSError, after what came before.
    """
    if not may_call(_advise):
        return False
    error = _advise(descriptors, offsets, sizes, os.POSIX_FADV_WILLNEED)
    if error:
        raise OSError(error, os.strerror(error))
    return True


def _read_large(path: str, place: int, encoded: Encoded) -> None:
    """Read a file that fills the buffer of its place, or is larger."""
    encoded.drop(place)
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            buffer = encoded.grow(place, size + 1)
            if file.readinto(buffer.data[:size]) == size:
                encoded.spans[place] = address_of(buffer), size
    except OSError:
        return


@compiled
def _read(prefix: Any, names: Any, rooms: Any, spans: Any, flags: Any) -> int:
    """Read the files of `names` [k], each of which ends with a 0, into `rooms` [k, 2], and fill `spans` [k, 2].

    The folder `prefix` is opened once, so that its own path is not looked up for each of them. Files that fill their
    buffer have _MORE bytes, perhaps. Returns how many they are.
    """
    folder_flags, file_flags = flags
    folder = _open(int64(prefix.ctypes.data), folder_flags)
    more = 0
    at = 0
    for i in range(spans.shape[0]):
        descriptor = _open_in(folder, int64(names.ctypes.data) + at, file_flags)
        while names[at] != 0:
            at += 1
        at += 1
        if descriptor < 0:
            continue
        size = read_up_to(descriptor, rooms[i, 0], rooms[i, 1], 0)
        _close(descriptor)
        if size == rooms[i, 1]:
            more += 1
            size = _MORE
        if size != _FAILED:
            spans[i, 0], spans[i, 1] = rooms[i, 0], size
    if folder >= 0:
        _close(folder)
    return more


@compiled
def _fill(descriptors: Any, rooms: Any, sizes: Any, offsets: Any, filled: Any) -> None:
    for i in range(descriptors.size):
        filled[i] = read_up_to(descriptors[i], rooms[i, 0], sizes[i], offsets[i]) == sizes[i]


@compiled
def _fill_rows(
    descriptors: Any, offsets: Any, before: Any, known: Any, room: Any, parts: Any, out: Any, filled: Any
) -> None:
    parts[0, 0], parts[0, 1] = room.ctypes.data, room.size
    parts[1, 1] = out.shape[1]
    begin = int64(out.ctypes.data)
    for i in range(out.shape[0]):
        parts[1, 0] = begin + i * out.shape[1]
        if descriptors[i] < 0 or offsets[i] < 0:
            continue
        same = _preadv(descriptors[i], parts.ctypes.data, 2, offsets[i]) == room.size + out.shape[1]
        for r in range(known.shape[0]):
            for j in range(known[r, 0], known[r, 1]):
                same = same and room[j] == before[j]
        filled[i] = same


@compiled
def _advise(descriptors: Any, offsets: Any, sizes: Any, advice: int) -> int:
    """The first error's number, or 0."""
    for i in range(descriptors.size):
        error = _posix_fadvise(descriptors[i], offsets[i], sizes[i], advice)
        if error != 0:
            return int(error)
    return 0


@compiled
def read_up_to(descriptor: int, to: int, size: int, offset: int) -> int:
    """How many bytes were read from `offset` on to an address, fewer than `size` at the file's end; or _FAILED."""
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
def _open_in(_: Any, folder: Any, path: Any, flags: Any) -> Any:
    """Open a path that is relative to an open folder, or absolute."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("openat", I32, I32, POINTER, I32)(builder)
        folder, path, flags = arguments
        folder, flags = builder.trunc(folder, I32), builder.trunc(flags, I32)
        return builder.sext(builder.call(function, [folder, builder.inttoptr(path, POINTER), flags]), I64)

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _pread(_: Any, descriptor: Any, to: Any, size: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("pread", I64, I32, POINTER, I64, I64)(builder)
        descriptor, to, size, offset = arguments
        descriptor = builder.trunc(descriptor, I32)
        return builder.call(function, [descriptor, builder.inttoptr(to, POINTER), size, offset])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _preadv(_: Any, descriptor: Any, parts: Any, count: Any, offset: Any) -> Any:
    """Into memory at `count` pairs of an address and a number of bytes, which begin at `parts`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("preadv", I64, I32, POINTER, I32, I64)(builder)
        descriptor, parts, count, offset = arguments
        descriptor, count = builder.trunc(descriptor, I32), builder.trunc(count, I32)
        return builder.call(function, [descriptor, builder.inttoptr(parts, POINTER), count, offset])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _posix_fadvise(_: Any, descriptor: Any, offset: Any, size: Any, advice: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("posix_fadvise", I32, I32, I64, I64, I32)(builder)
        descriptor, offset, size, advice = arguments
        descriptor, advice = builder.trunc(descriptor, I32), builder.trunc(advice, I32)
        return builder.sext(builder.call(function, [descriptor, offset, size, advice]), I64)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _close(_: Any, descriptor: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _external("close", I32, I32)(builder)
        return builder.sext(builder.call(function, [builder.trunc(arguments[0], I32)]), I64)

    return types.int64(types.int64), generate
