"""The native loader against its peers: JPEGs -> uint8 batches [B, 3, 224, 224] on the CPU, random crop and flip.

    build/peers/bin/python -W ignore benchmarks/loaders.py --data FOLDER            # CONTRIBUTING.md makes build/peers
    python benchmarks/loaders.py --data FOLDER --stages --gil                       # the native loader alone, in parts

Every loader has the same photographs (page cache warm), draws RandomResizedCrop(0.08-1) and a flip per image, and has
the same number of threads or processes. Each runs in a process of its own; epochs of all are interleaved; the median
of n counts. First their centre crops and their boxes are compared. A loader that is not installed is named.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import loader_stages
import measure
from images import list_images
from loader_checks import Checks, compare
from loader_data import Sources, make, write_gradients
from loader_peers import PEERS, Work
from loader_processes import PeerError, Remote, remotes
from measure import Spread
from rich.console import Console

from fastimg.loaders.cpus import available_cpus

BASE = next(iter(PEERS))  # ratios are of its speed to the others'


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--images", type=int, default=2000, help="images per epoch: the files over and over")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS), metavar="NAME")
    parser.add_argument(
        "--stages", action="store_true", help="what each stage of the native loader costs, and no peers"
    )
    parser.add_argument("--gil", action="store_true", help="how long a sample holds the GIL, and no peers")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards; default: the system's")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "loaders.jsonl")
    args = parser.parse_args()

    console = Console(width=150)
    os.environ.setdefault("NUMBA_NUM_THREADS", str(max(available_cpus(), *args.workers)))  # FFCV's threads: a ceiling
    alone = args.stages or args.gil
    names = [name for name in PEERS if name == BASE or (name in args.peers and not alone)]
    for name in list(names):
        if missing := PEERS[name].missing():
            console.print(f"{name}: {', '.join(missing)} is not installed; {PEERS[name].install}", highlight=False)
            names.remove(name)
    files = [args.data / name for name in list_images(args.data)]
    count = max(1, args.images // args.batch_size) * args.batch_size  # whole batches: no loader pads
    repeated = (files * -(-count // len(files)))[:count]
    wanted = {PEERS[name].reads for name in names}
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-loaders-") as scratch:
        sources = make(Path(scratch) / "photographs", repeated, wanted)
        shared = {
            "benchmark": "loaders",
            "images": count,
            "files": len(files),
            "bytes_per_image": round(sum(file.stat().st_size for file in files) / len(files)),
            "data": args.data.resolve().name,
            "batch_size": args.batch_size,
            "size": args.size,
            "environment": measure.environment(),
        }
        if alone:
            loader_stages.run(args, sources, shared, console)
        else:
            _against_peers(args, names, sources, files, Path(scratch), wanted, shared, console)


def _against_peers(
    args: argparse.Namespace,
    names: list[str],
    sources: Sources,
    files: list[Path],
    scratch: Path,
    wanted: set[str],
    shared: dict[str, Any],
    console: Console,
) -> None:
    def work(data: Sources, crop: Any, workers: int) -> Work:
        return Work(sources=data, crop=crop, batch_size=args.batch_size, size=args.size, workers=workers)

    each = make(scratch / "each", files, wanted)
    gradients = make(scratch / "gradients", _cycle(write_gradients(scratch / "drawn"), len(sources.files)), wanted)
    checks = Checks(centre=work(each, "centre", args.workers[0]), boxes=work(gradients, "random", args.workers[0]))
    faults: list[str] = []
    rows = []
    with remotes(names) as opened:
        parity = compare(opened, checks, BASE)
        for name in names:
            if "fault" in parity[name]:
                faults.append(parity.pop(name)["fault"])
                del opened[name]
        _show_checks(console, parity)
        for workers in args.workers:
            speeds, busy = _interleaved(opened, work(sources, "random", workers), args.repeats, faults)
            for name, speed in speeds.items():
                ratio = speeds[BASE].median / speed.median
                row: dict[str, Any] = {"loader": name, "workers": workers}
                columns = {"CPU us/img": round(busy[name].median), f"x of {BASE}": f"{ratio:.2f}"}
                rows.append(row | speed.columns("img/s") | columns)
                measured = {**speed.fields("images_per_second"), **busy[name].fields("cpu_microseconds")}
                about = {"about": PEERS[name].about, "base": BASE, "base_over_this": round(ratio, 3)}
                measure.append(args.out, {**shared, **row, **measured, **about, "parity": _rounded(parity[name])})
    measure.show(console, f"{shared['images']} images of {shared['data']}, batches of {args.batch_size}", rows)
    if faults:
        raise SystemExit("\n".join(["failed:", *faults]))


def _show_checks(console: Console, parity: dict[str, dict[str, Any]]) -> None:
    centre = ("mean_difference", "median_image", "worst_image", "exif_turned_difference")
    boxes = ("mean_area", "mean_log_aspect", "mirrored", "ks_area", "ks_aspect", "ks_centre_x")
    one = next(iter(parity.values()))
    for title, columns in (
        (f"centre crops of {one['images']} images beside {BASE}'s: absolute difference on 0-255", centre),
        (f"{one['boxes']} random boxes beside {BASE}'s: a chance of 1 in 1,000 is {one['ks_limit']:.3f}", boxes),
    ):
        rows = [{"loader": name, **{key: f"{row[key] or 0:.3f}" for key in columns}} for name, row in parity.items()]
        measure.show(console, title, rows)


def _interleaved(
    opened: dict[str, Remote], job: Work, repeats: int, faults: list[str]
) -> tuple[dict[str, Spread], dict[str, Spread]]:
    """Images per second and processor microseconds per image, of epochs in turn; the first round does not count."""
    speeds: dict[str, list[float]] = {name: [] for name in opened}
    busy: dict[str, list[float]] = {name: [] for name in opened}
    for number in range(1 + repeats):
        for name in list(speeds):
            try:
                count, seconds, processor = opened[name].ask("epoch", job)
                if count != len(job.sources.files):
                    raise PeerError(f"{name}: an epoch of {len(job.sources.files)} images gave {count}")
            except PeerError as error:
                if name == BASE:
                    raise
                faults.append(str(error))
                del speeds[name], busy[name], opened[name]
                continue
            if number:
                speeds[name].append(count / seconds)
                busy[name].append(processor / count * 1e6)
    return {n: Spread.of(v) for n, v in speeds.items()}, {n: Spread.of(v) for n, v in busy.items()}


def _cycle(files: list[Path], count: int) -> list[Path]:
    return (files * -(-count // len(files)))[:count]


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in row.items()}


if __name__ == "__main__":
    main()
