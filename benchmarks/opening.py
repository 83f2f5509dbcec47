"""How long a large dataset takes to open, and to return its first batch.

    python benchmarks/opening.py --data FOLDER [--samples 1000000]

A shard of 256 MB is made from the folder's JPEGs, tiled, and hard-linked until the dataset has this number of samples.
The links share the shard's bytes (and its page cache), but each has its own records and index. `first open` derives the
compact index. Every open runs in its own process, and is timed from `open_dataset` to the first batch of a Loader,
including crops, with compiled code cached on disk. `cpu` is the CPU time of that (including batches read ahead), which
does not depend on other programs; `process` is the wall time of the whole process. Foreign tars, without dataset.json,
are scanned on the first open. The .beton holds raw images of 8 x 8 pixels.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
from images import list_images
from rich.console import Console

from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path
from fastimg.loaders.jpeg.rewriting.tiles import tile

_SHARD_BYTES = 256_000_000
_CLASSES = 1000
_FOREIGN = 20  # a scan's time is proportional to the members: it is measured on one of this many samples


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of JPEGs, flat or with subfolders")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shard-bytes", type=int, default=_SHARD_BYTES)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "opening.jsonl")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)  # arguments of a measurement process
    parser.add_argument("--order", default="random", help=argparse.SUPPRESS)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open:
        print(json.dumps(opened(args.open, args.order, args.part, args.batch_size, args.workers)))
        return
    with tempfile.TemporaryDirectory() as folder:
        records = measured(args, Path(folder))
    shared = {"benchmark": "opening", "batch_size": args.batch_size, "workers": args.workers}
    environment = measure.environment()
    for record in records:
        measure.append(args.out, {**shared, **measure.flat(record), "environment": environment})
    measure.show(Console(), "seconds", [{key: shown(value) for key, value in record.items()} for record in records])


def shown(value: Any) -> str | int:
    """A number as a table cell."""
    return value.text() if isinstance(value, measure.Spread) else f"{value:.4g}" if isinstance(value, float) else value


def measured(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Make the datasets in `folder` and open them."""
    shards = make_shards(folder / "tar", args.data, args.samples, args.shard_bytes)
    foreign = folder / "foreign"
    foreign.mkdir()
    part = shards[: max(1, len(shards) // _FOREIGN)]
    for shard in part:
        os.link(shard, foreign / shard.name)
    beton = make_beton(folder / "train.beton", args.samples)
    records: list[dict[str, Any]] = []
    for name, path in (("tar", folder / "tar"), ("foreign tar", foreign)):
        first = in_a_process(path, args, "random", False)
        count = int(first["samples"])
        rate = count / first["open"]
        records.append({"what": f"{name}: first open", "samples": count, "open": first["open"], "per_second": rate})
    cases = [(order, part) for order in ("random", "quasi-random", "sequential") for part in (False, True)]
    variants = [("tar", folder / "tar", *case) for case in cases] + [("beton", beton, "random", False)]
    runs: list[list[dict[str, float]]] = [[] for _ in variants]
    for _ in range(args.repeats):  # interleaved, so that a temporarily slow machine affects all variants
        for found, (_, path, order, part) in zip(runs, variants, strict=True):
            found.append(in_a_process(path, args, order, part))
    for found, (name, _, order, part) in zip(runs, variants, strict=True):
        spreads = {key: measure.Spread.of([run[key] for run in found]) for key in ("total", "open")}
        others = ("cpu", "loader", "batch", "process")
        medians = {key: measure.Spread.of([run[key] for run in found]).median for key in others}
        what = f"{name}, {order}" + (", nine tenths of it" if part else "")
        records.append({"what": what, "samples": int(found[0]["samples"]), **spreads, **medians})
    return records


def in_a_process(path: Path, args: argparse.Namespace, order: str, part: bool) -> dict[str, float]:
    """The output of `opened` in a separate process."""
    command = [sys.executable, __file__, "--open", str(path), "--order", order, *(["--part"] if part else [])]
    command += ["--batch-size", str(args.batch_size), "--workers", str(args.workers)]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {**json.loads(done.stdout), "process": time.perf_counter() - began}


def opened(path: Path, order: str, part: bool, batch_size: int, workers: int) -> dict[str, float]:
    """Seconds of each stage up to the first batch, and their total without imports."""
    times = [time.perf_counter()]
    cpu = time.process_time()
    dataset = open_dataset(path)
    times.append(time.perf_counter())
    indices = np.flatnonzero(np.arange(len(dataset)) % 10) if part else None
    config = LoaderConfig(batch_size=batch_size, order=order, workers=workers)
    loader = Loader(dataset, ImageDecoder(RandomResizedCrop(size=224)), config, indices=indices)
    times.append(time.perf_counter())
    batch = next(iter(loader))
    times.append(time.perf_counter())
    cpu = time.process_time() - cpu
    assert batch.samples == batch_size and not loader.unreadable
    loader.close()
    dataset.close()
    stages = dict(zip(("open", "loader", "batch"), np.diff(times).tolist(), strict=True))
    return {"samples": len(dataset), **stages, "total": times[-1] - times[0], "cpu": cpu}


def make_shards(folder: Path, images: Path, samples: int, shard_bytes: int) -> list[Path]:
    """A dataset of about this many samples, whose shards are links to one file."""
    folder.mkdir()
    data = [tile((images / name).read_bytes(), 32).jpeg for name in list_images(images)]
    first = folder / "train-00000.tar"
    with ShardWriter(first) as writer:
        while writer.bytes < shard_bytes:
            number = writer.count
            label = str(number % _CLASSES).encode()
            writer.add(f"{number:09d}", {"jpg": data[number % len(data)], "cls": label})
    shards = [folder / f"train-{number:05d}.tar" for number in range(-(-samples // writer.count))]
    for shard in shards[1:]:
        os.link(first, shard)
        index_path(shard).write_bytes(index_path(first).read_bytes())
    entry = {key: getattr(writer, key) for key in ("bytes", "sha256", "index_bytes", "index_sha256")}
    entries = [{"name": shard.name, "samples": writer.count, **entry} for shard in shards]
    split = {"samples": writer.count * len(shards), "shards": entries}
    description = {"format": "fastimg dataset", "version": 1, "container": "tar", "splits": {"train": split}}
    description["classes"] = [str(label) for label in range(_CLASSES)]
    (folder / "dataset.json").write_text(json.dumps(description))
    return shards


def make_beton(path: Path, samples: int) -> Path:
    """A .beton with this many raw images of 8 x 8 pixels."""
    pixels = np.frombuffer(hashlib.sha256(b"pixels").digest() * 6, np.uint8).reshape(8, 8, 3)
    with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, samples) as writer:
        for number in range(samples):
            writer.add({"image": pixels, "label": number % _CLASSES})
    return path


if __name__ == "__main__":
    main()
