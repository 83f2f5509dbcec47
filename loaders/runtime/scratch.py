"""Reusable memory of one worker thread. It grows to fit the largest image seen, and is never shared."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

# Samples read, and decoded, in one call: Python's own code runs for all of them while it is in the CPU's cache, and a
# thread asks for Python's lock less often. FEW are where more would take too much memory, MOST where samples are small.
FEW, GROUP, MOST = 4, 32, 60
_LARGE, SMALL = 1 << 20, 1 << 12  # bytes of a sample, on average

T = TypeVar("T")


class Encoded:
    """Up to MOST encoded samples in the memory of one thread, and where each lies, for compiled code.

    `encoded[place]` is a sample, valid until the next group is read; None where it was not read, or is empty.
    """

    def __init__(self) -> None:
        self._buffers = [np.empty(0, np.uint8) for _ in range(MOST)]
        self._rooms = np.zeros((MOST, 2), np.int64)
        self._spans = np.zeros((MOST, 2), np.int64)
        self._numbers: Sequence[int] | dict[int, int] = range(MOST)  # of the buffer of each place
        self.nbytes = 0  # allocated now
        self._least = 0  # bytes that each buffer has
        self._usual = 0  # bytes of the largest buffer, but those of large samples
        self.rooms = self._rooms  # of the current samples [k, 2]: the address of each buffer, and its bytes
        self.spans = self._spans  # the same of each sample, of 0 bytes where it was not read

    def begin(self, count: int) -> None:
        """Forget the last group; `count` samples come next."""
        self.rooms, self.spans = self._rooms[:count], self._spans[:count]
        self.spans.fill(0)
        self._numbers = range(MOST)

    def reserve(self, least: int | npt.NDArray[np.int64]) -> None:
        """Have room for so many bytes in each buffer. What is in those that are too small is lost.

        With one number for all, they get as many as the largest has: its sample may come in another place next.
        """
        if isinstance(least, int):
            least = max(least, self._usual)
            if least <= self._least:
                return
        small = self.rooms[:, 1] < least
        if small.any():
            wanted = np.broadcast_to(least, small.shape)
            for place in np.flatnonzero(small).tolist():
                self.grow(place, int(wanted[place]))
            self._least = int(self._rooms[:, 1].min())

    def grow(self, place: int, least: int) -> npt.NDArray[np.uint8]:
        """A new buffer for a sample, of at least so many bytes."""
        buffer = np.empty(_rounded(least), np.uint8)
        if len(buffer) <= _LARGE:
            self._usual = max(self._usual, len(buffer))
        self.nbytes += len(buffer) - len(self._buffers[place])
        self._buffers[place] = buffer
        self._rooms[place] = address_of(buffer), len(buffer)
        return buffer

    def take(self, sizes: npt.NDArray[np.int64], filled: npt.NDArray[np.bool_], behind: int = 0) -> None:
        """Have the samples whose buffers are filled: of so many bytes each, `behind` the buffer's first bytes."""
        self.spans[:, 0] = self.rooms[:, 0] + behind
        self.spans[:, 1] = sizes * filled

    def spread(self, places: Sequence[int], count: int) -> None:
        """Have the samples, which were read one behind the other, at these of `count` places; at others is none."""
        spans = self.spans.copy()
        self.begin(count)
        self.spans[places] = spans
        self._numbers = {place: number for number, place in enumerate(places)}

    def buffer(self, place: int) -> memoryview:
        """All of a sample's room."""
        return self._buffers[place].data

    @property
    def total(self) -> int:
        """Bytes of the current samples."""
        return int(self.spans[:, 1].sum())

    def drop(self, place: int) -> None:
        """Leave a sample to be read again, by itself."""
        self.spans[place] = 0

    def __getitem__(self, place: int) -> memoryview | None:
        address, size = self.spans[place].tolist()
        if not size:
            return None
        number = self._numbers[place]
        begin = address - int(self._rooms[number, 0])
        return self._buffers[number].data[begin : begin + size]

    def most(self) -> int:
        """How many samples the next group may have: FEW if those of this one were large, MOST if they were small.

        Gives memory back for large ones.
        """
        nbytes, count = self.total, int(np.count_nonzero(self.spans[:, 1]))
        large = nbytes > count * _LARGE
        if large or self.nbytes > 4 * GROUP * _LARGE:
            for place in range(FEW if large else 0, MOST):
                self.nbytes -= len(self._buffers[place])
                self._buffers[place] = np.empty(0, np.uint8)
                self._rooms[place] = 0
            self._least, self._usual = 0, 0
        if large:
            return FEW
        return MOST if 0 < nbytes < count * SMALL else GROUP


class Scratch:
    """Buffers that only grow. A buffer that is too small is replaced, so views of the old one stay valid."""

    def __init__(self) -> None:
        self._encoded = bytearray()
        self._spliced = bytearray()
        self._pixels = bytearray()
        self._work = np.empty(0, np.uint8)
        self._others: list[Scratch] = []
        self._group: Encoded | None = None
        self._own: dict[Any, Any] = {}

    def encoded(self, nbytes: int) -> memoryview:
        """Room for an encoded sample of `nbytes`."""
        if len(self._encoded) < nbytes:
            self._encoded = bytearray(_rounded(nbytes))
        return memoryview(self._encoded)[:nbytes]

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
        """Scratch for one of up to MOST encoded samples that are in memory at the same time."""
        assert number < MOST
        while len(self._others) <= number:
            self._others.append(Scratch())
        return self._others[number]

    def group(self, count: int) -> Encoded:
        """Room for `count` encoded samples, up to MOST, that are read and decoded together."""
        self._group = self._group or Encoded()
        self._group.begin(count)
        return self._group

    def groups(self, count: int, limit: int = MOST) -> Iterator[slice]:
        """Cut `count` samples into groups of at most `limit`, which are small where samples are large."""
        start = 0
        while start < count:
            most = min(limit, GROUP if self._group is None else self._group.most())
            yield slice(start, min(start + most, count))
            start += most

    def own(self, kind: Callable[[], T]) -> T:
        """This thread's instance of `kind`, created at the first call: state that a decoder keeps between calls."""
        if kind not in self._own:
            self._own[kind] = kind()
        return cast(T, self._own[kind])

    @property
    def nbytes(self) -> int:
        """Bytes allocated now."""
        own = len(self._encoded) + len(self._spliced) + len(self._pixels) + len(self._work)
        return own + sum(other.nbytes for other in self._others) + (self._group.nbytes if self._group else 0)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 65536) * 65536


def address_of(data: npt.NDArray[Any]) -> int:
    """Where an array's first value lies; without the object that `data.ctypes` makes."""
    address: int = data.__array_interface__["data"][0]
    return address
