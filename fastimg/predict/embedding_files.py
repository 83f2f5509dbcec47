"""Files of embeddings: tars of .npy, one .npy per split, or Parquet. A file appears complete or not at all."""

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fastimg.errors import printable
from fastimg.loaders.containers.arrays import ArrayDataset
from fastimg.loaders.containers.atomic import replace_file, temporary
from fastimg.loaders.containers.npy import npy_array, npy_bytes
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path
from fastimg.loaders.errors import ImageError
from fastimg.loaders.runtime.scratch import Scratch

_SHARD = 65536  # samples in a tar
_ROWS = 4096  # of a Parquet file, written together


class Vector(NamedTuple):
    """The embedding of a sample."""

    number: int  # of the sample in its split
    key: str
    label: int  # -1: none
    values: npt.NDArray[Any]


class Vectors:
    """The embeddings of a split, in order, scaled to length 1 if `normalize` is set.

    After iterating, `left_out` maps the indices of samples without an embedding to the reasons.
    """

    def __init__(self, split: str, arrays: ArrayDataset, normalize: bool) -> None:
        self.split = split
        self.classes = arrays.classes
        self.left_out: dict[int, str] = {}
        self._arrays = arrays
        self._normalize = normalize

    def __len__(self) -> int:
        """The number of samples with an embedding."""
        return self._arrays.present

    def __iter__(self) -> Iterator[Vector]:
        scratch = Scratch()
        labels = self._arrays.labels.tolist()
        for index in range(len(self._arrays)):
            try:
                values = npy_array(self._arrays.read(index, scratch))
            except ImageError as error:
                self.left_out[index] = str(error)
                continue
            if self._normalize:
                length = np.linalg.norm(values.astype(np.float64))
                values = (values / max(float(length), 1e-12)).astype(values.dtype)
            yield Vector(index, printable(self._arrays.sample_key(index)), labels[index], values)

    def name_of(self, index: int) -> str:
        """A sample's name, for messages."""
        return printable(self._arrays.sample_name(index))


def write_tars(folder: Path, vectors: Vectors) -> list[Path]:
    """Write `train-00000.tar`, with `000000017.npy`, `.cls` and `.json` (the key is its `path`), and DALI's index."""
    files: list[Path] = []
    rows = iter(vectors)
    while first := next(rows, None):
        path = folder / f"{vectors.split}-{len(files) // 2:05d}.tar"
        with ShardWriter(path) as writer:
            for row in chain([first], islice(rows, _SHARD - 1)):
                fields = {"npy": npy_bytes(row.values)}
                if row.label >= 0:
                    fields["cls"] = str(row.label).encode()
                writer.add(f"{row.number:09d}", fields | {"json": json.dumps({"path": row.key}).encode()})
        files += [path, index_path(path)]
    return files


def write_npy(folder: Path, vectors: Vectors) -> list[Path]:
    """Write `train.npy` [N, ...], `train.labels.npy` int64 [N], and `train.keys.json`, a list."""
    paths = [folder / f"{vectors.split}.{end}" for end in ("npy", "labels.npy", "keys.json")]
    keys: list[str] = []
    labels: list[int] = []
    rows = iter(vectors)
    if (first := next(rows, None)) is None:
        return []
    # Written in pieces: with mapped memory, a full disk would kill the process instead of raising an error.
    with temporary(paths[0]).open("wb") as file:
        shape = (len(vectors), *first.values.shape)
        descr = np.lib.format.dtype_to_descr(first.values.dtype)
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        for row in chain([first], rows):
            file.write(row.values.tobytes())
            labels.append(row.label)
            keys.append(row.key)
    replace_file(paths[1], npy_bytes(np.array(labels, np.int64)))
    replace_file(paths[2], json.dumps(keys).encode())
    temporary(paths[0]).replace(paths[0])
    return paths


def write_parquet(folder: Path, vectors: Vectors) -> list[Path]:
    """Write `train.parquet` with the columns key, label, class and embedding, a flattened list of fixed size."""
    path = folder / f"{vectors.split}.parquet"
    writer = None
    rows: list[Vector] = []
    classes = [printable(name) for name in vectors.classes]

    def flush() -> None:
        nonlocal writer
        values = np.stack([row.values.reshape(-1) for row in rows])
        table = pa.table(
            {
                "key": [row.key for row in rows],
                "label": pa.array([row.label for row in rows], pa.int64()),
                "class": [classes[row.label] if row.label >= 0 else None for row in rows],
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1]),
            }
        )
        writer = writer or pq.ParquetWriter(temporary(path), table.schema)
        writer.write_table(table)
        rows.clear()

    for row in vectors:
        rows.append(row)
        if len(rows) == _ROWS:
            flush()
    if rows:
        flush()
    if writer is None:
        return []
    writer.close()
    temporary(path).replace(path)
    return [path]
