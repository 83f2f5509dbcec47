"""The same images as every loader wants them: files, tiled tars and betons, plain tars, FFCV's own beton."""

import multiprocessing
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from fastimg.config import Convert
from fastimg.convert import convert
from fastimg.loaders.cpus import available_cpus
from fastimg.loaders.tar import ShardWriter

_PLAIN_TARS = 16  # webdataset deals whole tars to its workers: as many for each, up to 16
_WRITER_SECONDS = 600  # FFCV's writer waits for ever for a worker process that died
_GRADIENTS = ((512, 384), (384, 512), (640, 300))  # width, height; a number of each is in the blue


@dataclass(frozen=True, kw_only=True)
class Sources:
    """One set of images. Sample i is `files[i]`, in every container; what is below `folder` is made by `make`."""

    folder: Path
    files: tuple[Path, ...]

    @property
    def links(self) -> Path:
        """A class folder of links to the files: what is converted."""
        return self.folder / "links"

    @property
    def tiled(self) -> Path:
        """A dataset of tar shards, by `fastimg convert`."""
        return self.folder / "tiled"

    @property
    def tiled_beton(self) -> Path:
        """FFCV's container, by `fastimg convert --format beton`."""
        return self.folder / "tiled-beton" / "train.beton"

    @property
    def ffcv_beton(self) -> Path:
        """FFCV's container, by FFCV: jpg mode, its default quality."""
        return self.folder / "ffcv.beton"

    @property
    def tars(self) -> list[Path]:
        """Tars of the files as they are, with their labels."""
        return [self.folder / f"plain-{i:02d}.tar" for i in range(_PLAIN_TARS)]

    def label(self, index: int) -> int:
        """A made-up class."""
        return 10 * index // len(self.files)


def make(folder: Path, files: Iterable[Path], wanted: set[str]) -> Sources:
    """Make those of the containers that are named in `wanted`: tiled, tiled_beton, ffcv_beton, tars."""
    sources = Sources(folder=folder, files=tuple(file.resolve() for file in files))
    for index, file in enumerate(sources.files):
        link = sources.links / f"{sources.label(index)}" / f"{index:06d}{file.suffix.lower()}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    quiet, threads = Console(quiet=True), str(available_cpus())
    if "tiled" in wanted:
        convert(Convert(src=sources.links, dst=sources.tiled, no_shuffle=True, workers=threads), quiet)
    if "tiled_beton" in wanted:
        dst = sources.tiled_beton.parent
        convert(Convert(src=sources.links, dst=dst, format="beton", no_shuffle=True, workers=threads), quiet)
    if "tars" in wanted:
        for tar, indices in zip(sources.tars, np.array_split(np.arange(len(sources.files)), _PLAIN_TARS), strict=True):
            with ShardWriter(tar) as shard:
                for i in indices.tolist():
                    fields = {"jpg": sources.files[i].read_bytes(), "cls": str(sources.label(i)).encode()}
                    shard.add(f"{i:06d}", fields)
    if "ffcv_beton" in wanted:
        _bounded(sources)
    return sources


def _bounded(sources: Sources) -> None:
    """FFCV's writer in a process group of its own, which is ended where it takes too long. Raises RuntimeError."""
    process = multiprocessing.get_context("spawn").Process(
        target=_write_beton, args=(sources, multiprocessing.get_start_method())
    )
    process.start()
    process.join(_WRITER_SECONDS)
    if process.exitcode != 0:
        if process.pid is not None and process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
        raise RuntimeError(f"FFCV's writer did not finish (status {process.exitcode})")


def _write_beton(sources: Sources, start_method: str) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    os.setsid()
    multiprocessing.set_start_method(start_method, force=True)
    fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
    DatasetWriter(str(sources.ffcv_beton), fields, num_workers=2).from_indexed_dataset(_Indexed(sources))


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


def read_boxes(images: np.ndarray) -> np.ndarray:
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
