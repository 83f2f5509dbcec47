"""A dataset of Ray Data, whose tasks read with a loader: for pipelines that are built of Ray's datasets.

A training loop reads faster with a `Loader` of its own, in each rank: nothing goes through Ray's object store then.
"""

import functools
import logging
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.datasets import Dataset, open_dataset
from fastimg.loaders.crop import CropRule, Size
from fastimg.loaders.errors import DataError
from fastimg.loaders.extras import install
from fastimg.loaders.loader import Loader
from fastimg.loaders.remote.stores import url_of
from fastimg.loaders.wording import plural

if TYPE_CHECKING:
    import ray.data

_ROWS = 1024  # samples of a task, unless their shard is fetched
_BATCH = 64

_log = logging.getLogger(__name__)


class _Opening(NamedTuple):
    """The arguments of open_dataset."""

    path: str
    split: str
    cache_dir: str | None
    cache_limit: int | str | None
    storage_options: tuple[tuple[str, str], ...] | None

    def open(self) -> Dataset:
        options = None if self.storage_options is None else dict(self.storage_options)
        return open_dataset(
            self.path,
            self.split,
            cache_dir=self.cache_dir,
            cache_limit=self.cache_limit,
            storage_options=options,
        )


class _Reading(NamedTuple):
    """What each task does with its samples."""

    opening: _Opening
    fingerprint: str  # of the dataset as the program has opened it
    settings: Mapping[str, Any]  # arguments of the Loader


def ray_dataset(
    data: str | PathLike[str],
    *,
    crop: CropRule | Size,
    split: str = "train",
    channels: int | None = None,
    depth: int | None = None,
    seed: int = 0,
    on_error: Literal["skip", "fail"] = "skip",
    num_cpus: int = 1,
    cache_dir: str | PathLike[str] | None = None,
    cache_limit: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> "ray.data.Dataset":
    """The samples of shards, a `.beton` or an image folder as a `ray.data.Dataset`, decoded and cropped by its tasks.

    Its columns are `image`, uint8 [H, W, C], or uint16 with `depth=16`, not normalised; `target`, int64, -1 without a
    label; and `id`, int64, the index of the sample in the split. Rows are in the order of the ids where Ray preserves
    the order.

    data: a path that all nodes see, or the URL of shards: then each node has a cache of its own, and a task reads a
        whole shard.
    crop, channels, depth, seed: see `Loader`; a size is a CenterCrop. Random crops are the same each time that the
        dataset is executed: give another seed for another epoch.
    on_error: "skip" leaves out images that cannot be decoded, and each task logs their names as a warning; "fail" ends
        the execution with the first one.
    num_cpus: the cores, and decoding threads, of a task.
    cache_dir, cache_limit, storage_options: see `open_dataset`.

    Raises DataError for data that cannot be used, and without Ray; ValueError for invalid arguments.
    """
    try:
        import ray.data
    except ImportError as error:
        raise DataError(f"ray_dataset needs Ray Data: `{install('ray')}`") from error
    if num_cpus < 1:
        raise ValueError(f"num_cpus={num_cpus}: give 1 or more")
    opening = _Opening(
        str(data),
        split,
        None if cache_dir is None else str(cache_dir),
        cache_limit,
        None if storage_options is None else tuple(sorted(storage_options.items())),
    )
    settings: dict[str, Any] = {
        "crop": crop,
        "channels": channels,
        "depth": depth,
        "seed": seed,
        "on_error": on_error,
        "workers": num_cpus,
        "order": "sequential",
        "batch_size": _BATCH,
        "rank": 0,  # also in a process that belongs to a group: a task has its own samples
        "world_size": 1,
    }
    dataset = opening.open()
    try:
        Loader(dataset, **settings).close()  # refuses what no task could do
        starts, stops = _parts(dataset, whole_shards=url_of(data) is not None)
        reading = _Reading(opening, dataset.fingerprint, settings)
    finally:
        dataset.close()
    rows = [{"start": start, "stop": stop} for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    parts = ray.data.from_items(rows, override_num_blocks=max(1, len(rows)))
    return parts.map_batches(_read, batch_size=1, num_cpus=num_cpus, fn_kwargs={"reading": reading})


def _parts(dataset: Dataset, whole_shards: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the samples of each task begin and end."""
    numbers = getattr(dataset, "shard_numbers", None)
    if whole_shards and numbers is not None:
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    else:
        starts = np.arange(0, len(dataset), _ROWS)
    return starts, np.append(starts[1:], len(dataset))[: len(starts)]


def _read(part: dict[str, npt.NDArray[np.int64]], reading: _Reading) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The task: the rows of its samples."""
    dataset = _opened(reading.opening, reading.fingerprint)
    for start, stop in zip(part["start"].tolist(), part["stop"].tolist(), strict=True):
        with Loader(dataset, indices=np.arange(start, stop), **reading.settings) as loader:
            for batch in loader:
                there = batch.weight.numpy() > 0
                yield {
                    "image": batch.inputs.permute(0, 2, 3, 1).numpy()[there],
                    "target": batch.targets.numpy()[there],
                    "id": batch.ids.numpy()[there],
                }
            if loader.unreadable:
                reasons = (f"{dataset.sample_name(index)}: {reason}" for index, reason in loader.unreadable.items())
                images = plural(len(loader.unreadable), "image")
                _log.warning("%s: %s left out: %s", reading.opening.path, images, "; ".join(reasons))


@functools.lru_cache(maxsize=1)
def _opened(opening: _Opening, fingerprint: str) -> Dataset:
    """A dataset that the tasks of a process share, one after the other. Raises DataError if it is another one here."""
    dataset = opening.open()
    if dataset.fingerprint != fingerprint:
        dataset.close()
        raise DataError(f"{opening.path}: was replaced, or is another one on this node; call ray_dataset again")
    return dataset
