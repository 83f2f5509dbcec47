"""Small datasets and decoders for loaders, and batches as values."""

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fastimg.loaders import Batch, FilesDataset, Loader, LoaderConfig, open_dataset
from fastimg.loaders.batch import Field
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.decoder import Decoder, Row
from fastimg.loaders.random import uniforms
from fastimg.loaders.runtime.scratch import Scratch


class Numbers:
    """A dataset whose sample i contains the number i."""

    classes: tuple[str, ...] = ()

    def __init__(self, n: int, name: str = "numbers") -> None:
        self.name, self.fingerprint = name, f"{name} {n}"
        self.labels = np.arange(n) * 10

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        view = scratch.encoded(8)
        view[:] = int(index).to_bytes(8, "little")
        return view

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        pass

    def sample_name(self, index: int) -> str:
        return f"{self.name}/{index}"

    def close(self) -> None:
        pass


class Stamp(Decoder):
    """A decoder that writes the sample's number and its first draw."""

    fields = (Field("inputs", (1, 2, 3), np.dtype(np.uint8)),)

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return uniforms(seed, epoch, ids, 1, 2)

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        number = int.from_bytes(data, "little")
        row["inputs"][...] = [number % 256, number // 256, int(draws[0] * 256)]


class Faulty(Stamp):
    """A decoder that raises `error` on some numbers."""

    def __init__(self, error: BaseException, *numbers: int) -> None:
        self.error, self.numbers = error, numbers

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        super().fill_row(data, draws, row, scratch)
        if int.from_bytes(data, "little") in self.numbers:
            raise self.error


class Frozen(NamedTuple):
    """A batch as bytes and lists, independent of the loader's memory."""

    ids: list[int]
    targets: list[int]
    weight: list[float]
    samples: int
    inputs: bytes


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """A loader without a seed takes torch's, which would be another one in every run."""
    torch.manual_seed(0)


@pytest.fixture
def numbers() -> type[Numbers]:
    """`numbers(n)`: a dataset of n samples."""
    return Numbers


@pytest.fixture
def stamp() -> type[Stamp]:
    """A decoder of `numbers`, to be subclassed."""
    return Stamp


@pytest.fixture
def faulty() -> type[Faulty]:
    """`faulty(error, *numbers)`: a decoder that raises the error on these numbers."""
    return Faulty


@pytest.fixture
def files(tmp_path: Path, encode: Callable[..., bytes]) -> FilesDataset:
    """23 images of different sizes, JPEG and PNG, with labels of three classes."""
    names = []
    for i in range(23):
        kind = "PNG" if i % 4 == 3 else "JPEG"
        names.append(f"{i:02d}.{kind.lower()}")
        (tmp_path / names[-1]).write_bytes(encode((10 * i, 90, 200 - 5 * i), (40 + i, 60 - i), seed=i, kind=kind))
    return FilesDataset(tmp_path, names, ("a", "b", "c"), [i % 3 for i in range(23)])


@pytest.fixture
def spoil() -> Callable[..., Path]:
    """`spoil(files, index, content)`: make a file invalid. Returns its path."""

    def write(files: FilesDataset, index: int, content: bytes = b"\xff\xd8 not really") -> Path:
        path = Path(files.sample_name(index))
        path.write_bytes(content)
        return path

    return write


def build_loader(
    dataset: Dataset, decoder: Decoder | None = None, indices: npt.NDArray[np.int64] | None = None, **options: Any
) -> Loader:
    config = LoaderConfig(**{"batch_size": 4, "workers": 2} | options)
    return Loader(dataset, decoder or Stamp(), config, indices=indices)


def frozen_batch(batch: Batch) -> Frozen:
    inputs = batch.inputs.numpy().transpose(0, 2, 3, 1).tobytes()
    return Frozen(batch.ids.tolist(), batch.targets.tolist(), batch.weight.tolist(), batch.samples, inputs)


@pytest.fixture
def build() -> Callable[..., Loader]:
    """`build(dataset, decoder, indices, **options)`: the native loader, batches of 4 by two threads."""
    return build_loader


@pytest.fixture
def frozen() -> Callable[[Batch], Frozen]:
    """`frozen(batch)`: the batch as a value."""
    return frozen_batch


@pytest.fixture
def read() -> Callable[[Iterable[Batch]], list[Frozen]]:
    """`read(loader)`: one epoch, or the rest of it."""
    return lambda loader: [frozen_batch(batch) for batch in loader]


@pytest.fixture
def run() -> Callable[..., list[Frozen]]:
    """`run(dataset, decoder, epochs, **options)`: all batches of a loader, which is closed afterwards."""

    def read_all(dataset: Dataset, decoder: Decoder | None = None, epochs: int = 1, **options: Any) -> list[Frozen]:
        loader = build_loader(dataset, decoder, **options)
        try:
            return [frozen_batch(batch) for _ in range(epochs) for batch in loader]
        finally:
            loader.close()

    return read_all


@pytest.fixture
def real() -> Callable[[list[Frozen]], list[int]]:
    """`real(batches)`: the ids of weight 1, in order."""
    return lambda batches: [i for batch in batches for i, w in zip(batch.ids, batch.weight, strict=True) if w]


@pytest.fixture
def pixels_by_id() -> Callable[[list[Frozen]], dict[int, bytes]]:
    """`pixels_by_id(batches)`: pixels of the samples of weight 1, each of which occurs once."""

    def collect(batches: list[Frozen]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for ids, _, weight, _, inputs in batches:
            size = len(inputs) // len(ids)
            for row, (i, w) in enumerate(zip(ids, weight, strict=True)):
                if w:
                    assert i not in found
                    found[i] = inputs[row * size : (row + 1) * size]
        return found

    return collect


@pytest.fixture
def threads() -> Callable[[], list[str]]:
    """`threads()`: names of the running loader threads."""
    return lambda: [thread.name for thread in threading.enumerate() if thread.name.startswith("fastimg-loader")]


def list_open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return sorted(path for path in found if path.startswith("/") and not path.startswith(("/proc", "/dev")))


@pytest.fixture
def open_files() -> Callable[[], list[str]]:
    """`open_files()`: paths of the open descriptors, except those of pytest and of this listing."""
    return list_open_files


@pytest.fixture
def files_given_back() -> Iterator[None]:
    """Every test closes its files."""
    before = Counter(list_open_files())
    yield
    if Counter(list_open_files()) - before:
        gc.collect()  # takes a while, so only where something is open that may just not be collected yet
    assert not Counter(list_open_files()) - before


class Numbering:
    """A preparation that writes the keys of a batch, and three words more."""

    def count_words(self, rows: int, shape: tuple[int, ...]) -> int:
        return rows + 3

    def make(
        self, keys: npt.NDArray[np.int64], seed: int, epoch: int, shape: tuple[int, ...], words: npt.NDArray[np.int32]
    ) -> object:
        words[: len(keys)] = keys
        words[len(keys) : len(keys) + 3] = 77
        return seed, epoch, shape


@pytest.fixture
def numbering() -> Numbering:
    """A preparation of batches: its words are their keys."""
    return Numbering()


@pytest.fixture
def folder(tmp_path):
    """Writes pictures, of any format, to a folder of one class, and opens it."""

    def write(files):
        place = tmp_path / "images" / "a"
        place.mkdir(parents=True)
        for number, data in enumerate(files):
            (place / f"{number:04}.png").write_bytes(data)
        return open_dataset(place.parent)

    return write
