"""Crops of JPEGs without tiles: the compiled decoder against libjpeg-turbo and torch's resize, in turn in one process.

    python benchmarks/untiled.py --data FOLDER

Both are `ImageDecoder`, which takes groups of 8 encoded images in memory; the pixels must be equal. The processor time
of the thread is counted, either goes first in every second round over all images, and a ratio is the median over the
rounds. The first line of output says how long the decoder took to compile, if it was not in the machine's cache.

With `--restarts` the compiled decoder alone takes the same random crops of the images as they are and encoded again
with restarts: before each row of MCUs, and before each 8 MCUs. It leaves out intervals in which nothing is wanted, so
this is what an index of places to begin at could gain at most, without the time of making and reading the index.
"""

import argparse
import io
import time
from collections.abc import Sequence
from pathlib import Path

import measure
import numpy as np
from images import list_images
from measure import Spread
from PIL import ExifTags, Image
from rich.console import Console

from fastimg.loaders import CenterCrop, ImageDecoder, RandomResizedCrop
from fastimg.loaders.crop import CropRule
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.jpeg.decoding.crops import compile_for, missing_decoder
from fastimg.loaders.runtime.scratch import Scratch


class _Held:
    """Encoded images in memory, as a dataset."""

    def __init__(self, images: Sequence[bytes]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int, scratch: Scratch) -> memoryview:
        return memoryview(self._images[index])


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=400, help="at most so many, the first ones")
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument(
        "--orientation", type=int, choices=range(1, 9), default=1, help="of EXIF, which upright JPEGs are given first"
    )
    parser.add_argument(
        "--restart-rows", type=int, default=0, help="rows of MCUs between restarts, with which JPEGs are encoded again"
    )
    parser.add_argument("--progressive", action="store_true", help="JPEGs are encoded again, as progressive ones")
    parser.add_argument("--restarts", action="store_true", help="compare JPEGs without and with restarts instead")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "untiled.jsonl")
    args = parser.parse_args()
    console = Console(width=150)
    images = [(args.data / name).read_bytes() for name in list_images(args.data)[: args.images]]
    images = [_turned(_saved(image, args.restart_rows, args.progressive), args.orientation) for image in images]
    began = time.perf_counter()
    seconds = None
    if missing_decoder(images[0]):
        compile_for(images[0])
        seconds = round(time.perf_counter() - began, 1)
    console.print("compiled before" if seconds is None else f"compiled in {seconds} s")
    if args.restarts:
        _compare_restarts(console, images, args)
        return
    rows = []
    for name, crop in (
        ("random", RandomResizedCrop(size=args.size)),
        ("centre", CenterCrop(size=args.size, resize=args.size * 8 // 7)),
    ):
        times = _rounds(images, crop, args.repeats) / len(images) * 1e6
        ours, theirs = (Spread.of(times[:, i].tolist()) for i in range(2))
        ratio = Spread.of((times[:, 1] / times[:, 0]).tolist())
        shared = {
            "benchmark": "untiled",
            "crop": name,
            "images": len(images),
            "size": args.size,
            "orientation": args.orientation,
            "restart_rows": args.restart_rows,
            "progressive": args.progressive,
            "compiled_in": seconds,
        }
        fields = {**ours.fields("compiled_microseconds"), **theirs.fields("libjpeg_microseconds")}
        environment = {"environment": measure.environment(), "data": args.data.resolve().name}
        measure.append(args.out, {**shared, **fields, **ratio.fields("ratio"), **environment})
        shown = {"compiled": f"{ours.median:.1f}", "libjpeg-turbo, torch": f"{theirs.median:.1f}"}
        rows.append({"crop": name, **shown, **ratio.columns("ratio")})
    title = f"{len(images)} images of {args.data.name}, crops to {args.size}, microseconds of one thread an image"
    measure.show(console, title, rows)


def _compare_restarts(console: Console, images: Sequence[bytes], args: argparse.Namespace) -> None:
    jpegs = [image for image in images if image[:2] == b"\xff\xd8"]
    kinds = {
        "none": jpegs,
        "each row of MCUs": [_saved(jpeg, 1, False) for jpeg in jpegs],
        "each 8 MCUs": [_saved(jpeg, 0, False, 8) for jpeg in jpegs],
    }
    decoder, ids, scratch = ImageDecoder(RandomResizedCrop(size=args.size)), np.arange(len(jpegs)), Scratch()
    readers = [SampleReader(_Held(kind)) for kind in kinds.values()]
    rows = {"inputs": np.zeros((len(jpegs), *decoder.fields[0].shape), np.uint8)}
    times = np.zeros((1 + args.repeats, len(kinds)))
    for number in range(1 + args.repeats):
        draws = decoder.draw(0, number, ids)
        for i in np.roll(np.arange(len(kinds)), number).tolist():
            began = time.thread_time()
            if failures := decoder.fill(readers[i], ids.tolist(), draws, rows, scratch):
                raise RuntimeError(f"image {failures[0][0]} cannot be decoded: {failures[0][1]}")
            times[number, i] = time.thread_time() - began
    times = times[1:] / len(jpegs) * 1e6
    shown = []
    for i, (name, kind) in enumerate(kinds.items()):
        spent, ratio = Spread.of(times[:, i].tolist()), Spread.of((times[:, 0] / times[:, i]).tolist())
        nbytes = round(sum(map(len, kind)) / len(kind))
        record = {"benchmark": "untiled", "restarts": name, "images": len(kind), "size": args.size, "bytes": nbytes}
        fields = {**spent.fields("compiled_microseconds"), **ratio.fields("ratio")}
        measure.append(args.out, {**record, **fields, "environment": measure.environment()})
        shown.append({"restarts": name, "bytes": nbytes, "compiled": f"{spent.median:.1f}", **ratio.columns("ratio")})
    measure.show(console, f"{len(jpegs)} JPEGs, crops to {args.size}, microseconds of one thread an image", shown)


def _saved(image: bytes, restart_rows: int, progressive: bool, restart_mcus: int = 0) -> bytes:
    """A JPEG with restarts, or progressive, quantised as before; other images as they are."""
    if not (restart_rows or restart_mcus or progressive) or image[:2] != b"\xff\xd8":
        return image
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(image)) as opened:
        restarts = {"restart_marker_rows": restart_rows, "restart_marker_blocks": restart_mcus}
        opened.save(buffer, "JPEG", quality="keep", progressive=progressive, **restarts)
    return buffer.getvalue()


def _turned(image: bytes, orientation: int) -> bytes:
    """A JPEG with this orientation in an Exif segment of its own, ahead of all others; other images as they are."""
    if orientation == 1 or image[:2] != b"\xff\xd8":
        return image
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    body = b"Exif\0\0" + exif.tobytes().removeprefix(b"Exif\0\0")
    return image[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + image[2:]


def _rounds(images: Sequence[bytes], crop: CropRule, repeats: int) -> np.ndarray:
    """Seconds of each round [repeats, 2]: by the compiled decoder, and by libjpeg-turbo."""
    decoders = (ImageDecoder(crop), ImageDecoder(crop, compiled=False))
    reader, scratch = SampleReader(_Held(images)), Scratch()
    ids = np.arange(len(images))
    pixels = [np.zeros((len(images), *decoder.fields[0].shape), np.uint8) for decoder in decoders]
    times = np.zeros((1 + repeats, 2))
    for number in range(1 + repeats):
        draws = decoders[0].draw(0, number, ids)
        for i in (0, 1) if number % 2 else (1, 0):
            began = time.thread_time()
            failures = decoders[i].fill(reader, ids.tolist(), draws, {"inputs": pixels[i]}, scratch)
            times[number, i] = time.thread_time() - began
            if failures:
                raise RuntimeError(f"image {failures[0][0]} cannot be decoded: {failures[0][1]}")
        if not np.array_equal(*pixels):
            raise RuntimeError("the pixels differ")
    return times[1:]


if __name__ == "__main__":
    main()
