"""Gray batches against RGB ones: the same random crops of the same photographs, in turn in one process.

    python benchmarks/channels.py --data FOLDER

`fastimg convert` makes shards with tiled JPEGs of the photographs; a loader for each number of channels reads the
shards, and another two the files, from a warm page cache. What torch makes of RGB batches is the third way to gray.
Epochs are interleaved; a ratio is the median over the rounds of RGB's time over gray's, on the same data in the same
round. Counted are the time of an epoch and the processor time of the process. The luma of a crop is compared with
libjpeg-turbo's, through `ImageDecoder(compiled=False)`.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import measure
import numpy as np
import torch
from images import list_images
from measure import Spread
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.runtime.scratch import Scratch

_WEIGHTS = (0.299, 0.587, 0.114)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--images", type=int, default=768, help="images per epoch; files are repeated as needed")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for shards; default: the system's")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "channels.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so that only the requested threads compute
    names = list_images(args.data)
    files = [Path(os.path.abspath(args.data / name)) for name in names]
    repeated = (files * -(-args.images // len(files)))[: args.images]
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-channels-") as scratch:
        _check(shards := _shards(Path(scratch), repeated), args.size)
        plain = FilesDataset(Path("/"), [str(file) for file in repeated])
        loaders = {
            (what, channels): _loader(data, channels, args.size, args.batch_size, args.workers)
            for what, data in (("tiled shards", shards), ("files", plain))
            for channels in (3, 1)
        }
        loaders["tiled shards, RGB made gray by torch", 1] = loaders["tiled shards", 3]
        spent: dict[tuple[str, int], list[tuple[float, float]]] = {name: [] for name in loaders}
        for number in range(1 + args.repeats):
            for name, loader in loaders.items():
                measured = _epoch(loader, "torch" in name[0], args.images)
                spent[name] += [measured] if number else []
        for loader in loaders.values():
            loader.close()
    _report(args, spent, len(files))


def _shards(folder: Path, files: list[Path]) -> Dataset:
    links = folder / "links" / "photographs"
    links.mkdir(parents=True)
    for number, file in enumerate(files):
        (links / f"{number:06d}{file.suffix.lower()}").symlink_to(file)
    convert(Convert(src=links.parent, dst=folder / "shards", no_shuffle=True, workers="1"), Console(quiet=True))
    return open_dataset(folder / "shards")


def _loader(data: Dataset, channels: int, size: int, batch_size: int, workers: int) -> Loader:
    decoder = ImageDecoder(RandomResizedCrop(size=size), channels=channels)
    return Loader(data, decoder, LoaderConfig(batch_size=batch_size, workers=workers, on_error="fail"))


def _epoch(loader: Loader, grays: bool, images: int) -> tuple[float, float]:
    """Microseconds of an image: by the clock, and of all cores."""
    loader.set_epoch(0)
    weights = torch.tensor(_WEIGHTS).view(1, 3, 1, 1)
    began, busy = time.perf_counter(), time.process_time()
    for batch in loader:
        if grays:
            (batch.inputs * weights).sum(dim=1, keepdim=True).round_().to(torch.uint8)
    return (time.perf_counter() - began) / images * 1e6, (time.process_time() - busy) / images * 1e6


def _check(data: Dataset, size: int) -> None:
    """Raises RuntimeError where the compiled decoder's luma is not libjpeg-turbo's."""
    ours, turbo = (ImageDecoder(RandomResizedCrop(size=size), channels=1, compiled=on) for on in (True, False))
    draws = ours.draw(0, 0, np.arange(len(data)))
    scratch, rows = Scratch(), np.zeros((2, size, size, 1), np.uint8)
    for index in range(0, len(data), 7):
        for decoder, row in zip((ours, turbo), rows, strict=True):
            decoder.fill_row(data.read(index, scratch), draws[index].tolist(), {"inputs": row}, scratch)
        if not np.array_equal(rows[0], rows[1]):
            raise RuntimeError(f"{data.sample_name(index)}: the luma differs from libjpeg-turbo's")


def _report(args: argparse.Namespace, spent: dict[tuple[str, int], list[tuple[float, float]]], files: int) -> None:
    rows = []
    for (what, channels), rounds in spent.items():
        wall, busy = (Spread.of([one[part] for one in rounds]) for part in (0, 1))
        base = spent[what.partition(",")[0], 3]
        ratio = Spread.of([rgb[1] / gray[1] for rgb, gray in zip(base, rounds, strict=True)])
        record = {
            "benchmark": "channels",
            "data": args.data.resolve().name,
            "files": files,
            "images": args.images,
            "size": args.size,
            "batch_size": args.batch_size,
            "workers": args.workers,
            "reads": what,
            "channels": channels,
            **wall.fields("microseconds"),
            **busy.fields("cpu_microseconds"),
            **ratio.fields("rgb_over_this_cpu"),
            "environment": measure.environment(),
        }
        measure.append(args.out, record)
        rate = f"{1e6 / wall.median:,.0f}"
        shown = {"reads": what, "channels": channels, "img/s": rate, "CPU us/img": round(busy.median)}
        rows.append({**shown, **ratio.columns("RGB / this, CPU")})
    title = f"{args.images} random crops to {args.size}, {args.workers} threads"
    measure.show(Console(width=150), title, rows)


if __name__ == "__main__":
    main()
