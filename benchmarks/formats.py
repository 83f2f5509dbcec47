"""Images of other formats than JPEG: the native loader, from a folder and from shards, against torch's DataLoader.

    python benchmarks/formats.py --data FOLDER                              # all of TASKS
    python benchmarks/formats.py --data FOLDER --tasks digits png --workers 2
    python benchmarks/formats.py --data FOLDER --inflate                    # the pixels of PNGs alone, by library
    python benchmarks/formats.py --data FOLDER --tasks png --compile        # seconds that machine code takes, once

FOLDER has photographs, of which the images are made: `digits` are gray, of 28 pixels, and read whole; the others have
a longer side of 256 pixels, of which crops become 160. `npy` are arrays [3, H, W] of uint8, `bands` such [8, H, W] of
uint16 that are mixed of the photographs' colours; `png-16`, `pgm-16` and `tiff-16` are gray, of uint16. torch's
DataLoader is torchvision's ImageFolder with Pillow, or np.load, and v2 transforms, in persistent processes. All give
batches on the CPU, of the arrays' type or uint8, from a warm page cache without --cold. Epochs are interleaved, and a
ratio is the median over the rounds. Whole images are compared first.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
import numpy.typing as npt
import torch
from images import list_images
from measure import Spread
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import v2

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import FilesDataset, Loader, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.bands import BandsDataset
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CenterCrop, CropRule
from fastimg.loaders.decoders.bands import BandsDecoder
from fastimg.loaders.pictures.checksums import adler32
from fastimg.loaders.pictures.huffman import new_tables
from fastimg.loaders.pictures.inflate import SLACK, inflate, inflate_two

Epoch = Callable[[], int]  # reads an epoch; returns its samples


class Task(NamedTuple):
    """Images of one kind."""

    extension: str
    side: int  # the longer one
    size: int  # of crops
    images: int
    mode: str = "RGB"
    options: dict[str, Any] = {}  # noqa: RUF012 - Pillow's, for saving
    square: bool = False
    bands: int = 0  # of arrays; 0 for images
    depth: int = 8  # bits of a channel of images

    @property
    def whole(self) -> bool:
        """Whether images are read as they are, not cropped."""
        return self.side == self.size

    @property
    def channels(self) -> int:
        """Of the batches."""
        return self.bands or (1 if self.mode == "L" else 3)

    @property
    def dtype(self) -> str:
        """Of the batches."""
        return "uint16" if self.bands > 3 or self.depth == 16 else "uint8"


TASKS = {
    "digits": Task("png", 28, 28, 10_000, "L"),
    "png": Task("png", 256, 160, 2_000),
    "webp": Task("webp", 256, 160, 2_000, options={"quality": 85}),
    "webp-lossless": Task("webp", 256, 160, 1_000, options={"lossless": True}),
    "bmp": Task("bmp", 256, 160, 2_000),
    "ppm": Task("ppm", 256, 160, 2_000),
    "tiff": Task("tif", 256, 160, 2_000),
    "npy": Task("npy", 256, 160, 2_000, bands=3),
    "bands": Task("npy", 256, 160, 1_000, bands=8),
    "png-16": Task("png", 256, 160, 1_000, "L", depth=16),
    "pgm-16": Task("pgm", 256, 160, 1_000, "L", depth=16),
    "tiff-16": Task("tif", 256, 160, 1_000, "L", depth=16),
    "jpeg": Task("jpg", 256, 160, 2_000, options={"quality": 90}),
}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="drop all files from the page cache before each epoch")
    parser.add_argument("--inflate", action="store_true", help="only inflate the PNGs: our code, zlib, and others")
    parser.add_argument("--compile", action="store_true", help="only compile what reads them, with an empty cache")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "formats.jsonl")
    args = parser.parse_args()
    here = measure.environment()
    if args.inflate:
        _inflate(args, here)
        return
    if args.compile:
        _compile(args, here)
        return
    rows = []
    for name in args.tasks:
        task = TASKS[name]
        with tempfile.TemporaryDirectory(prefix="fastimg-formats-") as scratch:
            files, shards = Path(scratch) / "files", Path(scratch) / "shards"
            nbytes = write_images(files, args.data, task)
            field = "bands" if task.bands else None
            convert(Convert(src=files, dst=shards, image_field=field), Console(quiet=True))
            _compare(files, shards, task)
            for workers in args.workers:
                row = {"task": name, "workers": workers} | _measure(files, shards, task, workers, args)
                rows.append(row)
                about = {
                    "cold": args.cold,
                    "images": task.images,
                    "bytes_per_image": nbytes,
                    "n": args.repeats,
                    "environment": here,
                }
                measure.append(args.out, {"benchmark": "formats", **measure.flat(row), **about})
    measure.show(Console(), f"images a second, n = {args.repeats}", [_texts(row) for row in rows])


def write_images(folder: Path, data: Path, task: Task) -> int:
    """Write images of photographs, which repeat, each time rolled by a pixel, in 10 classes. Returns bytes an image."""
    names = list_images(data)
    names = names[: min(len(names), task.images)]
    nbytes = 0
    for number in range(task.images):
        times, place = divmod(number, len(names))
        if number < len(names):
            with Image.open(data / names[place]) as image:
                image.draft("RGB", (task.side, task.side))
                scale = task.side / max(image.size)
                small = image.convert("RGB" if task.depth == 16 else task.mode).resize(
                    (task.side, task.side)
                    if task.whole or task.square
                    else (round(image.width * scale), round(image.height * scale)),
                    Image.Resampling.BICUBIC,
                )
            kept = folder / f"{place}.kept.npy"
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, np.asarray(small))
        pixels = np.roll(np.load(folder / f"{place}.kept.npy"), times, axis=1)
        file = folder / str(number % 10) / f"{number:06d}.{task.extension}"
        file.parent.mkdir(parents=True, exist_ok=True)
        if task.bands:
            np.save(file, _bands_of(pixels, task))
        elif task.depth == 16:
            Image.fromarray(_deep_gray(pixels)).save(file, **task.options)
        else:
            Image.fromarray(pixels).save(file, **task.options)
        nbytes += file.stat().st_size
    for kept in folder.glob("*.kept.npy"):
        kept.unlink()
    return round(nbytes / task.images)


def _bands_of(pixels: npt.NDArray[np.uint8], task: Task) -> npt.NDArray[Any]:
    """The colours as planes, or mixed to bands of 16 bits."""
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if task.dtype == "uint8":
        return planes
    shares = np.random.default_rng(0).dirichlet((1, 1, 1), task.bands)  # the same of all arrays
    return np.einsum("bc,chw->bhw", shares, 257.0 * planes).round().astype(np.uint16)


def _deep_gray(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    """The colours mixed to gray of 16 bits."""
    return np.rint(pixels @ (257.0 * np.array([0.299, 0.587, 0.114]))).astype(np.uint16)


def _compare(files: Path, shards: Path, task: Task) -> None:
    """Raise AssertionError unless folder, shards and torch give the same pixels of whole images."""
    crop = CenterCrop(size=task.size, resize=task.size)
    loaders = [_loader(data, task, crop, order="sequential") for data in (files, shards)]
    size = [task.size, task.size]
    if task.bands or task.depth == 16:  # torchvision's resize of uint8 is another one
        resized = v2.Compose([v2.ToDtype(torch.float32), v2.Resize(task.size, antialias=True), v2.CenterCrop(size)])
        transform = v2.Compose([resized, v2.Lambda(torch.round), v2.ToDtype(getattr(torch, task.dtype))])
    elif task.whole:
        transform = v2.PILToTensor()
    else:
        transform = v2.Compose([v2.PILToTensor(), v2.Resize(task.size, antialias=True), v2.CenterCrop(size)])
    theirs = DataLoader(_folder(files, task, transform), batch_size=128)
    for ours, (images, _) in zip(loaders[0], theirs, strict=True):
        assert torch.equal(ours.inputs[: ours.samples], images), "other pixels than torch's"
        break
    by_sum = [sorted(_sums(loader)) for loader in loaders]  # shards have another order
    assert by_sum[0] == by_sum[1], "other pixels in shards"
    for loader in loaders:
        loader.close()


def _sums(loader: Loader) -> list[int]:
    return [number for batch in loader for number in batch.inputs[: batch.samples].long().sum((1, 2, 3)).tolist()]


def _opened(file: str, mode: str) -> Image.Image:
    with Image.open(file) as image:
        return image.convert(mode)


def _loaded(file: str) -> torch.Tensor:
    return torch.from_numpy(np.load(file))


def _opened_deep(file: str) -> torch.Tensor:
    with Image.open(file) as image:
        return torch.from_numpy(np.asarray(image).astype(np.uint16)).unsqueeze(0)


def _folder(files: Path, task: Task, transform: Callable[..., Any]) -> DatasetFolder:
    if task.depth == 16:
        return DatasetFolder(str(files), _opened_deep, (f".{task.extension}",), transform)
    if task.bands:
        return DatasetFolder(str(files), _loaded, (".npy",), transform)
    return ImageFolder(str(files), transform, loader=partial(_opened, mode=task.mode))


def _loader(data: Path, task: Task, crop: CropRule, **options: Any) -> Loader:
    """Of a folder or of shards; arrays of a folder are read as its files, as no images are in it."""
    options = {"batch_size": 128, **options}
    if not task.bands:
        return Loader(data, crop=crop, channels=task.channels, depth=task.depth, **options)
    if next(data.rglob("*.npy"), None) is None:
        dataset: Dataset = BandsDataset(open_dataset(data, "train"), "bands")
    else:
        files = sorted(data.rglob("*.npy"))
        labels = [int(file.parent.name) for file in files]
        classes = [str(number) for number in range(10)]
        dataset = FilesDataset(data, [str(file.relative_to(data)) for file in files], classes, labels)
    return Loader(dataset, BandsDecoder(crop, task.bands, task.dtype), **options)


def _ours(data: Path, task: Task, workers: int, batch_size: int) -> Loader:
    crop = CenterCrop(size=task.size, resize=task.size) if task.whole else RandomResizedCrop(size=task.size)
    loader = _loader(data, task, crop, batch_size=batch_size, seed=1, workers=workers)
    loader.compile()
    return loader


def _theirs(files: Path, task: Task, workers: int, batch_size: int) -> DataLoader[Any]:
    if task.whole:
        transform = v2.PILToTensor()
    else:
        crop = v2.RandomResizedCrop(task.size, antialias=True)
        transform = crop if task.bands or task.depth == 16 else v2.Compose([crop, v2.PILToTensor()])
    folder = _folder(files, task, transform)
    return DataLoader(folder, batch_size, shuffle=True, num_workers=workers, persistent_workers=True)


def _measure(files: Path, shards: Path, task: Task, workers: int, args: argparse.Namespace) -> dict[str, Any]:
    loaders = [_ours(data, task, workers, args.batch_size) for data in (files, shards)]
    theirs = _theirs(files, task, workers, args.batch_size)

    def our_epoch(loader: Loader) -> int:
        return sum(batch.samples for batch in loader)

    def their_epoch() -> int:
        return sum(len(images) for images, _ in theirs)

    epochs: dict[str, Epoch] = {
        "folder": partial(our_epoch, loaders[0]),
        "shards": partial(our_epoch, loaders[1]),
        "torch": their_epoch,
    }

    def drop() -> None:
        measure.drop_pages(files)
        measure.drop_pages(shards)

    seconds = measure.seconds_in_turn(epochs, args.repeats, drop if args.cold else lambda: None)
    for loader in loaders:
        loader.close()
    rates = {f"{name}_rate": Spread.of([task.images / one for one in taken]) for name, taken in seconds.items()}
    ratios = {
        f"{name}_times_torch": Spread.of([b / a for a, b in zip(seconds[name], seconds["torch"], strict=True)])
        for name in ("folder", "shards")
    }
    return rates | ratios


_COMPILE = """
import sys, time
from fastimg.loaders import Loader
loader = Loader(sys.argv[1], batch_size=16, crop=int(sys.argv[2]), channels=int(sys.argv[3]))
began = time.process_time()
loader.compile()
print(time.process_time() - began)
"""


def _compile(args: argparse.Namespace, here: dict[str, Any]) -> None:
    """Seconds of processor time that compiling takes of a process with an empty cache, by task."""
    table = []
    for name in args.tasks:
        task, taken = TASKS[name]._replace(images=16), []
        with tempfile.TemporaryDirectory(prefix="fastimg-formats-") as scratch:
            write_images(Path(scratch) / "files", args.data, task)
            for number in range(args.repeats):
                command = [sys.executable, "-c", _COMPILE, f"{scratch}/files", str(task.size), str(task.channels)]
                environment = os.environ | {"NUMBA_CACHE_DIR": f"{scratch}/cache-{number}"}
                ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                taken.append(float(ran.stdout))
        row = {"task": name, "seconds": Spread.of(taken)}
        table.append(_texts(row))
        measure.append(args.out, {"benchmark": "compile", **measure.flat(row), "n": args.repeats, "environment": here})
    measure.show(Console(), f"processor seconds to compile, n = {args.repeats}", table)


def _inflate(args: argparse.Namespace, here: dict[str, Any]) -> None:
    """Microseconds for an image's deflated pixels, Adler-32 included, of the task `png`; 300 different images."""
    task = TASKS["png"]._replace(images=300)
    with tempfile.TemporaryDirectory(prefix="fastimg-formats-") as scratch:
        write_images(Path(scratch), args.data, task)
        streams = [_stream(file.read_bytes()) for file in sorted(Path(scratch).rglob("*.png"))]
    rows = [zlib.decompress(stream) for stream in streams]
    tables, rooms = new_tables(), np.zeros((2, max(map(len, rows)) + SLACK), np.uint8)
    places = [(np.frombuffer(stream, np.uint8), len(row)) for stream, row in zip(streams, rows, strict=True)]

    def ours() -> None:
        for stream, size in places:
            taken, _, ended = inflate(stream.ctypes.data + 2, stream.size - 6, rooms[0].ctypes.data, size + 1, tables)
            assert taken == size and ended
            adler32(rooms[0].ctypes.data, size)

    def ours_in_turn() -> None:
        for two in zip(places[::2], places[1::2], strict=True):
            given: list[int] = []
            for (stream, size), room in zip(two, rooms, strict=True):
                given += [stream.ctypes.data + 2, stream.size - 6, room.ctypes.data, size + 1]
            for (taken, _, ended), (_, size), room in zip(inflate_two(*given, tables), two, rooms, strict=True):
                assert taken == size and ended
                adler32(room.ctypes.data, size)

    heads: dict[str, Callable[[], object]] = {
        "fastimg": ours,
        "fastimg, two in turn": ours_in_turn,
        "zlib": lambda: list(map(zlib.decompress, streams)),
    }
    for module in ("isal.isal_zlib", "zlib_ng.zlib_ng"):
        with suppress(ImportError):
            library = importlib.import_module(module)
            heads[module] = lambda library=library: list(map(library.decompress, streams))
    with suppress(ImportError):
        libdeflate = importlib.import_module("deflate")
        sizes = list(map(len, rows))
        heads["libdeflate"] = lambda: list(map(libdeflate.zlib_decompress, streams, sizes))
    ours()
    ours_in_turn()
    taken: dict[str, list[float]] = {name: [] for name in heads}
    for _ in range(args.repeats):
        for name, head in heads.items():
            second = measure.wall_seconds(head, torch.device("cpu"))
            taken[name].append(1e6 * second / len(streams))
    table = []
    for name, numbers in taken.items():
        spread = Spread.of(numbers)
        row = {"library": name, "microseconds": spread}
        table.append(_texts(row))
        about = {"images": len(streams), "bytes_per_image": round(sum(map(len, streams)) / len(streams))}
        record = {"benchmark": "inflate", **measure.flat(row), **about, "n": args.repeats, "environment": here}
        measure.append(args.out, record)
    measure.show(Console(), f"microseconds an image, n = {args.repeats}", table)


def _stream(png: bytes) -> bytes:
    """What is in a PNG's chunks of pixels."""
    found, at = b"", 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            found += png[at + 8 : at + 8 + size]
        at += 12 + size
    return found


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value.text() if isinstance(value, Spread) else value for key, value in row.items()}


if __name__ == "__main__":
    main()
