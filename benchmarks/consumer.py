"""What the thread that trains does for a batch beside its step, in microseconds of processor time: alone, and helped.

    python benchmarks/consumer.py                  # 4,096 images of 64 x 64 pixels, stored raw, in batches of 256
    python benchmarks/consumer.py --workers 4 --repeats 50

The samples of a batch, their crops' draws and the plan of augmentation in words for a GPU are worked out by the thread
that trains, or by the loader's threads; by turns, an epoch each. The loop does nothing else: no GPU is needed, and what
CUDA's calls take is not in these numbers. Where the trainer works the plan out, its words are pinned and copied on a
stream of their own in each step, beside what is measured here. Images are noise.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import measure
import torch
from batches import written
from rich.console import Console

from fastimg.augment import Policy, draw
from fastimg.augment.ahead import work_out
from fastimg.data.planning import Planning, plan_of
from fastimg.loaders import Batch, Loader
from fastimg.loaders.pool import Pool
from fastimg.loaders.ring import HostRing

GPU = torch.device("cuda")  # plans are worked out for its kernels; it need not be there
POLICIES = {
    "flips": Policy(hflip=0.5),
    "TrivialAugment": Policy(hflip=0.5, trivial=True),
    "RandAugment, mixup": Policy(hflip=0.5, named="rand-m9-mstd0.5-inc1", mixup=0.2, cutmix=1.0),
}
# What is timed: its name in the table, and where it is.
PARTS: tuple[tuple[str, type, str], ...] = (
    ("asking for the next batch", Loader, "_dispatch"),
    ("waiting, and waking up", Pool, "wait"),
    ("tensors", HostRing, "hand_over"),
)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--side", type=int, default=64, help="pixels")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20, help="epochs of each")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "consumer.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    here, table = measure.environment(), []
    with tempfile.TemporaryDirectory(prefix="fastimg-consumer-") as scratch:
        data = written(Path(scratch), args.images, args.side)
        for name, policy in POLICIES.items():
            given = {"batch_size": args.batch_size, "crop": args.side, "seed": 1, "workers": args.workers}
            with Loader(data, **given) as alone, Loader(data, **given) as preparing:
                preparing.prepare(Planning(policy, GPU))
                epochs = {
                    "the trainer": lambda loader=alone, policy=policy: _by_trainer(loader, policy),
                    "threads": lambda loader=preparing, policy=policy: _by_threads(loader, policy),
                }
                alone.compile()
                rows = [{"policy": name} | row for row in _measured(epochs, args.repeats)]
            about = {"workers": args.workers, "batch_size": args.batch_size, "images": args.images, "side": args.side}
            for row in rows:
                record = {"benchmark": "consumer", **about, **row, "n": args.repeats, "environment": here}
                measure.append(args.out, record)
            table += rows
    measure.show(Console(), f"microseconds of the trainer's thread for a batch of {args.batch_size}", table)


def _by_trainer(loader: Loader, policy: Policy) -> "Counter[str]":
    with mock.patch.object(Pool, "make", lambda _, slot, job, fill: fill()):
        return _epoch(loader, lambda batch: work_out(draw(policy, batch.keys, 1, 0), *batch.inputs.shape[2:], GPU))


def _by_threads(loader: Loader, policy: Policy) -> "Counter[str]":
    return _epoch(loader, lambda batch: plan_of(policy, batch, 1, loader.epoch))


def _epoch(loader: Loader, plan: Callable[[Batch], object]) -> "Counter[str]":
    """Microseconds for a batch of an epoch, by part."""
    spent: Counter[str] = Counter()
    with ExitStack() as stack:
        for name, owner, method in PARTS:
            stack.enter_context(mock.patch.object(owner, method, _timed(getattr(owner, method), name, spent)))
        planned = _timed(plan, "the plan", spent)
        began = time.thread_time_ns()
        for batch in loader:
            planned(batch)
        spent["all"] = time.thread_time_ns() - began
    return Counter({name: taken / 1000 / len(loader) for name, taken in spent.items()})


def _measured(epochs: dict[str, Callable[[], "Counter[str]"]], repeats: int) -> list[dict[str, Any]]:
    """Medians of epochs, of which one of each is read in turn."""
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for repeat in range(1 + repeats):
        for worker, epoch in epochs.items():
            for part, microseconds in epoch().items():
                if repeat:  # the first one warms up
                    taken[part, worker].append(microseconds)
    parts = dict.fromkeys(part for part, _ in taken)
    return [
        {"part": part} | {worker: round(statistics.median(taken[part, worker]), 1) for worker in epochs}
        for part in sorted(parts, key=lambda part: part == "all")
    ]


def _timed(function: Callable[..., Any], name: str, spent: "Counter[str]") -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        began = time.thread_time_ns()
        try:
            return function(*args)
        finally:
            spent[name] += time.thread_time_ns() - began

    return timed


if __name__ == "__main__":
    main()
