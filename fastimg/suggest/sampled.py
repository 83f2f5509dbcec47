"""Some samples of a dataset as a dataset of their own: what is looked at, and measured with, instead of all of it."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.data.datasets import DatasetPart
from fastimg.loaders import Dataset
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.runtime.scratch import Scratch

Ids = npt.NDArray[np.int64]


class SampledDataset:
    """The samples `ids` [N] of a dataset, numbered anew; closing it leaves the dataset open."""

    notes: Sequence[str] = ()

    def __init__(self, dataset: Dataset, ids: Ids) -> None:
        self.source = dataset
        self.ids = ids
        self.name = dataset.name
        self.content: Content = dataset.content
        self.classes = dataset.classes
        self.labels: Ids = dataset.labels[ids]
        self.targets: tuple[TargetColumn, ...] = tuple(column.select(ids) for column in dataset.targets)
        self.fingerprint = hashlib.sha256(dataset.fingerprint.encode() + ids.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The encoded sample. Raises DataError."""
        return self.source.read(int(self.ids[index]), scratch)

    @property
    def fields(self) -> Mapping[str, StoredField]:
        """Those of the dataset."""
        return self.source.fields

    def read_field(self, name: str, index: int) -> npt.NDArray[Any] | bytes | None:
        """The value of a sample, or None where it is missing. Raises DataError."""
        return self.source.read_field(name, int(self.ids[index]))

    def will_need(self, indices: Ids) -> None:
        """Ask the system to fetch these samples."""
        self.source.will_need(self.ids[indices])

    def sample_name(self, index: int) -> str:
        """The name of the sample in messages."""
        return self.source.sample_name(int(self.ids[index]))

    def sample_key(self, index: int) -> str:
        """The path or key that the sample had in its source."""
        return self.source.sample_key(int(self.ids[index]))

    def files(self) -> Sequence[Path]:
        """The files that hold the samples."""
        return self.source.files()

    def close(self) -> None:
        """Does nothing: whoever opened the dataset closes it."""


def sampled(part: DatasetPart, count: int, seed: int = 0) -> SampledDataset:
    """Up to `count` samples of a part, in the order of the dataset: one of each class, then a second, and so on."""
    ids = np.arange(len(part.dataset)) if part.indices is None else part.indices
    if len(ids) > count:
        drawn = np.random.default_rng(seed).permutation(ids)
        labels = part.dataset.labels[drawn]
        order = np.argsort(labels, kind="stable")
        turn = np.empty(len(drawn), np.int64)  # how many samples of its class come before it
        turn[order] = np.arange(len(drawn)) - np.searchsorted(labels[order], labels[order])
        ids = np.sort(drawn[np.argsort(turn, kind="stable")[:count]])
    return SampledDataset(part.dataset, ids)


def evenly(part: DatasetPart, count: int, seed: int = 0) -> SampledDataset:
    """Up to `count` samples of a part, drawn by `seed`, in the order of the dataset."""
    ids = np.arange(len(part.dataset)) if part.indices is None else part.indices
    if len(ids) > count:
        ids = np.sort(np.random.default_rng(seed).permutation(ids)[:count])
    return SampledDataset(part.dataset, ids)
