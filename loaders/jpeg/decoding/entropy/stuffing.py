"""Entropy-coded bytes without the stuffing, up to the next marker (ITU T.81, B.1.1.5 and F.1.2.3)."""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import before_marker, bytes_at_once, copy_unstuffed
from fastimg.loaders.runtime.compiled import inlined, uint64


@inlined
def find_marker(data: Any, at: Any) -> Any:
    """Where the next marker from `at` on begins; the size of the data if there is none."""
    size, step, one = uint64(data.size), bytes_at_once(), uint64(1)
    address = uint64(data.ctypes.data)
    while at + step < size:
        ahead = before_marker(address + at)
        if ahead != step:
            return at + ahead
        at += step
    while at + one < size:
        if data[at] == 255 and data[at + one] != 0:
            return at
        at += one
    return size


@inlined
def copy_to_marker(data: Any, at: Any, clean: Any, n: Any) -> Any:
    """Copy the bytes up to the next marker to `clean[n:]`; `data[at]` begins a scan, or is behind a restart.

    Returns where the marker begins, the size of the data if there is none, and where the copy ends.
    """
    size, step, one = uint64(data.size), bytes_at_once(), uint64(1)
    source, target = uint64(data.ctypes.data), uint64(clean.ctypes.data)
    while at + step < size:
        read, written = copy_unstuffed(source + at, target + n)
        n += written
        if read == step:  # the CPU goes on with the next ones while it looks at these
            at += step
            continue
        at += read
        if data[at] == 255 and data[at + one] != 0:
            return at, n
    if data[at - one] == 255:  # copied, and the stuffed byte behind it not passed yet
        at += one
    while at + one < size:  # byte by byte, near the end
        following = data[at + one]
        if data[at] == 255 and following != 0:
            return at, n
        clean[n] = data[at]
        n += one
        at += uint64(2) if data[at] == 255 else one
    return size, n
