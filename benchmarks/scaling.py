"""DCT scaling on tiled JPEGs: the time that it saves, and the difference from exact pixels.

    python benchmarks/scaling.py --data FOLDER

Decodes the same random crops of the same tiled photographs on one thread, exactly and with each kind of `dct_scaling`,
interleaved. `scaled` is how many crops have other pixels than exact ones; the differences are theirs.
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
from fastimg.loaders.jpeg.decoding.region import Scaling
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

SCALINGS: dict[str, Scaling] = {"auto": True, "eighths": "eighths"}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of JPEGs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 112, 64])
    parser.add_argument("--scalings", nargs="+", default=list(SCALINGS), choices=list(SCALINGS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "scaling.jsonl")
    args = parser.parse_args()
    files = [args.data / name for name in list_images(args.data)]
    jpegs = [memoryview(tile(file.read_bytes()).jpeg) for file in files]
    environment = measure.environment()
    rows = []
    for size in args.sizes:
        exact, compared = _compare(jpegs, size, args.repeats, args.scalings)
        for row, speed in compared:
            record = {"benchmark": "scaling", "images": len(jpegs), "data": args.data.resolve().name, **row}
            record |= {**exact.fields("exact_microseconds"), **speed.fields("scaled_microseconds")}
            rows.append({**row, "exact, us": exact.text(), "scaled, us": speed.text()})
            measure.append(args.out, {**record, "environment": environment})
    measure.show(Console(), f"random crops of {len(jpegs)} tiled JPEGs", rows)


def _compare(
    jpegs: list[memoryview], size: int, repeats: int, scalings: list[str]
) -> tuple[measure.Spread, list[tuple[dict[str, Any], measure.Spread]]]:
    """Microseconds per image of exact crops; and for each scaling how crops differ (0 to 255), and the same."""
    crop = RandomResizedCrop(size=size)
    scratch = Scratch()
    decoders = {"exact": ImageDecoder(crop)}
    decoders |= {name: ImageDecoder(crop, dct_scaling=SCALINGS[name]) for name in scalings}
    rows = {name: np.zeros((size, size, 3), np.uint8) for name in decoders}
    ids = np.arange(len(jpegs), dtype=np.int64)
    differences: dict[str, list[float]] = {name: [] for name in scalings}
    for epoch in range(repeats):
        for data, draws in zip(jpegs, decoders["exact"].draw(0, epoch, ids).tolist(), strict=True):
            for name, decoder in decoders.items():
                decoder.fill_row(data, draws, {"inputs": rows[name]}, scratch)
            for name, found in differences.items():
                difference = np.abs(rows["exact"].astype(np.int16) - rows[name])
                if difference.any():
                    found.append(float(difference.mean()))

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
    compared = []
    for name, found in differences.items():
        row = {"size": size, "scaling": name, "crops": repeats * len(jpegs), "scaled": len(found)}
        row["mean_difference"] = round(float(np.mean(found)), 3) if found else 0.0
        compared.append((row | {"worst_image": round(max(found, default=0.0), 3)}, speeds[name]))
    return speeds["exact"], compared


if __name__ == "__main__":
    main()
