"""The fields of an image that --max-size shrinks: its boxes, points and masks, in the pixels of the smaller one."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastimg.loaders.containers.fields import StoredField, packed_npy, unpacked_npy
from fastimg.loaders.crop import Window
from fastimg.loaders.decode import decode_mask
from fastimg.loaders.errors import ImageError


def shrunk_fields(
    fields: Mapping[str, bytes], schemas: Iterable[StoredField], size: tuple[int, int], smaller: tuple[int, int]
) -> dict[str, bytes]:
    """The members of a sample whose upright image of `size` (width, height) is made `smaller`.

    They are moved as the loader moves those of a crop that shows the whole image: boxes are clipped to it, points
    outside of it become NaN, and masks take the nearest pixels. Raises ImageError for a member that is no such field.
    """
    from fastimg.loaders.decoders.geometry import crop_boxes, crop_mask, crop_points  # brings torch

    window = Window((0, 0, *size), smaller, (0, 0))
    shape = smaller[::-1]
    made = dict(fields)
    for schema in schemas:
        if schema.geometry is None or schema.member not in fields:
            continue
        data = fields[schema.member]
        try:
            if schema.geometry == "mask":
                mask = decode_mask(data, size)
                out = np.empty(shape, mask.dtype)
                crop_mask(window, mask, 0, False, out)
                made[schema.member] = _png(out)
                continue
            array = unpacked_npy(schema, data)
        except (ImageError, ValueError) as error:
            raise ImageError(f"{schema.name}: {error}") from error
        if schema.geometry == "box":
            moved, _ = crop_boxes(window, shape, array.reshape(-1, 4))
        else:
            moved = crop_points(window, shape, array)
        made[schema.member] = packed_npy(moved.reshape(array.shape).astype(array.dtype))
    return made


def _png(mask: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    return buffer.getvalue()
