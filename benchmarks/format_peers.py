"""Loaders by format of the images: fastimg, torch, DALI, webdataset, FFCV, TurboLoader and datago, a process each.

    build/peers/bin/python -W ignore benchmarks/format_peers.py png --data FOLDER       # about 3 minutes
    for task in jpeg png webp bmp digits raw-192 raw-32; do ... benchmarks/format_peers.py $task --data FOLDER; done

FOLDER has photographs, of which the images are made, as by `formats.py`: a longer side of 256 pixels, or 192 x 192, of
which RandomResizedCrop makes 160, or small ones that are read whole, as RGB. Each loader reads what its users store,
the files or its own container, from a warm page cache, and gives batches on the CPU, `uint8` if it can. Epochs take
turns, and a ratio is the median over the rounds. First the pixels of an epoch are compared: sums of whole images,
the mean of crops. A loader that cannot read a format, or gives other pixels, is named with the reason.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
from comparisons import installed
from formats import TASKS as FORMATS
from formats import Task, write_images
from loader_peers import versions
from loader_peers.by_format import PEERS
from loader_peers.format_work import FormatWork
from measure import Spread
from rich.console import Console

from fastimg.bench.peers.comparison import drop, make
from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.processes import Epoch, PeerError, Remote, remotes

TASKS = {
    **{name: FORMATS[name]._replace(images=768) for name in ("jpeg", "png", "webp", "bmp")},
    "digits": FORMATS["digits"]._replace(images=9_984),
    "raw-192": Task("bmp", 192, 160, 768, square=True),  # BMPs for those that have no container of raw pixels
    "raw-32": Task("bmp", 32, 32, 9_984),
}
_MEANS = 3.0  # levels by which the mean of all crops may differ


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "format_peers.jsonl")
    args = parser.parse_args()
    console, task = Console(width=150), TASKS[args.task]
    base = "fastimg, raw" if args.task.startswith("raw") else "fastimg, shards"
    peers = installed({base: PEERS[base], **PEERS}, args.peers, console)
    faults: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fastimg-formats-") as scratch:
        nbytes = write_images(Path(scratch) / "files", args.data, task)
        files = sorted((Path(scratch) / "files").rglob(f"*.{task.extension}"))
        sources = Sources(folder=Path(scratch) / "made", files=tuple(files))
        about = {"benchmark": "format_peers", "task": args.task, "images": len(files), "bytes_per_image": nbytes}
        about |= {"batch_size": args.batch_size, "n": args.repeats, "base": base}
        for workers in args.workers:
            work = FormatWork(
                sources=sources,
                crop="random",
                batch_size=args.batch_size,
                size=task.size,
                workers=workers,
                whole=task.whole,
            )
            able = {name: peer for name, peer in peers.items() if name not in faults}
            with remotes(able, workers) as opened:  # anew: TurboLoader's threads are those of its process
                if workers == args.workers[0]:
                    make(opened, (sources,), base, faults)
                _compare(opened, work, base, faults)
                found = _epochs(opened, work, args.repeats, base, faults)
            for name, epochs in found.items():
                row = {"loader": name, "workers": workers, **_spreads(epochs, found[base])}
                rows.append(row)
                record = {**about, **measure.flat(row), "about": peers[name].about}
                measure.append(args.out, {**record, "environment": measure.environment() | versions()})
    for name, fault in faults.items():
        measure.append(args.out, {**about, "loader": name, "fault": fault})
        console.print(f"{name}: {fault}", highlight=False)
    shown = [{key: v.text() if isinstance(v, Spread) else v for key, v in row.items()} for row in rows]
    measure.show(console, f"{args.task}: {len(files)} images of {nbytes} bytes, times: {base} / this", shown)


def _compare(opened: dict[str, Remote], work: FormatWork, base: str, faults: dict[str, str]) -> None:
    """Drop loaders that fail, or whose pixels differ from those of `base`."""
    wanted = opened[base].images(work)
    for name, remote in list(opened.items()):
        if name == base:
            continue
        try:
            images = remote.images(work)
            if len(images) != len(wanted):
                raise PeerError(f"returned {len(images)} images of {len(wanted)}")
            if work.whole and not np.array_equal(_sums(images), _sums(wanted)):
                raise PeerError("other pixels")
            if abs(float(images.mean()) - float(wanted.mean())) > _MEANS:
                raise PeerError(f"other pixels: their mean is {images.mean():.1f}, not {wanted.mean():.1f}")
        except PeerError as error:
            drop(opened, name, error, base, faults)


def _sums(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The sum of the levels of each image, sorted."""
    return np.sort(images.reshape(len(images), -1).sum(axis=1, dtype=np.int64))


def _epochs(
    opened: dict[str, Remote], work: FormatWork, repeats: int, base: str, faults: dict[str, str]
) -> dict[str, list[Epoch]]:
    """Epochs of all loaders in turn, `repeats` rounds after one that warms up."""
    epochs: dict[str, list[Epoch]] = {name: [] for name in opened}
    for number in range(1 + repeats):
        for name, remote in list(opened.items()):
            try:
                epoch = remote.epoch(work)
            except PeerError as error:
                drop(opened, name, error, base, faults)
                del epochs[name]
                continue
            if number:
                epochs[name].append(epoch)
    return epochs


def _spreads(epochs: list[Epoch], theirs: list[Epoch]) -> dict[str, Spread]:
    """Images a second, microseconds of processor time an image, and how many times as fast the base is."""
    busy = [1e6 * one.processor / one.images for one in epochs if one.processor is not None]
    return {
        "images_per_second": Spread.of([one.images / one.seconds for one in epochs]),
        **({"cpu_microseconds": Spread.of(busy)} if busy else {}),
        "times": Spread.of([one.seconds / base.seconds for one, base in zip(epochs, theirs, strict=True)]),
    }


if __name__ == "__main__":
    main()
