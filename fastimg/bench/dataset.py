"""The images that are measured: what kind they are, and which of them an epoch reads."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.errors import UsageError, UserError
from fastimg.loaders import Dataset, FilesDataset, ImageDecoder, ImageError, open_dataset
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.decode import Header, read_header
from fastimg.loaders.folders.walk import find_images
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.wording import plural

from .stages import take_apart

LOOKED_AT = 64  # images whose headers are read
_FEWEST, _MOST = 4, 64  # batches of an epoch


@dataclass(frozen=True, kw_only=True)
class Images:
    """A dataset, and what a look at some of its images tells. `ids` are its samples in a random order."""

    path: Path
    dataset: Dataset
    ids: npt.NDArray[np.int64]
    nbytes: int  # of the files that hold it
    mean_bytes: float  # of an encoded image
    jpegs: float  # share of those looked at
    tiled: float  # share of those looked at: JPEGs with restart intervals
    longer_side: int  # median, pixels
    unreadable: dict[str, str]  # of those looked at: name -> reason

    @property
    def folder(self) -> bool:
        """Whether they are files of their own."""
        return isinstance(self.dataset, FilesDataset)

    def epoch(self, count: int) -> npt.NDArray[np.int64]:
        """`count` samples: the first of `ids`, over and over where there are fewer."""
        return np.resize(self.ids, count)

    def about(self) -> str:
        """In words."""
        kind = f"{self.jpegs:.0%} JPEG" + (f", {self.tiled:.0%} tiled" if self.jpegs else "")
        return (
            f"{plural(len(self.dataset), 'image')}, {kind}, {self.mean_bytes / 1e3:,.0f} KB on average, longer side "
            f"{self.longer_side} px (median of {min(LOOKED_AT, len(self.ids))})"
        )


def open_images(path: Path, split: str, seed: int) -> Images:
    """The images of DATA, labelled or not. Raises UsageError, UserError and DataError naming what is wrong."""
    dataset = _open(path, split)
    if dataset.content != "images":
        raise UsageError(f"{path}: holds texts; bench measures images")
    if len(dataset) == 0:
        raise UserError(f"{path}: no images in it; give shards made by `fastimg convert`, or a folder of images")
    dataset.labels = np.maximum(dataset.labels, 0)  # a step needs some target; which one, its speed does not mind
    ids = np.random.default_rng(seed).permutation(len(dataset))
    headers, sizes, unreadable = list[Header](), list[int](), dict[str, str]()
    scratch = Scratch()
    for index in ids[:LOOKED_AT].tolist():
        try:
            data = dataset.read(index, scratch)
            headers.append(read_header(data))
            sizes.append(len(data))
        except ImageError as error:
            unreadable[dataset.sample_name(index)] = str(error)
    if not headers:
        name, reason = next(iter(unreadable.items()))
        raise UserError(
            f"{path}: none of {plural(len(unreadable), 'image')} can be read ({name}: {reason}); replace them"
        )
    return Images(
        path=path,
        dataset=dataset,
        ids=ids,
        nbytes=sum(file.stat().st_size for file in set(dataset.files()) if file.exists()),
        mean_bytes=float(np.mean(sizes)),
        jpegs=float(np.mean([header.format == "jpeg" for header in headers])),
        tiled=float(np.mean([header.restarts for header in headers])),
        longer_side=int(np.median([max(header.size) for header in headers])),
        unreadable=unreadable,
    )


def _open(path: Path, split: str) -> Dataset:
    if path.is_dir() and is_plain_folder(path) and not any(one.is_dir() for one in path.iterdir()):
        names, _ = find_images(path)
        if not names:
            raise UserError(f"{path}: no images in it; give shards made by `fastimg convert`, or a folder of images")
        return FilesDataset(path, [str(Path(name).relative_to(path)) for name in names])
    return open_dataset(path, split)


def epoch_size(
    images: Images,
    decoder: ImageDecoder,
    threads: int,
    batch_size: int,
    asked: int | None,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Images of a repeat, in whole batches: as asked, else about a second's work of the native loader."""
    if asked is not None:
        return max(1, asked // batch_size) * batch_size
    rate, tried = 0.0, 1
    take_apart(images.dataset, images.ids[:1], decoder, 1)  # what is compiled once
    while True:
        began = clock()
        take_apart(images.dataset, images.ids[:tried], decoder, 1)
        spent = max(clock() - began, 1e-9)
        rate = tried / spent
        if spent > 0.2 or tried >= len(images.ids):
            break
        tried *= 4
    wanted = min(rate * threads, max(len(images.ids), _FEWEST * batch_size))
    return int(np.clip(wanted // batch_size, _FEWEST, _MOST)) * batch_size
