"""Encoded bytes -> upright RGB uint8, by one rule in training, evaluation and prediction.

The rule: EXIF orientation is applied; gray is replicated; palettes are looked up; alpha is dropped (as Pillow's
`convert("RGB")` does); CMYK and YCCK go through Pillow's conversion; 16-bit samples keep their high byte; of several
frames the first counts. Floating-point and 32-bit integer pixels are refused: they have no defined range.

Gray and YCbCr/RGB JPEGs of 8 bits are decoded by libjpeg-turbo (simplejpeg, islow DCT, fancy upsampling, which is also
Pillow's choice); everything else, and a JPEG about which libjpeg warns, by Pillow, whose judgement is final: it accepts
what is merely odd (extraneous bytes, a wrong ICC profile) and refuses what is truncated.
"""

import io
import struct
import warnings
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError

from .errors import ImageError
from .scratch import Scratch
from .splice import Box, splice

Pixels = npt.NDArray[np.uint8]  # [H, W, 3] RGB

MAX_PIXELS = 89_478_485  # Pillow's own threshold, width x height

# `max_pixels` is checked from the header before anything is decoded; Pillow's warning says nothing more.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

# What Pillow's plugins raise for damaged files, by fuzzing them.
_FAULTS = (
    *(OSError, ValueError, SyntaxError, EOFError, RuntimeError, ArithmeticError, LookupError, TypeError, MemoryError),
    *(struct.error, Image.DecompressionBombError),  # the latter from a picture inside a container: ICO, ICNS
)

_EXTENSIONS = {"jpeg": "jpg", "mpo": "jpg", "tiff": "tif", "jpeg2000": "jp2"}
_SOF = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_TURBO_SOF = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended sequential, progressive; Huffman
_TURBO_SAMPLING = frozenset({(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)})  # luma factors over 1x1 chroma


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
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)

    @property
    def extension(self) -> str:
        """The file extension of the content, whatever the file was called: jpg, png, webp, ..."""
        return _EXTENSIONS.get(self.format, self.format)


def read_header(data: bytes | memoryview, max_pixels: int = MAX_PIXELS) -> Header:
    """Format, size and orientation, without decoding.

    Raises ImageError for what is no image, or has more than `max_pixels` pixels.
    """
    header = _jpeg_header(data) if bytes(data[:2]) == b"\xff\xd8" else None
    if header is None:
        with _open(data) as image:
            width, height = image.size
            _check_pixels(width, height, max_pixels)
            orientation = _pillow_orientation(image, data)
            header = Header((image.format or "unknown").lower(), width, height, orientation, turbo=False)
    _check_pixels(header.width, header.height, max_pixels)
    return header


def _check_pixels(width: int, height: int, most: int) -> None:
    if width * height > most:
        raise ImageError(f"{width} x {height} pixels are more than --max-pixels {most}; raise it if you trust it")


def decode(data: bytes | memoryview, header: Header | None = None, scratch: Scratch | None = None) -> Pixels:
    """Upright RGB pixels [H, W, 3] uint8; a strided view where the orientation asks for one.

    `scratch`, where given, holds the result until the next call with it.
    Raises ImageError with the reason.
    """
    header = header or read_header(data)
    pixels = _turbo(data, header, scratch) if header.turbo else None
    if pixels is None:
        pixels = _pillow(data)
    height, width, _ = pixels.shape
    if (width, height) != (header.width, header.height):  # a crop was drawn from the header
        raise ImageError(f"the header says {header.width} x {header.height} pixels, there are {width} x {height}")
    return upright(pixels, header.orientation)


def decode_box(
    data: bytes | memoryview, header: Header, box: Box, scratch: Scratch | None = None
) -> tuple[Pixels, Box]:
    """Upright pixels that hold `box` (x, y, width, height, upright), and where `box` lies in them.

    The pixels in it are those of the whole image. Of a tiled JPEG only the tiles that the box touches are decoded.
    """
    if header.turbo and header.restarts and (box[2], box[3]) != header.size:
        x, y, width, height = stored_box(box, header)
        room = scratch.spliced(len(data) + 2) if scratch else None
        part, (left, top) = splice(data, (x, y, width, height), buffer=room)
        pixels = _turbo(part, header, scratch)
        if pixels is not None and pixels.shape[0] >= y - top + height and pixels.shape[1] >= x - left + width:
            cut = pixels[y - top : y - top + height, x - left : x - left + width]
            return upright(cut, header.orientation), (0, 0, box[2], box[3])
    return decode(data, header, scratch), box


def stored_box(box: Box, header: Header) -> Box:
    """Where a box of the upright image lies in the stored one."""
    x, y, width, height = box
    if header.orientation in (3, 4, 7, 8):
        y = header.size[1] - y - height
    if header.orientation in (2, 3, 6, 7):
        x = header.size[0] - x - width
    return (y, x, height, width) if header.orientation >= 5 else (x, y, width, height)


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """A view of `pixels` [H, W, C] with the EXIF orientation 1-8 undone (Exif 2.32, tag 0x0112)."""
    if orientation >= 5:  # the stored rows are the picture's columns
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _turbo(data: bytes | memoryview, header: Header, scratch: Scratch | None) -> Pixels | None:
    """libjpeg-turbo's pixels, None where it warns or refuses."""
    buffer = scratch.pixels(header.width * header.height * 3) if scratch else None
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True, buffer=buffer)
    except ValueError:
        return None
    return pixels


def _pillow(data: bytes | memoryview) -> Pixels:
    with _open(data) as image:
        try:
            image.load()
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):  # PPM: scaled to 16 bits
                gray = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
                return np.repeat(gray[:, :, None], 3, axis=2)
            if image.mode in ("F", "I"):
                raise ImageError(f"pixels of mode {image.mode} have no defined range; save the image with 8 or 16 bits")
            image.info.pop("transparency", None)  # else Pillow warns of what is asked for: alpha is dropped
            return np.asarray(image.convert("RGB"))
        except _FAULTS as error:
            raise ImageError(_reason(error)) from error


def _open(data: bytes | memoryview) -> Image.Image:
    if len(data) == 0:
        raise ImageError("the file is empty")
    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError as error:
        raise ImageError("not an image in a format that Pillow knows") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError("more pixels than Pillow allows (PIL.Image.MAX_IMAGE_PIXELS)") from error
    except _FAULTS as error:
        raise ImageError(_reason(error)) from error


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _pillow_orientation(image: Image.Image, data: bytes | memoryview) -> int:
    if image.format == "TIFF":  # `load` applies it, `size` has it already
        return 1
    try:
        # Of a PNG without EXIF Pillow decodes the pixels to see what comes behind them.
        plain = image.format == "PNG" and not _tells_late(data)
        orientation = (Image.Image.getexif(image) if plain else image.getexif()).get(0x0112, 1)
    except (OSError, ValueError, SyntaxError, KeyError, struct.error):  # broken EXIF is no reason to lose the image
        return 1
    return orientation if orientation in range(1, 9) else 1


def _tells_late(png: bytes | memoryview) -> bool:
    """Whether a PNG has chunks behind its pixels that may hold an orientation (PNG, 3rd edition, 5.6)."""
    at, pixels = 8, False
    while at + 8 <= len(png):
        kind = bytes(png[at + 4 : at + 8])
        if pixels and kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            return True
        pixels = pixels or kind == b"IDAT"
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return False


def _jpeg_header(data: bytes | memoryview) -> Header | None:
    """The header of a JPEG (ITU T.81 annex B), None where the markers make no sense and Pillow shall judge."""
    orientation, restarts = 1, False
    header: Header | None = None  # once the frame's is read, what follows can only add restarts to it
    at, end = 2, len(data)
    while at + 4 <= end:
        if data[at] != 0xFF:
            return header
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD9:
            return header
        length = data[at + 2] << 8 | data[at + 3]
        body = data[at + 4 : at + 2 + length]
        if length < 2 or len(body) != length - 2 or marker == 0xDA:
            return header
        if marker == 0xDD and header is not None:
            return replace(header, restarts=any(body[:2]))
        if header is None and marker == 0xE1 and orientation == 1 and bytes(body[:6]) == b"Exif\0\0":
            orientation = _exif_orientation(body[6:])
        elif marker in _SOF:
            if header is not None:
                return header
            if len(body) < 6 or len(body) < 6 + 3 * body[5]:
                return None
            precision, height, width, components = struct.unpack_from(">BHHB", body)
            if width == 0 or height == 0:
                return None
            factors = [(body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15) for i in range(components)]
            turbo = (
                marker in _TURBO_SOF
                and precision == 8
                and (
                    components == 1
                    or (components == 3 and factors[1:] == [(1, 1)] * 2 and factors[0] in _TURBO_SAMPLING)
                )
            )
            header = Header("jpeg", width, height, orientation, turbo, restarts)
        elif marker == 0xDD:
            restarts = any(body[:2])
        at += 2 + length
    return header


def _exif_orientation(tiff: bytes | memoryview) -> int:
    """Orientation in IFD0 of a TIFF block, 1 where it is absent or broken."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(tiff[:2]))
    if order is None or len(tiff) < 8:
        return 1
    (ifd,) = struct.unpack_from(order + "I", tiff, 4)
    if ifd + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, ifd)
    for at in range(ifd + 2, min(ifd + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind, count = struct.unpack_from(order + "HHI", tiff, at)
        if tag == 0x0112 and kind in (3, 4) and count == 1:
            (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, at + 8)
            return value if 1 <= value <= 8 else 1
    return 1
