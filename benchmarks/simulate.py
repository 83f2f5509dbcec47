"""The formulas of "To a billion images" in docs/many-gpus.md: each term on a small case, and the order at 10^9 samples.

    python benchmarks/simulate.py [--only terms,cache,epoch] [--samples 1000000000] [--shards 10000] [--nodes 64]

`terms`: what grows with the data, measured here on little of it: bytes and time of an index entry, of a place in the
order, and of a shard in dataset.json, and how many requests fetch a shard. `cache`: what a cache holds and fetches in
an epoch, whose limit is the smallest that the loader accepts; and how many of four nodes, with a cache each, fetch a
shard, which the order tells, too. `epoch`: a whole epoch of the quasi-random order by shards, in the loader's own
arithmetic, but window by window, so that it needs memory for one window and one shard alone: how many shards are in use
at once, for how many places of the order, how many nodes read from each, and, of four nodes, how many shards a cache
has to hold so that none is fetched twice, beside what the formulas say. --window and --slots are those of `train`: on a
GPU six batches are in memory.
"""

import argparse
import contextlib
import hashlib
import io
import json
import math
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console
from simulated_cache import NodeReads, Reads, least_room, with_cache

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import DataError, Loader, open_dataset
from fastimg.loaders.containers.readahead import AHEAD, SHARDS_AHEAD
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.epochs.config import slots_for
from fastimg.loaders.order import _SAMPLES, Blocks, Slices, _block_places, _moved, epoch_order
from fastimg.loaders.random import hashes
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.fetched_files import AHEAD as FETCHED_AHEAD
from fastimg.loaders.remote.fetched_files import SLACK, fetched_files
from fastimg.loaders.remote.fetching import RANGE, Fetching
from fastimg.loaders.remote.stores import RemoteFolder

Record = dict[str, Any]

_BATCH = 2048  # samples of a node's batch: 8 GPUs with 256 each
_PICTURES = 800
_NODES = 4
_MORE_LARGE = SLACK + FETCHED_AHEAD  # shards beyond the window and the batches ahead
_MORE = 10  # shards of one range beyond the window: eight that are fetched at once, and two; of 32 MB or more four
_SMALL: dict[str, Any] = {"batch_size": 8, "crop": 32, "workers": 1, "order": "quasi-random", "block": "shard"}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="terms,cache,epoch")
    parser.add_argument("--samples", type=int, default=1_000_000_000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--window", type=int, default=32_768)
    parser.add_argument("--slots", type=int, default=slots_for("cuda"))
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "simulate.jsonl")
    args = parser.parse_args()
    sections = args.only.split(",")
    found: dict[str, list[Record]] = {}
    if "terms" in sections:
        with tempfile.TemporaryDirectory() as name:
            found["terms"] = [*index_terms(Path(name)), *order_terms(), *store_terms(Path(name))]
    if "cache" in sections:
        with tempfile.TemporaryDirectory() as name:
            found["cache"] = cache_terms(Path(name))
    if "epoch" in sections:
        found["epoch"] = [epoch(args.samples, args.shards, args.nodes, args.window, args.slots)]
    measure.append_sections(args.out, "simulate", found)
    for section, records in found.items():
        for record in records:
            measure.show(Console(), section, [record])


def index_terms(folder: Path) -> list[Record]:
    """What an index costs per sample: on disk, in memory, and in seconds, from two sizes of a dataset."""
    rows = []
    for samples in (1_000, 5_000):
        data = folder / f"D{samples}"
        data.mkdir()
        with ShardWriter(data / "train-00000.tar") as writer:
            for number in range(samples):
                writer.add(f"{number:09d}", {"jpg": b"\xff\xd8\xff\xd9", "cls": b"0"})
        open_dataset(data).close()  # makes the index
        tracemalloc.start()
        began = time.perf_counter()
        dataset = open_dataset(data)
        seconds = time.perf_counter() - began
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        dataset.close()
        stored = next(data.glob("*.fidx"), None)
        assert stored is not None
        rows.append((samples, stored.stat().st_size, held, peak, seconds))
    few, many = rows
    more = many[0] - few[0]
    term = {"term": "index", "samples": many[0], "bytes_on_disk": (many[1] - few[1]) / more}
    return [term | {"bytes_held": (many[2] - few[2]) / more, "bytes_at_most": (many[3] - few[3]) / more}]


def order_terms() -> list[Record]:
    """Bytes and nanoseconds of a place in the order."""
    rows = []
    for samples in (1_000_000, 10_000_000):
        tracemalloc.start()
        epoch_order(samples, 0, 0, "quasi-random", block=samples // 100)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        began = time.perf_counter()
        epoch_order(samples, 0, 1, "quasi-random", block=samples // 100)
        seconds = time.perf_counter() - began
        shape = {"term": "order", "samples": samples}
        rows.append(shape | {"bytes_at_most": peak / samples, "nanoseconds": 1e9 * seconds / samples})
    return rows


def store_terms(folder: Path) -> list[Record]:
    """Bytes of dataset.json per shard, and the requests that fetch a shard."""
    sizes = []
    for shards in (4, 24):
        source, data = folder / f"S{shards}", folder / f"T{shards}"
        for number in range(shards):
            (source / "a").mkdir(parents=True, exist_ok=True)
            (source / "a" / f"{number}.jpg").write_bytes(_jpeg(number))
        with contextlib.redirect_stdout(io.StringIO()):
            convert(Convert(src=source, dst=data, shard_size="16KB", val_fraction=0), Console(quiet=True))
        written = json.loads((data / "dataset.json").read_text())
        count = sum(len(split["shards"]) for split in written["splits"].values())
        sizes.append((count, (data / "dataset.json").stat().st_size))
    (few, small), (many, large) = sizes
    term: Record = {"term": "dataset.json", "shards": many, "bytes_per_shard": (large - small) / (many - few)}
    return [term, _requests(folder)]


def _jpeg(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)).save(stream, "jpeg")
    return stream.getvalue()


def _requests(folder: Path) -> Record:
    """How many requests fetch a shard of 20 MB, as the cache fetches it."""
    store = folder / "store"
    store.mkdir()
    content = np.random.default_rng(0).bytes(10 * (RANGE // 4) + 1)
    (store / "shard.tar").write_bytes(content)
    remote = RemoteFolder(store.as_uri())
    asked = []
    receive = remote.receive
    remote.receive = lambda *place: (asked.append(place), receive(*place))[1]  # type: ignore[method-assign]
    with open(folder / "fetched", "w+b") as file:
        wanted = WantedFile("shard.tar", len(content), hashlib.sha256(content).hexdigest())
        Fetching(remote).fetch(wanted, file.fileno())
    shape = {"term": "requests", "bytes": len(content), "range": RANGE}
    return shape | {"requests": len(asked), "formula": -(-len(content) // RANGE)}


def cache_terms(folder: Path) -> list[Record]:
    """What a cache holds at most, and fetches, in an epoch whose limit is what the loader says that it needs."""
    data = folder / "C"
    source = folder / "P"
    (source / "a").mkdir(parents=True)
    for number in range(_PICTURES):
        (source / "a" / f"{number:04d}.jpg").write_bytes(_jpeg(number))
    with contextlib.redirect_stdout(io.StringIO()):
        convert(Convert(src=source, dst=data, shard_size="40KB", val_fraction=0), Console(quiet=True))
    shards = [path.stat().st_size for path in sorted(data.glob("*.tar"))]
    url = data.as_uri()
    held = [_cache_term(url, folder / f"cache-{window}", shards, window) for window in (32, 128)]
    return held + [_nodes_term(url, folder / f"nodes-{window}", shards, window) for window in (8, 16)]


def _cache_term(url: str, place: Path, shards: list[int], window: int) -> Record:
    limit = 0
    for count in range(1, len(shards) + 1):  # the smallest limit that the loader accepts, in shards
        limit = count * max(shards)
        try:
            loader = Loader(url, **_SMALL, window=window, cache_dir=place, cache_limit=limit)
            break
        except DataError:
            continue
    held, samples = 0, 0
    with loader:
        for batch in loader:
            samples += batch.samples
            held = max(held, sum(map(_size, place.glob("*/*.tar"))))
        files = fetched_files(loader.dataset)
        assert files is not None
        spent = files.mirror.cache.spent
        ahead = (len(loader._slots) + AHEAD) * _SMALL["batch_size"]
    return {
        "term": "cache",
        "samples": samples,
        "shards": len(shards),
        "window": window,
        "shards_needed": limit // max(shards),
        "formula": -(-(window + ahead) * len(shards) // samples) + _MORE,
        "shards_held_at_most": held / max(shards),
        "fetched_over_data": spent.bytes / sum(shards),
        "fetched_again": spent.again,
    }


def _nodes_term(url: str, place: Path, shards: list[int], window: int) -> Record:
    """How many of a few nodes, each with a cache of its own, fetch a shard in an epoch."""
    fetched, simulated = 0, 0
    for rank in range(_NODES):
        cache = place / str(rank)
        with Loader(url, **_SMALL, window=window, cache_dir=cache, rank=rank, world_size=_NODES) as loader:
            samples = sum(batch.samples for batch in loader)
            fetched += len(list(cache.glob("*/*.tar")))
            of: npt.NDArray[np.int64] = loader.dataset.shard_numbers  # type: ignore[attr-defined]
        order = epoch_order(_PICTURES, 0, 0, "quasi-random", np.flatnonzero(np.diff(of, prepend=-1)), window)
        slices = Slices(_PICTURES, 0, _SMALL["batch_size"], rank, _NODES)
        simulated += len(np.unique(of[order[slices.span(0, slices.steps)]]))
    span = _PICTURES / len(shards) + window
    return {
        "term": "nodes",
        "nodes": _NODES,
        "samples_of_a_node": samples,
        "shards": len(shards),
        "window": window,
        "nodes_per_shard": fetched / len(shards),
        "by_the_order": simulated / len(shards),
        "formula": min(_NODES, span / _SMALL["batch_size"] + 1),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # deleted meanwhile
        return 0


def epoch(samples: int, shards: int, nodes: int, window: int, slots: int, seed: int = 0) -> Record:
    """An epoch of the order by shards, sample by sample, beside the formulas."""
    began = time.perf_counter()
    size = -(-samples // shards)
    first = np.full(shards, -1, np.int64)  # the first and last place of each shard
    last = np.zeros(shards, np.int64)
    readers = np.zeros((shards, nodes), np.bool_)  # who reads from it
    seen = range(0, nodes, -(-nodes // 4))
    node_reads = NodeReads(seen, nodes, _BATCH, size, shards)
    place = 0
    for ids in order_in_parts(samples, size, window, seed):
        _note(ids, place, size, first, last, readers)
        node_reads.note(ids, place)
        place += len(ids)
    assert place == samples and (first >= 0).all()
    moments = np.concatenate([first, last + 1])
    changes = np.concatenate([np.ones(shards, np.int64), -np.ones(shards, np.int64)])
    at_once = int(np.cumsum(changes[np.lexsort((changes, moments))]).max())
    span = size + window if window > size else size  # of a shard's samples in the order; smaller windows mix none
    return {
        "samples": samples,
        "shards": shards,
        "nodes": nodes,
        "window": window,
        "node_batch": _BATCH,
        "at_once": at_once,
        "at_once_formula": math.ceil(window / size) + 1 if window > size else 1,
        "nodes_per_shard": float(readers.sum(1).mean()),
        "nodes_per_shard_formula": min(nodes, span / _BATCH + 1),
        "longest_stay": int((last - first).max() + 1),
        "longest_stay_formula": span,
        **_caches([node_reads.of(node) for node in seen], samples, shards, nodes, window, slots),
        "seconds": time.perf_counter() - began,
        "mb_at_most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _caches(reads: list[Reads], samples: int, shards: int, nodes: int, window: int, slots: int) -> Record:
    """What some nodes fetch with the smallest cache that the loader accepts, and with which none is fetched twice."""
    together = nodes * _BATCH
    ahead = max(AHEAD * together, SHARDS_AHEAD * -(-samples // shards))
    formula = -(-(window + (slots + AHEAD) * together) * shards // samples) + _MORE_LARGE
    found = [with_cache(each, formula, together, slots, ahead) for each in reads]
    needed, by_last_use = (
        max(least_room(each, together, slots, ahead, 4 * formula, awaits) for each in reads) for awaits in (True, False)
    )
    return {
        "nodes_with_cache": len(reads),
        "slots": slots,
        "cache_shards_formula": formula,
        "cache_shards_needed": needed,
        "cache_shards_by_last_use": by_last_use,  # if shards that were asked for did not outlast others
        "fetched_shards_of_a_node": float(np.mean([one.shards for one in found])),
        "fetched_again": sum(one.again for one in found),
    }


def _note(
    ids: npt.NDArray[np.int64],
    place: int,
    size: int,
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    readers: npt.NDArray[np.bool_],
) -> None:
    """Note where in the order shards are and who reads them, by the samples `ids` [N] from `place` on."""
    nodes = readers.shape[1]
    base, top = int(ids.min()) // size, int(ids.max()) // size
    begun = place // _BATCH
    batches = np.arange(begun, (place + len(ids) - 1) // _BATCH + 1) % nodes
    if base == top:  # as with every window that is smaller than a shard
        first[base] = place if first[base] < 0 else first[base]
        last[base] = place + len(ids) - 1
        readers[base, batches] = True
        return
    of = ids // size - base
    places = np.arange(place, place + len(ids))
    began = np.full(top - base + 1, -1, np.int64)
    began[of[::-1]] = places[::-1]  # of the places of a shard, what is written last stays: the first one
    found = np.flatnonzero(began >= 0)
    shards = found + base
    first[shards] = np.where(first[shards] < 0, began[found], first[shards])
    last[base + of] = places
    read = np.zeros((top - base + 1, len(batches)), np.bool_)
    read[of, places // _BATCH - begun] = True
    for number, shard in zip(found.tolist(), shards.tolist(), strict=True):
        readers[shard, batches[read[number]]] = True


def order_in_parts(n: int, size: int, window: int, seed: int, epoch: int = 0) -> Iterator[npt.NDArray[np.int64]]:
    """`epoch_order(n, seed, epoch, "quasi-random", size, window)` in parts, of which only one is in memory.

    A block's samples move by up to half a window: what is sorted below the reach of the next block is final.
    """
    bits = np.uint64(n.bit_length())
    mask = (np.uint64(1) << bits) - np.uint64(1)
    blocks = Blocks(n, size)
    places = _block_places(blocks, seed, epoch)
    fraction = np.uint64(min(32, 64 - 2 * n.bit_length()))
    sequence = np.argsort(places, kind="stable")
    held = np.empty(0, np.uint64)
    for turn, block in enumerate(sequence.tolist()):
        ids = np.arange(block * size, min((block + 1) * size, n), dtype=np.int64)
        key = _moved(places[block : block + 1], hashes(seed, epoch, ids, _SAMPLES), n, window)
        held = np.concatenate([held, (key << bits) | ids.astype(np.uint64)])
        held.sort()
        done = len(held)
        if turn + 1 < len(sequence):
            low = max(int(places[sequence[turn + 1]]) - window // 2, 0)
            done = int(held.searchsorted(np.uint64(low) << (fraction + bits)))
        if done:
            yield (held[:done] & mask).astype(np.int64)
        held = held[done:].copy()


if __name__ == "__main__":
    main()
