"""Photographs of which a few are large, with and without the index of the large ones: processor time of the loader.

    python benchmarks/mixed.py --data FOLDER

FOLDER's photographs and mosaics of them (`mosaics.py`) are converted to tar shards. A loader with one thread reads
random crops of all of them, of the small ones, and of the large ones, each with and without the index, in turn, from a
warm page cache; results are medians of n epochs, and the pixels of both ways are compared.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
from images import list_images
from loader_peers.tiled import make_tiled, tiled
from measure import Spread
from mosaics import SIZES, write_mosaics
from rich.console import Console

from fastimg.bench.peers.data import Sources
from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.runtime.scratch import Scratch


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--megapixels", type=int, default=12, choices=list(SIZES), help="of the large ones")
    parser.add_argument("--large", type=int, default=1, help="how many are large")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards; default: the system's")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "mixed.jsonl")
    args = parser.parse_args()
    pictures = [Path(os.path.abspath(args.data / name)) for name in list_images(args.data)]
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-mixed-") as scratch:
        files = write_mosaics(Path(scratch) / "mosaics", pictures, args.megapixels, args.large)
        sources = Sources(folder=Path(scratch) / "photographs", files=(*pictures, *files))
        make_tiled(sources)
        _measure(args, tiled(sources))


def _measure(args: argparse.Namespace, folder: Path) -> None:
    opened: Any = open_dataset(folder)
    if opened.blocks is None:
        raise RuntimeError("no photograph has an index")
    indexed = [i for i in range(len(opened)) if opened.blocks.entry(i) is not None]
    decoder = ImageDecoder(RandomResizedCrop(size=args.size))
    with_index = _pixels(decoder, opened)
    opened.blocks = None
    if not np.array_equal(with_index, _pixels(decoder, opened)):
        raise RuntimeError("the pixels with and without the index differ")
    small = np.setdiff1d(np.arange(len(opened)), indexed)
    parts = {"all": np.arange(len(opened)), "small": small, "large": np.array(indexed)}
    loaders: dict[tuple[str, bool], Any] = {}
    for name, ids in parts.items():
        for index in (True, False):
            dataset: Any = open_dataset(folder)
            if not index:
                dataset.blocks = None
            config = LoaderConfig(batch_size=min(64, len(ids)), workers=1, on_error="fail")
            loaders[name, index] = Loader(dataset, decoder, config, indices=ids)
    times: dict[tuple[str, bool], list[float]] = {way: [] for way in loaders}
    for round_ in range(1 + args.repeats):
        for way in loaders if round_ % 2 else reversed(loaders):
            count = len(parts[way[0]])
            epochs = max(1, 16 // count)  # so that a measurement is more than a few milliseconds
            began = time.process_time()
            for _ in range(epochs):
                for _ in loaders[way]:
                    pass
            times[way].append(1e6 * (time.process_time() - began) / (epochs * count))
    rows = []
    for (name, index), spent in times.items():
        spread = Spread.of(spent[1:])
        row = {"photographs": name, "images": len(parts[name]), "index": index}
        record = {"benchmark": "mixed", "megapixels": args.megapixels, "size": args.size, **row}
        record |= {**spread.fields("cpu_microseconds"), "data": args.data.resolve().name}
        measure.append(args.out, {**record, "environment": measure.environment()})
        rows.append(row | spread.columns("us"))
    measure.show(Console(width=120), f"{len(opened)} photographs, {len(indexed)} of them large, one thread", rows)


def _pixels(decoder: ImageDecoder, dataset: Any) -> npt.NDArray[np.uint8]:
    """Crops of all photographs. In this thread whatever they need is compiled."""
    ids = np.arange(len(dataset))
    rows = {"inputs": np.zeros((len(ids), *decoder.fields[0].shape), np.uint8)}
    failures = decoder.fill(SampleReader(dataset), ids.tolist(), decoder.draw(0, 0, ids), rows, Scratch())
    assert not failures
    return rows["inputs"]


if __name__ == "__main__":
    main()
