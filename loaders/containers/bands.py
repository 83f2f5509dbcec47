"""A dataset whose samples are the arrays of one of its fields, in place of their images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.scratch import Encoded, Scratch

from .content import Content
from .datasets import Dataset
from .fields import SplitFields, StoredField, no_field, packed_npy
from .targets import TargetColumn

TYPES = ("uint8", "uint16", "float32")  # of bands that a model can read


class StoredBands(NamedTuple):
    """How arrays are stored that are read as encoded samples; a height and a width of 0 are those that each states."""

    height: int = 0
    width: int = 0
    headed: bool = True  # whether they are .npy files, not their values alone
    may_be_flat: bool = True  # whether [H, W] is a band


def bands_of(dataset: Dataset, name: str) -> StoredField:
    """The schema of the field `name`, which holds bands [C, H, W]. Raises DataError if there is none."""
    schema = dataset.fields.get(name)
    if schema is None:
        raise no_field(dataset.name, name, dataset.fields)
    if schema.kind != "array" or len(schema.shape) != 3:
        raise DataError(
            f"{dataset.name}: the field {name!r} is {_article(schema.kind)}, and images are arrays [C, H, W]; name "
            f"another field, or convert it as {name}:bands"
        )
    if schema.dtype not in TYPES:
        raise DataError(
            f"{dataset.name}: the field {name!r} holds {schema.dtype}, and images are {', '.join(TYPES)}; convert it "
            "from files of such a type"
        )
    return schema


def _is_plain(dataset: Dataset, name: str) -> bool:
    """Whether a field's arrays are stored without the header of an .npy file."""
    fields: SplitFields | None = getattr(dataset, "stored", None)
    return fields is not None and fields.is_plain(name)


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else kind if kind == "bytes" else f"a {kind}"


class BandsDataset:
    """The samples of `source` with the bands of the field `name` as content: an .npy file each.

    Raises DataError as `bands_of` does.
    """

    content: Content = "images"

    def __init__(self, source: Dataset, name: str) -> None:
        self.source = source
        self.schema = bands_of(source, name)
        self.name = source.name
        self.classes = source.classes
        self.labels = source.labels
        self.notes = source.notes
        _, height, width = self.schema.shape
        self.arrays = StoredBands(height, width, not _is_plain(source, name), may_be_flat=False)
        self._own = name

    def __len__(self) -> int:
        return len(self.source)

    def read_array(self, index: int) -> npt.NDArray[Any]:
        """The bands [C, H, W] of a sample. Raises ImageError if it has none, and DataError."""
        value = self.source.read_field(self._own, index)
        if value is None:
            raise ImageError(f"it has no field {self._own!r}")
        assert not isinstance(value, bytes)
        return value

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """See Dataset: an .npy file."""
        return memoryview(packed_npy(self.read_array(index)))

    def read_group(self, indices: Sequence[int], encoded: Encoded) -> None:
        """Read several arrays as they are stored, `self.arrays`, but those that have to be read by `read_array`."""
        read = getattr(self.source, "read_fields", None)
        if read is not None:
            read(self._own, indices, encoded)

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """See Dataset: whole shards that are fetched hold the fields, too; local images are not read."""
        if fetched_files(self) is not None:
            self.source.will_need(indices)

    @property
    def shard_files(self) -> object:
        """What reads the shards of the source, or fetches them; None if it has none."""
        return getattr(self.source, "shard_files", None)

    @property
    def shard_numbers(self) -> npt.NDArray[np.int64] | None:
        """The shard of each sample of the source [N]; None if it has none."""
        found: npt.NDArray[np.int64] | None = getattr(self.source, "shard_numbers", None)
        return found

    def sample_name(self, index: int) -> str:
        """See Dataset."""
        return self.source.sample_name(index)

    def sample_key(self, index: int) -> str:
        """See Dataset."""
        return self.source.sample_key(index)

    def files(self) -> Sequence[Path]:
        """See Dataset."""
        return self.source.files()

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """See Dataset."""
        return self.source.targets

    @property
    def fields(self) -> Mapping[str, StoredField]:
        """See Dataset."""
        return self.source.fields

    def read_field(self, name: str, index: int) -> npt.NDArray[Any] | bytes | None:
        """See Dataset."""
        return self.source.read_field(name, index)

    @property
    def fingerprint(self) -> str:
        """See Dataset: another one than that of the images."""
        return f"{self.source.fingerprint} {self._own}"

    def close(self) -> None:
        """Close the source."""
        self.source.close()
