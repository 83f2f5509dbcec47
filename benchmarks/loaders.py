"""The native loader against its peers: JPEG files -> uint8 batches [B, 3, 224, 224] on the CPU, random crop and flip.

    python benchmarks/loaders.py --data FOLDER

Every loader reads the same files (page cache warm), draws RandomResizedCrop(0.08-1) and a flip per image, and has the
same number of threads or processes. Epochs of all loaders are interleaved; the median of n counts.
"""

import argparse
import atexit
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measure
import torch
from images import dataset
from PIL import Image
from rich.console import Console
from torchvision.transforms import v2

from fastimg.augment import Policy, draw
from fastimg.augment.reference import flip
from fastimg.loaders import FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders.tiles import tile


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every loader does."""

    data: FilesDataset
    batch_size: int
    size: int
    workers: int


Epoch = Callable[[], int]  # reads every image once, returns how many it was given


def native(work: Work) -> Epoch:
    """fastimg's loader: threads; the flip is done on the batch, as in training."""
    policy = Policy(hflip=0.5)
    config = LoaderConfig(batch_size=work.batch_size, workers=work.workers)
    loader = Loader(work.data, ImageDecoder(RandomResizedCrop(size=work.size)), config)

    def epoch() -> int:
        count = 0
        for batch in loader:
            flip(draw(policy, batch.ids, 0, loader.epoch), batch.inputs)
            count += batch.samples
        return count

    return epoch


def native_tiled(work: Work) -> Epoch:
    """fastimg's loader over the same photographs, tiled as `fastimg convert --tile auto` does."""
    folder = Path(tempfile.mkdtemp(prefix="fastimg-tiled-"))
    atexit.register(shutil.rmtree, folder)
    names = [work.data.sample_name(i) for i in range(len(work.data))]
    copies = {name: folder / f"{i}.jpg" for i, name in enumerate(dict.fromkeys(names))}
    for name, copy in copies.items():
        copy.write_bytes(tile(Path(name).read_bytes()).jpeg)
    return native(replace(work, data=FilesDataset(folder, [copies[name].name for name in names])))


class _PillowFiles(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """torchvision's ImageFolder as its users write it: Pillow, then v2 transforms on the image."""

    def __init__(self, paths: list[str], size: int) -> None:
        self.paths = paths
        self.transform = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(0.5)])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return v2.functional.pil_to_tensor(self.transform(image.convert("RGB"))), index


def torch_loader(work: Work) -> Epoch:
    """torch's DataLoader with Pillow and torchvision v2: processes that live for all epochs."""
    paths = [work.data.sample_name(i) for i in range(len(work.data))]
    loader = torch.utils.data.DataLoader(
        _PillowFiles(paths, work.size),
        batch_size=work.batch_size,
        shuffle=True,
        num_workers=work.workers,
        persistent_workers=True,
    )
    return lambda: sum(len(images) for images, _ in loader)


# A new peer is a function of Work that returns an Epoch, and a line here.
PEERS: dict[str, Callable[[Work], Epoch]] = {
    "fastimg": native,
    "fastimg, tiled": native_tiled,
    "torch": torch_loader,
}
BASE = "torch"  # ratios are to it


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--images", type=int, default=2000, help="images per epoch: the files over and over")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "loaders.jsonl")
    args = parser.parse_args()

    torch.set_num_threads(1)
    count = max(1, args.images // args.batch_size) * args.batch_size  # whole batches: no loader pads
    data = dataset(args.data, count)
    environment, rows = measure.environment(), []
    for workers in args.workers:
        work = Work(data=data, batch_size=args.batch_size, size=args.size, workers=workers)
        epochs = {name: open_peer(work) for name, open_peer in PEERS.items()}
        speeds = measure.interleaved({name: _speed(epoch, count) for name, epoch in epochs.items()}, args.repeats)
        base = speeds[BASE].median
        for name, speed in speeds.items():
            row: dict[str, Any] = {"loader": name, "workers": workers}
            rows.append({**row, **speed.columns("img/s"), "ratio": round(speed.median / base, 2)})
            measure.append(
                args.out,
                {
                    "benchmark": "loaders",
                    **row,
                    **speed.fields("images_per_second"),
                    "images": count,
                    "files": len({data.sample_name(i) for i in range(count)}),
                    "bytes_per_image": _mean_bytes(data),
                    "data": args.data.resolve().name,
                    "batch_size": args.batch_size,
                    "size": args.size,
                    "environment": environment,
                },
            )
    measure.show(Console(), f"{count} images of {args.data.resolve().name}, batches of {args.batch_size}", rows)


def _speed(epoch: Epoch, expected: int) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        count = epoch()
        seconds = time.perf_counter() - began
        if count != expected:
            raise RuntimeError(f"an epoch of {expected} images gave {count}")
        return count / seconds

    return run


def _mean_bytes(data: FilesDataset) -> int:
    sizes = {name: Path(name).stat().st_size for name in map(data.sample_name, range(len(data)))}
    return math.ceil(sum(sizes.values()) / len(sizes))


if __name__ == "__main__":
    main()
