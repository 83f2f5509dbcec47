"""Reusable memory of one worker thread: it follows the largest image seen, and is never shared."""

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.decoding.tiled import GROUP, DecodeGroup


class Scratch:
    """Buffers that only grow. A buffer that is too small is replaced, so views of the old one stay valid."""

    def __init__(self) -> None:
        self._encoded = bytearray()
        self._spliced = bytearray()
        self._pixels = bytearray()
        self._work = np.empty(0, np.uint8)
        self._others: list[Scratch] = []
        self._group: DecodeGroup | None = None

    def encoded(self, nbytes: int) -> memoryview:
        """Room for an encoded sample of `nbytes`."""
        if len(self._encoded) < nbytes:
            self._encoded = bytearray(_rounded(nbytes))
        return memoryview(self._encoded)[:nbytes]

    def spliced(self, nbytes: int) -> bytearray:
        """Room for at least `nbytes` of a JPEG that is cut out of the encoded one."""
        if len(self._spliced) < nbytes:
            self._spliced = bytearray(_rounded(nbytes))
        return self._spliced

    def pixels(self, nbytes: int) -> bytearray:
        """Room for at least `nbytes` of decoded pixels."""
        if len(self._pixels) < nbytes:
            self._pixels = bytearray(_rounded(nbytes))
        return self._pixels

    def work(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Room for at least `nbytes` of what the compiled decoder holds between its stages."""
        if len(self._work) < nbytes:
            self._work = np.empty(_rounded(nbytes), np.uint8)
        return self._work

    def other(self, number: int) -> "Scratch":
        """One for an encoded sample that is kept beside others, of up to GROUP."""
        assert number < GROUP
        while len(self._others) <= number:
            self._others.append(Scratch())
        return self._others[number]

    @property
    def group(self) -> DecodeGroup:
        """Where tiled JPEGs wait to be decoded together."""
        self._group = self._group or DecodeGroup()
        return self._group

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        own = len(self._encoded) + len(self._spliced) + len(self._pixels) + len(self._work)
        return own + sum(other.nbytes for other in self._others)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 65536) * 65536
