"""Encoded bytes -> upright RGB or gray uint8, by one rule in training, evaluation and prediction.

The rule: EXIF orientation is applied; gray is replicated; palettes are looked up; alpha is dropped (as Pillow's
`convert("RGB")` does); CMYK and YCCK go through Pillow's conversion; 16-bit samples keep their high byte; of several
frames the first counts. Floating-point and 32-bit integer pixels are refused: they have no defined range.

Of one channel, a YCbCr JPEG gives its luma, as libjpeg's grayscale output does; all other colours are converted as by
Pillow's `convert("L")`, with the weights of BT.601.

With 16 bits, PNG and TIFF files of 16 bits keep theirs, and a level x of 8 bits becomes 257 x, so that white is 65535.

Gray and YCbCr/RGB JPEGs of 8 bits are decoded by libjpeg-turbo (simplejpeg, islow DCT, fancy upsampling, which is also
Pillow's choice); everything else, and a JPEG about which libjpeg warns, by Pillow, which has the last word: it accepts
files that are merely odd (extraneous bytes, a wrong ICC profile) and rejects truncated ones.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastimg.loaders.folders.bands import read_bands
from fastimg.loaders.folders.deep_png import read_deep_png
from fastimg.loaders.jpeg.decoding.frame import BASELINE, EXTENDED, PROGRESSIVE, glance, new_header, view_of
from fastimg.loaders.jpeg.exif import ORIENTATION, turn_of
from fastimg.loaders.jpeg.plain_header import Glance, plain_glance
from fastimg.loaders.jpeg.rewriting.splice import Box, can_splice, may_splice, splice
from fastimg.loaders.pictures.damaged_png import whole_rows
from fastimg.loaders.pictures.libwebp import decode_box_alone
from fastimg.loaders.runtime.compiled import may_call
from fastimg.loaders.runtime.scratch import Scratch

from .errors import ImageError, image_faults
from .opening import MAX_PIXELS as MAX_PIXELS
from .opening import check_pixels, check_scans, open_image

Pixels = npt.NDArray[np.uint8]  # [H, W, C]: RGB, or gray with C = 1
DeepPixels = npt.NDArray[np.uint16]  # the same

_BITS_PER_SAMPLE = 258  # TIFF's tag
_LUMA_ROWS = 64  # whose luma is computed at a time

T = TypeVar("T", bound=np.generic)

COMPILED_FORMATS = frozenset({"jpeg", "mpo", "png", "bmp", "ppm"})  # decoded by compiled code, not by a library

_EXTENSIONS = {"jpeg": "jpg", "mpo": "jpg", "tiff": "tif", "jpeg2000": "jp2"}
_TURBO_FRAMES = frozenset({BASELINE, EXTENDED, PROGRESSIVE})  # Huffman-coded
_TURBO_SAMPLING = frozenset({0x11, 0x21, 0x22, 0x12, 0x41})  # of luma over 1 x 1 of chroma, as by `glance`


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of an image say. `width`, `height` are as stored; `size` is as seen upright."""

    format: str  # Pillow's name in lower case: jpeg, png, webp, ...
    width: int
    height: int
    orientation: int  # EXIF, 1 to 8, still to be undone; 1 for TIFF, which Pillow turns upright itself
    turbo: bool  # libjpeg-turbo may decode it
    restarts: bool = False  # it has a restart interval: it may be tiled

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels after the orientation is applied."""
        return (self.height, self.width) if turn_of(self.orientation).transposed else (self.width, self.height)

    @property
    def extension(self) -> str:
        """The file extension of the content, independent of the file's name: jpg, png, webp, ..."""
        return _EXTENSIONS.get(self.format, self.format)


def read_header(data: bytes | memoryview, max_pixels: int = MAX_PIXELS) -> Header:
    """Format, size and orientation, without decoding.

    Raises ImageError if the data is not an image, or has more than `max_pixels` pixels.
    """
    header = _jpeg_header(data) if bytes(data[:2]) == b"\xff\xd8" else None
    if header is None:
        with open_image(data, max_pixels) as image:
            width, height = image.size
            orientation = _pillow_orientation(image, data)
            header = Header((image.format or "unknown").lower(), width, height, orientation, turbo=False)
    check_pixels(header.width, header.height, max_pixels)
    return header


def decode(
    data: bytes | memoryview, header: Header | None = None, scratch: Scratch | None = None, channels: int = 3
) -> Pixels:
    """Upright pixels [H, W, C] uint8, RGB or gray; a strided view where the orientation asks for one.

    `scratch`, where given, holds the result until the next call with it.
    Raises ImageError with the reason.
    """
    header = header or read_header(data)
    pixels = _turbo(data, header, scratch, channels) if header.turbo else None
    if pixels is None:
        pixels = _pillow(data, header, channels)
    height, width, _ = pixels.shape
    _check_size(header, width, height)
    return upright(pixels, header.orientation)


def _check_size(header: Header, width: int, height: int) -> None:
    """Raises ImageError for another size than the header's, from which a crop was drawn."""
    if (width, height) != (header.width, header.height):
        raise ImageError(f"the header says {header.width} x {header.height} pixels, there are {width} x {height}")


def decode_box(
    data: bytes | memoryview, header: Header, box: Box, scratch: Scratch | None = None, channels: int = 3
) -> tuple[Pixels, Box]:
    """Upright pixels that hold `box` (x, y, width, height, upright), and where `box` lies in them.

    The pixels in it are those of the whole image. Of a tiled JPEG only the tiles that the box touches are decoded, and
    of a PNG or WebP that is damaged elsewhere the rows that the box needs.
    """
    if header.turbo and header.restarts and (box[2], box[3]) != header.size and may_splice():
        cut = _cut(data, header, box, scratch, channels)
        if cut is not None:
            return cut, (0, 0, box[2], box[3])
    try:
        return decode(data, header, scratch, channels), box
    except ImageError:
        found = _undamaged(data, header, box, channels)
        if found is None:
            raise
        return found


def decode_boxes(
    data: bytes | memoryview,
    header: Header,
    boxes: Sequence[Box],
    scratch: Scratch | None = None,
    channels: int = 3,
) -> Iterator[tuple[Pixels, Box]]:
    """What `decode_box` gives for each of `boxes`, from one decode. With `scratch`, each is valid until the next."""
    if not (header.turbo and header.restarts and may_splice()):
        try:
            pixels = decode(data, header, scratch, channels)
        except ImageError:
            if header.format not in ("png", "webp"):
                raise
            yield from (decode_box(data, header, box, scratch, channels) for box in boxes)
            return
        yield from ((pixels, box) for box in boxes)
        return
    left, top = min(x for x, *_ in boxes), min(y for _, y, *_ in boxes)
    right, bottom = max(x + width for x, _, width, _ in boxes), max(y + height for _, y, _, height in boxes)
    cut = _cut(data, header, (left, top, right - left, bottom - top), scratch, channels)
    for box in boxes:
        if cut is None:  # it is damaged, which not every box need touch
            yield decode_box(data, header, box, scratch, channels)
        else:
            yield cut, (box[0] - left, box[1] - top, box[2], box[3])


def _undamaged(data: bytes | memoryview, header: Header, box: Box, channels: int) -> tuple[Pixels, Box] | None:
    """Of a damaged PNG or WebP, rows that hold `box`, and where it lies in them; None if these are damaged, too."""
    x, y, width, height = box
    if header.orientation != 1:
        return None
    if header.format == "webp":
        alone = decode_box_alone(data, header.size, box)
        if alone is None:
            return None
        pixels, place = alone
        if channels == 1:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]
        return pixels, (*place, width, height)
    rows = whole_rows(data, y, y + height) if header.format == "png" and height != header.height else None
    if rows is None:
        return None
    with suppress(ImageError):
        pixels = _pillow(rows.png, replace(header, height=y + height - rows.first), channels)
        return pixels, (x, y - rows.first, width, height)
    return None


def _cut(data: bytes | memoryview, header: Header, box: Box, scratch: Scratch | None, channels: int) -> Pixels | None:
    """The upright pixels of `box` from the tiles that it touches; None if libjpeg-turbo warns about them."""
    x, y, width, height = stored_box(box, header)
    room = scratch.spliced(len(data) + 2) if scratch else None
    part, (left, top) = splice(data, (x, y, width, height), room)
    pixels = _turbo(part, header, scratch, channels)
    if pixels is None or pixels.shape[0] < y - top + height or pixels.shape[1] < x - left + width:
        return None
    return upright(pixels[y - top : y - top + height, x - left : x - left + width], header.orientation)


def check_channels(channels: object) -> None:
    """Raises ValueError for a number of channels that an image cannot be decoded to."""
    if channels not in (1, 3) or isinstance(channels, bool):
        raise ValueError(
            f"channels={channels!r}: give 3 for RGB or 1 for gray; arrays with other numbers of channels are fields"
        )


def in_gray(channels: int) -> str:
    """What to say of images that are decoded to so many channels."""
    return " to gray" if channels == 1 else ""


def check_depth(depth: object) -> None:
    """Raises ValueError for a number of bits that an image cannot be decoded to."""
    if depth not in (8, 16):
        raise ValueError(f"depth={depth!r}: give 8, or 16 for images of 16 bits")


def decode_deep(data: bytes | memoryview, header: Header) -> DeepPixels | None:
    """Upright pixels [H, W, C] of an image that has 16 bits, in either byte order; None for others, which have 8.

    C is 1 for gray, and 3. `deep_part` makes of them what lies in a box. Raises ImageError with the reason.
    """
    if header.turbo or header.format not in ("png", "tiff", "ppm"):
        return None
    with image_faults(), open_image(data, max(header.width * header.height, MAX_PIXELS)) as image:
        if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
            image.load()
            pixels = np.asarray(image).astype(np.uint16, copy=False)[:, :, None]
        elif image.format == "PNG" and data[24] == 16:  # Pillow keeps 8 bits of each colour
            pixels = _without_alpha(read_deep_png(data))
        elif image.format == "TIFF" and 16 in image.tag_v2.get(_BITS_PER_SAMPLE, ()):  # type: ignore[attr-defined]
            turn = image.tag_v2.get(ORIENTATION, 1)  # type: ignore[attr-defined]
            stored = _deep_tiff(data)
            if stored.shape[:2] != (image.height, image.width):
                raise ImageError(f"states {image.width} x {image.height} pixels, and other axes in its description")
            pixels = upright(stored, turn if turn in range(1, 9) else 1)
        else:
            return None
    return upright(pixels, header.orientation)


def deep_part(pixels: DeepPixels, box: Box, channels: int) -> tuple[DeepPixels, Box]:
    """What lies in a box of what `decode_deep` gives, [h, w, channels] uint16, and where the box then lies.

    Channels are converted after the cut: of a large image the numbers in between would take several times its memory.
    """
    x, y, width, height = box
    part = pixels[y : y + height, x : x + width]
    if part.shape[2] > channels:
        part = _deep_luma(part)
    return np.broadcast_to(part.astype(np.uint16, copy=False), (height, width, channels)), (0, 0, width, height)


def as_deep(part: tuple[Pixels, Box]) -> tuple[DeepPixels, Box]:
    """What lies in a box of pixels of 8 bits, as 16 bits: white stays white. And where the box then lies."""
    pixels, (x, y, width, height) = part
    return pixels[y : y + height, x : x + width] * np.uint16(257), (0, 0, width, height)


def _deep_tiff(data: bytes | memoryview) -> DeepPixels:
    """The pixels [H, W, C] of a TIFF of several channels of 16 bits."""
    bands = read_bands(bytes(data), ".tif")
    if bands.dtype != np.uint16:
        raise ImageError(f"pixels of type {bands.dtype}; save the image with 8 or 16 bits")
    return _without_alpha(bands.transpose(1, 2, 0))


def _without_alpha(pixels: DeepPixels) -> DeepPixels:
    return pixels[:, :, : 3 if pixels.shape[2] >= 3 else 1]


def _deep_luma(pixels: DeepPixels) -> DeepPixels:
    """Gray [H, W, 1] by Pillow's weights of 16 bits. Their sum is 65536, so that 32 bits hold what is added up."""
    gray = np.empty((*pixels.shape[:2], 1), np.uint16)
    for begin in range(0, len(pixels), _LUMA_ROWS):
        rows = pixels[begin : begin + _LUMA_ROWS]
        levels = np.full((*rows.shape[:2], 1), 0x8000, np.uint32)
        for channel, weight in enumerate((19595, 38470, 7471)):
            levels += rows[:, :, channel : channel + 1] * np.uint32(weight)
        gray[begin : begin + _LUMA_ROWS] = levels >> 16
    return gray


def is_tiled(data: bytes | memoryview, header: Header) -> bool:
    """Whether crops of an image can be decoded alone: a JPEG with restart markers around tiles, from first to last."""
    return header.turbo and header.restarts and can_splice(data)


def stored_box(box: Box, header: Header) -> Box:
    """Where a box of the upright image lies in the stored one."""
    x, y, width, height = box
    turn = turn_of(header.orientation)
    if turn.flip_y:
        y = header.size[1] - y - height
    if turn.flip_x:
        x = header.size[0] - x - width
    return (y, x, height, width) if turn.transposed else (x, y, width, height)


def upright(pixels: npt.NDArray[T], orientation: int) -> npt.NDArray[T]:
    """A view of `pixels` [H, W, C] with the EXIF orientation 1-8 undone."""
    turn = turn_of(orientation)
    if turn.transposed:
        pixels = pixels.transpose(1, 0, 2)
    if turn.flip_x:
        pixels = pixels[:, ::-1]
    if turn.flip_y:
        pixels = pixels[::-1]
    return pixels


def _turbo(data: bytes | memoryview, header: Header, scratch: Scratch | None, channels: int) -> Pixels | None:
    """libjpeg-turbo's pixels; None if it warns or fails."""
    import simplejpeg  # tiled JPEGs are decoded without it

    buffer = scratch.pixels(header.width * header.height * channels) if scratch else None
    colours = "RGB" if channels == 3 else "GRAY"
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colours, strict=True, buffer=buffer)
    except ValueError:
        return None
    return pixels


_LOSSLESS = 0xC3  # SOF3, whose colours libjpeg-turbo does not convert while decoding


def _pillow(data: bytes | memoryview, header: Header, channels: int) -> Pixels:
    with image_faults(), open_image(data, max(header.width * header.height, MAX_PIXELS)) as image:
        _check_size(header, *image.size)
        if channels == 1 and image.format == "JPEG" and _glance(data).sof != _LOSSLESS:
            image.draft("L", image.size)  # libjpeg's grayscale output
        image.load()
        if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):  # PPM: scaled to 16 bits
            gray = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
            return np.repeat(gray[:, :, None], channels, axis=2)
        if image.mode in ("F", "I"):
            raise ImageError(f"pixels of mode {image.mode} have no defined range; save the image with 8 or 16 bits")
        image.info.pop("transparency", None)  # otherwise Pillow warns that alpha is dropped, which is intended
        return np.asarray(image.convert("RGB")) if channels == 3 else np.asarray(image.convert("L"))[:, :, None]


def decode_mask(data: bytes | memoryview, size: tuple[int, int]) -> npt.NDArray[np.uint8 | np.uint16]:
    """The values of a mask [H, W] for an image of `size` (width, height): of one channel of 8 or 16 bits, as stored.

    Of a palette these are the indices; one bit is 0 or 1. Raises ImageError, for masks of another size, too.
    """
    with image_faults(), open_image(data, max(size[0] * size[1], MAX_PIXELS)) as image:
        if image.size != size:
            raise ImageError(f"{image.width} x {image.height} pixels; the image has {size[0]} x {size[1]}")
        image.load()
        if image.mode == "1":
            return (np.asarray(image.convert("L")) > 0).astype(np.uint8)
        if image.mode in ("L", "P"):
            return np.asarray(image)
        values = np.asarray(image) if image.mode == "I" or image.mode.startswith("I;16") else None
        if values is None or values.min() < 0 or values.max() > 0xFFFF:
            raise ImageError(f"pixels of mode {image.mode}; give one channel of 8 or 16 bits, or a palette")
        return values.astype(np.uint16)


def decode_mask_box(
    data: bytes | memoryview, size: tuple[int, int], box: Box
) -> tuple[npt.NDArray[np.uint8 | np.uint16], Box]:
    """The values of a mask, as of `decode_mask`, that hold `box` (x, y, width, height), and where it lies in them.

    Of a PNG that is damaged elsewhere they are the rows that the box needs.
    """
    try:
        return decode_mask(data, size), box
    except ImageError:
        x, y, width, height = box
        header = None
        with suppress(ImageError):
            header = read_header(data, size[0] * size[1])
        if header is None or header.format != "png" or (header.width, header.height) != size or height == size[1]:
            raise
        rows = whole_rows(data, y, y + height)
        if rows is None:
            raise
        with suppress(ImageError):
            return decode_mask(rows.png, (size[0], y + height - rows.first)), (x, y - rows.first, width, height)
        raise


def _pillow_orientation(image: Image.Image, data: bytes | memoryview) -> int:
    if image.format == "TIFF":  # `load` applies it, `size` has it already
        return 1
    try:
        # Of a PNG without EXIF Pillow decodes the pixels to see what comes behind them.
        plain = image.format == "PNG" and not _tells_late(data)
        orientation = (Image.Image.getexif(image) if plain else image.getexif()).get(ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - broken EXIF, of which Pillow raises anything, must not lose the image
        return 1
    return orientation if orientation in range(1, 9) else 1


def _tells_late(png: bytes | memoryview) -> bool:
    """Whether a PNG has chunks behind its pixels that may hold an orientation (PNG, 3rd edition, 5.6)."""
    offset = 8
    pixels = False
    while offset + 8 <= len(png):
        kind = bytes(png[offset + 4 : offset + 8])
        if pixels and kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            return True
        pixels = pixels or kind == b"IDAT"
        offset += 12 + int.from_bytes(png[offset : offset + 4], "big")
    return False


def _glance(data: bytes | memoryview) -> Glance:
    if not may_call(glance):
        return plain_glance(data)
    known = new_header()
    return Glance(*glance(view_of(data), known), bool(known["scan_components"][0] == known["components"][0]))


def _jpeg_header(data: bytes | memoryview) -> Header | None:
    """The header of a JPEG; None if it has no frame, in which case Pillow decides."""
    sof, width, height, orientation, interval, precision, luma, whole = _glance(data)
    if not sof:
        return None
    if sof not in (BASELINE, EXTENDED) or not whole:
        check_scans(data, width, height)
    turbo = sof in _TURBO_FRAMES and precision == 8 and luma in _TURBO_SAMPLING
    return Header("jpeg", width, height, orientation, turbo, restarts=interval > 0)
