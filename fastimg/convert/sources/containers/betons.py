"""Samples of .beton files.

They are the image field, the label field, a JSON field called `json`, and `original`, which holds an encoded image that
the image field cannot. Other arrays become the field `name.npy` (numbers as arrays without dimensions), and JSON
`name.json`.
"""

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastimg.convert.sources.samples import Original, SamplePart, SourceEntry
from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.betons.kinds import RAW, SCALARS
from fastimg.loaders.containers.fields import ABSENT, StoredField, packed_npy, unpacked_items
from fastimg.loaders.errors import DataError

ORIGINAL = "original"  # field of a .beton for encoded images that its image field cannot hold


def extension(name: str, kind: str) -> str:
    """The extension that a .beton field gets in a tar, except for images."""
    if kind == "bytes" or (kind in ("ndarray", "tensor") and name == "npy"):
        return name
    return f"{name}.{'json' if kind == 'json' else 'npy'}"


class BetonSourceReader:
    """Reads samples from one .beton."""

    def __init__(
        self,
        dataset: BetonDataset,
        target_fields: Collection[str] = (),
        stored: Mapping[str, StoredField] | None = None,
    ) -> None:
        self.dataset = dataset
        self._target_fields = tuple(target_fields)
        self._stored = dict(stored or {})
        self._reader = reader = dataset.reader
        self.remarks: list[str] = []
        self._note: str | None = None  # the field with the notes
        self._original: str | None = None  # the field with encoded images, see ORIGINAL
        self.fields: dict[str, str] = {}  # other fields of the file, by extension
        for name, field in reader.fields.items():
            if name in (dataset.image_field, dataset.label_field, *target_fields):
                continue
            if name in self._stored:
                if member := self._stored[name].member:  # numbers stand in the note
                    self.fields[member] = name
            elif field.kind == "custom":
                self.remarks.append(
                    f"{reader.path}: {name} is left out: only the code that defined its type can read it"
                )
            elif field.kind == "json" and name == "json":
                self._note = name
            elif field.kind == "bytes" and name == ORIGINAL and dataset.content == "images":
                self._original = name
            else:
                self._add(name, field.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        """On another machine the file is opened again."""
        return _opened, (self._reader.path, self.dataset.classes, self._target_fields, self._stored)

    def sizes(self) -> list[int]:
        """Size of every image in bytes [N]."""
        _, sizes = self._reader.extents(self.dataset.image_field)
        return [int(size) for size in sizes]

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        reader = self._reader
        index = entry.place
        text = reader.raw(self._note, index).removesuffix(b"\0") if self._note else None
        known = json.loads(text) if text else {}
        if not isinstance(known, dict):
            known = {"json": known}
        absent = known.pop(ABSENT, ())
        if text is None or absent or "path" not in known:
            text = json.dumps(known if "path" in known else {"path": entry.path} | known).encode()
        fields = {ext: self._field(name, index) for ext, name in self.fields.items() if ext not in absent}
        if self._original and (data := reader.raw(self._original, index)):
            return Original(data, "", text, fields)
        return Original(reader.value(self.dataset.image_field, index), "", text, fields)

    def name(self, entry: SourceEntry) -> str:
        """The file, the sample's number, and its original path."""
        return self.dataset.sample_name(entry.place)

    def problem(self, entry: SourceEntry) -> str | None:
        """Always None: opening the file has checked every pointer."""
        return None

    def parts(self, entry: SourceEntry) -> Iterator[SamplePart]:
        """See SourceReader."""
        for name, field in self._reader.fields.items():
            if field.kind not in (*SCALARS, "custom"):
                data = self._reader.raw(name, entry.place)
                yield SamplePart(len(data), partial(_slice, data))

    def close(self) -> None:
        """See SourceReader."""
        self.dataset.close()

    def _add(self, name: str, kind: str) -> None:
        """Register a field under an extension that shows its kind."""
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name).strip(".") or "field"
        if kind == "rgb":
            modes = set(self._reader.column(name)["mode"].tolist())
            if len(modes) > 1:
                raise DataError(
                    f"{self._reader.path}: the additional image field {name} holds both JPEGs and raw pixels; "
                    "write the file again with only one of them"
                )
            ext = f"{plain}.{'png' if modes == {RAW} else 'jpg'}"
        else:
            ext = extension(plain, kind)
        if ext in ("cls", "json") or ext in self.fields:
            raise DataError(f"{self._reader.path}: field {name} clashes with another name in a sample; rename it")
        self.fields[ext] = name

    def _field(self, name: str, index: int) -> bytes:
        """Encode a field's value as the content of a tar member."""
        kind = self._reader.fields[name].kind
        if name in self._stored and self._stored[name].kind == "ragged":
            return packed_npy(unpacked_items(self._stored[name], self._reader.raw(name, index)))
        if name in self._stored and kind == "ndarray":
            return packed_npy(self._reader.value(name, index))
        if kind == "bytes":
            return self._reader.raw(name, index)
        if kind == "json":
            return self._reader.raw(name, index).removesuffix(b"\0")
        value = self._reader.value(name, index)
        buffer = io.BytesIO()
        if kind == "rgb":
            if isinstance(value, bytes):
                return value
            Image.fromarray(value).save(buffer, "PNG")
        else:
            np.save(
                buffer, np.float64(value) if kind == "float" else np.int64(value) if kind == "int" else value, False
            )
        return buffer.getvalue()


def _slice(data: bytes, start: int, stop: int) -> bytes:
    return data[start:stop]


def _opened(
    path: Path, classes: Sequence[str], target_fields: Collection[str], stored: Mapping[str, StoredField]
) -> BetonSourceReader:
    return BetonSourceReader(BetonDataset(path, classes), target_fields, stored)
