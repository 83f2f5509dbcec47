"""Tiled JPEGs: rewriting, cutting, and the cost of a training crop with and without tiles, on one thread.

    python benchmarks/tiles.py --data FOLDER

`tile` rewrites the folder's JPEGs. A crop is RandomResizedCrop(0.08-1) to 224 with the loader's resampler: `whole`
decodes the original and crops it, `splice` cuts the tiled file and decodes the remaining tiles. Everything is in
memory. Variants are interleaved over the same images and boxes; results are medians of n. Before timing, a check makes
sure that every variant gives the same pixels for every crop.
"""

import argparse
import importlib.metadata
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure
import numpy as np
import simplejpeg
import torch
from images import list_images
from rich.console import Console

from fastimg.loaders.crop import RandomResizedCrop, Window
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.jpeg.rewriting.tiles import Rewritten, tile
from fastimg.loaders.random import uniforms
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.scratch import Scratch

Crop = Callable[[int, np.ndarray], None]  # image number, and the position of its pixels


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of JPEGs, flat or with subfolders")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--width", type=int, default=32, help="maximum tile width in pixels")
    parser.add_argument("--epochs", type=int, default=4, help="boxes drawn for each image")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "tiles.jsonl")
    args = parser.parse_args()

    torch.set_num_threads(1)
    originals = [(args.data / name).read_bytes() for name in list_images(args.data)]
    found = [tile(data, args.width) for data in originals]  # compiles, too
    pairs = [(data, made) for data, made in zip(originals, found, strict=True) if made.kept is None]
    if not pairs:
        raise SystemExit(f"{args.data}: no JPEG that can be tiled")
    data = [p[0] for p in pairs]
    tiled = [p[1].jpeg for p in pairs]
    count = len(data)

    epochs = [_windows(data, args.size, epoch) for epoch in range(args.epochs)]
    rounds = [_crops(data, tiled, windows) for windows in epochs]
    for crops in rounds:
        _check(crops, count, args.size)
    out = np.empty((args.size, args.size, 3), np.uint8)

    def every(name: str) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            for crops in rounds:
                crop = crops[name]
                for i in range(count):
                    crop(i, out)
            return len(rounds) * count / (time.perf_counter() - began)

        return run

    spread = measure.interleaved({name: every(name) for name in rounds[0]}, args.repeats)
    base = spread["whole"].median
    environment = measure.environment() | {"numba": importlib.metadata.version("numba")}
    shared = {"benchmark": "tiles", "data": args.data.resolve().name, "images": count, "tile_px": args.width}
    records: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for name, speed in (measure.interleaved(_steps(data, tiled, epochs[0], args.width), args.repeats)).items():
        rows.append({"what": name, **speed.columns("img/s"), "us/img": f"{1e6 / speed.median:.4g}"})
        records.append({"what": name, **speed.fields("images_per_second"), "us_per_image": 1e6 / speed.median})
    for name, speed in spread.items():
        ratio = round(speed.median / base, 3)
        text = {**speed.columns("img/s"), "us/img": f"{1e6 / speed.median:.4g}", "ratio": ratio}
        rows.append({"what": f"crop: {name}", **text})
        records.append({"what": f"crop: {name}", **speed.fields("images_per_second"), "ratio_to_whole": ratio})
    growth = _growth(data, [p[1] for p in pairs])
    kept = len(found) - count
    records.append({"what": "size", "bytes_before": sum(map(len, data)), "growth_percent": growth, "kept_as_is": kept})
    for record in records:
        measure.append(args.out, {**shared, **measure.flat(record), "environment": environment})
    measure.show(Console(), f"{count} JPEGs of {args.data.resolve().name}, one thread", rows)
    Console().print(f"size {growth:+.2f} %, {kept} kept as they are")


def _windows(data: list[bytes], size: int, epoch: int) -> list[Window]:
    crop = RandomResizedCrop(size=size)
    draws = uniforms(0, epoch, np.arange(len(data)), 0, crop.draws)
    windows = []
    for jpeg, draw in zip(data, draws.tolist(), strict=True):
        height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
        windows.append(crop.window(width, height, draw))
    return windows


def _crops(data: list[bytes], tiled: list[bytes], windows: list[Window]) -> dict[str, Crop]:
    scratch = Scratch()
    buffer = bytearray(max(map(len, tiled)) + 2)
    pixels = max(h * w * 3 for h, w, *_ in map(simplejpeg.decode_jpeg_header, data))

    def cut(jpeg: bytes | memoryview, window: Window, offset: tuple[int, int], out: np.ndarray) -> None:
        decoded = simplejpeg.decode_jpeg(jpeg, "RGB", buffer=scratch.pixels(pixels))
        x, y, width, height = window.box
        box = (x - offset[0], y - offset[1], width, height)
        resample(decoded, window._replace(box=box), "bilinear", out)

    def whole(i: int, out: np.ndarray) -> None:
        cut(data[i], windows[i], (0, 0), out)

    def spliced(i: int, out: np.ndarray) -> None:
        jpeg, offset = splice(tiled[i], windows[i].box, buffer)
        cut(jpeg, windows[i], offset, out)

    return {"whole": whole, "splice": spliced}


def _steps(data: list[bytes], tiled: list[bytes], windows: list[Window], width: int) -> dict[str, Callable[[], float]]:
    """Rewriting and cutting only."""
    buffer = bytearray(max(map(len, tiled)) + 2)

    def rate(call: Callable[[int], object]) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            for i in range(len(data)):
                call(i)
            return len(data) / (time.perf_counter() - began)

        return run

    def threads() -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda jpeg: tile(jpeg, width), data))
        return len(data) / (time.perf_counter() - began)

    return {
        "tile": rate(lambda i: tile(data[i], width)),
        "tile, 2 threads": threads,
        "splice": rate(lambda i: splice(tiled[i], windows[i].box, buffer)),
        "decode original": rate(lambda i: simplejpeg.decode_jpeg(data[i], "RGB")),
        "decode tiled": rate(lambda i: simplejpeg.decode_jpeg(tiled[i], "RGB")),
    }


def _check(crops: dict[str, Crop], count: int, size: int) -> None:
    for i in range(count):
        seen = {}
        for name, crop in crops.items():
            seen[name] = np.zeros((size, size, 3), np.uint8)
            crop(i, seen[name])
        if any(not np.array_equal(pixels, seen["whole"]) for pixels in seen.values()):
            raise RuntimeError(f"image {i}: the crops differ")


def _growth(data: list[bytes], tiled: list[Rewritten]) -> float:
    """The size in percent; bytes after EOI are counted on neither side."""
    before = sum(len(a) - b.left_out for a, b in zip(data, tiled, strict=True))
    return 100 * (sum(len(b.jpeg) for b in tiled) / before - 1)


if __name__ == "__main__":
    main()
