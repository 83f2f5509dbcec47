"""What belongs to an image, drawn over its picture: masks in colours, boxes, and points."""

import colorsys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from fastimg.augment import Plan, apply_boxes, apply_keypoints, apply_masks
from fastimg.loaders import Dataset, FieldsDecoder, FieldSelection, ImageDecoder
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.crop import Letterbox
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.scratch import Scratch

from .tiles import Pixels

_IGNORED = 255  # the value of a mask where there is no image
_GOLDEN = 0.618034  # of a turn of the hue: neighbouring classes differ
_GRAY = (128, 128, 128)


@dataclass(frozen=True)
class Overlays:
    """The fields of a dataset that are drawn over its pictures."""

    dataset: Dataset
    drawn: tuple[StoredField, ...]  # each with a geometry

    @classmethod
    def of(cls, dataset: Dataset, names: Collection[str] | None) -> "Overlays":
        """Those of `names`; None: every one that has a geometry. Raises DataError for one that cannot be drawn."""
        movable = {name: field for name, field in dataset.fields.items() if field.geometry not in (None, "bands")}
        for name in names or ():
            if name not in movable:
                has = f"it has {', '.join(movable)}" if movable else "it has none"
                raise DataError(f"{dataset.name}: no boxes, points or masks called {name!r}; {has}")
        return cls(dataset, tuple(field for name, field in movable.items() if names is None or name in names))

    def __bool__(self) -> bool:
        return bool(self.drawn)

    def decoder(self, images: ImageDecoder) -> FieldsDecoder:
        """What reads pictures with all that is drawn over them."""
        names = dict.fromkeys(name for field in self.drawn for name in (field.name, *self._classes(field)))
        return FieldsDecoder.of(images, FieldSelection(names=list(names), ignore=_IGNORED), self.dataset)

    def over_whole(self, index: int, pixels: Pixels, max_pixels: int) -> Pixels:
        """A whole image [H, W, 3], shrunk to this size, with what belongs to it. Raises DataError."""
        height, width, _ = pixels.shape
        decoder = self.decoder(ImageDecoder(Letterbox(size=(height, width)), max_pixels))
        rows = {field.name: np.zeros((1, *field.shape), field.dtype) for field in decoder.fields}
        for _, error in decoder.fill(SampleReader(self.dataset), [index], np.zeros((1, 0)), rows, Scratch()):
            raise error
        fields = {name: torch.from_numpy(array) for name, array in rows.items() if name != "inputs"}
        return self.over_batch(None, fields, pixels[None])[0]

    def over_batch(self, plan: Plan | None, fields: Mapping[str, torch.Tensor], images: Pixels) -> list[Pixels]:
        """Images [B, H, W, 3], augmented by `plan`, with what belongs to them, moved from where their crops have it."""
        size = (images.shape[1], images.shape[2])
        pictures = [Image.fromarray(np.ascontiguousarray(image)) for image in images]
        for field in sorted(self.drawn, key=lambda field: field.geometry != "mask"):  # masks first
            values = fields[field.name]
            if field.geometry == "mask":
                masks = apply_masks(plan, values, _IGNORED).numpy()
                pictures = [_masked(picture, mask) for picture, mask in zip(pictures, masks, strict=True)]
            elif field.geometry == "box":
                moved = apply_boxes(plan, values, fields[f"{field.name}_count"], size)
                named = self._classes(field)
                classes = (
                    moved.along(fields[named[0]]) if named else torch.arange(values.shape[1]).expand(len(values), -1)
                )
                for row, picture in enumerate(pictures):
                    count = int(moved.counts[row])
                    _draw_boxes(picture, moved.boxes[row, :count].tolist(), classes[row, :count].tolist())
            else:
                counts = fields.get(f"{field.name}_count")
                points = apply_keypoints(plan, values, size, counts=counts).numpy()
                for row, picture in enumerate(pictures):
                    real = points[row] if counts is None else points[row, : int(counts[row])]
                    _draw_points(picture, real.reshape(-1, 2))
        return [np.asarray(picture) for picture in pictures]

    def _classes(self, field: StoredField) -> list[str]:
        """The fields of whole numbers that go along boxes, of which the first colours them."""
        return [
            name
            for name, other in self.dataset.fields.items()
            if field.geometry == "box" and other.along == field.name and not other.shape and "int" in other.dtype
        ][:1]


def can_follow(plan: Plan | None) -> bool:
    """Whether what belongs to images can move with them: not where they are mixed with others."""
    return plan is None or (plan.mixing is None and all(stage.chain_mix is None for stage in plan.stages))


def _colour(number: int) -> tuple[int, int, int]:
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(number * _GOLDEN % 1.0, 0.85, 1.0))
    return red, green, blue


def _masked(picture: Image.Image, mask: npt.NDArray[np.integer]) -> Image.Image:
    """A picture with its mask in colours: none for 0, gray where it is ignored."""
    pixels = np.array(picture)
    for value in np.unique(mask):
        if value:
            colour = _GRAY if value == _IGNORED else _colour(int(value))
            there = mask == value
            pixels[there] = (pixels[there] // 2 + np.array(colour) // 2).astype(np.uint8)
    return Image.fromarray(pixels)


def _draw_boxes(picture: Image.Image, boxes: list[list[float]], classes: list[int]) -> None:
    pen = ImageDraw.Draw(picture)
    width = max(1, max(picture.size) // 128)
    for (left, top, right, bottom), number in zip(boxes, classes, strict=True):
        right, bottom = max(left, right - 1), max(top, bottom - 1)  # Pillow draws the last pixel, too
        pen.rectangle((left, top, right, bottom), outline=_colour(number), width=width)


def _draw_points(picture: Image.Image, points: npt.NDArray[np.floating]) -> None:
    pen = ImageDraw.Draw(picture)
    radius = max(1.5, max(picture.size) / 80)
    for number, (x, y) in enumerate(points.tolist()):
        if x == x and y == y:  # not missing
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_colour(number), outline="black")
