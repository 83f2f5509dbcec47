"""The native loader against its peers: JPEGs -> uint8 batches [B, 3, 224, 224] on the CPU, random crop and flip.

    build/peers/bin/python -W ignore benchmarks/loaders.py --data FOLDER      # CONTRIBUTING.md: how to make build/peers
    python benchmarks/loaders.py --data FOLDER --stages --gil                 # only the native loader, by stage
    ... --clients --size 64 --repeats 5        # other projects' trainers, with their own loader and with ours

    ... --workers 0 2 4 --out benchmarks/results/peers.jsonl                  # without workers, as many as cores, more

Every loader reads the same photographs (from a warm page cache), draws RandomResizedCrop(0.08-1) and a flip per image,
and has the same number of threads or processes. Each runs in its own process, with interleaved epochs; results are
medians of n. Centre crops and boxes are compared first. Loaders that are not installed are reported.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import client_rounds
import comparisons
import loader_stages
import measure
from comparisons import repeated
from loader_peers import PEERS
from loader_peers.tiled import make_tiled
from rich.console import Console

from fastimg.bench.peers.comparison import drop, in_turn, make
from fastimg.bench.peers.data import Sources, write_gradients
from fastimg.bench.peers.parity import Checks, check
from fastimg.bench.peers.pipelines import Peer, Workload
from fastimg.bench.peers.processes import PeerError, remotes

BASE = next(iter(PEERS))  # ratios compare its speed with the others'


def main() -> None:
    """Measure, print, and append the results."""
    parser = comparisons.parser(__doc__, "loaders.jsonl", PEERS, images=2000, batch_size=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument(
        "--stages", action="store_true", help="measure the stages of the native loader instead of peers"
    )
    parser.add_argument("--unchecked", action="store_true", help="compare no pixels and boxes, as an earlier run has")
    parser.add_argument("--gil", action="store_true", help="measure how long a sample holds the GIL, instead of peers")
    parser.add_argument(
        "--clients",
        nargs="*",
        choices=client_rounds.CLIENTS,
        metavar="NAME",
        help="measure other projects' trainers (all, or these) with their loader and with ours, instead of peers",
    )
    args = parser.parse_args()

    console = Console(width=150)
    files = comparisons.files_of(args)
    if args.clients is not None:
        args.out = args.out if args.out != parser.get_default("out") else measure.RESULTS / "clients.jsonl"
        client_rounds.run(args, files, client_rounds.shared_fields(args, files), console)
        return
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-loaders-") as scratch:
        sources = repeated(Path(scratch) / "photographs", files, comparisons.whole_batches(args))
        shared = comparisons.setting("loaders", args, files) | {"size": args.size}
        if args.stages or args.gil:
            make_tiled(sources)
            loader_stages.run(args, sources, shared, console)
        else:
            peers = comparisons.installed(PEERS, args.peers, console)
            _against_peers(args, peers, sources, files, Path(scratch), shared, console)


def _against_peers(
    args: argparse.Namespace,
    peers: Mapping[str, Peer],
    sources: Sources,
    files: list[Path],
    scratch: Path,
    shared: dict[str, Any],
    console: Console,
) -> None:
    def work(data: Sources, crop: Literal["random", "centre"], workers: int) -> Workload:
        return Workload(sources=data, crop=crop, batch_size=args.batch_size, size=args.size, workers=workers)

    each = repeated(scratch / "each", files, len(files))
    gradients = repeated(scratch / "gradients", write_gradients(scratch / "drawn"), len(sources.files))
    checks = Checks(centre=work(each, "centre", args.workers[0]), boxes=work(gradients, "random", args.workers[0]))
    faults: dict[str, str] = {}
    rows = []
    with remotes(peers, max(1, *args.workers)) as opened:
        make(opened, (sources,) if args.unchecked else (sources, each, gradients), BASE, faults)
        parity: dict[str, dict[str, Any]] = {}
        if not args.unchecked:
            parity, others = check(opened, checks, BASE)
            for name, fault in others.items():
                drop(opened, name, PeerError(fault), BASE, faults)
            _show_checks(console, parity)
        for workers in args.workers:
            measured = in_turn(opened, work(sources, "random", workers), args.repeats, BASE, faults)
            for name, row, record in comparisons.told(measured, peers):
                rows.append(row)
                checked = _rounded(parity[name]) if name in parity else None
                measure.append(args.out, {**shared, **record, "parity": checked})
    measure.show(console, f"{shared['images']} images of {shared['data']}, batches of {args.batch_size}", rows)
    comparisons.finish(faults)


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
