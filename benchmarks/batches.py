"""What a batch of tiny images costs beside its pixels: microseconds of processor time by part, of the native loader.

    python benchmarks/batches.py                      # 10,000 images of 32 x 32 pixels, stored raw, in batches of 256
    python benchmarks/batches.py --images 50000 --batch-size 128 --workers 2

The images are noise, written to a `.beton` by `convert --raw-below`. Functions of the loader are timed by the clock of
their own thread, which adds about a microsecond to each; a part includes those that are indented below it. The first
lines are without these clocks. Chunks that the consumer fills instead of waiting are part of its waiting, and count
among those of the threads, too.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import measure
import numpy as np
import torch
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import Loader
from fastimg.loaders.batch import HeldBatches
from fastimg.loaders.crop import CenterCrop
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.epochs.epochs import Epochs
from fastimg.loaders.epochs.plan import EpochPlan
from fastimg.loaders.pool import Pool
from fastimg.loaders.ring import HostRing

# What is timed: the thread that calls it, its name in the table, and where it is.
PARTS: tuple[tuple[str, str, type, str], ...] = (
    ("consumer", "order of the epoch", Epochs, "begin"),
    ("consumer", "next batch: ids, labels, weights, draws", Loader, "_fill"),
    ("consumer", "  samples of the batch", EpochPlan, "rows"),
    ("consumer", "  chunks for the threads", Pool, "fill"),
    ("consumer", "waiting, and waking up", Pool, "wait"),
    ("consumer", "tensors", HostRing, "hand_over"),
    ("consumer", "batches that are held", HeldBatches, "add"),
    ("consumer", "position, for resuming", Epochs, "passed"),
    ("thread", "rows of a chunk", Pool, "_fill_rows"),
    ("thread", "  pixels, and where they lie", ImageDecoder, "fill"),
    ("thread", "end of a chunk", Pool, "_settle"),
)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=32, help="pixels")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=30, help="epochs")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "batches.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    here, table = measure.environment(), []
    with tempfile.TemporaryDirectory(prefix="fastimg-batches-") as scratch:
        data = written(Path(scratch), args.images, args.side)
        for workers in args.workers:
            crop = CenterCrop(size=args.side, resize=args.side)
            with Loader(data, batch_size=args.batch_size, crop=crop, order="random", seed=1, workers=workers) as loader:
                loader.compile()
                for _ in range(3):  # from the second epoch on a small file is in memory
                    _epoch(loader)
                rows = [*_whole(loader, args.repeats), *_by_part(loader, args.repeats)]
            about = {"workers": workers, "batch_size": args.batch_size, "images": args.images, "side": args.side}
            for row in rows:
                record = {"benchmark": "batches", **about, **row, "n": args.repeats, "environment": here}
                measure.append(args.out, record)
            table += [{"threads": workers} | row for row in rows]
    measure.show(Console(), f"microseconds a batch of {args.batch_size}", table)


def written(folder: Path, images: int, side: int) -> Path:
    """A `.beton` of raw pixels."""
    rng = np.random.default_rng(0)
    for number in range(images):
        file = folder / "files" / str(number % 10) / f"{number:06d}.bmp"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(file)
    convert(Convert(src=folder / "files", dst=folder / "data", format="beton", raw_fraction=1.0), Console(quiet=True))
    return folder / "data"


def _epoch(loader: Loader) -> int:
    """Read an epoch; the number of its batches."""
    return sum(1 for _ in loader)


def _whole(loader: Loader, repeats: int) -> list[dict[str, Any]]:
    """Of a batch: time that passes, and processor time of the consumer and of all threads; medians of epochs."""
    clocks = time.perf_counter, time.thread_time, time.process_time
    taken = []
    for _ in range(repeats):
        began = [clock() for clock in clocks]
        batches = _epoch(loader)
        taken.append([1e6 * (clock() - start) / batches for clock, start in zip(clocks, began, strict=True)])
    passed, consumer, everyone = (statistics.median(column) for column in zip(*taken, strict=True))
    return [
        _row("", "time that passes", passed),
        _row("consumer", "all", consumer),
        _row("thread", "all", everyone - consumer),
    ]


def _by_part(loader: Loader, repeats: int) -> list[dict[str, Any]]:
    spent: Counter[str] = Counter()
    with ExitStack() as stack:
        for _, name, owner, method in PARTS:
            stack.enter_context(mock.patch.object(owner, method, _timed(getattr(owner, method), name, spent)))
        batches = sum(_epoch(loader) for _ in range(repeats))
    return [_row(thread, name, spent[name] / 1000 / batches) for thread, name, _, _ in PARTS]


def _timed(function: Callable[..., Any], name: str, spent: "Counter[str]") -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.thread_time_ns() - began

    return timed


def _row(thread: str, part: str, microseconds: float) -> dict[str, Any]:
    return {"thread": thread, "part": part, "microseconds": round(microseconds, 1)}


if __name__ == "__main__":
    main()
