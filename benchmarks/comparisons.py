"""What `loaders.py` and `views.py` share: arguments, images, and the rows and records of loaders that run in turn."""

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure
from images import list_images
from loader_peers import versions
from rich.console import Console

from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.pipelines import Peer
from fastimg.bench.peers.results import LoaderRow


def parser(about: str, out: str, peers: Iterable[str], images: int, batch_size: int) -> argparse.ArgumentParser:
    """The arguments of a comparison, with its defaults; `out` is a file among the results."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--images", type=int, default=images, help="images per epoch; files are repeated as needed")
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2], help="0: none; one thread for those with threads"
    )
    parser.add_argument("--repeats", type=int, default=5)
    names = list(peers)
    parser.add_argument("--peers", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument(
        "--scratch", type=Path, default=None, help="folder for shards; default: the system's temporary folder"
    )
    parser.add_argument("--out", type=Path, default=measure.RESULTS / out)
    return parser


def installed(peers: Mapping[str, Peer], wanted: Sequence[str], console: Console) -> dict[str, Peer]:
    """The first of the peers, and those among the others that are wanted and installed; the missing are reported."""
    base = next(iter(peers))
    found = {name: peer for name, peer in peers.items() if name == base or name in wanted}
    for name in [name for name, peer in found.items() if not peer.installed()]:
        missing = found.pop(name)
        console.print(f"{name}: {missing.module} is not installed; {missing.install}", highlight=False)
    return found


def files_of(args: argparse.Namespace) -> list[Path]:
    """The images in the folder, with absolute paths."""
    return [Path(os.path.abspath(args.data / name)) for name in list_images(args.data)]


def whole_batches(args: argparse.Namespace) -> int:
    """The images of an epoch: whole batches, so that no loader pads."""
    return int(max(1, args.images // args.batch_size) * args.batch_size)


def repeated(folder: Path, files: Sequence[Path], count: int) -> Sources:
    """`count` of the files, repeated as needed."""
    return Sources(folder=folder, files=tuple((list(files) * -(-count // len(files)))[:count]))


def setting(benchmark: str, args: argparse.Namespace, files: Sequence[Path]) -> dict[str, Any]:
    """The fields of a record that all loaders of a run share."""
    return {
        "benchmark": benchmark,
        "images": whole_batches(args),
        "files": len(files),
        "bytes_per_image": round(sum(file.stat().st_size for file in files) / len(files)),
        "data": args.data.resolve().name,
        "batch_size": args.batch_size,
        "environment": measure.environment() | versions(),
    }


def told(measured: Iterable[LoaderRow], peers: Mapping[str, Peer]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The name, the row to print and the fields to record of each loader; the others are compared with the first."""
    rows = list(measured)
    base = next(iter(peers))
    ours = next(one.speed.median for one in rows if one.name == base)
    found = []
    for one in rows:
        ratio = ours / one.speed.median
        key = {"loader": one.name, "workers": one.threads}
        columns = {"CPU us/img": round(one.busy.median) if one.busy else "", f"x of {base}": f"{ratio:.2f}"}
        busy = one.busy.fields("cpu_microseconds") if one.busy else {"cpu_microseconds": None}
        about = {"about": peers[one.name].about, "base": base, "base_over_this": round(ratio, 3)}
        record = {**key, **one.speed.fields("images_per_second"), **busy, **about}
        found.append((one.name, {**key, **one.speed.columns("img/s"), **columns}, record))
    return found


def finish(faults: Mapping[str, str]) -> None:
    """Exit with the faults of loaders that failed, if any."""
    if faults:
        raise SystemExit("\n".join(["failed:", *(f"{name}: {fault}" for name, fault in faults.items())]))
