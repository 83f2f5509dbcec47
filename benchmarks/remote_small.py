"""Small sets and few samples in an object store: whole shards, ranges of them (--cache-limit 0), and class folders.

    python benchmarks/remote_small.py --data FOLDER

The store is that of benchmarks/remote.py, with --latency milliseconds before each answer; that of class folders also
lists names, as S3 does, with MD5s as ETags. For sets of several sizes, all samples, or --few of them spread over the
set, are read by as many threads as a loader would have (--threads); nothing is decoded. `ranges`: one by one from the
shards; `files`: from the class folder that was converted, which nobody has. The time counts from opening the URL, with
an empty cache. The ways take turns. `data`: MB; `over whole`: time over that by whole shards, per repeat.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
from images import list_images
from remote import served
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import open_dataset
from fastimg.loaders.runtime.scratch import Scratch


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of JPEGs, flat or with subfolders")
    parser.add_argument("--samples", type=int, nargs="+", default=[30, 300, 3000], help="images, repeated as needed")
    parser.add_argument("--shard-size", default="16MB")
    parser.add_argument("--few", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--latency", type=float, default=10.0, help="milliseconds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards and caches, on a disk")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "remote_small.jsonl")
    args = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory(dir=args.scratch or Path.cwd(), prefix="fastimg-small-") as name:
        scratch = Path(name)
        for count in args.samples:
            shards = written(args, scratch, count)
            with served(shards.parents[1], args.latency, core) as address:
                for few in (args.few, count):
                    rows.append(measured(args, address, shards, scratch / "cache", few))
    measure.show(Console(width=120), f"{args.latency:g} ms, shards of {args.shard_size}", rows)


def written(args: argparse.Namespace, scratch: Path, count: int) -> Path:
    """Shards of so many images."""
    source = scratch / "bucket" / f"S{count}"
    names = list_images(args.data)
    for number in range(count):
        file = args.data / names[number % len(names)]
        folder = source / f"{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06d}{file.suffix}").symlink_to(file.resolve())
    shards = source.with_name(f"D{count}")
    convert(Convert(src=source, dst=shards, shard_size=args.shard_size), Console(quiet=True))
    return shards


def measured(args: argparse.Namespace, address: str, shards: Path, cache: Path, few: int) -> dict[str, Any]:
    """Measure the ways of reading `few` samples in turn, and append the record. Returns the row of the table."""
    url, files = f"{address}/bucket/{shards.name}", f"s3://bucket/S{shards.name[1:]}"
    options = {"endpoint": address, "skip_signature": "true", "region": "us-east-1"}
    ways: dict[str, Callable[[], float]] = {
        "whole": partial(seconds_of, url, cache, None, few, args.threads),
        "ranges": partial(seconds_of, url, cache, 0, few, args.threads),
        "files": partial(seconds_of, files, cache, None, few, args.threads, options),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.repeats):
        for way, run in ways.items():
            found[way].append(run())
    ratios = {
        way: measure.Spread.of([b / a for a, b in zip(found["whole"], found[way], strict=True)])
        for way in ("ranges", "files")
    }
    tars = list(shards.glob("*.tar"))
    nbytes = sum(tar.stat().st_size for tar in tars)
    record = {
        "benchmark": "remote_small",
        "images": int(shards.name[1:]),
        "read": few,
        "bytes": nbytes,
        "shards": len(tars),
        "latency_ms": args.latency,
        "threads": args.threads,
        **{f"{way}_seconds": round(float(np.median(times)), 4) for way, times in found.items()},
        **ratios["ranges"].fields("ranges_over_whole"),
        **ratios["files"].fields("files_over_whole"),
        "data": args.data.resolve().name,
        "environment": measure.environment(),
    }
    measure.append(args.out, record)
    return {
        "images": record["images"],
        "data": f"{nbytes / 1e6:.1f}",
        "shards": len(tars),
        "read": few,
        **{way: f"{record[f'{way}_seconds']:.3f} s" for way in found},
        **{f"{way} over whole": f"{r.median:.2f} ({r.low:.2f} - {r.high:.2f})" for way, r in ratios.items()},
    }


def seconds_of(
    url: str, cache: Path, limit: int | None, few: int, threads: int, options: dict[str, str] | None = None
) -> float:
    """Seconds from opening a URL with an empty cache to the last of `few` samples, which are spread over the set."""
    shutil.rmtree(cache, ignore_errors=True)
    began = time.perf_counter()
    with closing(open_dataset(url, cache_dir=cache, cache_limit=limit, storage_options=options)) as dataset:
        ids = np.linspace(0, len(dataset) - 1, few).astype(int).tolist()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda index: len(dataset.read(index, Scratch())), ids))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
