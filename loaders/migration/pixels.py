"""Images that are arrays in memory, such as CIFAR's, as a dataset whose samples are files."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.content import Content
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.runtime.scratch import Scratch


class PixelsDataset(WithFields):
    """uint8 RGB images [N, H, W, 3]. A sample reads as a PPM file: a line that states its size, and its pixels."""

    content: Content = "images"
    notes: Sequence[str] = ()

    def __init__(self, name: str, pixels: npt.NDArray[Any], classes: tuple[str, ...], labels: npt.ArrayLike) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            raise TypeError(
                f"{name}: has images of {pixels.dtype} {list(pixels.shape)}; give RGB images, uint8 [N, H, W, 3]"
            )
        self.name = name
        self.classes = classes
        self.labels: npt.NDArray[np.int64] = np.asarray(labels, np.int64)
        self._pixels = pixels
        self._head = f"P6 {pixels.shape[2]} {pixels.shape[1]} 255\n".encode()

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The class."""
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """See Dataset."""
        image = np.ascontiguousarray(self._pixels[index])
        view = scratch.encoded(len(self._head) + image.nbytes)
        view[: len(self._head)] = self._head
        view[len(self._head) :] = image.data.cast("B")
        return view

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Does nothing: they are in memory."""

    def sample_name(self, index: int) -> str:
        """The name of the data, and the sample's number."""
        return f"{self.name}[{index}]"

    def sample_key(self, index: int) -> str:
        """The sample's number."""
        return str(index)

    def files(self) -> Sequence[Path]:
        """None."""
        return ()

    @cached_property
    def fingerprint(self) -> str:
        """Changes when a pixel or a label does."""
        digest = hashlib.sha256(str(self._pixels.shape).encode())
        digest.update(np.ascontiguousarray(self._pixels).data)
        digest.update(self.labels.tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Does nothing: no file is open."""
