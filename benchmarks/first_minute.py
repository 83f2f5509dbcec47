"""Epochs over few photographs, from the first one on, on a machine that has compiled nothing and on one that has.

    build/peers/bin/python -W ignore benchmarks/first_minute.py --data FOLDER

FOLDER has photographs, of which there are copies in class folders (`files`) and, converted, in shards (`shards`). Each
loader reads epochs of random crops of 224 for `--seconds`, in a process of its own: `cold` with an empty folder for
machine code, `warm` with one in which all has been compiled. `first`: from making the loader to the end of the first
epoch, imports left out. `later`: the median of the other epochs. `least`: the lowest rate of an epoch after the first,
divided by the median rate of the four epochs around it. Processes take turns; a figure is the median over them.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
from images import list_images
from measure import Spread
from rich.console import Console

HEADS = ("fastimg files cold", "fastimg files warm", "fastimg shards cold", "fastimg shards warm", "dali", "torch")


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="of reading, in each process")
    parser.add_argument("--processes", type=int, default=3, help="of each loader")
    parser.add_argument("--heads", nargs="+", default=HEADS, choices=HEADS)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "first_minute.jsonl")
    parser.add_argument("--one", nargs=2, metavar=("HEAD", "FOLDER"), help="only this, in this process")
    args = parser.parse_args()
    if args.one:
        head, folder = args.one
        print(json.dumps(epochs(head, Path(folder), args)))
        return
    here = measure.environment()
    found: dict[str, list[list[dict[str, float]]]] = {head: [] for head in args.heads}
    with tempfile.TemporaryDirectory(prefix="fastimg-minute-") as scratch:
        folder = Path(scratch)
        make(args.data, folder, args.images)
        for _ in range(args.processes):
            for head in args.heads:
                found[head].append(in_a_process(head, folder, args))
    rows = []
    for head, runs in found.items():
        spreads = summary(runs)
        record: dict[str, Any] = {"images": args.images, "workers": args.workers, "seconds": args.seconds, "head": head}
        for name, spread in spreads.items():
            record |= spread.fields(name)
        measure.append(args.out, {"benchmark": "first_minute", **record, "runs": runs, "environment": here})
        rows.append({"head": head, **{name: spread.text() for name, spread in spreads.items()}})
    measure.show(Console(), f"{args.images} photographs, {args.workers} threads", rows)


def summary(runs: list[list[dict[str, float]]]) -> dict[str, Spread]:
    """Of each run: seconds of the first epoch and of later ones, microseconds of a later image, the least rate."""
    found = {
        "first_s": [run[0]["seconds"] for run in runs],
        "later_s": [statistics.median(epoch["seconds"] for epoch in run[1:]) for run in runs],
        "cpu_us": [statistics.median(epoch["cpu_us"] for epoch in run[1:]) for run in runs],
        "least": [least([epoch["seconds"] for epoch in run[1:]]) for run in runs],
    }
    return {name: Spread.of(values) for name, values in found.items()}


def least(seconds: list[float]) -> float:
    """The lowest rate of an epoch, as a part of the median rate of the four around it; those at the ends have fewer."""
    ratios = [1.0]
    for i, taken in enumerate(seconds):
        around = seconds[max(0, i - 2) : i] + seconds[i + 1 : i + 3]
        if around:
            ratios.append(statistics.median(around) / taken)
    return min(ratios)


def make(data: Path, folder: Path, images: int) -> None:
    """Copies of the photographs, `folder/files` and `folder/shards`, and `folder/code`, where all is compiled."""
    from fastimg import convert

    names = list_images(data)
    for number in range(images):
        place = folder / "files" / f"class {number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data / names[number % len(names)], place / f"{number}.jpg")
    convert(folder / "files", folder / "shards")
    for kind in ("files", "shards"):
        run(
            [
                "-c",
                f"from fastimg.loaders import Loader\nLoader({str(folder / kind)!r}, batch_size=1, crop=224).compile()",
            ],
            folder / "code",
        )


def in_a_process(head: str, folder: Path, args: argparse.Namespace) -> list[dict[str, float]]:
    """The epochs of a loader, read in a process of its own."""
    given = ["--data", str(args.data), "--batch-size", str(args.batch_size), "--workers", str(args.workers)]
    command = ["-W", "ignore", __file__, *given, "--seconds", str(args.seconds), "--one", head, str(folder)]
    with tempfile.TemporaryDirectory(prefix="fastimg-code-") as cold:
        output = run(command, Path(cold) if head.endswith("cold") else folder / "code")
    found: list[dict[str, float]] = json.loads(output.splitlines()[-1])
    return found


def run(command: list[str], code: Path) -> str:
    """What another Python prints, whose machine code is kept in the folder `code`."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(code), "FASTIMG_BACKGROUND": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def epochs(head: str, folder: Path, args: argparse.Namespace) -> list[dict[str, float]]:
    """Seconds of each epoch, and microseconds of this process for each image."""
    from fastimg.bench.peers.data import Sources
    from fastimg.bench.peers.pipelines import PEERS, Workload, batches_of

    files = tuple(sorted((folder / "files").glob("*/*.jpg")))
    sources = Sources(folder=folder, files=files)
    work = Workload(sources=sources, crop="random", batch_size=args.batch_size, size=224, workers=args.workers)
    name, *kind = head.split()
    found = []
    start = began = time.perf_counter()
    busy = time.process_time()
    batches = batches_of(work, folder / kind[0], compiled=False) if name == "fastimg" else PEERS[name].open(work)
    while began - start < args.seconds or len(found) < 2:
        images = sum(len(batch) for batch in batches())
        ended, spent = time.perf_counter(), time.process_time()
        found.append({"seconds": ended - began, "cpu_us": 1e6 * (spent - busy) / images})
        began, busy = ended, spent
    return found


if __name__ == "__main__":
    main()
