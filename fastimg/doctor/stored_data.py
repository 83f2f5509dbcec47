"""What `doctor` finds of a dataset at a URL: whether the store answers, what is there, and the cache for it."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fastimg.config.benchmarking import Doctor
from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.loaders.remote.mirrors import Mirror, open_mirror
from fastimg.wording import plural

from .findings import Row

_ASKED = 3  # requests; the fastest counts, as the first one also connects


@dataclass(frozen=True, kw_only=True)
class StoredData:
    """Data in an object store. samples: None of tars of other writers, which nothing counts.

    files: those of a folder that nobody has converted, of any kind, which has no shards; None of a dataset.
    """

    url: str
    request_seconds: float
    shards: int
    bytes: int
    samples: int | None
    cache: str
    cache_limit: int
    files: int | None = None


def stored_data(url: str, settings: Doctor) -> StoredData:
    """Ask the store. Raises DataError, with the reason, where it cannot be reached, or refuses, or has no dataset."""
    options = dict(option.split("=", 1) for option in settings.storage_option)
    mirror = open_mirror(url, settings.cache_dir, settings.cache_limit, options)
    grouped = mirror.grouped
    shards, size, samples = _contents(mirror) if grouped is None else (0, grouped.size, None)
    return StoredData(
        url=url,
        request_seconds=min(_asked(mirror) for _ in range(_ASKED)),
        shards=shards,
        bytes=size,
        samples=samples,
        cache=str(mirror.cache.root),
        cache_limit=mirror.cache.limit,
        files=None if grouped is None else grouped.count,
    )


def rows(found: StoredData) -> Iterator[Row]:
    """For the table."""
    shards = plural(found.shards, "tar" if found.samples is None else "shard")
    holds = shards if found.files is None else plural(found.files, "file")
    counted = "" if found.samples is None else f", {plural(found.samples, 'sample')}"
    yield Row("store", "data", f"{found.url}: {holds}, {in_words(found.bytes)}{counted}")
    yield Row("store", "a request", f"{found.request_seconds * 1e3:.1f} ms; `fastimg bench {found.url}` measures rates")
    held = "all of it" if found.bytes <= found.cache_limit else f"{found.cache_limit / found.bytes:.0%} of it"
    yield Row("store", "cache", f"{found.cache}, at most {in_words(found.cache_limit)}: {held}")


def _asked(mirror: Mirror) -> float:
    began = time.perf_counter()
    mirror.ask()
    return time.perf_counter() - began


def _contents(mirror: Mirror) -> tuple[int, int, int | None]:
    """How many shards there are, their bytes, and samples."""
    if mirror.tars is not None:
        return len(mirror.tars), sum(tar.size for tar in mirror.tars), None
    splits = json.loads((mirror.folder / "dataset.json").read_bytes())["splits"].values()
    sizes = [shard["bytes"] for split in splits for shard in split["shards"]]
    return len(sizes), sum(sizes), sum(split["samples"] for split in splits)
