"""Determines the fields of a .beton, which precede its first sample, by looking at every sample once.

Nothing is decoded; only the headers of images are read.
"""

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from fastimg.convert.sources.containers.betons import ORIGINAL, extension
from fastimg.convert.sources.samples import Source, SourceEntry
from fastimg.loaders.containers.betons.dataset import USUAL
from fastimg.loaders.containers.betons.kinds import (
    ABSENT_LABELS,
    BETON_KINDS,
    PAGE_SIZES,
    BetonField,
    beton_field,
    describe,
    jpeg_fault,
)
from fastimg.loaders.containers.fields import ABSENT, StoredField, unpacked_npy
from fastimg.loaders.containers.npy import npy_array
from fastimg.loaders.containers.targets import Target, TargetValues, first_class
from fastimg.loaders.decode import read_header
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.runtime.in_order import in_order

from .image_preparation import DECODERS_OWN, Prepared, Treatment

# Names of fields that a target cannot have: the file's own, and those by which a lone file's label is found.
RESERVED = ("image", "txt", "text", "label", "json", ORIGINAL, *USUAL["rgb"], *USUAL["int"])

_PAGE = 1 << 23  # FFCV's default
_CHUNK = 64  # samples looked at by one task
_SLACK = 1 << 16  # bytes for tables and markers that tiling adds, and for a longer note


@dataclass(frozen=True)
class Schema:
    """The fields of a .beton, the places of a tar's further members in it, and the smallest sufficient page size."""

    fields: dict[str, BetonField]
    places: dict[str, str]  # a field's name by the extension that it has in a tar
    page_size: int
    targets: tuple[Target, ...] = ()
    target_fields: dict[str, str] = dataclass_field(default_factory=dict)  # a field's name by that of its target
    stored: tuple[StoredField, ...] = ()  # of samples
    field_names: dict[str, str] = dataclass_field(default_factory=dict)  # a field's name by that of the samples' field

    @classmethod
    def of(cls, fields: dict[str, BetonField], page_size: int, new: "Schema") -> "Schema":
        """The schema of a file that has these fields, and the targets of the `new` samples."""
        own = (_main(fields), "label", "json", ORIGINAL, *new.target_fields.values(), *new.field_names.values())
        further = {name: field for name, field in fields.items() if name not in own}
        places = {extension(name, field.kind): name for name, field in further.items()}
        places |= {stored.member: new.field_names[stored.name] for stored in new.stored if stored.member}
        return cls(fields, places, page_size, new.targets, new.target_fields, new.stored, new.field_names)

    def with_fields(self, stored: tuple[StoredField, ...], given: Mapping[str, str]) -> "Schema":
        """The schema with a field for each of the samples' fields; see `with_targets` for their names."""
        fields = dict(self.fields)
        places = dict(self.places)
        names: dict[str, str] = {}
        for number, each in enumerate(stored, start=1):
            name = names[each.name] = given.get(each.name) or _free_name(
                each.name, f"field{number}", {*fields, *given.values(), *RESERVED}
            )
            fields[name] = beton_field(each)
            if each.member:
                places[each.member] = name
        return replace(self, fields=fields, places=places, stored=stored, field_names=names)

    def with_targets(self, targets: tuple[Target, ...], given: Mapping[str, str]) -> "Schema":
        """The schema with a field for each target; `given` are the names of fields that the dataset already has.

        FFCV's names are of 16 ASCII characters; a target that has another, or one that is taken, gets a made one.
        """
        own = first_class(targets)
        fields = dict(self.fields)
        names: dict[str, str] = {}
        most = 0
        for number, target in enumerate(targets, start=1):
            if target is own:
                names[target.name] = "label"
                continue
            taken = {*fields, *given.values(), *RESERVED}
            name = names[target.name] = given.get(target.name) or _free_name(target.name, f"target{number}", taken)
            several = target.kind == "multilabel"
            array = (np.dtype(np.uint8), (len(target.classes),)) if several else (None, ())
            fields[name] = BetonField(BETON_KINDS[target.kind], *array)
            most += fields[name].nbytes
        page_size = next((size for size in PAGE_SIZES if size >= self.page_size + most), PAGE_SIZES[-1])
        page_size = page_size if most > _SLACK else self.page_size
        return replace(self, fields=fields, page_size=page_size, targets=targets, target_fields=names)

    def sample(self, label: int, prepared: Prepared) -> dict[str, Any]:
        """The values of one sample. Raises ImageError if the schema has no place for one of them."""
        values: dict[str, Any] = {_main(self.fields): prepared.image, "label": label}
        for ext, content in prepared.fields.items():
            if ext not in self.places:
                raise ImageError(f"its field {ext} appeared after the source was listed")
            name = self.places[ext]
            values[name] = _value(self.fields[name], content)
        for field in self.stored:
            if field.kind == "ragged" and field.member in prepared.fields:
                items = unpacked_npy(field, prepared.fields[field.member])
                values[self.field_names[field.name]] = items.tobytes()
        absent = sorted(self.places.keys() - prepared.fields.keys())
        for ext in absent:
            values[self.places[ext]] = _nothing(self.fields[self.places[ext]])
        note = prepared.note
        values["json"] = json.dumps(json.loads(note) | {ABSENT: absent}).encode() if absent else note
        for target, value in self._stated(note).items():
            values[self.target_fields[target]] = value
        numbers = [field for field in self.stored if not field.member]
        known = json.loads(note) if numbers else {}
        for field in numbers:
            number = known.get(field.name)
            values[self.field_names[field.name]] = _no_number(field) if number is None else number
        if ORIGINAL in self.fields:
            values[ORIGINAL] = prepared.original
        elif prepared.original:
            raise ImageError("its image changed after the source was listed")
        return values

    @cached_property
    def _others(self) -> list[TargetValues]:
        """The targets that are not the label."""
        own = first_class(self.targets)
        return [TargetValues(target) for target in self.targets if target is not own]

    def _stated(self, note: bytes) -> dict[str, Any]:
        """The values of the targets' fields, except for the label, by the target's name."""
        known = json.loads(note) if self._others else {}
        values: dict[str, Any] = {}
        for other in self._others:
            target = other.target
            value = other.parse(known.get(target.name))
            if target.kind == "multilabel":
                row = np.zeros(len(target.classes), np.uint8)
                row[slice(None) if value is None else value] = ABSENT_LABELS if value is None else 1
                value = row
            elif value is None:
                value = -1 if target.kind == "class" else math.nan
            values[target.name] = value
        return values


def _free_name(own: str, made: str, taken: Collection[str]) -> str:
    """A name for a field of a .beton: its own where FFCV allows it and it is not `taken`, or else a made one."""
    stem, first = made.rstrip("0123456789"), int(made[len(made.rstrip("0123456789")) :])
    return next(
        name
        for name in itertools.chain([own], (f"{stem}{i}" for i in itertools.count(first)))
        if name.isascii() and 0 < len(name) <= 16 and "\0" not in name and name.lower() not in taken
    )


def _no_number(field: StoredField) -> int | float:
    """What stands for a number that is missing; the note says that it is."""
    return math.nan if np.dtype(field.dtype).kind == "f" else 0


def _main(fields: dict[str, BetonField]) -> str:
    """The field of the images, or of the texts."""
    return "image" if "image" in fields and fields["image"].kind == "rgb" else "txt"


@dataclass
class Requirements:
    """What samples require of a .beton, in whatever order they are looked at."""

    largest: int = 0  # upper bound of a sample's size in a page
    original: bool = False
    members: dict[str, BetonField] = dataclass_field(default_factory=dict)  # by the extension that they have in a tar

    def join(self, other: "Requirements") -> None:
        """Require what other samples do, too."""
        self.largest = max(self.largest, other.largest)
        self.original = self.original or other.original
        for ext, field in other.members.items():
            if self.members.setdefault(ext, field) != field:
                self.members[ext] = BetonField("bytes")  # several types or shapes


def look_at(
    source: Source,
    entries: Iterator[SourceEntry],
    treatment: Treatment,
    pool: ThreadPoolExecutor,
    ahead: int,
    tick: Callable[[int], object],
) -> Iterator[Requirements]:
    """Look at every entry: what some at a time require. `tick` is told their number."""
    declared = {field.member for field in source.stored_fields}

    def look(chunk: list[SourceEntry]) -> Requirements:
        every = Requirements()
        for entry in chunk:
            if found := _look(source, entry, treatment, declared):
                every.join(found)
        tick(len(chunk))
        return every

    chunks = iter(lambda: list(islice(entries, _CHUNK)), [])
    yield from in_order(pool, look, chunks, ahead)


def schema_of(source: Source, found: Iterable[Requirements]) -> Schema:
    """The fields for all samples of a source. Raises DataError for what a .beton cannot hold."""
    every = Requirements()
    for each in found:
        every.join(each)
    main = {"image": BetonField("rgb")} if source.content == "images" else {"txt": BetonField("bytes")}
    fields = {**main, "label": BetonField("int"), "json": BetonField("json")}
    if every.original:
        fields[ORIGINAL] = BetonField("bytes")
    places = {}
    for ext, field in sorted(every.members.items()):
        name = ext if field.kind == "bytes" or "." not in ext else ext.rpartition(".")[0]
        if name in (*fields, ORIGINAL) or len(name) > 16:
            raise DataError(
                f"{source.src}: a .beton cannot hold the members .{ext}: names of fields have 1 to 16 characters and "
                "must be unique; rename them, or convert to --format tar"
            )
        fields[name] = field
        places[ext] = name
    page_size = next((size for size in PAGE_SIZES if size >= max(every.largest, _PAGE)), PAGE_SIZES[-1])
    return Schema(fields, places, page_size)


def _look(source: Source, entry: SourceEntry, treatment: Treatment, declared: Collection[str]) -> Requirements | None:
    """What a sample requires beside `declared` members; None for one that will be skipped or refused later."""
    if source.problem(entry):
        return None
    try:
        original = source.read(entry)
        if source.content == "text":
            pixels, encodes, fits, encoded = 0, False, True, len(original.image)
        elif isinstance(original.image, bytes):
            header = read_header(original.image, treatment.max_pixels)
            encodes = treatment.becomes_jpeg(original.image, header, entry.path)
            raw = treatment.is_raw(entry.path, header.size)
            fits = encodes or raw or not jpeg_fault(original.image)
            pixels = 3 * header.width * header.height if encodes or raw or not fits else 0  # a JPEG else, as it is
            pixels += pixels // 2 if treatment.recompress else 0  # noise takes more as a JPEG than as pixels
            encoded = len(original.image)
        else:
            pixels, encodes, fits, encoded = original.image.nbytes, False, True, 0
    except (ImageError, OSError, *DECODERS_OWN):
        return None
    keeps = not fits and treatment.originals == "keep"
    members = {ext: _field(ext, content) for ext, content in original.fields.items() if ext not in declared}
    nbytes = max(pixels, encoded + encoded // 8) + _SLACK + encoded * keeps + len(original.note)
    return Requirements(nbytes + sum(map(len, original.fields.values())), keeps, members)


def _field(ext: str, content: bytes) -> BetonField:
    """The field that holds a member's content: the type given by its extension, if the content matches."""
    kind = ext.rpartition(".")[2]
    try:
        if kind == "json" and "." in ext:
            json.loads(content)
            return BetonField("json")
        if kind == "npy":
            array = npy_array(content)
            if array.shape == () and array.dtype in (np.float64, np.int64) and _may_be_scalar(ext):
                return BetonField("float" if array.dtype == np.float64 else "int")
            field = BetonField("ndarray", array.dtype, array.shape)
            describe("x", field)
            return field
    except (
        ValueError,
        TypeError,
        OSError,
        EOFError,
        SyntaxError,
        RecursionError,
        MemoryError,
    ):  # what numpy and json raise
        pass
    return BetonField("bytes")


def _may_be_scalar(ext: str) -> bool:
    """Not under a name that a label could have: the .beton's own label is to be found."""
    name = ext.rpartition(".")[0].lower()
    return bool(name) and name not in USUAL["int"]


def _value(field: BetonField, content: bytes) -> Any:
    if field.kind in ("bytes", "json"):
        return content
    array = npy_array(content)
    return array.item() if array.shape == () else array


def _nothing(field: BetonField) -> Any:
    """The placeholder for a field that a sample lacks."""
    if field.dtype is not None:
        return np.zeros(field.shape, field.dtype)
    return {"bytes": b"", "json": b"null", "int": 0, "float": 0.0}[field.kind]
