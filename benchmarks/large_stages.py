"""Crops of large photographs with and without what is kept of them, on one thread: time, bytes read, and pixels.

    python benchmarks/large_stages.py --data FOLDER

The photographs are mosaics of FOLDER's (`mosaics.py`), converted to tar shards, from a warm page cache. The same random
crops are decoded in every way, in turn; the processor time of the thread counts, and results are medians of n rounds.
`psnr` is that of all crops together against exact pixels, in decibels.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
from images import list_images
from loader_peers.tiled import make_tiled, tiled
from measure import Spread
from mosaics import SIZES, write_mosaics
from rich.console import Console

from fastimg.bench.peers.data import Sources
from fastimg.loaders import ImageDecoder, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.derived import block_index, dc_images
from fastimg.loaders.containers.tars.dataset import TarDataset
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders import large
from fastimg.loaders.jpeg.decoding.region import Scaling
from fastimg.loaders.runtime.scratch import Scratch

SCALINGS: dict[str, Scaling] = {"exact": False, "auto": True, "eighths": "eighths", "low": "low"}


class Counted:
    """A dataset whose bytes read are counted, of shards, of the index, and of images at 1/8."""

    def __init__(self, dataset: TarDataset, way: str) -> None:
        self.dataset = dataset
        self.nbytes = self.index_nbytes = self.dc_nbytes = 0
        self.blocks = None if way == "whole" else CountedIndex(self, dataset.blocks, way == "kept")

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, *args: Any) -> Any:
        """A sample."""
        data = self.dataset.read(*args)
        self.nbytes += len(data)
        return data

    def read_start(self, index: int, nbytes: int, scratch: Scratch) -> memoryview:
        """See TarDataset."""
        self.nbytes += nbytes
        return self.dataset.read_start(index, nbytes, scratch)

    def read_ranges(self, index: int, ranges: Any, view: memoryview) -> None:
        """See TarDataset."""
        self.nbytes += len(view)
        self.dataset.read_ranges(index, ranges, view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)


class CountedIndex:
    """A BlockIndex that counts, with or without images at 1/8."""

    def __init__(self, counted: Counted, blocks: Any, kept: bool) -> None:
        self._counted = counted
        self._blocks = blocks
        self.dc_images = CountedImages(counted, blocks.dc_images) if kept else None

    def read(self, *args: Any) -> Any:
        """Some rows."""
        found = self._blocks.read(*args)
        self._counted.index_nbytes += found[0].nbytes + found[1].nbytes
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)


class CountedImages:
    """DcImages that count."""

    def __init__(self, counted: Counted, images: Any) -> None:
        self._counted = counted
        self._images = images

    def read(self, *args: Any) -> Any:
        """Parts of planes."""
        sums = self._images.read(*args)
        self._counted.dc_nbytes += sums.nbytes + len(args[-1])
        return sums

    def __getattr__(self, name: str) -> Any:
        return getattr(self._images, name)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--megapixels", type=int, nargs="+", default=[12], choices=list(SIZES))
    parser.add_argument("--mosaics", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument(
        "--scalings", nargs="+", default=list(SCALINGS), choices=list(SCALINGS), help="exact is always one"
    )
    parser.add_argument("--gap", type=int, default=large.GAP, help="bytes between ranges that are read with them")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards; default: the system's")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "large.jsonl")
    args = parser.parse_args()
    large.GAP = args.gap
    block_index.MIN_PIXELS = dc_images.MIN_PIXELS = 1
    pictures = [Path(os.path.abspath(args.data / name)) for name in list_images(args.data)]
    for megapixels in args.megapixels:
        with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-large-") as scratch:
            files = write_mosaics(Path(scratch) / "mosaics", pictures, megapixels, args.mosaics)
            sources = Sources(folder=Path(scratch) / "photographs", files=tuple(files))
            make_tiled(sources)
            _measure(args, megapixels, tiled(sources))


def _measure(args: argparse.Namespace, megapixels: int, folder: Path) -> None:
    dataset = open_dataset(folder)
    assert isinstance(dataset, TarDataset) and dataset.blocks is not None
    ids = np.arange(len(dataset))
    crop = RandomResizedCrop(size=args.size)
    chosen = {name: scaling for name, scaling in SCALINGS.items() if name in ("exact", *args.scalings)}
    decoders = {name: ImageDecoder(crop, dct_scaling=scaling) for name, scaling in chosen.items()}
    ways = [(name, way) for name in decoders for way in ("kept", "indexed", "whole")]
    ways.remove(("exact", "kept"))  # as indexed
    scratch, pixels = Scratch(), {way: np.zeros((len(ids), args.size, args.size, 3), np.uint8) for way in ways}
    times: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    counts = {way: Counted(dataset, way[1]) for way in ways}
    errors: dict[str, list[float]] = {name: [] for name in decoders}
    for round_ in range(1 + args.repeats):
        draws = decoders["exact"].draw(0, round_, ids)
        for way in ways if round_ % 2 else ways[::-1]:
            name = way[0]
            rows = {"inputs": pixels[way]}
            began = time.thread_time()
            failures = decoders[name].fill(SampleReader(counts[way]), ids.tolist(), draws, rows, scratch)
            times[way].append(1e6 * (time.thread_time() - began) / len(ids))
            assert not failures
        for name in decoders:
            for way in ("kept", "indexed"):
                if (name, way) in pixels and not np.array_equal(pixels[name, way], pixels[name, "whole"]):
                    raise RuntimeError(f"{name}: the pixels with and without the index differ")
            errors[name].append(float(np.mean((pixels[name, "whole"].astype(float) - pixels["exact", "whole"]) ** 2)))
    rows = []
    for name, kept in ways:
        spent = Spread.of(times[name, kept][1:])
        error = float(np.mean(errors[name]))
        row = {"megapixels": megapixels, "decoded": name, "index": kept != "whole"}
        row |= {"images_at_an_eighth": kept == "kept"}
        row |= {"psnr": round(10 * np.log10(255**2 / error), 1) if error else None}
        crops = len(ids) * (1 + args.repeats)
        row |= {"bytes_per_crop": round(counts[name, kept].nbytes / crops)}
        row |= {"bytes_of_index_per_crop": round(counts[name, kept].index_nbytes / crops)}
        row |= {"bytes_at_an_eighth_per_crop": round(counts[name, kept].dc_nbytes / crops)}
        shared = {"benchmark": "large stages", "mosaics": len(ids), "size": args.size, "gap": args.gap}
        sizes = {
            "bytes_per_image": round(float(dataset.records["size"].mean())),
            "bytes_of_index_per_image": round((folder / "train.ftil").stat().st_size / len(ids)),
            "bytes_at_an_eighth_per_image": round((folder / "train.fdci").stat().st_size / len(ids)),
        }
        record = {**shared, **row, **spent.fields("cpu_microseconds"), **sizes, "environment": measure.environment()}
        measure.append(args.out, {**record, "data": args.data.resolve().name})
        rows.append(row | spent.columns("us"))
    title = f"{sizes['bytes_per_image']:,} bytes an image, {sizes['bytes_of_index_per_image']:,} of index"
    title += f", {sizes['bytes_at_an_eighth_per_image']:,} of images at 1/8"
    measure.show(Console(width=160), title, rows)


if __name__ == "__main__":
    main()
