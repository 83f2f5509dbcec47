"""The texts beside the images of a split, as a dataset of texts."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.containers.watch import FileWatch, Handles, fill
from fastimg.loaders.errors import ImageError, ShardError
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

from .positions import kept_positions

NO_TEXT = "it has no text"
_REMEDY = "copy it again, or convert again"


class Captions:
    """The samples of `images`, each with the text beside it as its content: the same ids, labels and names.

    `has_image` and `has_text` [N] tell which inputs a sample has. `read` raises ImageError where there is no text.
    """

    content: Content = "text"
    notes: Sequence[str] = ()

    def __init__(self, images: Dataset, found: npt.NDArray[np.void]) -> None:
        if len(found) != len(images):
            raise ShardError(
                f"{images.name}: {plural(len(images), 'image')}, but {len(found):,} notes of samples; {_REMEDY}"
            )
        self.images = images
        self.name = images.name
        self.classes = images.classes
        self.labels = images.labels
        self.fingerprint = hashlib.sha256(f"{images.fingerprint} texts".encode()).hexdigest()
        self.has_image: npt.NDArray[np.bool_] = found["image"]
        self.has_text: npt.NDArray[np.bool_] = found["text"]
        self._found = found
        self._shards = list(images.files())
        self._fetched = fetched_files(images)
        here = self._shards if self._fetched is None else []
        self._watch = FileWatch(here, stated=getattr(images, "contents", None) if here else None)
        self._handles = Handles(here, self._watch, _REMEDY)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """Those of the images."""
        return self.images.targets

    @property
    def fields(self) -> Mapping[str, StoredField]:
        """Those of the images."""
        return self.images.fields

    def read_field(self, name: str, index: int) -> npt.NDArray[Any] | bytes | None:
        """See Dataset."""
        return self.images.read_field(name, index)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The bytes of a text. Raises ImageError if the sample has none, and ShardError if its shard has changed."""
        offset, size, shard, _, there = self._found[index].item()
        if not there:
            raise ImageError(NO_TEXT)
        view = scratch.encoded(size)
        if self._fetched is not None:
            self._fetched.fill(shard, view, offset)
            return view
        try:
            fill(self._handles.file(shard), view, offset)
        except (OSError, EOFError) as error:
            self._watch.look(shard)  # its error may be more precise
            raise ShardError(f"{self._shards[shard]}: cannot be read ({error}); {_REMEDY}") from error
        self._watch.read(shard)
        return view

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Does nothing: a text lies beside its image."""

    def sample_name(self, index: int) -> str:
        """The name of the image."""
        return self.images.sample_name(index)

    def sample_key(self, index: int) -> str:
        """The key of the image."""
        return self.images.sample_key(index)

    def files(self) -> Sequence[Path]:
        """The shards."""
        return self._shards

    def close(self) -> None:
        """Close the shards for texts; the images stay open. Reading opens them again."""
        self._handles.close()


def captions_of(path: Path, images: Dataset) -> Captions | None:
    """The texts beside the images of a split of the dataset at `path`; None if its dataset.json names no text.

    Raises ShardError.
    """
    if not (path / "dataset.json").exists() or "text" not in read_description(path).get("inputs", ()):
        return None
    shards = getattr(images, "shard_files", None)
    if shards is None:  # a .beton
        lengths = np.array([file.stat().st_size for file in images.files()], np.uint64)
        return Captions(images, kept_positions(path, images.fingerprint, images.files(), lengths))
    return Captions(images, kept_positions(path, images.fingerprint, shards.present(), shards.lengths))
