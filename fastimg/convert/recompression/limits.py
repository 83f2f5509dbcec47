"""Which images --recompress leaves as they are, by their headers, and what the others lose besides pixels' values."""

from PIL import Image

from fastimg.loaders.decode import Header
from fastimg.loaders.errors import ImageError, image_faults
from fastimg.loaders.jpeg.exif import ORIENTATION
from fastimg.loaders.opening import open_image

JPEGS = frozenset({"jpeg", "mpo"})
_FORMATS = frozenset({"png", "webp", "tiff", "bmp", "gif", "ppm", "tga", "pcx", "qoi"})  # whose depth is known
_SIDE = 65_535  # pixels of a JPEG
_WHOLE = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA"})  # modes that lossless formats hold as they are
_BITS, _ICC = 258, 34_675  # TIFF 6.0, section 8; ICC.1, annex B.4
_STRUCTURE = frozenset({*range(254, 270), *range(273, 300), *range(317, 348), ORIENTATION, _ICC, 529, 530, 531, 532})
_PIXELS_CHUNKS = frozenset(
    {
        *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"bKGD", b"sBIT", b"hIST", b"acTL", b"fcTL", b"fdAT"),
        *(b"iCCP", b"eXIf"),  # these are carried over, or counted by another name
    }
)
# What Pillow's `info` says about the encoding, or about what is carried over or counted by another name.
_OF_ENCODING = frozenset(
    {
        *("compression", "interlace", "transparency", "background", "loop", "duration", "timestamp", "extension"),
        *("version", "dpi", "resolution", "icc_profile", "exif", "bbox", "sizes", "default_image", "disposal"),
        *("aspect", "blend", "compression_level", "orientation", "rle", "channels", "colorspace", "Interlace"),
    }
)


def deep(image: Image.Image, data: bytes) -> bool:
    """Whether an image that is open, but not decoded, has more than 8 bits a sample."""
    if image.mode.startswith("I") or image.mode == "F":
        return True
    if image.format == "PNG":
        return data[24] > 8  # IHDR comes first (PNG, 3rd edition, 11.2.1)
    if image.format == "TIFF":
        bits = image.tag_v2.get(_BITS, 1)  # type: ignore[attr-defined]
        return any(each > 8 for each in (bits if isinstance(bits, tuple) else (bits,)))
    if image.format == "PPM":
        tiles = image.tile  # type: ignore[attr-defined]
        last = (tile.args[-1] for tile in tiles if isinstance(tile.args, tuple))
        return any(isinstance(most, int) and most > 255 for most in last)
    return False


def obstacle(data: bytes, header: Header, *, lossless: bool) -> str:
    """Why an image that is no JPEG is left as it is; empty if nothing stands in the way. Nothing is decoded."""
    if header.format not in _FORMATS:
        return "of a format that is left as it is"
    if not lossless and max(header.size) > _SIDE:
        return f"a side of more than {_SIDE:,} pixels"
    try:
        with image_faults(), open_image(data, header.width * header.height) as image:
            if deep(image, data):
                return "more than 8 bits a sample"
            if lossless and image.mode not in _WHOLE:
                return f"pixels of mode {image.mode}"
            if has_frames(image) and lossless:
                return "several frames"
    except ImageError:
        return "damaged behind its first frame"
    return ""


def has_frames(image: Image.Image) -> bool:
    """Whether an open image has several frames, or pages.

    They are not counted: Pillow would read all of them, and a TIFF of some bytes can have a chain of thousands.
    """
    if image.format != "TIFF":
        return int(getattr(image, "n_frames", 1)) > 1
    try:
        image.seek(1)
        image.seek(0)
    except EOFError:
        return False
    return True


def lost_as_jpeg(data: bytes, header: Header) -> tuple[str, ...]:
    """What an image that becomes a JPEG loses, in the words of the report."""
    lost = []
    with image_faults(), open_image(data, header.width * header.height) as image:
        lost += ["alpha"] if image.has_transparency_data else []
        lost += ["later frames"] if has_frames(image) else []
        lost += [f"{image.mode} colours"] if image.mode in ("CMYK", "YCbCr", "LAB", "HSV") else []
        lost += ["colour profile"] if image.info.get("icc_profile") else []
        lost += ["metadata"] if has_metadata(image, data) or image.info.get("exif") else []
    return (*lost, *(["EXIF orientation (turned upright)"] if header.orientation != 1 else []))


def has_metadata(image: Image.Image, data: bytes) -> bool:
    """Whether an open image has metadata besides EXIF and a colour profile: texts, XMP, gamma, tags of a TIFF."""
    if image.format == "PNG":
        return not _chunks(data) <= _PIXELS_CHUNKS
    if image.format == "TIFF":
        return any(tag not in _STRUCTURE for tag in image.tag_v2)  # type: ignore[attr-defined]
    return any(key not in _OF_ENCODING for key in image.info)


def _chunks(png: bytes) -> set[bytes]:
    """The names of a PNG's chunks (PNG, 3rd edition, 5.3)."""
    found, offset = set(), 8
    while offset + 8 <= len(png):
        found.add(png[offset + 4 : offset + 8])
        offset += 12 + int.from_bytes(png[offset : offset + 4])
    return found
