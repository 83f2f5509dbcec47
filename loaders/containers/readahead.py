"""Which samples the system is asked to fetch before a batch is read, while an epoch goes by, and how it is asked."""

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fastimg.loaders.order import Slices

Samples = npt.NDArray[np.int64]

_AHEAD = 4  # batches: how long before its first sample a block is asked for
_CATCH_UP = 4  # times as many blocks a batch as it takes in the long run: half a window is not asked for at once
_CHUNK = 1 << 16  # samples looked at in one go
_GAP = 16384  # bytes that are fetched without being asked for, rather than asking once more: labels, notes, padding
_PIECE = 131072  # bytes asked for at a time: Linux drops what goes beyond the device's read-ahead, often 128 KB


class WholeBlocks:
    """`quasi-random`: blocks, some batches before their first sample, as far as this rank reads them.

    Of a block only what this rank still has to read is asked for: ranks that share a page cache fill it together,
    ranks on other machines fetch nothing twice, and an epoch that is resumed asks for no sample that it has seen. In
    the first batches, which take from half a window of blocks, their own samples come first and blocks follow as the
    reading catches up. Held: one byte a sample and 16 bytes a block.
    """

    def __init__(self, order: Samples, slices: Slices, block: int) -> None:
        self._order = order
        self._slices = slices
        self._block = block
        n = slices.n
        steps = max(1, _CHUNK // slices.batch_size)
        self._mine = np.zeros(n, np.bool_)
        first = np.full(-(-n // block), n, np.int64)  # the position at which this rank reads of a block first
        for start in range(0, slices.steps, steps):
            positions = slices.span(start, min(start + steps, slices.steps))
            samples = order[positions]
            self._mine[samples] = True
            np.minimum.at(first, samples // block, positions)
        self._blocks = np.argsort(first, kind="stable")[: np.count_nonzero(first < n)]
        self._first = first[self._blocks]
        self._asked = 0
        self._limit = -(-_CATCH_UP * slices.global_batch // block)

    def before(self, step: int) -> tuple[Samples, ...]:
        """The batch's samples where not all of their blocks were asked for yet; then blocks that begin soon."""
        end = self._slices.start + (step + 1) * self._slices.global_batch
        needed, soon = self._first.searchsorted((end, end + _AHEAD * self._slices.global_batch)).tolist()
        begin = self._asked
        self._asked = min(soon, self._asked + self._limit)
        samples = (self._blocks[begin : self._asked, None] * self._block + np.arange(self._block)).ravel()
        samples = samples[samples < self._slices.n]
        blocks = samples[self._mine[samples]]
        return (self._order[self._slices.span(step, step + 1)], blocks) if begin < needed else (blocks,)


def pieces(
    files: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int, int]]:
    """(file, offset, size) of what holds the extents [N]: neighbours joined, long ones in pieces, in stored order.

    No extent may lie within another one, but for equal ones.
    """
    if len(files) == 0:
        return
    order = np.lexsort((offsets, files))
    files = files[order]
    starts = offsets[order]
    ends = starts + sizes[order]
    apart = (files[1:] != files[:-1]) | (starts[1:] > ends[:-1] + _GAP)
    heads = np.flatnonzero(np.append(True, apart))
    tails = np.flatnonzero(np.append(apart, True))
    for file, start, end in zip(files[heads].tolist(), starts[heads].tolist(), ends[tails].tolist(), strict=True):
        for at in range(start, end, _PIECE):
            yield file, at, min(_PIECE, end - at)


def ask(file: int, offset: int, size: int) -> None:
    """Ask the system to read a part of an open file ahead. Does nothing where there is no such call."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)
