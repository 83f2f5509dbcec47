"""Arrays as samples: class folders and manifests of .npy and TIFF files [C, H, W], without images beside them.

The array is stored as the field that --image-field names. Every container has an image for each sample, so a preview of
the array stands in its place: a JPEG of its height and width, which `inspect` and other programs show. The number of
bands and their type are those of most files; a file of others is skipped as a damaged one is, by name.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

from fastimg.convert.sources.samples import Original, Source, SourceEntry, SourceReader, WrappingReader
from fastimg.convert.stored.heads import head_of
from fastimg.errors import UsageError
from fastimg.loaders.containers.fields import DTYPES, StoredField, packed_npy
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.folders.bands import bands_head, read_bands
from fastimg.loaders.folders.folder import Mapped
from fastimg.loaders.remote.trees import tree_of
from fastimg.wording import plural

from .reader import FieldsReader

_QUALITY = 90  # of previews
_SIDE = 65_535  # pixels, of a JPEG
_LISTED = 256  # files whose heads are read at a time; in a store each is a request, or two


class ArrayHead(NamedTuple):
    """What the beginning of a file says."""

    shape: tuple[int, int, int]  # [C, H, W]
    dtype: str

    @property
    def kind(self) -> tuple[int, str]:
        """The number of bands and their type, which all samples of a dataset share."""
        return self.shape[0], self.dtype


class ArrayFilesReader(WrappingReader):
    """Reads files of arrays, which `reader` reads as bytes, as previews with the field `schema`."""

    def __init__(self, reader: SourceReader, schema: StoredField) -> None:
        super().__init__(reader)
        self._schema = schema

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        original = self.reader.read(entry)
        assert isinstance(original.image, bytes)
        schema = self._schema
        bands = read_bands(original.image, entry.path)
        if (len(bands), bands.dtype.name) != (schema.shape[0], schema.dtype):
            found, usual = (
                f"{plural(count, 'band')} of {dtype}"
                for count, dtype in ((len(bands), bands.dtype.name), (schema.shape[0], schema.dtype))
            )
            raise ImageError(f"holds {found}, and most of the files {usual}")
        if not schema.varies and bands.shape != schema.shape:
            raise ImageError("changed after the source was listed")
        return Original(preview(bands), "jpg", original.note, {schema.member: packed_npy(bands)})


def preview(bands: npt.NDArray[Any]) -> bytes:
    """A JPEG that shows an array [C, H, W]: the first three bands as red, green and blue, or the first one as gray.

    Values of uint8 are shown as they are, all others between the lowest and the highest finite one of these bands.
    Raises ImageError for a side that a JPEG cannot have.
    """
    shown = bands[:3] if len(bands) >= 3 else bands[:1]
    if max(shown.shape) > _SIDE:
        raise ImageError(f"a side of more than {_SIDE} pixels, which its preview, a JPEG, cannot have")
    if shown.dtype != np.uint8:
        values = shown.astype(np.float64)
        finite = np.isfinite(values)
        low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
        scale = 255 / (high - low) if high > low else 0.0
        shown = np.where(finite, np.rint((np.where(finite, values, low) - low) * scale), 0).astype(np.uint8)
    pixels = np.ascontiguousarray(shown.transpose(1, 2, 0))
    space, sampling = ("RGB", "444") if len(shown) == 3 else ("GRAY", "Gray")
    jpeg: bytes = simplejpeg.encode_jpeg(pixels, _QUALITY, space, sampling)
    return jpeg


def with_arrays(source: Source, root: Path, name: str, mapped: Mapped) -> Source:
    """`source`, whose files below `root` are arrays, with the field `name` and previews for images.

    `mapped` calls a function for each of several lists of files, as `map` does. Raises DataError where no file holds an
    array, UsageError for a name that another field or target has.
    """
    taken = {field.name for field in source.stored_fields} | {target.name for target in source.targets}
    if name in taken:
        raise UsageError(f"--image-field {name}: {source.src} has another field or target of this name; choose another")
    schema = _schema(source, root, name, mapped)
    (reader,) = source.readers
    if isinstance(reader, FieldsReader):  # which needs the preview, as the image that its fields go along
        reader.reader = ArrayFilesReader(reader.reader, schema)
    else:
        reader = ArrayFilesReader(reader, schema)
    told = f"{source.src}: its files are arrays, stored as the field {name!r}; the image of each is a preview of it"
    return replace(
        source,
        readers=(reader,),
        fields=(*source.fields, schema.member),
        stored_fields=(*source.stored_fields, schema),
        previewed=name,
        remarks=(*source.remarks, told),
    )


def _schema(source: Source, root: Path, name: str, mapped: Mapped) -> StoredField:
    """The field that most files make. Raises DataError where no file holds an array."""
    entries = [entry for split in source.splits.values() for entry in split if entry.size >= 0]
    count = _LISTED if tree_of(root) is None else 1
    parts = [[entry.path for entry in entries[start : start + count]] for start in range(0, len(entries), count)]
    heads: Iterator[ArrayHead | str] = (head for part in mapped(partial(_heads, root), parts) for head in part)
    kinds: Counter[tuple[int, str]] = Counter()
    sizes: dict[tuple[int, str], set[tuple[int, int]]] = {}
    fault = "no such file"
    for head in heads:
        if isinstance(head, str):
            fault = head
            continue
        kinds[head.kind] += 1
        sizes.setdefault(head.kind, set()).add(head.shape[1:])
    if not kinds:
        raise DataError(
            f"{source.src}: none of its {plural(len(entries), 'file')} holds an array (the last one: {fault}); leave "
            "out --image-field for images"
        )
    bands, dtype = kind = kinds.most_common(1)[0][0]  # of equally many the first
    if dtype not in DTYPES:
        raise DataError(f"{source.src}: its arrays hold {dtype}; give one of {', '.join(DTYPES)}")
    height, width = next(iter(sizes[kind])) if len(sizes[kind]) == 1 else (0, 0)
    return StoredField(name=name, kind="array", dtype=dtype, shape=(bands, height, width), geometry="bands")


def _heads(root: Path, paths: list[str]) -> list[ArrayHead | str]:
    """What the files hold, or why they cannot be read."""
    found: list[ArrayHead | str] = []
    for path in paths:
        try:
            found.append(ArrayHead(*head_of(root / path, path, bands_head)))
        except ImageError as error:
            found.append(f"{path}: {error}")
    return found
