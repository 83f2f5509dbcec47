"""Batches of 224 x 224 pixels from the same tars, with one core: ray.data.read_webdataset, ray_dataset, the loader.

    build/peers/bin/python -W ignore benchmarks/ray_reading.py [--images 4000] [-n 3]

Draws JPEGs of 320 x 320 pixels and stores them in tars. Ray Data reads them on a cluster of one node of one core, which
its driver shares; Pillow decodes and resizes there, in tasks; `ray_dataset` has a loader in its tasks. The loader reads
them in this process, with one thread, on the same core. Each reads a few shards and all of them: the line through both
times gives the images per second, `rate`, and the time before the first image, `start_up`. `difference` is the mean
difference of the pixels, of 255: both resize bilinearly. Rounds are interleaved; the table has medians. In the
environment with the group `cluster`.
"""

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
from PIL import Image
from rich.console import Console

from fastimg.loaders import CenterCrop, Loader, ray_dataset
from fastimg.loaders.containers.tars.shards import ShardWriter

_SHARD = 250  # images
_SIZE = 224
_BATCH = 64
_CORES = sorted(os.sched_getaffinity(0))


class _Times(NamedTuple):
    """Seconds for a few shards and for all, and the sums of the first images' pixels, by their labels."""

    few: float
    many: float
    pixels: dict[int, Any]


def main() -> int:
    """Measure, print, and append the results. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("-n", "--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "cluster.jsonl")
    args = parser.parse_args()
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # nodes start Python, not uv
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.sched_setaffinity(0, _CORES[:1])
    environment = measure.environment()
    few = max(args.images // 4 // _SHARD, 1) * _SHARD
    readers = {"ray.data.read_webdataset": _ray_batches, "ray_dataset": _ray_dataset_batches, "Loader": _loader_batches}
    found: dict[str, list[_Times]] = {name: [] for name in readers}
    with tempfile.TemporaryDirectory(prefix="fastimg-reading-") as name:
        tars = _draw(Path(name) / "all", args.images)
        first = _linked(tars[: few // _SHARD], Path(name) / "few")
        with _cluster():
            for read in readers.values():
                for part in (first, tars):
                    _timed(read, part)  # imports, compiles, indexes
            for _ in range(args.repeats):
                for name, read in readers.items():
                    seconds, pixels = _timed(read, first)
                    found[name].append(_Times(seconds, _timed(read, tars)[0], pixels))
    rows = [_row(name, found[name], args.images, few, found["Loader"][0].pixels) for name in readers]
    for row in rows:
        shape = {"benchmark": "cluster", "part": "read", "images": args.images, "few": few, "cores": 1}
        raw = {"few_seconds": [each.few for each in found[row["reader"]]]}
        raw["seconds"] = [each.many for each in found[row["reader"]]]
        measure.append(args.out, {**shape, **measure.flat(row), **raw, "environment": environment})
    for row in rows:
        row |= {key: value.text() for key, value in row.items() if isinstance(value, measure.Spread)}
    measure.show(Console(width=None if sys.stdout.isatty() else 180), f"read, {args.images} images", rows)
    return 0


def _row(name: str, times: list[_Times], images: int, few: int, expected: dict[int, Any]) -> dict[str, Any]:
    rates = [(images - few) / (each.many - each.few) for each in times]
    found = times[0].pixels
    return {
        "reader": name,
        "start_up": measure.Spread.of([each.few - few / rate for each, rate in zip(times, rates, strict=True)]),
        "rate": measure.Spread.of(rates),
        "difference": float(np.mean([np.abs(found[label] - expected[label]).mean() for label in expected])),
    }


def _timed(read: Any, tars: list[Path]) -> tuple[float, dict[int, Any]]:
    """Seconds, and the pixels of the first images by label."""
    began = time.perf_counter()
    kept: dict[int, Any] = {}
    count = 0
    for pixels, labels in read(tars):
        count += len(labels)
        for image, label in zip(pixels, labels, strict=True):
            if label < _BATCH:
                kept[int(label)] = np.array(image, np.float32)
    seconds = time.perf_counter() - began
    assert count == len(tars) * _SHARD and len(kept) == _BATCH
    return seconds, kept


def _loader_batches(tars: list[Path]) -> Iterator[tuple[Any, Any]]:
    """Pixels [B, H, W, C] and labels [B]."""
    crop = CenterCrop(size=_SIZE, resize=_SIZE)
    with Loader(tars[0].parent, crop=crop, batch_size=_BATCH, order="sequential", workers=1) as loader:
        for batch in loader:
            filled = batch.weight.numpy() > 0
            yield batch.inputs.permute(0, 2, 3, 1).numpy()[filled], batch.targets.numpy()[filled]


def _ray_batches(tars: list[Path]) -> Iterator[tuple[Any, Any]]:
    """The same."""
    import ray

    rows = ray.data.read_webdataset([str(path) for path in tars], decoder=None).map(_decoded)
    for batch in rows.iter_batches(batch_size=_BATCH, batch_format="numpy"):
        yield batch["image"], batch["label"]


def _ray_dataset_batches(tars: list[Path]) -> Iterator[tuple[Any, Any]]:
    """The same, by a loader in each task of Ray Data."""
    rows = ray_dataset(tars[0].parent, crop=CenterCrop(size=_SIZE, resize=_SIZE))
    for batch in rows.iter_batches(batch_size=_BATCH, batch_format="numpy"):
        yield batch["image"], batch["target"]


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    image = Image.open(io.BytesIO(row["jpg"])).convert("RGB").resize((_SIZE, _SIZE), Image.Resampling.BILINEAR)
    return {"image": np.asarray(image), "label": int(row["cls"])}


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    """A head without cores and a node of one core, joined."""
    import ray
    from ray.cluster_utils import Cluster

    usual = {"worker_niceness": 0}  # else tasks, at 15, get what other programs leave of the cores
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": usual, "object_store_memory": 1 << 30}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, object_store_memory=1 << 30)
    try:
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def _draw(folder: Path, count: int) -> list[Path]:
    """Tars of JPEGs of about 20 KB, of which 256 are different; an image's label is its number."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(256):
        coarse = Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((320, 320), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        drawn.append(buffer.getvalue())
    folder.mkdir()
    tars = []
    for start in range(0, count, _SHARD):
        tars.append(folder / f"{start // _SHARD:05d}.tar")
        with ShardWriter(tars[-1]) as shard:
            for number in range(start, start + _SHARD):
                shard.add(f"{number:09d}", {"jpg": drawn[number % len(drawn)], "cls": str(number).encode()})
    return tars


def _linked(tars: list[Path], folder: Path) -> list[Path]:
    folder.mkdir()
    for tar in tars:
        (folder / tar.name).hardlink_to(tar)
    return [folder / tar.name for tar in tars]


if __name__ == "__main__":
    sys.exit(main())
