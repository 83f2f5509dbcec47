"""`ImageFolderLoader` against torch's DataLoader on small class folders: the first epoch, and later ones.

    python benchmarks/small_folders.py --data FOLDER

FOLDER has photographs, of which class folders of small JPEGs are made. `first`: a process of its own whose folder for
machine code is empty, from making the loader to the end of its first epoch, imports left out. `later`: epochs of
loaders in one process, interleaved; a ratio is the median over the rounds. `Loader` gives the same crops as uint8.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import measure
import torch
from images import list_images
from measure import Spread
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastimg.augment import Policy
from fastimg.loaders import ImageFolderLoader, Loader

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HEADS = ("torch", "ImageFolderLoader", "tuples(Policy(hflip=0.5))", "Loader")


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 300], help="of the images that are made")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=3, help="for the first epoch, of each loader")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "small_folders.jsonl")
    parser.add_argument("--first", nargs=2, metavar=("HEAD", "FOLDER"), help="only this, in this process")
    args = parser.parse_args()
    if args.first:
        head, folder = args.first
        began = time.perf_counter()
        _read(_loader(head, Path(folder), args))
        print(json.dumps(time.perf_counter() - began))
        return
    console, here = Console(), measure.environment()
    rows: list[dict[str, Any]] = []
    for side in args.sides:
        with tempfile.TemporaryDirectory(prefix="fastimg-small-") as scratch:
            _make(args.data, Path(scratch), args.images, side)
            first: dict[str, list[float]] = {head: [] for head in HEADS}
            for _ in range(args.processes):
                for head in HEADS:
                    first[head].append(_first(head, scratch, args))
            loaders = {head: _loader(head, Path(scratch), args) for head in HEADS}
            later = measure.interleaved({head: _timed(loaders[head]) for head in HEADS}, args.repeats, warmups=2)
            for head in HEADS:
                spreads = {"first_s": Spread.of(first[head]), "later_s": later[head]}
                rows.append({"side": side, "images": args.images, "head": head} | spreads)
    for row in rows:
        record = {key: value for key, value in row.items() if not isinstance(value, Spread)}
        for name in ("first_s", "later_s"):
            record |= row[name].fields(name)
        measure.append(args.out, {"benchmark": "small_folders", **record, "workers": args.workers, "environment": here})
    texts = [{key: value.text() if isinstance(value, Spread) else value for key, value in row.items()} for row in rows]
    measure.show(console, "400 images, seconds an epoch", texts)


def _make(data: Path, folder: Path, images: int, side: int) -> None:
    names = list_images(data)
    for number in range(images):
        place = folder / f"class {number % 2}"
        place.mkdir(exist_ok=True)
        with Image.open(data / names[number * 7 % len(names)]) as image:
            small = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
            small.save(place / f"{number}.jpg", quality=90)


def _loader(head: str, folder: Path, args: argparse.Namespace) -> Iterable[Any]:
    size = min(224, Image.open(next(folder.glob("*/*.jpg"))).size[0])
    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    given: dict[str, Any] = {"batch_size": args.batch_size, "shuffle": True, "num_workers": args.workers}
    if head == "torch":
        return DataLoader(ImageFolder(str(folder), steps), persistent_workers=True, **given)
    if head == "ImageFolderLoader":
        return ImageFolderLoader(ImageFolder(str(folder), steps), **given)
    loader = Loader(str(folder), batch_size=args.batch_size, crop=size, workers=args.workers)
    return loader if head == "Loader" else loader.tuples(Policy(hflip=0.5))


def _read(loader: Iterable[Any]) -> None:
    for _ in loader:
        pass


def _timed(loader: Iterable[Any]) -> Any:
    return lambda: measure.wall_seconds(lambda: _read(loader), torch.device("cpu"))


def _first(head: str, folder: str, args: argparse.Namespace) -> float:
    given = ["--data", str(args.data), "--batch-size", str(args.batch_size), "--workers", str(args.workers)]
    command = [sys.executable, "-W", "ignore", __file__, *given, "--first", head, folder]
    with tempfile.TemporaryDirectory(prefix="fastimg-code-") as cold:
        environment = os.environ | {"NUMBA_CACHE_DIR": cold}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(ran.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
