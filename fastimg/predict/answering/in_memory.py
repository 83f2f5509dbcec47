"""Samples that a caller has in memory, as datasets: texts, and images as arrays, tensors, Pillow's images or bytes."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from fastimg.loaders import FilesDataset, ImageError
from fastimg.loaders.containers.arrays import npy_bytes
from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.wording import shortened

Picture = bytes | bytearray | memoryview | Image.Image | npt.NDArray[np.generic] | torch.Tensor

_IN_TIFF = frozenset({"1", "LA", "P", "PA", "RGBA", "CMYK", "I;16", "I", "F"})  # modes that TIFF keeps as they are
_CHANNELS = (1, 3, 4)


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

    names: a path, or what an answer calls an image in memory. pictures: those in memory by index: encoded bytes, images
    of Pillow's, or arrays of one image each, as `split_batch` gives them. bands: arrays are [C, H, W] of any type.
    """

    def __init__(self, names: Sequence[str], pictures: dict[int, Picture], bands: bool) -> None:
        super().__init__(Path(), names)
        self._pictures = pictures
        self._bands = bands

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """The bytes of a file, or of one that would hold the image's pixels. Raises ImageError."""
        picture = self._pictures.get(index)
        if picture is None:
            return super().read(index, scratch)
        if isinstance(picture, Image.Image):
            return memoryview(_encoded(picture))
        if isinstance(picture, bytes | bytearray | memoryview):
            return memoryview(picture)
        return memoryview(npy_bytes(as_array(picture)) if self._bands else _packed(as_array(picture)))

    def sample_key(self, index: int) -> str:
        """The same as `sample_name`."""
        return self.sample_name(index)

    def files(self) -> Sequence[Path]:
        """The paths, and names for what is in memory: of arrays of bands, by the extension of such files."""
        suffix = ".npy" if self._bands else ""
        return [Path(f"{name}{suffix}" if index in self._pictures else name) for index, name in enumerate(self.paths)]


def as_array(picture: npt.NDArray[np.generic] | torch.Tensor) -> npt.NDArray[np.generic]:
    """An array with a tensor's values, on the host."""
    return picture.detach().cpu().numpy() if isinstance(picture, torch.Tensor) else picture


def split_batch(picture: Picture, bands: bool) -> list[Picture]:
    """One image, or those of a batch [N, ...]; tensors [C, H, W] of pixels become [H, W, C], as arrays are.

    Pixels are uint8: [H, W], or 1, 3 or 4 channels; uint16 only [H, W]. Raises ValueError for other shapes and types.
    """
    if isinstance(picture, Image.Image):
        if bands:
            raise ValueError("an image of Pillow's; the checkpoint reads bands: give an array [C, H, W]")
        return [_loaded(picture)]
    if not isinstance(picture, np.ndarray | torch.Tensor):
        return [picture]
    array = as_array(picture)
    if array.ndim == 4:
        return [image for row in (picture[i] for i in range(len(array))) for image in split_batch(row, bands)]
    if bands:
        return [array]
    tensor = isinstance(picture, torch.Tensor)
    if tensor and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    layout = "[C, H, W] or [N, C, H, W]" if tensor else "[H, W, C] or [N, H, W, C]"
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
        raise ValueError(f"an image of shape {list(picture.shape)}; give {layout} with 1, 3 or 4 channels, or [H, W]")
    gray = array.ndim == 2 or array.shape[2] == 1
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and gray):
        raise ValueError(
            f"an image of {array.dtype}; give uint8, levels from 0 to 255, or uint16 for a gray image of 16 bits"
        )
    return [array]


def _loaded(image: Image.Image) -> Image.Image:
    """The image once Pillow has read its pixels, which it would do when they are needed, and not in several threads."""
    try:
        image.load()
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError):
        return image  # the thread that encodes it meets the same fault, and says whose it is
    return image


def _encoded(image: Image.Image) -> bytes:
    """A file with the pixels of Pillow's image, upright, that the decoder takes as it would the image's own."""
    try:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in ("RGB", "L"):
            return _packed(np.asarray(upright))
        kept = upright if upright.mode in _IN_TIFF else upright.convert("RGB")
        buffer = io.BytesIO()
        Image.Image.save(kept, buffer, "TIFF", exif=b"")
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        raise ImageError((str(error).splitlines() or [type(error).__name__])[0]) from error
    return buffer.getvalue()


def _packed(array: npt.NDArray[np.generic]) -> bytes:
    """An image [H, W], or [H, W, C] with 1, 3 or 4 channels, as an uncompressed file; alpha is left out."""
    if array.dtype == np.uint16:
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(array.reshape(array.shape[:2]))).save(buffer, "TIFF")
        return buffer.getvalue()
    gray = array.ndim == 2 or array.shape[2] == 1
    height, width = array.shape[:2]
    pixels = array if gray else array[:, :, :3]
    return b"P%d\n%d %d\n255\n" % (5 if gray else 6, width, height) + pixels.tobytes()
