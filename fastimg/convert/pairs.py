"""Manifests whose rows have an image and a text: the image is the sample, the text its field `txt`.

Either may be missing in a row. A sample without an image is stored with a blank one, so that every reader can read its
shard, and its note says that the image is missing; a sample without a text has no text member. A row with neither is
listed with that problem, and skipped or refused when it is read. Texts are part of the listing, which stays in memory.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from fastimg.convert.sources.columns import PATH_COLUMNS, Columns, find_column
from fastimg.convert.sources.labels import is_empty
from fastimg.convert.sources.manifests import NO_IMAGE, first_row, read_manifest
from fastimg.convert.sources.samples import (
    Original,
    SamplePart,
    Source,
    SourceEntry,
    SourceReader,
    WrappingReader,
    note,
)
from fastimg.convert.sources.tables import later_names, long_fields, readable, table_rows
from fastimg.errors import UsageError
from fastimg.loaders.captions.positions import FIELD, MISSING, missing_counts, positions
from fastimg.loaders.folders.formats import image_extensions

INPUTS = ("image", "text")
NEITHER = "neither an image nor a text"
_SAMPLED_ROWS = 100  # searched for the path of an image


@cache
def blank() -> bytes:
    """A grey JPEG of 32 x 32 pixels, which stands where an image is missing."""
    jpeg: bytes = simplejpeg.encode_jpeg(np.full((32, 32, 1), 128, np.uint8), 90, "GRAY", "Gray")
    return jpeg


class PairReader(WrappingReader):
    """Reads the images that `reader` reads, with the texts of the column `text` as fields."""

    def __init__(self, reader: SourceReader, text: str) -> None:
        super().__init__(reader)
        self._text = text

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        extra = dict(entry.extra or {})
        text = extra.pop(self._text, None)
        fields = {} if is_empty(text) else {FIELD: str(text).encode()}
        if entry.place == NO_IMAGE:
            return Original(blank(), "jpg", note(entry.path, extra | {MISSING: ["image"]}), fields)
        return self.reader.read(entry._replace(extra=extra))._replace(fields=fields)

    def announce(self, entry: SourceEntry) -> int:
        """See FetchingReader."""
        return super().announce(entry) if entry.place != NO_IMAGE else 0

    def parts(self, entry: SourceEntry) -> Iterable[SamplePart]:
        """See SourceReader."""
        return super().parts(entry) if entry.place != NO_IMAGE else ()

    def problem(self, entry: SourceEntry) -> str | None:
        """See SourceReader."""
        text = (entry.extra or {}).get(self._text)
        if is_empty(text):
            return NEITHER if entry.place == NO_IMAGE else self.reader.problem(entry)
        if not isinstance(text, str):
            return f"its text is {'a number' if isinstance(text, int | float) else 'a list or an object'}"
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a pair in JSON
            return "its text is not UTF-8"
        return self.reader.problem(entry)


def holds_pairs(src: Path, columns: Columns) -> bool:
    """Whether the rows of a manifest have images and texts: both columns are given, or only that of texts, and a column
    with a usual name for images names an image in one of the first rows. Raises DataError.
    """
    if columns.text is None:
        return False
    if columns.path is not None:
        return True
    if columns.no_header:
        return False
    extensions = image_extensions()
    with readable(src), long_fields():
        rows = table_rows(src, columns.delimiter or "", strict=False)
        for (_, row), _ in zip(rows, range(_SAMPLED_ROWS), strict=False):
            others = {name: value for name, value in row.items() if name != columns.text}
            named = [value for name, value in others.items() if name.strip().lower() in PATH_COLUMNS]
            if any(isinstance(path, str) and os.path.splitext(path.strip())[1].lower() in extensions for path in named):
                return True
    return False


def read_pairs(src: Path, columns: Columns) -> Source:
    """List the pairs of a manifest. Raises DataError, UsageError."""
    text = columns.text
    assert text is not None
    with long_fields(), readable(src):
        known, _ = first_row(src, table_rows(src, columns.delimiter or "", header=not columns.no_header))
        known += later_names(src, known)
        find_column(src, known, text, (), "text")
        if text == columns.path:
            raise UsageError(f"{src}: --text-column and --path-column both name {text!r}; they are two columns")
        if MISSING in known and text != MISSING:
            raise UsageError(f"{src}: the column {MISSING!r} would hide which inputs a sample lacks; rename it")
        source = read_manifest(src, columns)
    (reader,) = source.readers
    used = tuple(f"{sentence}, text from {text!r}" for sentence in source.columns)
    return replace(source, readers=(PairReader(reader, text),), fields=(FIELD,), inputs=INPUTS, columns=used)


def stored_counts(folder: Path, shards: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many samples of these shards lack an image, and how many a text. Raises ShardError."""
    return missing_counts(positions([folder / str(shard["name"]) for shard in shards]))
