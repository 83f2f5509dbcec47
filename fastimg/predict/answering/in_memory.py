"""Samples that a caller has in memory, as datasets: texts, and images as arrays, tensors, Pillow's images or bytes."""

import io
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from fastimg.loaders import FilesDataset, ImageError
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.npy import npy_bytes
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.opening import check_pixels
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.registry.model import Preprocessing
from fastimg.wording import shortened

_IN_TIFF = frozenset({"1", "LA", "P", "PA", "RGBA", "CMYK", "I", "F"})  # modes that TIFF keeps as they are
_CHANNELS = (1, 3, 4)
_LEVELS = "give uint8, levels from 0 to 255, or uint16, from 0 to 65535"


class BinaryFile(Protocol):
    """A file that is open in binary mode."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be read, and why."""

    reason: str


Source = bytes | bytearray | memoryview | BinaryFile | Image.Image | npt.NDArray[np.generic] | torch.Tensor
Picture = bytes | Image.Image | npt.NDArray[np.generic] | Unreadable


class GivenTexts(WithFields):
    """Texts from the command line or a caller, as a dataset."""

    content: Content = "text"
    notes: Sequence[str] = ()
    classes: tuple[str, ...] = ()
    name = "--text"
    fingerprint = ""

    def __init__(self, texts: Sequence[str]) -> None:
        self.labels: npt.NDArray[np.int64] = np.full(len(texts), -1, np.int64)
        self._texts = [text.encode("utf-8", "surrogateescape") for text in texts]

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The class, which is unknown for every text."""
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The text, in UTF-8 if the command line was."""
        return memoryview(self._texts[index])

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Nothing to fetch."""

    def sample_name(self, index: int) -> str:
        """The beginning of the text."""
        return shortened(self._texts[index].decode("utf-8", "replace"), 60)

    def sample_key(self, index: int) -> str:
        """The same as `sample_name`."""
        return self.sample_name(index)

    def files(self) -> Sequence[Path]:
        """There are none."""
        return ()

    def close(self) -> None:
        """Nothing to close."""


class GivenImages(FilesDataset):
    """Images in any order: files by path, and others by what they hold.

    names: a path, or what an answer calls an image in memory. pictures: those in memory by index, as `pictures_of`
    gives them. bands: arrays are [C, H, W]. max_pixels: larger images in memory are refused before they are copied.
    """

    def __init__(self, names: Sequence[str], pictures: Mapping[int, Picture], bands: bool, max_pixels: int) -> None:
        super().__init__(Path(), names)
        self._pictures = pictures
        self._bands = bands
        self._max_pixels = max_pixels

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The bytes of a file, or of one that would hold the image's pixels. Raises ImageError."""
        picture = self._pictures.get(index)
        if picture is None:
            return super().read(index, scratch)
        if isinstance(picture, Unreadable):
            raise ImageError(picture.reason)
        if isinstance(picture, bytes):
            return memoryview(picture)
        if isinstance(picture, Image.Image):
            return memoryview(_encoded(picture))
        height, width = picture.shape[1:] if self._bands else picture.shape[:2]
        check_pixels(width, height, self._max_pixels)
        return memoryview(npy_bytes(picture) if self._bands else _packed(picture))

    def sample_key(self, index: int) -> str:
        """The same as `sample_name`."""
        return self.sample_name(index)

    def files(self) -> Sequence[Path]:
        """The paths, and names for what is in memory: of arrays of bands, by the extension of such files."""
        suffix = ".npy" if self._bands else ""
        return [Path(f"{name}{suffix}" if index in self._pictures else name) for index, name in enumerate(self.paths)]


def pictures_of(source: Source, bands: Preprocessing | None, max_pixels: int) -> list[Picture]:
    """What is in memory: one image, or those of a batch [N, ...].

    Pixels are uint8 or uint16: [H, W], or 1, 3 or 4 channels, last in arrays and first in tensors. `bands`, where the
    checkpoint reads them, says how many, and their type. What cannot be decoded becomes `Unreadable`.

    Raises ValueError for other shapes and types, and TypeError for a file that was not opened in binary mode.
    """
    if hasattr(source, "read"):
        content = source.read()
        if not isinstance(content, bytes):
            raise TypeError("a file that gives text; open it in binary mode")
        return [content]
    if isinstance(source, memoryview) and source.ndim != 1:
        raise ValueError("a memoryview of several dimensions; give the array, or the bytes of a file")
    if isinstance(source, bytes | bytearray | memoryview):
        return [bytes(source)]
    if isinstance(source, Image.Image):
        if bands is not None:
            raise ValueError("an image of Pillow's, and the checkpoint reads bands; give an array [C, H, W]")
        return [_loaded(source, max_pixels)]
    if isinstance(source, torch.Tensor) and source.dtype.is_floating_point and bands is None:
        raise ValueError(f"an image of {source.dtype}; {_LEVELS}")
    return _arrays(source, bands)


def _arrays(source: npt.NDArray[np.generic] | torch.Tensor, bands: Preprocessing | None) -> list[Picture]:
    """The image or images in an array or a tensor: [H, W] or [H, W, C], or of bands [C, H, W]."""
    tensor = isinstance(source, torch.Tensor)
    array = source.detach().cpu().numpy() if isinstance(source, torch.Tensor) else np.asarray(source)
    if array.ndim == 4:
        return [image for row in array for image in _arrays(torch.from_numpy(row) if tensor else row, bands)]
    if bands is not None:
        cut = array[None] if array.ndim == 2 else array
        if cut.ndim != 3 or 0 in cut.shape or (len(cut), str(cut.dtype)) != (bands.channels, bands.dtype):
            raise ValueError(
                f"bands of {array.dtype} {list(array.shape)}; the checkpoint reads {bands.dtype} "
                f"[{bands.channels}, H, W]"
            )
        return [cut]
    if tensor and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    layout = "[C, H, W] or [N, C, H, W]" if tensor else "[H, W, C] or [N, H, W, C]"
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
        raise ValueError(f"an image of shape {list(source.shape)}; give {layout} with 1, 3 or 4 channels, or [H, W]")
    if array.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"an image of {array.dtype}; {_LEVELS}")
    return [array]


def _loaded(image: Image.Image, max_pixels: int) -> Picture:
    """The image once Pillow has read its pixels, which it would do when they are needed, and not in several threads.

    It is read once: after damage was found, Pillow gives what it had read until then.
    """
    if 0 in image.size:
        raise ValueError(f"an image of {image.width} x {image.height} pixels; give one that has some")
    try:
        check_pixels(*image.size, max_pixels)
        image.load()
    except Exception as error:  # noqa: BLE001 - plugins raise anything, and AssertionError for a closed file
        return Unreadable(_first_line(error))
    return image


def _first_line(error: Exception) -> str:
    """The reason that an error of Pillow's gives."""
    if isinstance(error, AssertionError | AttributeError):
        return "the image was closed before its pixels were read"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _encoded(image: Image.Image) -> bytes:
    """A file with the pixels of Pillow's image, upright, that the decoder takes as it would the image's own."""
    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")  # as in the decoder
    try:
        upright = ImageOps.exif_transpose(image)
        if deep:
            return _packed(np.asarray(upright).astype(np.uint16))
        if upright.mode in ("RGB", "L"):
            return _packed(np.asarray(upright))
        kept = upright if upright.mode in _IN_TIFF else upright.convert("RGB")
        buffer = io.BytesIO()
        kept.save(buffer, "TIFF", exif=b"")
    except Exception as error:
        raise ImageError(_first_line(error)) from error
    return buffer.getvalue()


def _packed(array: npt.NDArray[np.generic]) -> bytes:
    """An image [H, W], or [H, W, C] with 1, 3 or 4 channels, as an uncompressed file; alpha is left out."""
    gray = array.ndim == 2 or array.shape[2] == 1
    height, width = array.shape[:2]
    if array.dtype == np.uint16 and gray:
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(array.reshape(height, width))).save(buffer, "TIFF")
        return buffer.getvalue()
    pixels = array if gray else array[:, :, :3]
    if array.dtype == np.uint16:
        return _deep_png(pixels)
    return b"P%d\n%d %d\n255\n" % (5 if gray else 6, width, height) + pixels.tobytes()


def _deep_png(pixels: npt.NDArray[np.generic]) -> bytes:
    """A PNG of RGB of 16 bits [H, W, 3], which Pillow reads and does not write (PNG, 3rd edition, 5 and 9)."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 6 * width), np.uint8)  # the first byte of a row: it is not filtered
    rows[:, 1:] = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, 0)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
