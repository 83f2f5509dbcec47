"""Photographs of 12, 24 and 48 megapixels, random crops of 224: fastimg against DALI and FFCV on the CPU.

    build/peers/bin/python -W ignore benchmarks/large.py --data FOLDER      # CONTRIBUTING.md: how to make build/peers

The photographs are mosaics of FOLDER's (`mosaics.py`): 4:2:0, quality 90. Every loader reads the same ones (from a
warm page cache), draws RandomResizedCrop(0.08-1) and a flip per image, and has the same number of threads. Each runs in
its own process, with interleaved epochs; results are medians of n. DALI reads the files, FFCV its own .beton (jpg at
quality 90).

With --cold the pages of all files are dropped from the page cache before each epoch. FFCV maps its file, and pages that
are mapped stay: it is left out.
"""

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import measure
from images import list_images
from loader_peers import INSTALL
from loader_peers.tiled import make_tiled, tiled
from mosaics import SIZES, write_mosaics
from rich.console import Console

from fastimg.bench.peers.comparison import in_turn, make
from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.pipelines import PEERS as USUAL
from fastimg.bench.peers.pipelines import Batches, Peer, Workload, native
from fastimg.bench.peers.processes import remotes
from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset

BASE = "fastimg, low"


def shards(work: Workload, scaling: Any, indexed: bool = True, kept: bool = True) -> Batches:
    """fastimg's loader on tiled tar shards."""
    data = open_dataset(tiled(work.sources))
    if not indexed:
        data.blocks = None
    if not kept and data.blocks is not None:
        data.blocks.dc_images = None
    decoder = ImageDecoder(RandomResizedCrop(size=work.size), dct_scaling=scaling)
    loader = Loader(data, decoder, LoaderConfig(batch_size=work.batch_size, workers=work.workers, on_error="fail"))
    return lambda: (batch.inputs[: batch.samples] for batch in loader)


PEERS: dict[str, Peer] = {
    BASE: Peer(open=partial(shards, scaling="low"), make=make_tiled, about="tiled tar shards, dct_scaling low"),
    "fastimg, auto": Peer(open=partial(shards, scaling=True), about="the same, dct_scaling auto"),
    "fastimg, exact": Peer(open=partial(shards, scaling=False), about="the same, dct_scaling off"),
    "fastimg, low, not at 1/8": Peer(open=partial(shards, scaling="low", kept=False), about="low, decoded at 1/8"),
    "fastimg, auto, not at 1/8": Peer(open=partial(shards, scaling=True, kept=False), about="auto, decoded at 1/8"),
    "fastimg, low, no index": Peer(open=partial(shards, scaling="low", indexed=False), about="low, read whole"),
    "fastimg, exact, no index": Peer(open=partial(shards, scaling=False, indexed=False), about="exact, read whole"),
    "fastimg, files": Peer(open=native, about="the files, not tiled, by libjpeg-turbo"),
    "dali": USUAL["dali"],
    "ffcv": USUAL["ffcv"],
}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--megapixels", type=int, nargs="+", default=[12], choices=list(SIZES))
    parser.add_argument("--images", type=int, default=96, help="images per epoch; mosaics are repeated as needed")
    parser.add_argument("--mosaics", type=int, default=16, help="different ones")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="drop the files from the page cache before each epoch")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS), metavar="NAME")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards; default: the system's")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "large.jsonl")
    args = parser.parse_args()
    console = Console(width=150)
    wanted = {name: peer for name, peer in PEERS.items() if name == BASE or name in args.peers}
    if args.cold and wanted.pop("ffcv", None) is not None:
        console.print("ffcv: it maps its file, whose pages cannot be dropped then: left out", highlight=False)
    for name in [name for name, peer in wanted.items() if not peer.installed()]:
        console.print(f"{name}: {wanted.pop(name).module} is not installed; {INSTALL}", highlight=False)
    pictures = [Path(os.path.abspath(args.data / name)) for name in list_images(args.data)]
    faults: dict[str, str] = {}
    for megapixels in args.megapixels:
        with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-large-") as scratch:
            files = write_mosaics(Path(scratch) / "mosaics", pictures, megapixels, args.mosaics)
            _measure(args, megapixels, wanted, files, Path(scratch), faults, console)
    if faults:
        raise SystemExit("\n".join(["failed:", *(f"{name}: {fault}" for name, fault in faults.items())]))


def _measure(
    args: argparse.Namespace,
    megapixels: int,
    wanted: dict[str, Peer],
    files: list[Path],
    scratch: Path,
    faults: dict[str, str],
    console: Console,
) -> None:
    count = max(1, args.images // args.batch_size) * args.batch_size  # whole batches, so that no loader pads
    sources = Sources(folder=scratch / "photographs", files=tuple((files * -(-count // len(files)))[:count]))
    work = Workload(sources=sources, crop="random", batch_size=args.batch_size, size=args.size, workers=args.workers)
    with remotes(wanted, args.workers) as opened:
        make(opened, (sources,), BASE, faults)
        before = partial(measure.drop_pages, scratch) if args.cold else lambda: None
        measured = in_turn(opened, work, args.repeats, BASE, faults, before=before)
    base = next(one.speed.median for one in measured if one.name == BASE)
    rows = []
    cache = "cold" if args.cold else "warm"
    for one in measured:
        row: dict[str, Any] = {"loader": one.name, "workers": args.workers}
        ratio = base / one.speed.median
        columns = {"CPU us/img": round(one.busy.median) if one.busy else "", f"x of {BASE}": f"{ratio:.2f}"}
        rows.append(row | one.speed.columns("crops/s") | columns)
        record = {
            "benchmark": "large",
            "megapixels": megapixels,
            "page_cache": cache,
            "images": count,
            "mosaics": len(files),
            "bytes_per_image": round(sum(file.stat().st_size for file in files) / len(files)),
            "data": args.data.resolve().name,
            "batch_size": args.batch_size,
            "size": args.size,
            **row,
            **one.speed.fields("crops_per_second"),
            **(one.busy.fields("cpu_microseconds") if one.busy else {"cpu_microseconds": None}),
            "about": wanted[one.name].about,
            "base": BASE,
            "base_over_this": round(ratio, 3),
            "environment": measure.environment(),
        }
        measure.append(args.out, record)
    measure.show(
        console, f"{count} crops to {args.size} of mosaics of {megapixels} megapixels, {cache} page cache", rows
    )


if __name__ == "__main__":
    main()
