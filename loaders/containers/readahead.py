"""Which samples the system is asked to read ahead during an epoch, and how."""

import os
import sys
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.order import Blocks, Slices

Samples = npt.NDArray[np.int64]

AHEAD = 4  # number of batches by which a block is requested before its first sample
SHARDS_AHEAD = 2  # where blocks are whole shards: at least so many samples ahead as these have
_CATCH_UP = (
    4  # at most so many times the average number of blocks per batch, so that half a window is not requested at once
)
_CHUNK = 1 << 16  # samples processed at once
_GAP = 16384  # bytes between samples that are read with them rather than skipped: labels, notes, padding
SMALL_FILES, _SMALL = 1 << 28, 1 << 14  # bytes of data that is asked for as a whole, and of its samples on average
_PIECE = 131072  # bytes per request: Linux drops the part beyond the device's read-ahead, often 128 KB


class WholeBlocks:
    """Reads ahead for the order `quasi-random`: whole blocks, a few batches before their first sample.

    Only the samples of a block that this rank still has to read are requested: ranks that share a page cache fill it
    together, ranks on other machines fetch nothing twice, and a resumed epoch requests no sample that it has seen. The
    first batches need half a window of blocks: their own samples are requested first, and blocks follow gradually.
    Memory: one byte per sample and 32 bytes per block. `block` is that of `order.Blocks`: whole shards, if it
    states the first sample of each, are requested earlier.
    """

    def __init__(self, order: Samples, slices: Slices, block: int | Samples) -> None:
        self._order = order
        self._slices = slices
        n = slices.n
        self._all = all_blocks = Blocks(n, block)
        steps = max(1, _CHUNK // slices.batch_size)
        self._mine = np.zeros(n, np.bool_)
        first = np.full(len(all_blocks), n, np.int64)  # position of each block's first sample that this rank reads
        for start in range(0, slices.steps, steps):
            positions = slices.span(start, min(start + steps, slices.steps))
            samples = order[positions]
            self._mine[samples] = True
            np.minimum.at(first, all_blocks.of(samples), positions)
        self._blocks = np.argsort(first, kind="stable")[: np.count_nonzero(first < n)]
        self._first = first[self._blocks]
        self._asked = 0
        self._ahead = AHEAD * slices.global_batch
        if not isinstance(block, int):
            self._ahead = max(self._ahead, SHARDS_AHEAD * all_blocks.mean)
        self._limit = -(-_CATCH_UP * slices.global_batch // all_blocks.mean)

    def before(self, step: int) -> tuple[Samples, ...]:
        """The batch's own samples, if not all of their blocks have been requested; then the blocks that begin soon."""
        end = self._slices.start + (step + 1) * self._slices.global_batch
        needed, soon = self._first.searchsorted((end, end + self._ahead)).tolist()
        begin = self._asked
        self._asked = min(soon, self._asked + self._limit)
        samples = self._all.samples(self._blocks[begin : self._asked])
        blocks = samples[self._mine[samples]]
        return (self._order[self._slices.span(step, step + 1)], blocks) if begin < needed else (blocks,)


class Asked:
    """What was asked for of small samples: of small data all of it, once some of it was asked for.

    To ask for a batch of small samples one by one would take longer than to read them.
    """

    def __init__(self, samples: int, nbytes: int) -> None:
        self._samples = samples
        self._is_small = nbytes <= min(SMALL_FILES, samples * _SMALL)
        self._count = 0  # threads may lose a count, which does no harm
        self._all = False

    def before(self, indices: Samples) -> Samples:
        """The samples to ask for now, where the samples `indices` are needed."""
        if self._all:
            return indices[:0]
        self._count += len(indices)
        if self._is_small and 8 * self._count > self._samples:
            self._all = True
            return np.arange(self._samples)
        return indices


class Pieces(NamedTuple):
    """Requests [k]: the file of each, its first byte, and how many bytes, at most `_PIECE`."""

    files: Samples
    offsets: Samples
    sizes: Samples


def pieces(files: Samples, offsets: Samples, sizes: Samples) -> Pieces:
    """Requests that cover the extents [N], in stored order: neighbours joined, long ones split.

    No extent may be inside another one, except equal ones.
    """
    order = np.lexsort((offsets, files))
    files = files[order]
    starts = offsets[order]
    ends = starts + sizes[order]
    apart = (files[1:] != files[:-1]) | (starts[1:] > ends[:-1] + _GAP)
    edge = np.ones(min(1, len(files)), np.bool_)
    heads, tails = np.append(edge, apart), np.append(apart, edge)
    files, starts, ends = files[heads], starts[heads], ends[tails]
    counts = -((starts - ends) // _PIECE)  # of pieces
    before = np.repeat(np.cumsum(counts) - counts, counts)  # pieces of earlier extents
    at = np.repeat(starts, counts) + _PIECE * (np.arange(len(before)) - before)
    return Pieces(np.repeat(files, counts), at, np.minimum(_PIECE, np.repeat(ends, counts) - at))


def ask_all(wanted: Pieces) -> None:
    """`ask` for each of several, whose files are descriptors: in one compiled call where files are read by such calls.

    Each call from Python gives up the GIL, and waits for it again. Raises OSError.
    """
    if "fastimg.loaders.runtime.file_reads" in sys.modules and hasattr(os, "posix_fadvise"):
        from fastimg.loaders.runtime.file_reads import advise  # numba, which texts do not need

        if advise(*wanted):
            return
    for file, offset, size in zip(*(column.tolist() for column in wanted), strict=True):
        ask(file, offset, size)


def ask(file: int, offset: int, size: int) -> None:
    """Ask the system to read a part of an open file ahead. Does nothing if the system has no such call."""
    if size and hasattr(os, "posix_fadvise"):  # of size 0 would be all that follows
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)
