"""Processor time of fetching shards into a cache that is full: per megabyte, by where they are written.

    python benchmarks/remote.py --data FOLDER --shard-size 16MB --write SHARDS
    python benchmarks/remote_fetch.py --shards SHARDS [-n 7]

The store is that of benchmarks/remote.py, without latency, on the last core; the thread that fetches has the first. A
shard is fetched in turn into a cache of a fifth of the data, and nothing is decoded. `new file`: the shard that makes
room is deleted, and pieces are written as they come. `aligned`: written up to multiples of 64 KiB. `written over`: into
the file of the shard that makes room, too, as the cache does. Rounds are interleaved; the table has medians.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import measure
from remote import served
from rich.console import Console

from fastimg.loaders.containers.description import read_description
from fastimg.loaders.remote import fetching
from fastimg.loaders.remote.cache import shard_cache
from fastimg.loaders.remote.mirrors import open_mirror, wanted_shards

VARIANTS = {"new file": (1, False), "aligned": (fetching._ALIGNED, False), "written over": (fetching._ALIGNED, True)}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True, help="folder that `remote.py --write` has written")
    parser.add_argument("-n", "--repeats", type=int, default=7)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the cache, on a disk")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "remote.jsonl")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    tars = sorted((args.shards / "D").glob("*.tar"))
    nbytes = sum(len(tar.read_bytes()) for tar in tars)  # they are in the page cache now
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with (
        tempfile.TemporaryDirectory(dir=args.scratch or Path.cwd(), prefix="fastimg-fetch-") as name,
        served(args.shards, 0.0, cores[-1]) as address,
    ):
        os.sched_setaffinity(0, cores[:1])
        for _ in range(args.repeats):
            for variant in VARIANTS:
                shutil.rmtree(Path(name) / "cache", ignore_errors=True)
                found[variant].append(_seconds(f"{address}/D", Path(name) / "cache", nbytes, *VARIANTS[variant]))
    rows = []
    for variant, seconds in found.items():
        spread = measure.Spread.of([each / nbytes * 1e9 for each in seconds])
        rows.append({"shards are": variant, **spread.columns("ms/MB")})
        record = {"benchmark": "remote_fetch", "row": variant, "bytes": nbytes, "shards": len(tars)}
        spent = spread.fields("cpu_milliseconds_per_megabyte")
        measure.append(args.out, record | spent | {"environment": measure.environment()})
    measure.show(Console(width=140), f"{len(tars)} shards of {nbytes / len(tars) / 1e6:.0f} MB", rows)


def _seconds(url: str, cache: Path, nbytes: int, aligned: int, over: bool) -> float:
    """Processor time of fetching all shards, after all have been fetched once."""
    take_over, earlier = shard_cache.take_over, fetching._ALIGNED
    fetching._ALIGNED = aligned
    if not over:
        shard_cache.take_over = lambda *_: 0
    try:
        mirror = open_mirror(url, cache, nbytes // 5)
        shards = wanted_shards(read_description(mirror.folder)["splits"]["train"]["shards"])
        for _ in range(2):
            began = time.process_time()
            for shard in shards:
                mirror.bring(shard)
        return time.process_time() - began
    finally:
        shard_cache.take_over, fetching._ALIGNED = take_over, earlier


if __name__ == "__main__":
    main()
