"""Arrays as samples: a `.npy` member for each, read from a known position.

A store of arrays is a folder of tar shards whose members are named after what they were made from. `ArrayDataset`
combines it with a dataset: the same ids, labels and names, but the content is arrays.
"""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import ImageError, ShardError
from fastimg.loaders.runtime.scratch import Scratch

from .datasets import Dataset
from .fields import WithFields
from .targets import TargetColumn
from .tars.headers import BLOCK, stated_size
from .watch import EVERY, FileWatch, Handles, fill

MAX_IN_MEMORY = 1 << 28  # bytes of arrays of one dataset: 256 MiB

_SIZE = slice(124, 135)  # of a tar's header: the digits of a member's size

# Where an array is stored: number of its shard, offset and size of its member. Shard -1: there is no array.
PLACE = np.dtype([("shard", "<i4"), ("size", "<u4"), ("offset", "<u8")])


class ArrayDataset(WithFields):
    """The samples of `source`, each with an array from `shards` as its content.

    `places` [N] of PLACE are their positions. `reasons` maps the id of a sample without an array to the reason, which
    `read` raises as ImageError. `key` names how the arrays were made. `lengths` [N] are numbers of tokens, by which
    samples are batched.
    """

    content: Literal["images", "text"]
    notes: Sequence[str] = ()

    def __init__(
        self,
        source: Dataset,
        shards: Sequence[Path],
        places: npt.NDArray[np.void],
        key: str,
        reasons: Mapping[int, str],
        lengths: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.source = source
        self.name = source.name
        self.classes = source.classes
        self.labels = source.labels
        self.content = source.content
        self.lengths = lengths
        self.fingerprint = hashlib.sha256(f"{source.fingerprint} {key}".encode()).hexdigest()
        self._shards = list(shards)
        self._places = places
        self._reasons = reasons
        self._watch = FileWatch(self._shards)
        self._handles = Handles(self._shards, self._watch, "start again")
        self._table: tuple[npt.NDArray[Any], npt.NDArray[np.bool_]] | None = (
            None  # all arrays, and which of them are valid
        )

    def __len__(self) -> int:
        return len(self._places)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """Those of the source."""
        return self.source.targets

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The .npy file's bytes. Raises ShardError if the store has changed."""
        shard, size, offset = self._places[index].item()
        if shard < 0:
            raise ImageError(self._reasons.get(index, "it was left out"))
        view = scratch.encoded(BLOCK + size)
        try:
            fill(self._handles.file(shard), view, offset - BLOCK)
        except (OSError, EOFError) as error:
            self._watch.look(shard)  # its error may be more precise
            raise ShardError(f"{self._shards[shard]}: cannot be read ({error}); start again") from error
        self._watch.read(shard)
        if stated_size(view[:BLOCK]) != size:
            raise ShardError(
                f"{self._shards[shard]}: no array of {size} bytes at byte {offset}: the file was altered; start again"
            )
        return view[BLOCK:]

    @cached_property
    def in_memory(self) -> bool:
        """Whether all arrays are kept in memory from the first epoch on: up to MAX_IN_MEMORY bytes."""
        return int(self._places["size"].sum(dtype=np.int64)) <= MAX_IN_MEMORY

    def read_rows(self, ids: Sequence[int], head: bytes, out: npt.NDArray[Any]) -> list[int]:
        """Read arrays of one shape and type into rows of `out` [k, ...]; their .npy files begin with `head`.

        Returns the rows whose arrays are different or could not be read; `read` raises the reason.
        """
        if not self.in_memory:
            return self._read_rows(ids, head, out)
        if self._table is None or self._table[0].dtype != out.dtype or self._table[0].shape[1:] != out.shape[1:]:
            table = np.empty((len(self), *out.shape[1:]), out.dtype)
            whole = np.ones(len(self), np.bool_)
            whole[self._read_rows(range(len(self)), head, table)] = False
            self._table = table, whole
        table, whole = self._table
        if out.flags.c_contiguous:
            table.take(ids, axis=0, out=out, mode="clip")  # with "raise" NumPy copies twice
        else:
            out[...] = table[ids]
        return np.flatnonzero(~whole[ids]).tolist()

    def _read_rows(self, ids: Sequence[int], head: bytes, out: npt.NDArray[Any]) -> list[int]:
        """Like `read_rows`, from the shards."""
        nbytes = out.dtype.itemsize * math.prod(out.shape[1:])
        flat = out.reshape(-1).view(np.uint8).reshape(len(ids), nbytes)
        size = len(head) + nbytes
        stated = b"%011o" % size
        places = self._places[ids]
        if not self.in_memory:  # those are read once, for which nothing is compiled
            filled = self._fill_rows(places, stated, head, flat)
            if filled is not None:
                return np.flatnonzero(~filled).tolist()
        unread: list[int] = []
        before = memoryview(bytearray(BLOCK + len(head)))
        for row, (shard, stored, offset) in enumerate(places.tolist()):
            if shard >= 0 and stored == size:
                try:
                    got = os.preadv(self._handles.file(shard), [before, flat[row].data], offset - BLOCK)
                except OSError:
                    got = 0
                self._watch.read(shard)
                if got == BLOCK + size and before[_SIZE] == stated and before[BLOCK:] == head:
                    continue
            unread.append(row)
        return unread

    def _fill_rows(
        self, places: npt.NDArray[np.void], stated: bytes, head: bytes, out: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows of `out` [k, n] are filled, in one compiled call for all; None where machine code is not ready."""
        from fastimg.loaders.runtime.file_reads import fill_rows  # numba, which opening a dataset does not need

        before = np.zeros(BLOCK + len(head), np.uint8)
        before[_SIZE], before[BLOCK:] = np.frombuffer(stated, np.uint8), np.frombuffer(head, np.uint8)
        known = np.array([(_SIZE.start, _SIZE.stop), (BLOCK, len(before))])
        chosen = (places["shard"] >= 0) & (places["size"] == len(head) + out.shape[1])
        files = np.full(len(places), -1)
        numbers = places["shard"][chosen].tolist()
        opened = {number: self._handles.file(number) for number in set(numbers)}
        files[chosen] = [opened[number] for number in numbers]
        filled = fill_rows(files, places["offset"].astype(np.int64) - BLOCK, before, known, out)
        if filled is not None:
            for begin in range(0, len(numbers), EVERY):
                self._watch.read_group(numbers[begin : begin + EVERY])
        return filled

    @property
    def present(self) -> int:
        """The number of samples that have an array."""
        return int((self._places["shard"] >= 0).sum())

    def first_fault(self) -> tuple[str, str] | None:
        """(name, reason) of the first sample without an array; None if all have one."""
        absent = np.flatnonzero(self._places["shard"] < 0)
        if not len(absent):
            return None
        return self.sample_name(int(absent[0])), self._reasons.get(int(absent[0]), "it was left out")

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Does nothing: arrays are small and stay in the page cache."""

    def sample_name(self, index: int) -> str:
        """The name in the source."""
        return self.source.sample_name(index)

    def sample_key(self, index: int) -> str:
        """The name in the source."""
        return self.source.sample_key(index)

    def files(self) -> Sequence[Path]:
        """The shards of arrays."""
        return self._shards

    def close(self) -> None:
        """Close the shards, not the source. Reading opens them again."""
        self._handles.close()


class Views(WithFields):
    """Several array datasets over the same samples: epoch e reads number e modulo their count."""

    notes: Sequence[str] = ()

    def __init__(self, datasets: Sequence[ArrayDataset]) -> None:
        self._all = list(datasets)
        self._current = first = self._all[0]
        self.name = first.name
        self.classes = first.classes
        self.labels = first.labels
        self.content = first.content
        self.fingerprint = hashlib.sha256("".join(dataset.fingerprint for dataset in self._all).encode()).hexdigest()

    def set_epoch(self, epoch: int) -> None:
        """Choose the dataset of an epoch. The loader calls this when an epoch begins."""
        self._current = self._all[epoch % len(self._all)]

    def __len__(self) -> int:
        return len(self._current)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """Those of the source."""
        return self._current.targets

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """See ArrayDataset."""
        return self._current.read(index, scratch)

    @cached_property
    def in_memory(self) -> bool:
        """See ArrayDataset."""
        return all(dataset.in_memory for dataset in self._all)

    def read_rows(self, ids: Sequence[int], head: bytes, out: npt.NDArray[Any]) -> list[int]:
        """See ArrayDataset."""
        return self._current.read_rows(ids, head, out)

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """See ArrayDataset."""

    def sample_name(self, index: int) -> str:
        """See ArrayDataset."""
        return self._current.sample_name(index)

    def sample_key(self, index: int) -> str:
        """See ArrayDataset."""
        return self._current.sample_key(index)

    def files(self) -> Sequence[Path]:
        """See ArrayDataset."""
        return [file for dataset in self._all for file in dataset.files()]

    def close(self) -> None:
        """See ArrayDataset."""
        for dataset in self._all:
            dataset.close()
