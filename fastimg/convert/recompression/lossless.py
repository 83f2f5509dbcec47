"""The same pixels in fewer bytes, as PNG: what decodes fastest of the compressed formats that all loaders open.

By benchmarks/sources.py lossless WebP takes 26 % fewer bytes of photographs and 42 % fewer of screenshots, but crops of
it take several times as long; so WebPs stay as they are, and nothing becomes one. BMP is decoded faster than PNG, and
takes many times the bytes of a drawing.
"""

import io
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fastimg.loaders.decode import Header, Pixels, decode, read_header
from fastimg.loaders.errors import image_faults
from fastimg.loaders.opening import open_image
from fastimg.loaders.pictures.grouped_png import group_rows

from .limits import has_metadata

_FEW = 16  # colours that a PNG's palette holds in 4 bits a pixel or fewer
_MOST = 256  # colours of a palette


class Smaller(NamedTuple):
    """An image of the same pixels in fewer bytes."""

    image: bytes
    lost: tuple[str, ...]


def losslessly(data: bytes, header: Header, pixels: Pixels, in_groups: bool = False) -> Smaller | str:
    """Encode an image that decodes to `pixels` [H, W, 3]; returns why it is left as it is, if it is.

    `in_groups`: with its rows in groups where it is large enough. EXIF and the colour profile are carried over. What is
    made is decoded and compared. It must have passed `obstacle`.
    """
    with image_faults(), open_image(data, header.width * header.height) as image:
        image.load()
        alpha = image.has_transparency_data
        carried: dict[str, Any] = {name: image.info[name] for name in ("exif", "icc_profile") if image.info.get(name)}
        lost = ("metadata",) if has_metadata(image, data) else ()
        plain = image.convert("RGBA" if alpha else "RGB")
    profile = carried.get("icc_profile", b"")[16:20]  # the space of its colours (ICC.1, 7.2.8)
    values = np.asarray(plain)
    gray = not alpha and bool((values == values[:, :, :1]).all())
    if profile not in (b"", b"RGB ", b"GRAY") or (profile == b"GRAY" and not gray):
        return "a colour profile for other channels"
    buffer = io.BytesIO()
    try:
        _stored(plain, gray, profile).save(buffer, "PNG", optimize=True, **carried)
    except (OSError, ValueError):  # metadata that the encoder refuses
        return "it cannot be stored as png"
    made = buffer.getvalue()
    if in_groups:
        made = group_rows(made).png
    if len(made) >= len(data):
        return "not smaller without loss"
    if not _same(made, header, pixels, values if alpha else None):
        return "it would decode to other pixels"
    return Smaller(made, lost)


def _stored(image: Image.Image, gray: bool, profile: bytes) -> Image.Image:
    """The image in the mode to store: RGBA stays, RGB may become gray or a palette."""
    few = image.getcolors(_MOST) if image.mode == "RGB" else None
    if gray and profile != b"RGB " and (profile == b"GRAY" or few is None or len(few) > _FEW):
        return image.getchannel(0)
    return image if few is None else _palette(image)


def _palette(image: Image.Image) -> Image.Image:
    """An RGB image of at most 256 colours with a palette of them, sorted."""
    values = np.asarray(image).astype(np.uint32)
    packed = (values[:, :, 0] << 16) | (values[:, :, 1] << 8) | values[:, :, 2]
    colours, indices = np.unique(packed, return_inverse=True)
    made = Image.fromarray(indices.reshape(packed.shape).astype(np.uint8))
    table = np.stack([colours >> 16, colours >> 8 & 0xFF, colours & 0xFF], axis=1).astype(np.uint8)
    made.putpalette(table.tobytes())  # makes its mode P
    return made


def _same(made: bytes, header: Header, pixels: Pixels, values: Any) -> bool:
    """Whether an image decodes to `pixels`, with the same orientation, and to `values` [H, W, 4] if it has alpha."""
    again = read_header(made, header.width * header.height)
    if again.orientation != header.orientation or not np.array_equal(decode(made, again), pixels):
        return False
    if values is None:
        return True
    with open_image(made, header.width * header.height) as image:
        return np.array_equal(np.asarray(image.convert("RGBA")), values)
