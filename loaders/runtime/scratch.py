"""Reusable memory of one worker thread. It grows to fit the largest image seen, and is never shared."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

GROUP = 8  # samples decoded in one call, so that Python's own code runs for all of them while it is in the CPU's cache

T = TypeVar("T")


class Scratch:
    """Buffers that only grow. A buffer that is too small is replaced, so views of the old one stay valid."""

    def __init__(self) -> None:
        self._encoded = bytearray()
        self._spliced = bytearray()
        self._pixels = bytearray()
        self._work = np.empty(0, np.uint8)
        self._others: list[Scratch] = []
        self._own: dict[Any, Any] = {}

    def encoded(self, nbytes: int) -> memoryview:
        """Room for an encoded sample of `nbytes`."""
        if len(self._encoded) < nbytes:
            self._encoded = bytearray(_rounded(nbytes))
        return memoryview(self._encoded)[:nbytes]

    def encoded_room(self, least: int) -> memoryview:
        """All of the room for an encoded sample, at least `least` bytes, for one whose size is not known."""
        self.encoded(least)
        return memoryview(self._encoded)

    def spliced(self, nbytes: int) -> bytearray:
        """Room for at least `nbytes` of a JPEG that is cut out of another one."""
        if len(self._spliced) < nbytes:
            self._spliced = bytearray(_rounded(nbytes))
        return self._spliced

    def pixels(self, nbytes: int) -> bytearray:
        """Room for at least `nbytes` of decoded pixels."""
        if len(self._pixels) < nbytes:
            self._pixels = bytearray(_rounded(nbytes))
        return self._pixels

    def work(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Room for at least `nbytes` of the compiled decoder's intermediate results."""
        if len(self._work) < nbytes:
            self._work = np.empty(_rounded(nbytes), np.uint8)
        return self._work

    def other(self, number: int) -> "Scratch":
        """Scratch for one of up to GROUP encoded samples that are in memory at the same time."""
        assert number < GROUP
        while len(self._others) <= number:
            self._others.append(Scratch())
        return self._others[number]

    def own(self, kind: Callable[[], T]) -> T:
        """This thread's instance of `kind`, created at the first call: state that a decoder keeps between calls."""
        if kind not in self._own:
            self._own[kind] = kind()
        return cast(T, self._own[kind])

    @property
    def nbytes(self) -> int:
        """Bytes allocated now."""
        own = len(self._encoded) + len(self._spliced) + len(self._pixels) + len(self._work)
        return own + sum(other.nbytes for other in self._others)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 65536) * 65536


def address_of(data: npt.NDArray[Any]) -> int:
    """Where an array's first value lies; without the object that `data.ctypes` makes."""
    address: int = data.__array_interface__["data"][0]
    return address
