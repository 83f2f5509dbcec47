"""Raw pixels of a `.beton`: the native loader against FFCV, which wrote the file, in one process on the CPU.

    build/peers/bin/python -W ignore benchmarks/raw_pixels.py --data FOLDER

FOLDER has photographs, of which small images are made. Both loaders have the same threads and batches, and read from a
warm page cache; their epochs are interleaved, and a ratio is the median over the rounds. Whole images are compared
first. FFCV resizes crops by areas (OpenCV); the native loader by the filter of Pillow, which reads more pixels.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import numpy.typing as npt
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader as FfcvLoader
from ffcv.loader import OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter
from images import list_images
from measure import Spread
from PIL import Image
from rich.console import Console

from fastimg.loaders import Loader, RandomResizedCrop
from fastimg.loaders.crop import CenterCrop

Epoch = Callable[[], int]  # reads an epoch; returns its samples

TASKS = (  # the side of the stored images, that of the crops, the order
    (32, 32, "random"),
    (32, 32, "sequential"),
    (192, 160, "random"),
)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--images", type=int, nargs=2, default=[10_000, 1_000], help="of 32 and of 192 pixels")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "raw_pixels.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    here, rows = measure.environment(), []
    with tempfile.TemporaryDirectory(prefix="fastimg-raw-") as scratch:
        files = {side: Path(scratch) / f"{side}.beton" for side in (32, 192)}
        for (side, path), images in zip(files.items(), args.images, strict=True):
            _write(path, args.data, images, side)
        _compare(files[32])
        for side, size, order in TASKS:
            for workers in args.workers:
                row = _measure(files[side], side, size, order, workers, args)
                rows.append(row)
                record = {"benchmark": "raw_pixels", **measure.flat(row), "n": args.repeats, "environment": here}
                measure.append(args.out, record)
    measure.show(Console(), f"images a second, n = {args.repeats}", [_texts(row) for row in rows])


def _write(path: Path, data: Path, images: int, side: int) -> None:
    """Write images [side, side, 3] of photographs with FFCV's writer."""
    names = list_images(data)
    photographs = []
    for name in names[: min(len(names), images)]:
        with Image.open(data / name) as image:
            image.draft("RGB", (side, side))
            photographs.append(np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
    field = RGBImageField(write_mode="raw")
    writer = DatasetWriter(str(path), {"image": field, "label": IntField()}, num_workers=1)
    writer.from_indexed_dataset(_Repeated(photographs, images))


class _Repeated:
    """Photographs, which repeat, each time rolled by a pixel."""

    def __init__(self, photographs: list[npt.NDArray[np.uint8]], images: int) -> None:
        self._photographs, self._images = photographs, images

    def __len__(self) -> int:
        return self._images

    def __getitem__(self, number: int) -> tuple[npt.NDArray[np.uint8], int]:
        times, place = divmod(number, len(self._photographs))
        return np.roll(self._photographs[place], times, axis=1), number % 10


def _compare(path: Path) -> None:
    """Raise AssertionError unless both loaders give the same images of 32 pixels."""
    ours = _ours(path, 32, 32, "sequential", 256, 1)
    theirs = _theirs(path, 32, 32, "sequential", 256, 1)
    for batch, (images, labels) in zip(ours, theirs, strict=True):
        kept = slice(batch.samples)  # the last batch is padded
        assert torch.equal(batch.inputs[kept].permute(0, 2, 3, 1), images.reshape(-1, 32, 32, 3))
        assert torch.equal(batch.targets[kept], labels[:, 0])
    ours.close()


def _ours(path: Path, side: int, size: int, order: str, batch_size: int, workers: int) -> Loader:
    crop = CenterCrop(size=size, resize=side) if size == side else RandomResizedCrop(size=size)
    loader = Loader(path, batch_size=batch_size, crop=crop, order=order, seed=1, workers=workers)
    loader.compile()
    return loader


def _theirs(path: Path, side: int, size: int, order: str, batch_size: int, workers: int) -> Any:
    decode = SimpleRGBImageDecoder() if size == side else RandomResizedCropRGBImageDecoder((size, size))
    return FfcvLoader(
        str(path),
        batch_size=batch_size,
        num_workers=workers,
        order=OrderOption.RANDOM if order == "random" else OrderOption.SEQUENTIAL,
        drop_last=False,
        pipelines={"image": [decode, ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )


def _measure(path: Path, side: int, size: int, order: str, workers: int, args: argparse.Namespace) -> dict[str, Any]:
    ours = _ours(path, side, size, order, args.batch_size, workers)
    theirs = _theirs(path, side, size, order, args.batch_size, workers)
    images = args.images[side == 192]
    heads: dict[str, Epoch] = {
        "fastimg": lambda: sum(batch.samples for batch in ours),
        "ffcv": lambda: sum(len(labels) for _, labels in theirs),
    }
    for epoch in heads.values():
        assert epoch() == images

    seconds = measure.seconds_in_turn(heads, args.repeats)
    ours.close()
    rates = {f"{head}_rate": Spread.of([images / second for second in seconds[head]]) for head in heads}
    ratios = [b / a for a, b in zip(seconds["fastimg"], seconds["ffcv"], strict=True)]
    named = {"side": side, "size": size, "order": order, "workers": workers, "images": images}
    return named | rates | {"times_ffcv": Spread.of(ratios)}


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value.text() if isinstance(value, Spread) else value for key, value in row.items()}


if __name__ == "__main__":
    main()
