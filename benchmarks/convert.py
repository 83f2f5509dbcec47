"""Conversion speed of fastimg and FFCV's DatasetWriter, and peak memory.

    python benchmarks/convert.py --data FOLDER            # compares with ffcv if it is installed
    python benchmarks/convert.py --memory 1000 100000     # peak memory by number of generated images

The same image files, repeated up to --images, are converted from a folder to shards on the same file system, with two
threads or worker processes. Runs are interleaved; results are medians of n. fastimg reads, tiles losslessly, hashes,
writes and syncs to disk; `compare` also decodes each tiled JPEG and its source; `beton` writes FFCV's container. FFCV
decodes with Pillow and encodes at its default quality, `write_mode="jpg"`. Imports and compilation are not timed.
`tile` is tiling alone, in memory.
"""

import argparse
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure
import numpy as np
from images import list_images
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders.jpeg.rewriting.tiles import tile

CLASSES = 10
QUIET = Console(quiet=True)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of JPEGs, flat or with subfolders")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--memory", type=int, nargs="+", default=[], metavar="N", help="numbers of small images to convert"
    )
    parser.add_argument(
        "--scratch", type=Path, default=None, help="folder for output; default: the system's temporary folder"
    )
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "convert.jsonl")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)  # one measurement in its own process
    args = parser.parse_args()
    if args.one:
        return _one(**args.one)
    if args.data is None and not args.memory:
        parser.error("give --data or --memory")
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-convert-") as scratch:
        if args.data is not None:
            _speed(args, Path(scratch))
        if args.memory:
            _memory(args, Path(scratch))
    return None


def _speed(args: argparse.Namespace, scratch: Path) -> None:
    images = scratch / "images"
    names = list_images(args.data)
    for i in range(args.images):
        source = (args.data / names[i % len(names)]).resolve()
        link = images / f"{i % CLASSES}" / f"{i:06d}{source.suffix.lower()}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source)
    size = sum(file.stat().st_size for file in images.rglob("*.*"))
    seconds: dict[str, Callable[[], float]] = {
        name: _fastimg(images, scratch / "out", args.threads, flags)
        for name, flags in (
            ("fastimg tar", {}),
            ("fastimg tar, compare", {"compare": True}),
            ("fastimg beton", {"format": "beton"}),
        )
    }
    data = [(args.data / name).read_bytes() for name in names]
    seconds["tile"] = lambda: _tile(data, args.images, args.threads)
    if importlib.util.find_spec("ffcv"):
        seconds["ffcv DatasetWriter"] = lambda: _child(
            {"images": str(images), "out": str(scratch / "peer.beton"), "threads": args.threads}
        )
    else:
        print("ffcv is not installed, so it is not compared; CONTRIBUTING.md explains how to install it")
    rates = {name: (lambda call=call: args.images / call()) for name, call in seconds.items()}
    spread = measure.interleaved(rates, args.repeats)
    environment = measure.environment() | {
        name: importlib.metadata.version(name) for name in ("numba", "ffcv") if importlib.util.find_spec(name)
    }
    shared = {
        "benchmark": "convert",
        "data": args.data.resolve().name,
        "files": len(names),
        "images": args.images,
        "bytes_in": size,
        "threads": args.threads,
    }
    base = spread.get("ffcv DatasetWriter")
    rows = []
    for name, rate in spread.items():
        ratio = {"ratio_to_ffcv": round(rate.median / base.median, 3)} if base else {}
        record = {"what": name, **rate.fields("images_per_second"), **ratio}
        measure.append(args.out, {**shared, **record, "environment": environment})
        rows.append({"what": name, **rate.columns("img/s"), **ratio})
    measure.show(Console(), f"{args.images} images of {args.data.resolve().name}, {args.threads} threads", rows)


def _fastimg(images: Path, out: Path, threads: int, flags: dict[str, Any]) -> Callable[[], float]:
    def run() -> float:
        shutil.rmtree(out, ignore_errors=True)
        began = time.perf_counter()
        convert(Convert(src=images, dst=out, workers=str(threads), **flags), QUIET)
        return time.perf_counter() - began

    return run


def _tile(data: list[bytes], count: int, threads: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda i: len(tile(data[i % len(data)]).jpeg), range(count)):
            pass
    return time.perf_counter() - began


def _child(what: dict[str, Any]) -> float:
    """The seconds that a measurement process prints in its last line."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(what)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _one(images: str, out: str, threads: int) -> None:
    """Convert the same files with FFCV's writer."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    dataset = _Files(sorted(Path(images).rglob("*.*")))
    began = time.perf_counter()
    writer = DatasetWriter(out, {"image": RGBImageField(write_mode="jpg"), "label": IntField()}, num_workers=threads)
    writer.from_indexed_dataset(dataset)
    print(time.perf_counter() - began)


class _Files:
    """An indexed dataset, as FFCV expects it."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        file = self._files[index]
        with Image.open(file) as image:
            return image.convert("RGB"), int(file.parent.name)


def _memory(args: argparse.Namespace, scratch: Path) -> None:
    """Peak resident memory of `fastimg convert` by the number of images."""
    images = scratch / "small"
    made = 0
    rows = []
    for count in sorted(args.memory):
        while made < count:
            file = images / f"{made % CLASSES}" / f"{made:07d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_small(made))
            made += 1
        for container in ("tar", "beton"):
            out = scratch / "small-out"
            shutil.rmtree(out, ignore_errors=True)
            command = [sys.executable, "-m", "fastimg", "convert", str(images), str(out), "--format", container]
            began = time.perf_counter()
            process = subprocess.Popen([*command, "-j", str(args.threads)], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"fastimg convert failed with status {status}")
            record = {
                "what": f"{container}, {count} images",
                "peak_rss_mb": round(usage.ru_maxrss / 1024, 1),
                "seconds": round(time.perf_counter() - began, 1),
                "n": 1,
            }
            shared = {"benchmark": "convert memory", "images": count, "container": container, "threads": args.threads}
            measure.append(args.out, {**shared, **record, "environment": measure.environment()})
            rows.append(record)
    measure.show(Console(), "peak memory of a conversion, including start-up", rows)


def _small(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
