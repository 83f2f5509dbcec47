"""The fields of a .beton, which stand in it before the first sample: found by looking at every sample once.

Nothing is decoded; what counts of an image is its header.
"""

import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.convert.sources.containers import ABSENT, ORIGINAL, extension
from fastimg.convert.sources.samples import Source, SourceEntry
from fastimg.loaders.containers.beton_dataset import USUAL
from fastimg.loaders.containers.beton_fields import PAGE_SIZES, BetonField, describe, jpeg_fault
from fastimg.loaders.decode import read_header
from fastimg.loaders.errors import DataError, ImageError

from .image_preparation import DECODERS_OWN, Prepared, Treatment, in_order

_PAGE = 1 << 23  # FFCV's default
_CHUNK = 64  # samples looked at by one task
_SLACK = 1 << 16  # tables and markers that tiling adds, a note that grows


@dataclass(frozen=True)
class Schema:
    """Fields of a .beton; where a tar's further members go in it; the smallest page that holds every sample."""

    fields: dict[str, BetonField]
    places: dict[str, str]  # a field's name by the extension that it has in a tar
    page_size: int

    @classmethod
    def of(cls, fields: dict[str, BetonField], page_size: int) -> "Schema":
        """Of a file that has these fields."""
        own = (_main(fields), "label", "json", ORIGINAL)
        further = {name: field for name, field in fields.items() if name not in own}
        return cls(fields, {extension(name, field.kind): name for name, field in further.items()}, page_size)

    def sample(self, label: int, prepared: Prepared) -> dict[str, Any]:
        """The values of one sample. Raises ImageError where the schema has no place for them."""
        values: dict[str, Any] = {_main(self.fields): prepared.image, "label": label}
        for ext, content in prepared.fields.items():
            if ext not in self.places:
                raise ImageError(f"its field {ext} appeared after the source was listed")
            name = self.places[ext]
            values[name] = _value(self.fields[name], content)
        absent = sorted(self.places.keys() - prepared.fields.keys())
        for ext in absent:
            values[self.places[ext]] = _nothing(self.fields[self.places[ext]])
        note = prepared.note
        values["json"] = json.dumps(json.loads(note) | {ABSENT: absent}).encode() if absent else note
        if ORIGINAL in self.fields:
            values[ORIGINAL] = prepared.original
        elif prepared.original:
            raise ImageError("its image changed after the source was listed")
        return values


def _main(fields: dict[str, BetonField]) -> str:
    """The field of the images, or of the texts."""
    return "image" if "image" in fields and fields["image"].kind == "rgb" else "txt"


class _Seen(NamedTuple):
    """What a sample asks for."""

    nbytes: int  # that it takes in a page, at most
    original: bool
    fields: dict[str, BetonField]


def survey(
    source: Source,
    entries: Iterator[SourceEntry],
    treatment: Treatment,
    pool: ThreadPoolExecutor,
    ahead: int,
    tick: Callable[[int], None],
) -> Schema:
    """Look at every entry; `tick` hears of how many. Raises DataError for what no .beton can hold."""
    largest, original = 0, False
    found: dict[str, BetonField] = {}

    def look_at(chunk: list[SourceEntry]) -> list[_Seen]:
        return [seen for entry in chunk if (seen := _look(source, entry, treatment))]

    chunks = iter(lambda: list(islice(entries, _CHUNK)), [])
    for seen in in_order(pool, look_at, chunks, ahead):
        for one in seen:
            largest, original = max(largest, one.nbytes), original or one.original
            for ext, field in one.fields.items():
                if found.setdefault(ext, field) != field:
                    found[ext] = BetonField("bytes")  # of several types or shapes
        tick(_CHUNK)
    main = {"image": BetonField("rgb")} if source.content == "images" else {"txt": BetonField("bytes")}
    fields = {**main, "label": BetonField("int"), "json": BetonField("json")}
    if original:
        fields[ORIGINAL] = BetonField("bytes")
    places = {}
    for ext, field in sorted(found.items()):
        name = ext if field.kind == "bytes" or "." not in ext else ext.rpartition(".")[0]
        if name in (*fields, ORIGINAL) or len(name) > 16:
            raise DataError(
                f"{source.src}: no .beton can hold the members .{ext}: a field's name has 1 to 16 characters, and no "
                "other field has it; rename them, or convert to --format tar"
            )
        fields[name], places[ext] = field, name
    page_size = next((size for size in PAGE_SIZES if size >= max(largest, _PAGE)), PAGE_SIZES[-1])
    return Schema(fields, places, page_size)


def _look(source: Source, entry: SourceEntry, treatment: Treatment) -> _Seen | None:
    """What a sample asks for; None for one that will be left out, or named when it is its turn."""
    if source.problem(entry):
        return None
    try:
        original = source.read(entry)
        if source.content == "text":
            pixels, encodes, fits, encoded = 0, False, True, len(original.image)
        elif isinstance(original.image, bytes):
            header = read_header(original.image, treatment.max_pixels)
            encodes, raw = bool(treatment.encodes(header)), treatment.is_raw(entry.path)
            fits = encodes or raw or not jpeg_fault(original.image)
            pixels = 3 * header.width * header.height if encodes or raw or not fits else 0  # a JPEG else, as it is
            encoded = len(original.image)
        else:
            pixels, encodes, fits, encoded = original.image.nbytes, False, True, 0
    except (ImageError, OSError, *DECODERS_OWN):
        return None
    keeps = not fits and treatment.originals == "keep"
    fields = {ext: _field(ext, content) for ext, content in original.fields.items()}
    nbytes = max(pixels, encoded + encoded // 8) + _SLACK + encoded * keeps + len(original.note)
    return _Seen(nbytes + sum(map(len, original.fields.values())), keeps, fields)


def _field(ext: str, content: bytes) -> BetonField:
    """The field that holds a member's content: what it says by its extension, where it is that."""
    kind = ext.rpartition(".")[2]
    try:
        if kind == "json" and "." in ext:
            json.loads(content)
            return BetonField("json")
        if kind == "npy":
            array = _array(content)
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


def _array(content: bytes) -> npt.NDArray[Any]:
    """Of an .npy alone: np.load takes zip files and pickles too."""
    array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return array


def _may_be_scalar(ext: str) -> bool:
    """Not under a name that a label could have: the .beton's own label is to be found."""
    name = ext.rpartition(".")[0].lower()
    return bool(name) and name not in USUAL["int"]


def _value(field: BetonField, content: bytes) -> Any:
    if field.kind in ("bytes", "json"):
        return content
    array = _array(content)
    return array.item() if array.shape == () else array


def _nothing(field: BetonField) -> Any:
    """What stands in the place of a field that a sample does not have."""
    if field.dtype is not None:
        return np.zeros(field.shape, field.dtype)
    return {"bytes": b"", "json": b"null", "int": 0, "float": 0.0}[field.kind]
