"""The same images in every form that a loader needs: DATA itself, files, plain tars, FFCV's own .beton.

Also images of gradients: the box of a crop can be computed from the crop's pixels.
"""

import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastimg.loaders import DataError, Dataset, FilesDataset, open_dataset
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.opening import open_image
from fastimg.loaders.runtime.cpus import available_cpus

_GRADIENTS = ((512, 384), (384, 512), (640, 300))  # width, height; the blue channel encodes which one
_PAGE = 8 << 20  # bytes of a page of a .beton: what FFCV takes by default


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """DATA itself: sample i of the comparison is sample `ids[i]` of its split."""

    path: Path
    split: str
    fingerprint: str
    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """One set of images. Sample i is `files[i]` in every container; containers in `folder` are written when needed."""

    folder: Path
    files: tuple[Path, ...]  # absolute
    original: SourceData | None = None  # None: there are only the files
    parts: int = 16  # number of tars, if there are as many files; webdataset's workers read whole tars

    @property
    def ffcv_beton(self) -> Path:
        """FFCV's container, written by FFCV."""
        return self.folder / "ffcv.beton"

    @property
    def tars(self) -> list[Path]:
        """Tars of the unchanged files, with labels."""
        return [self.folder / f"plain-{i:03d}.tar" for i in range(min(self.parts, len(self.files)))]

    def label(self, index: int) -> int:
        """A made-up class index, from 0 to 9."""
        return 10 * index // len(self.files)

    def open(self) -> tuple[Dataset, npt.NDArray[np.int64] | None]:
        """Open DATA itself, or the files. Returns it with the indices of the samples, None for all.

        Raises DataError if DATA has changed.
        """
        if self.original is None:
            return FilesDataset(Path("/"), [str(file) for file in self.files]), None
        data = open_dataset(self.original.path, self.original.split)
        if data.fingerprint != self.original.fingerprint:
            data.close()
            raise DataError(f"{self.original.path}: changed while it was in use; leave it unchanged and start again")
        return data, np.array(self.original.ids, np.int64)


def write_tars(sources: Sources) -> None:
    """Write `sources.tars`; member .jpg is the unchanged file, whatever its format."""
    sources.folder.mkdir(parents=True, exist_ok=True)
    parts = np.array_split(np.arange(len(sources.files)), len(sources.tars))
    for tar, indices in zip(sources.tars, parts, strict=True):
        with ShardWriter(tar) as shard:
            for i in indices.tolist():
                fields = {"jpg": sources.files[i].read_bytes(), "cls": str(sources.label(i)).encode()}
                shard.add(f"{i:06d}", fields)


def write_ffcv_beton(sources: Sources, mode: Literal["jpg", "raw"] = "jpg") -> None:
    """Write `sources.ffcv_beton` with FFCV's writer: JPEGs of its default quality, or raw pixels.

    Call it in a separate process: if one of the writer's processes fails, the writer would wait forever, so this ends
    the calling process.
    """
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    sources.folder.mkdir(parents=True, exist_ok=True)
    done = threading.Event()
    watch = threading.Thread(target=_end_with_a_child, args=(done,), daemon=True)
    fields = {"image": RGBImageField(write_mode=mode), "label": IntField()}
    page = _PAGE  # an image must fit into one; FFCV's own quality may make it larger than its file
    while page < 2 * max(file.stat().st_size for file in sources.files):
        page *= 2
    workers = min(available_cpus(), len(sources.files))
    writer = DatasetWriter(str(sources.ffcv_beton), fields, page_size=page, num_workers=workers)
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
            time.sleep(0.2)  # lets its message reach the terminal
            os._exit(1)


class _Indexed:
    """An indexed dataset, in FFCV's sense."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def __len__(self) -> int:
        return len(self._sources.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with open_image(Path(self._sources.files[index])) as image:
            return image.convert("RGB"), self._sources.label(index)


def write_gradients(folder: Path) -> list[Path]:
    """Write JPEGs of gradients: red grows with x, green with y, and blue encodes the size. See `read_boxes`."""
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
    """The boxes of crops [N, S, S, 3] of gradients: (area, aspect ratio, centre x, centre y, mirrored) [N, 5].

    The area and the centre are fractions of the image; the aspect ratio is in pixels.
    """
    side = images.shape[1]
    places = (np.arange(side) + 0.5) / side
    across = images[..., 0].mean(axis=1) / 255  # [N, S]
    down = images[..., 1].mean(axis=2) / 255
    (width, left), (height, top) = (np.polyfit(places, lines.T, 1) for lines in (across, down))
    sizes = np.array(_GRADIENTS)[np.clip(np.round(images[..., 2].mean(axis=(1, 2)) / 60).astype(int) - 1, 0, 2)]
    aspect = np.abs(width) * sizes[:, 0] / (np.abs(height) * sizes[:, 1])
    return np.stack((np.abs(width * height), aspect, left + width / 2, top + height / 2, width < 0), axis=1)
