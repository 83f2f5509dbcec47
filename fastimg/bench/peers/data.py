"""The same images as every loader wants them: DATA as it is, files, plain tars, FFCV's own beton.

And pictures from whose crops the crop's box can be read.
"""

import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastimg.loaders import DataError, Dataset, FilesDataset, open_dataset
from fastimg.loaders.containers.tar import ShardWriter
from fastimg.loaders.runtime.cpus import available_cpus

_GRADIENTS = ((512, 384), (384, 512), (640, 300))  # width, height; a number of each is in the blue


@dataclass(frozen=True, kw_only=True)
class Original:
    """DATA as it is: sample i of the comparison is sample `ids[i]` of its split."""

    path: Path
    split: str
    fingerprint: str
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """One set of images. Sample i is `files[i]`, in every container; what is below `folder` is made when needed."""

    folder: Path
    files: tuple[Path, ...]  # absolute
    original: Original | None = None  # None: the files are all there is
    parts: int = 16  # tars, where there are so many files: webdataset deals whole tars to its workers

    @property
    def ffcv_beton(self) -> Path:
        """FFCV's container, by FFCV."""
        return self.folder / "ffcv.beton"

    @property
    def tars(self) -> list[Path]:
        """Tars of the files as they are, with their labels."""
        return [self.folder / f"plain-{i:03d}.tar" for i in range(min(self.parts, len(self.files)))]

    def label(self, index: int) -> int:
        """A made-up class."""
        return 10 * index // len(self.files)

    def open(self) -> tuple[Dataset, npt.NDArray[np.int64] | None]:
        """DATA as it is, or the files, and which of its samples are meant, None for all.

        Raises DataError where DATA is not what it was.
        """
        if self.original is None:
            return FilesDataset(Path("/"), [str(file) for file in self.files]), None
        data = open_dataset(self.original.path, self.original.split)
        if data.fingerprint != self.original.fingerprint:
            data.close()
            raise DataError(f"{self.original.path}: changed while it was in use; leave it alone and begin again")
        return data, np.array(self.original.ids, np.int64)


def write_tars(sources: Sources) -> None:
    """`sources.tars`: member .jpg is the file as it is, whatever its format."""
    sources.folder.mkdir(parents=True, exist_ok=True)
    parts = np.array_split(np.arange(len(sources.files)), len(sources.tars))
    for tar, indices in zip(sources.tars, parts, strict=True):
        with ShardWriter(tar) as shard:
            for i in indices.tolist():
                fields = {"jpg": sources.files[i].read_bytes(), "cls": str(sources.label(i)).encode()}
                shard.add(f"{i:06d}", fields)


def write_ffcv_beton(sources: Sources) -> None:
    """`sources.ffcv_beton` by FFCV's writer: jpg mode, its default quality.

    To be called in a process that may be ended: it ends this one when one of the writer's processes has failed, for
    which the writer would wait for ever.
    """
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    sources.folder.mkdir(parents=True, exist_ok=True)
    done = threading.Event()
    watch = threading.Thread(target=_end_with_a_child, args=(done,), daemon=True)
    fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
    writer = DatasetWriter(str(sources.ffcv_beton), fields, num_workers=min(available_cpus(), len(sources.files)))
    watch.start()
    try:
        writer.from_indexed_dataset(_Indexed(sources))
    finally:
        done.set()
        watch.join()


def _end_with_a_child(done: threading.Event) -> None:
    seen = set()
    while not done.wait(0.2):
        seen |= set(multiprocessing.active_children())
        if any(child.exitcode not in (None, 0) for child in seen):
            time.sleep(0.2)  # what it says has reached the terminal
            os._exit(1)


class _Indexed:
    """What FFCV calls an indexed dataset."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def __len__(self) -> int:
        return len(self._sources.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with Image.open(self._sources.files[index]) as image:
            return image.convert("RGB"), self._sources.label(index)


def write_gradients(folder: Path) -> list[Path]:
    """JPEGs from whose crops the crop's box can be read: red grows with x, green with y, blue tells the size."""
    folder.mkdir(parents=True)
    files = []
    for number, (width, height) in enumerate(_GRADIENTS):
        pixels = np.empty((height, width, 3))
        pixels[..., 0] = 255 * (np.arange(width) + 0.5) / width
        pixels[..., 1] = 255 * (np.arange(height)[:, None] + 0.5) / height
        pixels[..., 2] = 60 * (number + 1)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(pixels.round().astype(np.uint8)).save(files[-1], quality=95, subsampling=0)
    return files


def read_boxes(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Of crops [N, S, S, 3] of gradients: (share of the area, aspect in pixels, centre x, centre y, mirrored) [N, 5].

    The centre is in shares of the image's sides.
    """
    side = images.shape[1]
    places = (np.arange(side) + 0.5) / side
    across = images[..., 0].mean(axis=1) / 255  # [N, S]
    down = images[..., 1].mean(axis=2) / 255
    (width, left), (height, top) = (np.polyfit(places, lines.T, 1) for lines in (across, down))
    sizes = np.array(_GRADIENTS)[np.clip(np.round(images[..., 2].mean(axis=(1, 2)) / 60).astype(int) - 1, 0, 2)]
    aspect = np.abs(width) * sizes[:, 0] / (np.abs(height) * sizes[:, 1])
    return np.stack((np.abs(width * height), aspect, left + width / 2, top + height / 2, width < 0), axis=1)
