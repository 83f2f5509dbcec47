"""The decoder of images with their fields: boxes, points and masks move with the crop, everything else is copied.

ImageDecoder: inputs -> the sample's window again -> geometry: what the crop shows of each field -> row
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fastimg.loaders.batch import Field, FieldSelection
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.containers.fields import StoredField, no_field
from fastimg.loaders.crop import Size, fill_of, shape_of
from fastimg.loaders.decode import decode_mask_box
from fastimg.loaders.decoder import Decoder, Failure, Row, Rows, SampleReader, attempt
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.float_resize import make_ready
from fastimg.loaders.runtime.scratch import Scratch

from .geometry import CropView, crop_bands, crop_box, crop_boxes, crop_mask, crop_points
from .images import ImageDecoder
from .mask_queue import MaskQueue
from .sizes import SizeReader

CROP_BOX = "crop_box"
_WIDER = {"uint16": "int32", "uint32": "int64"}  # torch computes with these

Values = npt.NDArray[Any]
_PutMask = Callable[[StoredField, bytes | None, CropView, Values], None]


@dataclass(frozen=True)
class FieldsDecoder(Decoder):
    """What `images` makes of a sample, `crop_box`, and the fields in `selection`. `stored` are all of the dataset's.

    By kind a field NAME fills: a number [B]; an array [B, *shape]; bands [B, C, H, W], cut and resized as the image is;
    items [B, longest, *shape], and NAME_count int32 [B]; a mask [B, H, W]; bytes uint8 [B, longest], and NAME_count.
    Boxes have NAME_visible float32 [B, longest], too, and integers and arrays of integers that some samples lack
    NAME_present bool [B].

    Raises ValueError for a field that cannot be in a batch.
    """

    images: ImageDecoder
    selection: FieldSelection
    stored: Mapping[str, StoredField]

    @classmethod
    def of(cls, images: ImageDecoder, selection: FieldSelection, dataset: Dataset) -> Self:
        """The decoder for a dataset. Raises DataError for a field that it does not have."""
        for name in selection.names:
            if name not in dataset.fields:
                raise no_field(dataset.name, name, dataset.fields)
        return cls(images, selection, dataset.fields)

    def __post_init__(self) -> None:
        for field in self._selected:
            _check(field, self.selection.ignore)

    @cached_property
    def _selected(self) -> tuple[StoredField, ...]:
        return tuple(self.stored[name] for name in self.selection.names)

    @cached_property
    def _leaders(self) -> tuple[StoredField, ...]:
        """The boxes that are dropped where the crop does not show them: those selected, and those others accompany."""
        names = dict.fromkeys(field.along or field.name for field in self._selected)
        return tuple(self.stored[name] for name in names if self.stored[name].geometry == "box")

    @property
    def fields(self) -> tuple[Field, ...]:
        """`inputs`, `crop_box`, and what the fields fill."""
        shape = shape_of(self.images.crop)
        parts = (part for field in self._selected for part in _parts(field, shape, self.selection.ignore))
        return (*self.images.fields, Field(CROP_BOX, (4,), np.dtype(np.float32)), *parts)

    @property
    def scales_tiled(self) -> bool:
        """See `Decoder`."""
        return self.images.scales_tiled

    def sized(self, size: Size) -> Self:
        """See `Decoder`."""
        return replace(self, images=self.images.sized(size))

    def cuts_pixels(self, dataset: Dataset) -> bool:
        """See `Decoder`."""
        return self.images.cuts_pixels(dataset)

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """See `Decoder`: the crops are those of the images alone."""
        return self.images.draw(seed, epoch, ids)

    def describe(self) -> str:
        """See `Decoder`."""
        return ", ".join([self.images.describe(), *self.selection.names])

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """Refused: the fields of a sample are read by its id, in `fill`."""
        raise TypeError("FieldsDecoder fills rows by the ids of their samples; call `fill`")

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`: the images of the chunk, and then the fields of those that could be decoded."""
        if any(field.geometry == "bands" for field in self._selected):
            make_ready()
        sizes = SizeReader(reader, self.images.max_pixels)
        failures = self.images.fill(sizes, ids, draws, rows, scratch)
        failed = {place for place, _ in failures}
        masks = _Masks(scratch) if self.images.compiled else None
        numbers = draws.tolist()
        for place, index in enumerate(ids):
            if any(not isinstance(error, ImageError) for _, error in failures):
                return failures
            if place not in failed:
                row = {name: array[place, ...] for name, array in rows.items()}
                put_mask = _put_mask if masks is None else partial(masks.put, place)
                error = attempt(self._fill_fields, reader, index, sizes.of[index], numbers[place], row, put_mask)
                failures += [] if error is None else [(place, error)]
        if masks is not None:
            failed = {place for place, _ in failures}
            failures += [(place, error) for place, error in masks.failures() if place not in failed]
        return failures

    def _fill_fields(
        self,
        reader: SampleReader,
        index: int,
        size: tuple[int, int],
        draws: Sequence[float],
        row: Row,
        put_mask: _PutMask,
    ) -> None:
        """Fill the row of one sample, whose upright image has `size` (width, height)."""
        crop = self.images.crop
        mirrors, ignore = fill_of(crop) is None, self.selection.ignore
        view = CropView(crop.window(*size, draws), shape_of(crop), size, mirrors, ignore, crop.interpolation)
        row[CROP_BOX][...] = crop_box(view.window, view.shape)
        sets: dict[str, _BoxSet] = {}
        for field in self._leaders:
            boxes = reader.timed(reader.dataset.read_field, field.name, index)
            moved, left = crop_boxes(view.window, view.shape, _items(field, boxes))
            sets[field.name] = _BoxSet(moved, left, (left > 0) & (left >= self.selection.min_visibility))
        for field in self._selected:
            if known := sets.get(field.name):
                _put_items(field, known.moved[known.keep], known.visible[known.keep], row)
                continue
            value = reader.timed(reader.dataset.read_field, field.name, index)
            if field.kind == "ragged":
                items, visible = _moved(field, _items(field, value), view)
                keep = sets[field.along].keep if field.along in sets else np.ones(len(items), np.bool_)
                if value is not None and len(items) != len(keep):
                    sample = reader.dataset.sample_name(index)
                    raise DataError(
                        f"{sample}: {len(items)} {field.name} along {len(keep)} {field.along}; convert it again"
                    )
                keep = keep[: len(items)]  # none where it is missing
                _put_items(field, items[keep], None if visible is None else visible[keep], row)
            elif field.geometry == "mask":
                assert value is None or isinstance(value, bytes)
                put_mask(field, value, view, row[field.name])
            else:
                _put_one(field, value, view, row)


class _BoxSet(NamedTuple):
    """The boxes of one sample in its crop, and which of them are kept."""

    moved: Values
    visible: Values
    keep: npt.NDArray[np.bool_]


def _check(field: StoredField, ignore: int) -> None:
    if field.kind == "image" and field.geometry != "mask":
        raise ValueError(
            f"the field {field.name!r} is an encoded image that is not a mask, which a batch cannot hold; read it with "
            "`dataset.read_field`"
        )
    if field.geometry == "keypoint" and field.shape[-1:] != (2,):
        raise ValueError(f"the field {field.name!r} has items of {list(field.shape)}; points are [..., 2]")
    limits = np.iinfo(_type(field)) if field.geometry == "mask" else None
    if limits is not None and not limits.min <= ignore <= limits.max:
        raise ValueError(f"ignore={ignore}: the masks {field.name!r} hold {limits.min} to {limits.max} in a batch")


def _type(field: StoredField) -> np.dtype[Any]:
    """A field's dtype in a batch: bands of 16 bits stay what they are, as images of 16 bits do."""
    if field.geometry == "bands" and field.dtype == "uint16":
        return np.dtype(np.uint16)
    name = "uint8" if field.kind == "bytes" else field.dtype
    return np.dtype(_WIDER.get(name, name))


def _parts(field: StoredField, shape: tuple[int, int], ignore: int) -> list[Field]:
    """What a field fills in a batch of crops of `shape`."""
    name, dtype = field.name, _type(field)
    if field.geometry == "mask":
        return [Field(name, shape, dtype, ignore)]
    if field.kind in ("number", "array"):
        inner = field.shape if field.kind == "array" else ()
        parts = [Field(name, (inner[0], *shape) if field.geometry == "bands" else inner, dtype)]
        return [*parts, Field(f"{name}_present", (), np.dtype(np.bool_))] if _tells_presence(field) else parts
    shares = [Field(f"{name}_visible", (field.longest,), np.dtype(np.float32))] if field.geometry == "box" else []
    inner = field.shape if field.kind == "ragged" else ()
    return [Field(name, (field.longest, *inner), dtype), Field(f"{name}_count", (), np.dtype(np.int32)), *shares]


def _tells_presence(field: StoredField) -> bool:
    """Whether a batch says which samples have the field: it may be missing, and its type has no NaN."""
    return field.optional and not np.issubdtype(_type(field), np.floating)


def _items(field: StoredField, value: Values | bytes | None) -> Values:
    """The items [k, *shape] of a ragged field; none where it is missing."""
    assert not isinstance(value, bytes)
    return np.zeros((0, *field.shape), field.dtype) if value is None else value


def _moved(field: StoredField, items: Values, view: CropView) -> tuple[Values, Values | None]:
    """Items in the crop, and of boxes their visible shares."""
    if field.geometry == "box":
        return crop_boxes(view.window, view.shape, items)
    return crop_points(view.window, view.shape, items) if field.geometry == "keypoint" else items, None


def _put_items(field: StoredField, items: Values, visible: Values | None, row: Row) -> None:
    """Write the items that are kept."""
    count = len(items)
    row[field.name][:count] = items
    row[field.name][count:] = 0
    row[f"{field.name}_count"][...] = count
    if visible is not None:
        shares = row[f"{field.name}_visible"]
        shares[:count] = visible
        shares[count:] = 0


def _put_one(field: StoredField, value: Values | bytes | None, view: CropView, row: Row) -> None:
    """Write bytes, an array or a number."""
    out = row[field.name]
    if field.kind == "bytes":
        content = np.frombuffer(value or b"", np.uint8)
        out[: len(content)] = content
        out[len(content) :] = 0
        row[f"{field.name}_count"][...] = len(content)
    else:
        assert not isinstance(value, bytes)
        if _tells_presence(field):
            row[f"{field.name}_present"][...] = value is not None
        if value is None:
            out[...] = 0 if _tells_presence(field) else np.nan
        elif field.geometry == "bands":
            if value.shape[:0:-1] != view.size:
                high, wide = value.shape[1:]
                raise ImageError(f"{field.name}: {wide} x {high} pixels; the image has {view.size[0]} x {view.size[1]}")
            crop_bands(view.window, value, view.interpolation, view.mirrors, out)
        else:
            out[...] = crop_points(view.window, view.shape, value) if field.geometry == "keypoint" else value


def _put_mask(field: StoredField, data: bytes | None, view: CropView, out: Values) -> None:
    """Write a mask by Pillow. Raises ImageError."""
    if data is None:
        out[...] = view.ignore
        return
    try:
        mask, box = decode_mask_box(data, view.size, view.window.box)
        if mask.itemsize > np.dtype(field.dtype).itemsize:
            raise ImageError(f"it has 16 bits, and the field is {field.dtype}")
    except ImageError as error:
        raise ImageError(f"{field.name}: {error}") from error
    crop_mask(view.window._replace(box=box), mask, view.ignore, view.mirrors, out)


class _Masks:
    """The masks of a chunk, which are decoded together where compiled code knows them."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._queue = scratch.own(MaskQueue)
        self._queue.clear()
        self._queued: list[tuple[int, StoredField, bytes, CropView, Values]] = []
        self._failures: list[Failure] = []

    def put(self, place: int, field: StoredField, data: bytes | None, view: CropView, out: Values) -> None:
        """Write the mask of the sample at a place of the chunk, at once or later. Raises ImageError."""
        if data is None or not self._queue.add(data, view, np.dtype(field.dtype).itemsize, out):
            _put_mask(field, data, view, out)
            return
        self._queued.append((place, field, data, view, out))
        if self._queue.full:
            self._run()

    def failures(self) -> list[Failure]:
        """Those that are found out after all masks are written."""
        self._run()
        return self._failures

    def _run(self) -> None:
        for number in self._queue.run(self._scratch):
            place, field, data, view, out = self._queued[number]
            error = attempt(_put_mask, field, data, view, out)
            if error is not None:
                self._failures.append((place, error))
        self._queued.clear()
