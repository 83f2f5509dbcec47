"""The decoders of arrays: `.npy` files of one shape, and of token numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Field
from fastimg.loaders.containers.arrays import ArrayDataset, Views
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.npy import npy_array, npy_bytes
from fastimg.loaders.decoder import Decoder, Failure, Row, Rows, SampleReader
from fastimg.loaders.errors import ShardError, image_faults
from fastimg.loaders.runtime.scratch import Scratch

PAD = -1  # padding: not a token
MULTIPLE = 8  # a batch of tokens is as long as its longest text, rounded up to this


@dataclass(frozen=True)
class ArrayDecoder(Decoder):
    """A .npy of one shape and dtype -> `inputs`: a copy of its bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def fields(self) -> tuple[Field, ...]:
        """Only `inputs`."""
        return (Field("inputs", self.shape, self.dtype),)

    def in_memory(self, dataset: Dataset) -> bool:
        """See `Decoder`."""
        return isinstance(dataset, ArrayDataset | Views) and dataset.in_memory

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`: array datasets write straight into the rows; what they cannot is read one by one."""
        dataset = reader.dataset
        if not isinstance(dataset, ArrayDataset | Views):
            return super().fill(reader, ids, draws, rows, scratch)
        places = reader.timed(dataset.read_rows, ids, self.head, rows["inputs"])
        if not places:
            return []
        others = {name: array[places] for name, array in rows.items()}
        failures = super().fill(reader, [ids[place] for place in places], draws[places], others, scratch)
        for name, array in rows.items():
            array[places] = others[name]
        return [(places[number], error) for number, error in failures]

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`. Raises ShardError for another array: the store was written and checked by us."""
        head = self.head
        out = row["inputs"]
        if len(data) != len(head) + out.nbytes or data[: len(head)] != head:
            expected = f"{self.dtype.name} {list(self.shape)}"
            raise ShardError(f"an array that is not {expected}; delete the cache it comes from")
        out[...] = np.frombuffer(data[len(head) :], self.dtype).reshape(self.shape)

    @cached_property
    def head(self) -> bytes:
        """The header of the .npy files."""
        whole = npy_bytes(np.zeros(self.shape, self.dtype))
        return whole[: len(whole) - math.prod(self.shape) * self.dtype.itemsize]

    def present(self, inputs: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See `Decoder`."""
        return inputs

    def describe(self) -> str:
        """See `Decoder`."""
        return f"{self.dtype.name} arrays of {' x '.join(map(str, self.shape))}"


@dataclass(frozen=True)
class TokenDecoder(Decoder):
    """A .npy of token numbers -> `inputs` [length] int32, padded with PAD; a batch is cut to its longest text."""

    length: int

    @property
    def fields(self) -> tuple[Field, ...]:
        """Only `inputs`."""
        return (Field("inputs", (self.length,), np.dtype(np.int32), PAD),)

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        with image_faults():
            put_tokens(npy_array(data), row["inputs"])

    def present(self, inputs: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See `Decoder`."""
        return inputs[:, : longest(rows["inputs"])]

    def describe(self) -> str:
        """See `Decoder`."""
        return f"tokens, up to {self.length} a text"


def put_tokens(tokens: npt.NDArray[Any], row: npt.NDArray[Any]) -> None:
    """Write the tokens of a text into a row, followed by PAD. Tokens beyond the row's length are cut off."""
    count = min(len(tokens), len(row))
    row[:count] = tokens[:count]
    row[count:] = PAD


def longest(host: npt.NDArray[Any]) -> int:
    """Columns of tokens [B, L] that are used, rounded up to MULTIPLE."""
    used = int((host >= 0).any(axis=0).sum())
    return int(min(host.shape[1], max(MULTIPLE, -(-used // MULTIPLE) * MULTIPLE)))
