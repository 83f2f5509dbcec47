"""The images to measure with: what they are like, and which of them an epoch reads."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.errors import UsageError, UserError
from fastimg.loaders import Dataset, FilesDataset, ImageDecoder, ImageError, open_dataset
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.containers.tars.dataset import TarDataset
from fastimg.loaders.decode import Header, is_tiled, read_header
from fastimg.loaders.folders.stored_files import StoredFilesDataset, folder_of, open_unlabelled
from fastimg.loaders.folders.walk import find_images
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.mirrors import Lease
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.wording import plural

from .stages import take_apart

SAMPLED = 64  # number of images whose headers are read
_FETCHED = 256 << 20  # bytes of shards of an object store that are fetched, unless one is larger
_MIN_BATCHES = 4  # of an epoch
_MAX_BATCHES = 64


@dataclass(frozen=True, kw_only=True)
class Images:  # more than 12 fields: everything that advice depends on
    """A dataset, with properties of a random sample of its images. `ids` are all samples in random order.

    Of an object store they are those of the first shards, so that measuring does not fetch all of the data.
    """

    path: Path
    dataset: Dataset
    ids: npt.NDArray[np.int64]
    nbytes: int  # of the dataset's files
    mean_bytes: float  # of an encoded image
    jpegs: float  # fraction of the sampled images
    pngs: float  # the same
    tiled: float  # fraction of the sampled images: JPEGs whose crops can be decoded alone
    longer_side: int  # median, pixels
    area: float  # mean, pixels
    largest: int  # area of the largest sampled image, pixels
    unreadable: dict[str, str]  # among the sampled images: name -> reason
    leases: Sequence[Lease] = ()  # of shards of an object store: those of `ids`, which stay in the cache

    @property
    def local(self) -> bool:
        """Whether the images are on this machine."""
        return fetched_files(self.dataset) is None

    @property
    def folder(self) -> bool:
        """Whether the images are separate files."""
        return isinstance(self.dataset, FilesDataset)

    def epoch(self, count: int) -> npt.NDArray[np.int64]:
        """The first `count` of `ids`, repeated if there are fewer."""
        return np.resize(self.ids, count)

    def about(self) -> str:
        """A one-line description."""
        kind = f"{self.jpegs:.0%} JPEG" + (f", {self.tiled:.0%} tiled" if self.jpegs else "")
        return (
            f"{plural(len(self.dataset), 'image')}, {kind}, {self.mean_bytes / 1e3:,.0f} KB on average, longer side "
            f"{self.longer_side} px (median of {min(SAMPLED, len(self.ids))})"
        )


def open_images(path: Path, split: str, seed: int) -> Images:
    """Open the images of DATA, labelled or not. Raises UsageError, UserError and DataError."""
    dataset = _open(path, split)
    if dataset.content != "images":
        raise UsageError(f"{path}: contains texts; bench measures images")
    if len(dataset) == 0:
        raise UserError(f"{path}: no images in it; give shards made by `fastimg convert`, or a folder of images")
    dataset.labels = np.maximum(dataset.labels, 0)  # a step needs some target; its speed does not depend on which
    ids, leases = _chosen(dataset)
    ids = np.random.default_rng(seed).permutation(ids)
    headers: list[Header] = []
    sizes: list[int] = []
    tiled: list[bool] = []
    unreadable: dict[str, str] = {}
    scratch = Scratch()
    for index in ids[:SAMPLED].tolist():
        try:
            data = dataset.read(index, scratch)
            headers.append(read_header(data))
            sizes.append(len(data))
            tiled.append(is_tiled(data, headers[-1]))
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
        leases=leases,
        mean_bytes=float(np.mean(sizes)),
        jpegs=float(np.mean([header.format == "jpeg" for header in headers])),
        pngs=float(np.mean([header.format == "png" for header in headers])),
        tiled=float(np.mean(tiled)),
        longer_side=int(np.median([max(header.size) for header in headers])),
        area=float(np.mean([header.width * header.height for header in headers])),
        largest=max(header.width * header.height for header in headers),
        unreadable=unreadable,
    )


def _chosen(dataset: Dataset) -> tuple[npt.NDArray[np.int64], Sequence[Lease]]:
    """The samples to measure with, and the leases of their shards."""
    files = fetched_files(dataset)
    if files is None or files.by_ranges or not isinstance(dataset, TarDataset | StoredFilesDataset):
        return np.arange(len(dataset)), ()
    numbers, leases = files.lease(min(_FETCHED, files.mirror.cache.limit // 2))
    return np.flatnonzero(np.isin(dataset.shard_numbers, numbers)), leases


def _open(path: Path, split: str) -> Dataset:
    folder = folder_of(path)
    if folder.is_dir() and is_plain_folder(path) and not any(entry.is_dir() for entry in folder.iterdir()):
        if (stored := open_unlabelled(path, "images")) is not None:
            return stored
        names, _ = find_images(path)
        if not names:
            raise UserError(f"{path}: no images in it; give shards made by `fastimg convert`, or a folder of images")
        return FilesDataset(path, [str(Path(name).relative_to(path)) for name in names])
    return open_dataset(path, split)


def decoding_rate(images: Images, decoder: ImageDecoder, clock: Callable[[], float] = time.perf_counter) -> float:
    """Images per second that one thread reads and decodes, roughly: from a fifth of a second of its work."""
    take_apart(images.dataset, images.ids[:1], decoder, 1)  # loads compiled code
    tried = 1
    while True:
        began = clock()
        take_apart(images.dataset, images.ids[:tried], decoder, 1)
        elapsed = max(clock() - began, 1e-9)
        if elapsed > 0.2 or tried >= len(images.ids):
            return tried / elapsed
        tried *= 4


def epoch_size(images: Images, wanted: float, batch_size: int, asked: int | None) -> int:
    """Images per repeat, in whole batches: as many as `asked`, else about as many as `wanted`, or all there are."""
    if asked is not None:
        return max(1, asked // batch_size) * batch_size
    wanted = min(wanted, max(len(images.ids), _MIN_BATCHES * batch_size))
    return int(np.clip(wanted // batch_size, _MIN_BATCHES, _MAX_BATCHES)) * batch_size
