"""Hugging Face's `Dataset` with a column of images -> samples that are read where Arrow has mapped them.

Neither `datasets` nor pyarrow is imported: a column's buffers are memory, of which a sample is a part.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.errors import ImageError
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.wording import plural

_LABELS = ("label", "labels")


class _Chunk(NamedTuple):
    """Consecutive rows of a column of images."""

    data: memoryview  # the bytes of all
    ends: npt.NDArray[Any]  # [rows + 1], of each row's bytes within `data`
    path: Callable[[int], str | None]  # of a row


class ArrowImages(WithFields):
    """The images of a Hugging Face `Dataset`, in its order, as they are stored: nothing is decoded by Pillow.

    A row without bytes is the file that its path names.
    """

    content: Content = "images"
    notes: Sequence[str] = ()

    def __init__(
        self,
        owner: Any,
        name: str,
        classes: tuple[str, ...],
        chunks: Sequence[_Chunk],
        rows: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64],
    ) -> None:
        """`owner` is the Dataset; `rows` [N] are the places of the samples in the chunks, and `labels` theirs."""
        self.owner = owner
        self.name = name
        self.classes = classes
        self.labels = labels
        self._chunks = chunks
        self._rows = rows
        self._starts = np.cumsum([0, *(len(chunk.ends) - 1 for chunk in chunks)])  # the first row of each, and the end

    @property
    def transform(self) -> Any:
        """torchvision's, that `set_transform` has set. Raises TypeError for a function, which would not be called."""
        form = self.owner.format
        found = form["format_kwargs"].get("transform") if form["type"] == "custom" else None
        if found is None or type(found).__module__.startswith("torchvision.transforms."):
            return found
        raise TypeError(
            f"ImageFolderLoader: the {type(self.owner).__name__} has a function of with_transform or set_transform, "
            f"{getattr(found, '__name__', type(found).__name__)}, which would not be called; give "
            "dataset.with_format(None), and torchvision's transform of an image to the loader"
        )

    def __len__(self) -> int:
        return len(self._rows)

    def taken(self, ids: npt.NDArray[np.int64]) -> "ArrowImages":
        """Samples of these, some of them perhaps several times."""
        return ArrowImages(self.owner, self.name, self.classes, self._chunks, self._rows[ids], self.labels[ids])

    def followed_by(self, others: Sequence["ArrowImages"]) -> "ArrowImages":
        """These samples and then those of the others."""
        parts = [self, *others]
        starts = np.cumsum([0, *(part._starts[-1] for part in parts)]).tolist()
        rows = np.concatenate([part._rows + start for part, start in zip(parts, starts, strict=False)])
        chunks = [chunk for part in parts for chunk in part._chunks]
        labels = np.concatenate([part.labels for part in parts])
        return ArrowImages(self.owner, self.name, self.classes, chunks, rows, labels)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The class."""
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def _found(self, index: int) -> tuple[_Chunk, int]:
        """The chunk of a sample, and its row there."""
        row = self._rows[index]
        number = int(np.searchsorted(self._starts, row, "right")) - 1
        return self._chunks[number], int(row - self._starts[number])

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """See Dataset. Raises ImageError for a row that has no image."""
        chunk, row = self._found(index)
        begin, end = chunk.ends[row : row + 2].tolist()
        if begin < end:
            view = scratch.encoded(end - begin)
            view[:] = chunk.data[begin:end]
            return view
        if (path := chunk.path(row)) is None:
            raise ImageError("the row has neither bytes nor a path")
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ImageError(error.strerror or str(error)) from error
        view = scratch.encoded(len(content))
        view[:] = content
        return view

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Does nothing: Arrow has mapped the files, which the system reads ahead."""

    def sample_name(self, index: int) -> str:
        """The name of the column, and the row as Arrow has it; its path, if there is one."""
        chunk, row = self._found(index)
        path = chunk.path(row)
        return f"{self.name}[{int(self._rows[index])}]" + (f" ({path})" if path else "")

    def sample_key(self, index: int) -> str:
        """The path of the image, or its row."""
        chunk, row = self._found(index)
        return chunk.path(row) or str(int(self._rows[index]))

    def files(self) -> Sequence[Path]:
        """Arrow's."""
        return [Path(os.fspath(file["filename"])) for file in self.owner.cache_files]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the size of an image, a label or the order does."""
        digest = hashlib.sha256(self.labels.tobytes() + self._rows.tobytes())
        for chunk in self._chunks:
            digest.update(np.diff(chunk.ends).astype(np.int64).tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Does nothing: the files are Arrow's."""


def is_hugging_face(data: Any) -> bool:
    """Whether data is of `datasets`, of which it may be a kind that is refused."""
    return any(kind.__module__.split(".")[0] == "datasets" for kind in type(data).__mro__)


def arrow_images(data: Any) -> ArrowImages:
    """The images and classes of a Hugging Face `Dataset`. Raises TypeError, with the way out, for what has none."""
    kind = type(data).__name__
    if isinstance(data, dict):
        first = next(iter(data), "train")
        raise TypeError(
            f"ImageFolderLoader: a {kind} has splits ({', '.join(data)}), each with samples of its own; give one of "
            f"them, as in data[{first!r}]"
        )
    if not hasattr(data, "_indices") or not hasattr(data, "data"):
        raise TypeError(
            f"ImageFolderLoader: a {kind} of Hugging Face is a stream, of which nothing can be read out of turn; load "
            "it without streaming=True, or make a Dataset of it by Dataset.from_generator"
        )
    image = _one(data, "Image", [name for name, kind in data.features.items() if type(kind).__name__ == "Image"])
    if getattr(data.features[image], "mode", None) not in (None, "RGB"):
        raise TypeError(f"ImageFolderLoader: decodes images as RGB; give Image() without mode to the column {image}")
    classes = [name for name, kind in data.features.items() if type(kind).__name__ == "ClassLabel"]
    if not classes:
        classes = [name for name in _LABELS if getattr(data.features.get(name), "dtype", "").startswith("int")]
    return _made(data, image, _one(data, "ClassLabel", classes, image))


def _made(data: Any, image: str, label: str) -> ArrowImages:
    """The samples of a Dataset, of which these are the names of two columns."""
    column = data.data.column(label)
    if column.null_count:
        raise TypeError(
            f"ImageFolderLoader: {label} is missing in {plural(column.null_count, 'row')}; leave them out, as in "
            f'dataset.filter(lambda label: label is not None, input_columns="{label}")'
        )
    labels, chunks = _numbers(column), [_chunk(array) for array in data.data.column(image).chunks]
    rows = np.arange(len(labels), dtype=np.int64)
    if data._indices is not None:  # after shuffle, select, filter, ...
        rows = _numbers(data._indices.column(0))
    classes = tuple(getattr(data.features[label], "names", None) or ())
    return ArrowImages(data, f"{type(data).__name__} {image}", classes, chunks, rows, labels[rows])


def _numbers(column: Any) -> npt.NDArray[np.int64]:
    """A column of whole numbers."""
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(chunk, np.int64) for chunk in column.chunks)])


def _one(data: Any, kind: str, names: list[str], *others: str) -> str:
    """The only column of a kind, or the one that is called as the label usually is."""
    usual = [name for name in names if name in _LABELS]
    if len(names) == 1 or len(usual) == 1:
        return (names if len(names) == 1 else usual)[0]
    have = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in data.features.items())
    if names:
        columns = [*others, names[0]]
        raise TypeError(
            f"ImageFolderLoader: several columns are of {kind}: {', '.join(names)}; keep one of them, as in "
            f"dataset.select_columns({columns!r})"
        )
    remedy = "cast_column(name, Image())" if kind == "Image" else "class_encode_column(name)"
    raise TypeError(f"ImageFolderLoader: no column is of {kind}, of {have}; give dataset.{remedy}")


def _chunk(array: Any) -> _Chunk:
    """The rows of an array of structs {bytes, path}, whose memory it keeps."""
    content, paths = array.field("bytes"), array.field("path")
    if str(content.type) != "large_binary" and str(content.type) != "binary":
        content = content.cast("large_binary")
    kind = np.int32 if str(content.type) == "binary" else np.int64
    _, ends, data = content.buffers()
    ends = np.zeros(1, kind) if ends is None else np.frombuffer(ends, kind)
    held = memoryview(b"") if data is None else memoryview(data).cast("B")
    return _Chunk(held, ends[content.offset : content.offset + len(content) + 1], lambda row: paths[row].as_py())
