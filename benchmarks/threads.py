"""The loader with more threads than there are cores: what is left of its speed when they wait for Python's lock (GIL).

    python benchmarks/threads.py FOLDER                     JPEGs in a folder, the same tiled, and converted
    python benchmarks/threads.py FOLDER --before CHECKOUT   another checkout as well, with its environment in .venv
    python benchmarks/threads.py FOLDER --sources "fetched shards" ".beton"

Decoding and resizing are replaced by a sleep of --microseconds without the lock, as if each thread had a core of its
own; everything else is done as usual. Images are read, over and over, from the page cache. With a few threads the rate
grows with their number, until they wait for each other. It is a simulation: only ratios of one machine mean something.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from images import dataset, list_images
from rich.console import Console

BATCH = 256
EPOCH = 4096  # images
THREADS = (1, 4, 8, 16, 32)
SOURCES = ("files", "tiled files", "tiled shards", "fetched shards", ".beton")  # fetched: in the cache of a store
CROP = 224


def main() -> None:
    """Measure, print, and append the results."""
    args = _parsed()
    if args.one is not None:
        for row in _rates(args):
            print(json.dumps(row), flush=True)
        return
    checkouts = {"now": measure.ROOT, **({"before": args.before.resolve()} if args.before else {})}
    found: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(args.repeats):
        for name, checkout in checkouts.items():
            for row in _elsewhere(checkout, args):
                found.setdefault((name, row["source"], row["threads"]), []).append(row["images_per_second"])
    rows: list[dict[str, Any]] = []
    for (name, source, threads), rates in found.items():
        record = {"checkout": name, "source": source, "threads": threads}
        rows.append({**record, "images_per_second": measure.Spread.of(rates)})
    common = {"benchmark": "threads", "microseconds": args.microseconds, "batch": BATCH, "data": args.folder.name}
    for row in rows:
        measure.append(args.out, {**common, **measure.flat(row), "environment": measure.environment()})
    shown = [{**row, "images_per_second": row["images_per_second"].text()} for row in rows]
    measure.show(Console(width=110), f"decoding simulated by {args.microseconds} us without the lock", shown)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="JPEGs")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--microseconds", type=int, default=1000, help="of native work for each image (default: 1000)")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES, metavar="SOURCE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "threads.jsonl")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        list_images(args.folder)
    except ValueError as error:
        parser.error(f"{error}; give a folder of JPEGs")
    if args.before is not None and not (args.before / ".venv" / "bin" / "python").exists():
        parser.error(f"--before {args.before}: no checkout with an environment in .venv")
    return args


def _elsewhere(checkout: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rates of a checkout, by this file, in a process that imports that checkout."""
    python = checkout / ".venv" / "bin" / "python"
    folder = args.folder.resolve()
    command = [str(python), __file__, str(folder), "--one", str(checkout), "--microseconds", str(args.microseconds)]
    command += ["--sources", *args.sources]
    paths = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=checkout, env=paths)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    yield from (json.loads(line) for line in done.stdout.splitlines())


def _rates(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each kind of source and number of threads, in this process."""
    from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sources = {name: _opened(name, args.folder, Path(folder), stack) for name in args.sources}
        _sleep_instead(args.microseconds)
        for source, samples in sources.items():
            for threads in THREADS:
                config = LoaderConfig(batch_size=BATCH, workers=threads)
                decoder = ImageDecoder(RandomResizedCrop(size=CROP))
                with Loader(samples, decoder, config, torch.device("cpu")) as loader:
                    sum(batch.samples for batch in loader)  # warm up
                    began = time.perf_counter()
                    count = sum(batch.samples for batch in loader)
                    rate = count / (time.perf_counter() - began)
                yield {"source": source, "threads": threads, "images_per_second": round(rate, 1)}


def _opened(source: str, images: Path, folder: Path, stack: contextlib.ExitStack) -> Any:
    """The images as one of SOURCES, repeated to about an epoch."""
    from fastimg.loaders import open_dataset
    from fastimg.loaders.jpeg.rewriting.tiles import tile

    if source == "files":
        return dataset(images, EPOCH)
    if source == "tiled files":
        tiled = folder / "tiled"
        tiled.mkdir()
        for number, name in enumerate(list_images(images)):
            (tiled / f"{number:05d}.jpg").write_bytes(tile((images / name).read_bytes()).jpeg)
        return dataset(tiled, EPOCH)
    converted = _converted(images, folder, "beton" if source == ".beton" else "tar")
    if source == "fetched shards":
        return stack.enter_context(contextlib.closing(open_dataset(converted.as_uri(), cache_dir=folder / "cache")))
    return stack.enter_context(contextlib.closing(open_dataset(converted)))


def _converted(images: Path, folder: Path, container: str) -> Path:
    """The images in tiled shards or in a .beton, repeated to about an epoch."""
    from fastimg.cli import run

    made = folder / container
    if made.exists():
        return made
    names = list_images(images)
    source = folder / f"source-{container}" / "all"
    source.mkdir(parents=True)
    for number in range(EPOCH):
        (source / f"{number:05d}.jpg").symlink_to(images / names[number % len(names)])
    with contextlib.redirect_stdout(sys.stderr):
        if run(["convert", str(source.parent), str(made), "--format", container]):
            raise SystemExit("conversion failed")
    return made


def _sleep_instead(microseconds: int) -> None:
    """Replace the native work by a sleep, in whatever modules this checkout has it."""
    import simplejpeg

    import fastimg.loaders.resample as resample

    sleep: Callable[[int], int] = ctypes.CDLL(None).usleep  # ctypes releases the lock
    decoding, resizing = microseconds * 6 // 7, microseconds // 7
    decode: Any = simplejpeg.decode_jpeg
    kept: dict[int, Any] = {}

    def decoded(data: Any, colours: str, **options: Any) -> Any:
        if len(data) not in kept:
            kept[len(data)] = np.zeros_like(decode(data, colours, strict=True))
        sleep(decoding)
        return kept[len(data)]

    def cropped(headers: Any, jobs: Any, *rest: Any) -> int:
        sleep(microseconds * len(jobs))
        jobs["status"] = -1
        return 0

    small = torch.zeros(1, 3, 8, 8, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)

    class Kernel:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def out(self, *given: Any, **options: Any) -> Any:
            sleep(resizing)
            return self._kernel(small, [4, 4], False, None, None)

    def resized(jobs: Any, *rest: Any) -> int:
        sleep(resizing * len(jobs))
        return 0

    replaced: Any = simplejpeg
    replaced.decode_jpeg = decoded
    if importlib.util.find_spec("fastimg.loaders.jpeg.decoding.crops"):
        replaced = importlib.import_module("fastimg.loaders.jpeg.decoding.crops")
        replaced._crop_tiled = replaced._crop_untiled = replaced._crop_progressive = cropped
        replaced.is_ready = lambda kind: True
    else:  # an older checkout, which leaves untiled JPEGs to simplejpeg
        replaced = importlib.import_module("fastimg.loaders.jpeg.decoding.tiled")
        replaced._crop_rows = cropped
    replaced = resample
    replaced._KERNELS = {name: Kernel(kernel) for name, kernel in resample._KERNELS.items()}
    if importlib.util.find_spec("fastimg.loaders.decoders.resize_queue"):  # an older checkout has none
        replaced = importlib.import_module("fastimg.loaders.decoders.resize_queue")
        replaced._resize_rows = resized


if __name__ == "__main__":
    main()
