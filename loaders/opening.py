"""Where Pillow opens images: the only place, so that all of the program opens the same formats, within the same limits.

Pillow has plugins for formats that other programs decode (EPS starts Ghostscript, WMF asks Windows), and for some of
which it only knows the beginning (HDF5, GRIB, BUFR). It recognises them by their content, whatever a file's name is.
"""

import io
import re
import threading
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from .errors import ImageError, image_faults
from .folders.formats import START, init_pillow, needs_plugin, opened_formats, recognise, register_plugins

MAX_PIXELS = 89_478_485  # Pillow's own threshold, width x height

_RAISING = threading.Lock()


def check_pixels(width: int, height: int, most: int) -> None:
    """Raises ImageError for an image of more than `most` pixels, or of none."""
    if width < 1 or height < 1:
        raise ImageError(f"{width} x {height} pixels: there is nothing to decode")
    if width * height > most:
        raise ImageError(f"{width} x {height} pixels are more than max_pixels={most}; raise it if you trust the image")


def check_scans(jpeg: bytes | memoryview, width: int, height: int) -> None:
    """Raises ImageError for a JPEG of so many scans that every decoder would take too long."""
    from .jpeg.decoding.frame import FEW_SCANS, MOST_SCANNED, has_too_many_scans, view_of  # brings the compiler

    if bytes(jpeg).count(b"\xff\xda") <= FEW_SCANS:  # the markers of scans, and what may look like one
        return
    if has_too_many_scans(view_of(jpeg), width * height):
        most = max(FEW_SCANS, MOST_SCANNED // (width * height))
        raise ImageError(
            f"a JPEG of {width} x {height} pixels in more than {most:,} scans, which would take too long; save it anew"
        )


def open_image(source: bytes | memoryview | Path, most: int = MAX_PIXELS) -> Image.Image:
    """An image of up to `most` pixels whose pixels are not decoded yet: the content of a file, or a file.

    Raises ImageError for other content, and for files that cannot be read.
    """
    if not isinstance(source, Path) and len(source) == 0:
        raise ImageError("the file is empty")
    _allow(most)
    with image_faults():
        try:
            image = _opened(source)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageError(_too_large(error, most)) from error
    try:
        check_pixels(image.width, image.height, most)
        if image.format in ("JPEG", "MPO"):
            check_scans(source.read_bytes() if isinstance(source, Path) else source, image.width, image.height)
    except ImageError:
        image.close()
        raise
    return image


def _opened(source: bytes | memoryview | Path) -> Image.Image:
    """The image by those of Pillow's plugins that are imported; if none knows it, by more of them."""
    for prepare in (Image.preinit, init_pillow, register_plugins):
        if prepare is not register_plugins or needs_plugin(_start(source)):
            prepare()
            try:
                return Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=opened_formats())
            except UnidentifiedImageError:
                pass
    raise ImageError(recognise(_start(source)) or "not an image in a format that Pillow knows")


def _start(source: bytes | memoryview | Path) -> bytes:
    if not isinstance(source, Path):
        return bytes(source[:START])
    with source.open("rb") as file:
        return file.read(START)


def _allow(pixels: int) -> None:
    """Let Pillow open images of so many pixels.

    Its limit is one for the whole process. It is only ever raised, so that no thread takes it from another.
    """
    if Image.MAX_IMAGE_PIXELS is None or pixels <= Image.MAX_IMAGE_PIXELS:
        return
    with _RAISING:
        if Image.MAX_IMAGE_PIXELS is not None:
            Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, pixels)


def _too_large(error: Exception, most: int) -> str:
    """Pillow refuses twice its limit before anybody knows the sides; the number of pixels is in its message."""
    found = re.search(r"\((\d+) pixels\)", str(error))
    size = f"{int(found[1]):,}" if found else "its"
    return f"{size} pixels are more than max_pixels={most}; raise it if you trust the image"
