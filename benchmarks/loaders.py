"""The native loader against its peers: JPEGs -> uint8 batches [B, 3, 224, 224] on the CPU, random crop and flip.

    build/peers/bin/python -W ignore benchmarks/loaders.py --data FOLDER      # CONTRIBUTING.md: how to make build/peers
    python benchmarks/loaders.py --data FOLDER --stages --gil                 # only the native loader, by stage

Every loader reads the same photographs (from a warm page cache), draws RandomResizedCrop(0.08-1) and a flip per image,
and has the same number of threads or processes. Each runs in its own process, with interleaved epochs; results are
medians of n. Centre crops and boxes are compared first. Loaders that are not installed are reported.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import loader_stages
import measure
from images import list_images
from loader_peers import INSTALL, PEERS, make_tiled
from rich.console import Console

from fastimg.bench.peers.comparison import drop, in_turn, make
from fastimg.bench.peers.data import Sources, write_gradients
from fastimg.bench.peers.parity import Checks, check
from fastimg.bench.peers.pipelines import Workload
from fastimg.bench.peers.processes import PeerError, remotes

BASE = next(iter(PEERS))  # ratios compare its speed with the others'


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--images", type=int, default=2000, help="images per epoch; files are repeated as needed")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS), metavar="NAME")
    parser.add_argument(
        "--stages", action="store_true", help="measure the stages of the native loader instead of peers"
    )
    parser.add_argument("--gil", action="store_true", help="measure how long a sample holds the GIL, instead of peers")
    parser.add_argument(
        "--scratch", type=Path, default=None, help="folder for shards; default: the system's temporary folder"
    )
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "loaders.jsonl")
    args = parser.parse_args()

    console = Console(width=150)
    alone = args.stages or args.gil
    names = [name for name in PEERS if name == BASE or (name in args.peers and not alone)]
    for name in list(names):
        if not PEERS[name].installed():
            console.print(f"{name}: {PEERS[name].module} is not installed; {INSTALL}", highlight=False)
            names.remove(name)
    files = [args.data / name for name in list_images(args.data)]
    count = max(1, args.images // args.batch_size) * args.batch_size  # whole batches, so that no loader pads
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-loaders-") as scratch:
        sources = _sources(Path(scratch) / "photographs", files, count)
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
            make_tiled(sources)
            loader_stages.run(args, sources, shared, console)
        else:
            _against_peers(args, names, sources, files, Path(scratch), shared, console)


def _sources(folder: Path, files: Sequence[Path], count: int) -> Sources:
    """`count` of the files, repeated as needed."""
    absolute = [Path(os.path.abspath(file)) for file in files]
    return Sources(folder=folder, files=tuple((absolute * -(-count // len(absolute)))[:count]))


def _against_peers(
    args: argparse.Namespace,
    names: list[str],
    sources: Sources,
    files: list[Path],
    scratch: Path,
    shared: dict[str, Any],
    console: Console,
) -> None:
    def work(data: Sources, crop: Literal["random", "centre"], workers: int) -> Workload:
        return Workload(sources=data, crop=crop, batch_size=args.batch_size, size=args.size, workers=workers)

    each = _sources(scratch / "each", files, len(files))
    gradients = _sources(scratch / "gradients", write_gradients(scratch / "drawn"), len(sources.files))
    checks = Checks(centre=work(each, "centre", args.workers[0]), boxes=work(gradients, "random", args.workers[0]))
    faults: dict[str, str] = {}
    rows = []
    with remotes({name: PEERS[name] for name in names}, max(args.workers)) as opened:
        make(opened, (sources, each, gradients), BASE, faults)
        parity, others = check(opened, checks, BASE)
        for name, fault in others.items():
            drop(opened, name, PeerError(fault), BASE, faults)
        _show_checks(console, parity)
        for workers in args.workers:
            measured = in_turn(opened, work(sources, "random", workers), args.repeats, BASE, faults)
            base = next(one.speed.median for one in measured if one.name == BASE)
            for one in measured:
                ratio = base / one.speed.median
                row: dict[str, Any] = {"loader": one.name, "workers": workers}
                columns = {"CPU us/img": round(one.busy.median) if one.busy else "", f"x of {BASE}": f"{ratio:.2f}"}
                rows.append(row | one.speed.columns("img/s") | columns)
                busy = one.busy.fields("cpu_microseconds") if one.busy else {"cpu_microseconds": None}
                about = {"about": PEERS[one.name].about, "base": BASE, "base_over_this": round(ratio, 3)}
                record = {**shared, **row, **one.speed.fields("images_per_second"), **busy, **about}
                measure.append(args.out, {**record, "parity": _rounded(parity[one.name])})
    measure.show(console, f"{shared['images']} images of {shared['data']}, batches of {args.batch_size}", rows)
    if faults:
        raise SystemExit("\n".join(["failed:", *(f"{name}: {fault}" for name, fault in faults.items())]))


def _show_checks(console: Console, parity: dict[str, dict[str, Any]]) -> None:
    centre = ("mean_difference", "median_image", "worst_image", "exif_turned_difference")
    boxes = ("mean_area", "mean_log_aspect", "mirrored", "ks_area", "ks_aspect", "ks_centre_x")
    one = next(iter(parity.values()))
    for title, columns in (
        (f"centre crops of {one['images']} images beside {BASE}'s: absolute difference on 0-255", centre),
        (f"{one['boxes']} random boxes beside {BASE}'s: the threshold for p = 0.001 is {one['ks_limit']:.3f}", boxes),
    ):
        rows = [{"loader": name, **{key: f"{row[key] or 0:.3f}" for key in columns}} for name, row in parity.items()]
        measure.show(console, title, rows)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in row.items()}


if __name__ == "__main__":
    main()
