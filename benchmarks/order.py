"""The orders of an epoch: cost, mixing of classes, bytes read from disk, and memory over 20 epochs.

    python benchmarks/order.py [--data FOLDER] [--only orders,ahead,mixing,reads,epochs]

`orders`: time and memory to create one. `ahead`: the time of the consumer's thread, without decoding, to dispatch a
batch of 256 from tar shards, if it requests read-ahead itself and if the loader's threads do; the processor time of a
request for a sample, if a compiled call makes those of a batch and if Python makes each; and the time between the last
batch of an epoch of ImageNet's size and the first of the next, after a validation of two seconds, with and without a
thread that computes the order in the meantime. `mixing`: classes in a batch of class-sorted data, compared with
`random`. `reads`: the native loader reads tar shards of the folder's tiled JPEGs, repeated up to --samples, while the
oldest pages that it requested or read are dropped from the page cache, so that the cache never holds more than one and
a half windows. Bytes are those that the process reads from disk (/proc/self/io), as a share of the images' bytes, with
the system's own read-ahead turned off. `request_kb`: adjacent uncached bytes requested at once. `block_reads`: how
often a block is fetched if a cache of that size holds the most recently used whole blocks, like a cache of remote
objects. Each rank requests its own samples of a block. `epochs`: resident memory, threads, open files, and the threads'
scratch, which grows with the largest crop so far, at the end of each epoch.
"""

import argparse
import contextlib
import ctypes
import gc
import mmap
import os
import tempfile
import threading
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import measure
import numpy as np
import numpy.typing as npt
import torch
from images import list_images
from rich.console import Console

from fastimg.loaders import Dataset, Decoder, Field, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.readahead import WholeBlocks, pieces
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.epochs.epochs import Epochs
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.order import BLOCK, WINDOW, Order, Slices, epoch_order
from fastimg.loaders.runtime import file_reads
from fastimg.loaders.runtime.scratch import Scratch

Record = dict[str, Any]

_PAGE = mmap.PAGESIZE
_HEADER = 512  # the member's header, which is read with it
_SHARDS = 8
_IMAGENET = 1_281_167
_EPOCHS = 20


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of JPEGs, flat or with subfolders: for reads and epochs")
    parser.add_argument("--only", default="orders,ahead,mixing,reads,epochs")
    parser.add_argument("--samples", type=int, default=16_000)
    parser.add_argument("--window", type=int, default=1536, help="samples of `reads`")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "order.jsonl")
    args = parser.parse_args()
    sections = args.only.split(",")
    found: dict[str, list[Record]] = {}
    if "orders" in sections:
        found["orders"] = orders(args.repeats)
    if "ahead" in sections:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
            found["ahead"] = [*handing_out(Path(name), args.repeats), *next_epochs(args.repeats)]
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
            found["ahead"] += requests(Path(name), args.repeats)
    if "mixing" in sections:
        found["mixing"] = mixing()
    if args.data is not None:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # a disk; the temporary folder may be in memory
            folder = Path(name)
            _write(folder, args.data, args.samples)
            if "reads" in sections:
                found["reads"] = reads(folder, args.window)
            if "epochs" in sections:
                found["epochs"] = epochs(folder)
    measure.append_sections(args.out, "order", found)
    for section, records in found.items():
        measure.show(Console(), section, [_shown(record) for record in records])


def orders(repeats: int) -> list[Record]:
    """Milliseconds to compute an order and the positions to read ahead; peak bytes per sample."""
    records = []
    for samples in (1_000_000, 10_000_000):
        for policy in ("random", "quasi-random"):

            def made(samples: int = samples, policy: Order = policy, epoch: int = 0) -> object:
                order = epoch_order(samples, 0, epoch, policy)
                return WholeBlocks(order, Slices(samples, 0, 256, 0, 1), BLOCK) if policy == "quasi-random" else order

            times = []
            for _ in range(1 + repeats):
                began = time.perf_counter()
                made()
                times.append(1e3 * (time.perf_counter() - began))
            tracemalloc.start()
            kept = made()
            held, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            del kept
            per_sample = {"held_bytes": held / samples, "peak_bytes": peak / samples}
            records.append({"order": policy, "samples": samples, "ms": measure.Spread.of(times[1:]), **per_sample})
    return records


class Asking(Loader):
    """The native loader, with read-ahead requested by the consumer instead of the loader's threads."""

    def _dispatch(self, pool: Any, job: Any, plan: Any, step: int, slot: Any) -> None:
        for ids in plan.prefetch_ids(step, plan.rows(step)):
            self.dataset.will_need(ids)
        super()._dispatch(pool, job, replace(plan, blocks=Nothing()), step, slot)


class Nothing:
    """A source without read-ahead."""

    def before(self, step: int) -> tuple[npt.NDArray[np.int64], ...]:
        """Return no samples."""
        return ()


class NoPixels(Decoder):
    """A decoder that leaves its rows unchanged."""

    fields = (Field("inputs", (1, 1, 3), np.dtype(np.uint8)),)

    def fill_row(self, data: memoryview, draws: Any, row: Any, scratch: Scratch) -> None:
        """Read nothing."""

    def fill(self, reader: Any, ids: Any, draws: Any, rows: Any, scratch: Scratch) -> list[Any]:
        """Read nothing."""
        return []


def handing_out(folder: Path, repeats: int) -> list[Record]:
    """Milliseconds per batch that the consumer's thread spends in `Loader._dispatch`."""
    samples, size, batch = 32_768, 8192, 256
    data = os.urandom(size)
    for number, part in enumerate(np.array_split(np.arange(samples), _SHARDS)):
        with ShardWriter(folder / f"train-{number:05d}.tar") as writer:
            for i in part.tolist():
                writer.add(f"{i:09d}", {"jpg": data, "cls": b"0"})
    variants: dict[str, type[Loader]] = {"consumer": Asking, "threads": Loader}
    dataset = open_dataset(folder)

    def measured(kind: type[Loader], order: Order) -> float:
        config = LoaderConfig(batch_size=batch, order=order, workers=2)
        loader = kind(dataset, NoPixels(), config)
        spent, inner = [0.0], loader._dispatch

        def timed(*arguments: Any) -> None:
            began = time.perf_counter()
            inner(*arguments)
            spent[0] += time.perf_counter() - began

        loader._dispatch = timed  # type: ignore[method-assign]
        for _ in loader:
            pass
        loader.close()
        return 1e3 * spent[0] / len(loader)

    records = []
    for order in ("random", "quasi-random"):
        calls = {name: partial(measured, kind, order) for name, kind in variants.items()}
        for name, spread in measure.interleaved(calls, repeats).items():
            shape = {"what": "handing out a batch", "order": order, "batch": batch, "samples": samples}
            records.append({**shape, "variant": name, "ms": spread})
    dataset.close()
    return records


def requests(folder: Path, repeats: int) -> list[Record]:
    """Microseconds of processor time to request a sample of a batch from cached tar shards, all in one call and not."""
    samples, size, batch = 2048, 112_000, 256
    with ShardWriter(folder / "train-00000.tar") as writer:
        for i in range(samples):
            writer.add(f"{i:09d}", {"jpg": os.urandom(size), "cls": b"0"})
    chosen = np.random.default_rng(0).permutation(samples).reshape(-1, batch)

    def measured(python: bool) -> float:
        began = time.thread_time()
        with mock.patch.object(file_reads, "may_call", lambda function: not python):
            for ids in chosen:
                dataset.will_need(ids)
        return 1e6 * (time.thread_time() - began) / samples

    with contextlib.closing(open_dataset(folder)) as dataset:
        for python in (True, False):  # which compiles
            measured(python)
        calls = {"python": partial(measured, True), "compiled": partial(measured, False)}
        found = measure.interleaved(calls, repeats)
    shape = {"what": "requesting a sample", "batch": batch, "samples": samples, "bytes": size}
    return [{**shape, "variant": name, "us": spread} for name, spread in found.items()]


def next_epochs(repeats: int) -> list[Record]:
    """Milliseconds to plan an epoch, two seconds after the last batch of the previous one."""

    def measured(order: Order, prepared: bool) -> float:
        config = LoaderConfig(batch_size=256, order=order)
        data = Named(_IMAGENET)
        plans = Epochs(data, config, None, 1, torch.device("cpu"))
        plan = plans.begin()
        if prepared:
            plans.passed(plan, plan.steps - 1)
        time.sleep(2.0)
        began = time.perf_counter()
        plans.begin()
        return 1e3 * (time.perf_counter() - began)

    records = []
    for order in ("random", "quasi-random"):
        calls = {"then": partial(measured, order, False), "ahead": partial(measured, order, True)}
        for name, spread in measure.interleaved(calls, repeats).items():
            shape = {"what": "planning the next epoch", "order": order, "batch": 256, "samples": _IMAGENET}
            records.append({**shape, "variant": name, "ms": spread})
    return records


class Named:
    """A dataset with a length that is never read."""

    name = fingerprint = "named"
    classes: tuple[str, ...] = ()
    notes = ()
    content = "image"

    def __init__(self, n: int) -> None:
        self.labels = np.zeros(n, np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The class alone."""
        return (TargetColumn.of_classes(self.labels, self.classes),)


def mixing() -> list[Record]:
    """Distinct classes per batch and their entropy, on data sorted by class, as shares of `random`'s."""
    records = []
    random = epoch_order(_IMAGENET, 0, 0, "random")
    quasi = epoch_order(_IMAGENET, 0, 0, "quasi-random")
    for classes in (10, 100, 1000):
        for batch in (64, 256, 1024):
            best, ours = (_classes(order, classes, batch) for order in (random, quasi))
            shape = {"block": BLOCK, "window": WINDOW, "samples": _IMAGENET, "classes": classes, "batch": batch}
            means = {
                "distinct": ours[0].mean(),
                "distinct_least": int(ours[0].min()),
                "random_distinct": best[0].mean(),
                "distinct_ratio": ours[0].mean() / best[0].mean(),
                "entropy_ratio": ours[1].mean() / best[1].mean(),
            }
            records.append({**shape, **{key: v if isinstance(v, int) else float(v) for key, v in means.items()}})
    return records


def _classes(order: npt.NDArray[np.int64], classes: int, batch: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    labels = (order * classes // len(order))[: len(order) // batch * batch].reshape(-1, batch)
    counts = np.stack([np.bincount(row, minlength=classes) for row in labels]) / batch
    bits = -(counts * np.log2(counts, where=counts > 0, out=np.zeros_like(counts))).sum(1)
    return np.count_nonzero(counts, axis=1), bits


def reads(folder: Path, window: int) -> list[Record]:
    """Bytes that an epoch reads from disk, as a share of the images' bytes, with a cache of one and a half windows."""
    records = []
    cases: list[tuple[Order, int]] = [("quasi-random", 1), ("quasi-random", 2), ("random", 1), ("sequential", 1)]
    for order, ranks in cases:
        dataset = open_dataset(folder)
        images = int(dataset.records["size"].sum()) + _HEADER * len(dataset)
        limit = int(1.5 * window * images / len(dataset))
        small = SmallCache(dataset, limit, held=3 * window // (2 * BLOCK))
        configs = [
            LoaderConfig(
                batch_size=32 // ranks, order=order, block=BLOCK, window=window, workers=2, rank=rank, world_size=ranks
            )
            for rank in range(ranks)
        ]
        loaders = [Loader(small, ImageDecoder(RandomResizedCrop(size=64)), config) for config in configs]
        shares = []
        for _ in range(3):
            small.clear()
            before = _read_bytes()
            for batches in zip(*loaders, strict=True):  # ranks of one machine advance together
                assert all(batch.samples for batch in batches)
            shares.append((_read_bytes() - before) / images)
            blocks = small.fetched / -(-len(dataset) // BLOCK)
            request = small.asked / small.requests
        for loader in loaders:
            loader.close()
        kept = small.most / images
        shape = {"order": order, "ranks": ranks, "samples": len(dataset), "images_mb": images / 1e6}
        shape |= {"block": BLOCK, "window": window} if order == "quasi-random" else {}
        asked = {"request_kb": request / 1e3, "block_reads": blocks}
        records.append(
            {**shape, "cache": limit / images, "most_in_cache": kept, "read": measure.Spread.of(shares), **asked}
        )
        dataset.close()
    return records


class SmallCache:
    """A dataset of tars whose oldest pages are dropped from the page cache when it has more than `limit` bytes of them.

    Also simulates a cache of `held` whole blocks.
    """

    def __init__(self, dataset: Any, limit: int, held: int) -> None:
        self.name = dataset.name
        self.classes = dataset.classes
        self.labels = dataset.labels
        self.notes = ()
        self.fingerprint = dataset.fingerprint
        self.most = 0  # bytes of the files that were in the page cache when checked
        self._dataset: Dataset = dataset
        self._records = dataset.records
        self._limit = limit // _PAGE
        self._pages: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._held = held
        self.fetched = self.requests = self.asked = 0  # blocks; runs of pages that were not cached, and their bytes
        self._lock = threading.Lock()
        self._reads = 0
        self._paths = sorted(Path(dataset.name.rpartition(" (")[0]).glob("*.tar"))
        for number in range(len(self._paths)):
            os.posix_fadvise(dataset._file(number), 0, 0, os.POSIX_FADV_RANDOM)
        self._files = [os.open(path, os.O_RDONLY) for path in self._paths]

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def targets(self) -> tuple[TargetColumn, ...]:
        """The class alone."""
        return (TargetColumn.of_classes(self.labels, self.classes),)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        """Read the image's bytes; its pages become the most recently used."""
        self._enter(np.array([index]))
        return self._dataset.read(index, scratch)

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Request the samples, and count the requests."""
        self._enter(indices)
        self._dataset.will_need(indices)

    def sample_name(self, index: int) -> str:
        """The sample's name for messages."""
        return self._dataset.sample_name(index)

    def close(self) -> None:
        """Close the shards."""
        for file in self._files:
            os.close(file)
        self._dataset.close()

    def clear(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._pages.clear()
            self._blocks.clear()
            self.fetched = self.requests = self.asked = 0
        for file in self._files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _enter(self, indices: npt.NDArray[np.int64]) -> None:
        chosen = self._records[indices]
        shards, offsets, sizes = (chosen[name].astype(np.int64) for name in ("shard", "offset", "size"))
        with self._lock:
            last = (-1, -1)
            asked = pieces(shards, offsets - _HEADER, sizes + _HEADER)
            for shard, offset, size in zip(*(column.tolist() for column in asked), strict=True):
                for page in range(offset // _PAGE, (offset + size - 1) // _PAGE + 1):
                    if (shard, page) not in self._pages:
                        self._pages[shard, page] = None
                        self.asked += _PAGE
                        self.requests += last != (shard, page - 1)
                        last = (shard, page)
            for block in dict.fromkeys((indices // BLOCK).tolist()):
                self.fetched += block not in self._blocks
                self._blocks[block] = None
                self._blocks.move_to_end(block)
            while len(self._blocks) > self._held:
                self._blocks.popitem(last=False)
            while len(self._pages) > self._limit:
                shard, page = self._pages.popitem(last=False)[0]
                os.posix_fadvise(self._files[shard], page * _PAGE, _PAGE, os.POSIX_FADV_DONTNEED)
            self._reads += 1
            if self._reads % 2000 == 0:
                self.most = max(self.most, sum(map(_resident, self._files)))


def _resident(file: int) -> int:
    """The number of bytes of a file that are in the page cache."""
    size = os.fstat(file).st_size
    with mmap.mmap(file, size, prot=mmap.PROT_READ) as mapped:
        flat = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-size // _PAGE), np.uint8)
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(flat.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
        del flat
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return int((pages & 1).sum()) * _PAGE


def _read_bytes() -> int:
    """The number of bytes that this process has read from disks."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def epochs(folder: Path) -> list[Record]:
    """Memory, threads and open files after each of 20 epochs, with unchanged slots and buffers."""
    records = []
    for order in ("random", "quasi-random"):
        dataset = open_dataset(folder)
        loader = Loader(
            dataset, ImageDecoder(RandomResizedCrop(size=224)), LoaderConfig(batch_size=128, order=order, workers=2)
        )
        rows = list(_after_each(loader))
        loader.close()
        dataset.close()
        rss, scratch = ([row[name] for row in rows] for name in ("rss_mb", "scratch_mb"))
        records.append(
            {
                "order": order,
                "epochs": _EPOCHS,
                "samples": len(dataset),
                "slots_mb": 3 * loader.slot_bytes / 1e6,
                "rss_mb_after_2": rss[1],
                "rss_mb_after_20": rss[-1],
                "rss_mb_most": max(rss),
                "scratch_mb_after_2": scratch[1],
                "scratch_mb_after_20": scratch[-1],
                "rss_mb_each": " ".join(f"{value:.1f}" for value in rss),
                "scratch_mb_each": " ".join(f"{value:.1f}" for value in scratch),
                "threads_most": max(row["threads"] for row in rows),
                "files_first": rows[0]["files"],
                "files_most": max(row["files"] for row in rows),
            }
        )
    return records


def _after_each(loader: Loader) -> Iterator[dict[str, Any]]:
    for _ in range(_EPOCHS):
        for batch in loader:
            del batch
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = len(os.listdir("/proc/self/fd"))
        scratch = sum(found.nbytes for found in gc.get_objects() if type(found) is Scratch)
        yield {
            "rss_mb": pages * _PAGE / 1e6,
            "scratch_mb": scratch / 1e6,
            "threads": threading.active_count(),
            "files": files,
        }


def _write(folder: Path, images: Path, samples: int) -> None:
    """Write tars with this number of samples and sync them to disk."""
    data = [tile((images / name).read_bytes(), 32).jpeg for name in list_images(images)]
    for number, part in enumerate(np.array_split(np.arange(samples), _SHARDS)):
        with ShardWriter(folder / f"train-{number:05d}.tar") as writer:  # waits for the disk
            for i in part.tolist():
                writer.add(f"{i:09d}", {"jpg": data[i % len(data)], "cls": b"0"})


def _shown(record: Record) -> dict[str, str | int]:
    """A table row without the fields that all rows share and without long values."""
    left = {key: v for key, v in record.items() if key not in ("block", "window", "rss_mb_each", "scratch_mb_each")}
    cells = {key: v.text() if isinstance(v, measure.Spread) else v for key, v in left.items()}
    return {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in cells.items()}


if __name__ == "__main__":
    main()
