"""DCT scaling on tiled JPEGs: the time that it saves, and the difference from exact pixels.

    python benchmarks/scaling.py --data FOLDER

Decodes the same random crops of the same tiled photographs on one thread, with and without `dct_scaling`, interleaved.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
from images import list_images
from rich.console import Console

from fastimg.loaders import ImageDecoder, RandomResizedCrop
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of JPEGs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 112, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "scaling.jsonl")
    args = parser.parse_args()
    files = [args.data / name for name in list_images(args.data)]
    jpegs = [memoryview(tile(file.read_bytes()).jpeg) for file in files]
    environment = measure.environment()
    rows = []
    for size in args.sizes:
        row, speeds = _compare(jpegs, size, args.repeats)
        record = {"benchmark": "scaling", "images": len(jpegs), "data": args.data.resolve().name, **row}
        for name, speed in speeds.items():
            record |= speed.fields(f"{name}_microseconds")
            row[f"{name}, us"] = speed.text()
        rows.append(row)
        measure.append(args.out, {**record, "environment": environment})
    measure.show(Console(), f"random crops of {len(jpegs)} tiled JPEGs", rows)


def _compare(jpegs: list[memoryview], size: int, repeats: int) -> tuple[dict[str, Any], dict[str, measure.Spread]]:
    """Mean absolute difference of scaled crops (0 to 255), and microseconds per image with and without scaling."""
    crop = RandomResizedCrop(size=size)
    scratch = Scratch()
    decoders = {"exact": ImageDecoder(crop), "scaled": ImageDecoder(crop, dct_scaling=True)}
    rows = {name: np.zeros((size, size, 3), np.uint8) for name in decoders}
    ids = np.arange(len(jpegs), dtype=np.int64)
    differences = []
    for epoch in range(repeats):
        for data, draws in zip(jpegs, decoders["exact"].draw(0, epoch, ids).tolist(), strict=True):
            for name, decoder in decoders.items():
                decoder.fill_row(data, draws, {"inputs": rows[name]}, scratch)
            difference = np.abs(rows["exact"].astype(np.int16) - rows["scaled"])
            if difference.any():
                differences.append(float(difference.mean()))

    def timed(name: str) -> Callable[[], float]:
        epochs = iter(range(1 + repeats))

        def run() -> float:
            draws = decoders[name].draw(0, next(epochs), ids).tolist()
            began = time.perf_counter()
            for data, numbers in zip(jpegs, draws, strict=True):
                decoders[name].fill_row(data, numbers, {"inputs": rows[name]}, scratch)
            return 1e6 * (time.perf_counter() - began) / len(jpegs)

        return run

    speeds = measure.interleaved({name: timed(name) for name in decoders}, repeats)
    row = {"size": size, "crops": repeats * len(jpegs), "scaled": len(differences)}
    mean = round(float(np.mean(differences)), 3) if differences else 0.0
    return {**row, "mean_difference": mean, "worst_image": round(max(differences, default=0.0), 3)}, speeds


if __name__ == "__main__":
    main()
