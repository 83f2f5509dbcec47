"""Images with boxes and masks: our loader against torch's DataLoader with torchvision's v2 transforms, on a CPU.

    python benchmarks/fields.py --data FOLDER [--repeats 5]

Each image of FOLDER gets eight random boxes with labels, and a PNG mask in which they are filled; ours are converted,
torch reads the files. Both draw RandomResizedCrop to 224 pixels and a flip, and give a uint8 batch, boxes in pixels of
the crop without those that left it, their labels, and masks. Ours flips in the consumer, torch in its workers, which
decode with torchvision's `decode_image`. Epochs of all variants take turns; a first one is not counted.
Processor time is measured, too.
"""

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from images import list_images
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.io import decode_image
from torchvision.transforms import v2

from fastimg import convert
from fastimg.augment import Policy, apply, apply_boxes, apply_masks, draw
from fastimg.loaders import Batch, Loader
from fastimg.loaders.decode import read_header

BOXES, SIZE = 8, 224
VARIANTS = {"images": (), "boxes": ("boxes", "names"), "boxes and masks": ("boxes", "names", "mask")}
POLICY = Policy(hflip=0.5)


def main() -> None:
    """Make the data, measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images")
    parser.add_argument("--images", type=int, default=600, help="images per epoch; files are repeated as needed")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "fields.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        samples = write_manifest(args.data, folder, args.images)
        fields = ("boxes:box", "names:labels@boxes", "mask:mask")
        convert(folder / "all.jsonl", folder / "D", field=fields)
        epochs: dict[str, Callable[[], float]] = {}
        spent: dict[str, list[float]] = {}  # processor time
        for variant, asked in VARIANTS.items():
            loader = Loader(
                folder / "D", crop=SIZE, batch_size=args.batch_size, fields=asked or None, workers=args.workers
            )
            stack.enter_context(loader)
            epochs[f"fastimg, {variant}"] = functools.partial(
                rate, loader, augmented, spent.setdefault(f"fastimg, {variant}", [])
            )
            peer = DataLoader(
                Annotated(folder, samples, asked),
                args.batch_size,
                shuffle=True,
                num_workers=args.workers,
                collate_fn=stacked,
                persistent_workers=True,
            )
            epochs[f"torch, {variant}"] = functools.partial(
                rate, peer, lambda batch: len(batch[0]), spent.setdefault(f"torch, {variant}", [])
            )
        rates = measure.interleaved(epochs, args.repeats)
    processor = {variant: measure.Spread.of(found[1:]) for variant, found in spent.items()}  # the first is not counted
    rows = [
        {"variant": variant, **spread.columns("img/s"), "processor us an image": processor[variant].text()}
        for variant, spread in rates.items()
    ]
    measure.show(Console(width=120), f"{args.workers} threads or processes, {len(samples)} images", rows)
    shared = {"images": len(samples), "batch_size": args.batch_size, "size": SIZE, "workers": args.workers}
    for variant, spread in rates.items():
        settings = {"data": args.data.resolve().name, **shared, "variant": variant}
        settings |= measure.flat({"cpu_us": processor[variant]}) | measure.flat({"img_per_s": spread})
        measure.append(
            args.out, {"benchmark": "fields", **measure.flat(settings), "environment": measure.environment()}
        )


def write_manifest(data: Path, folder: Path, count: int) -> list[dict[str, Any]]:
    """Boxes and masks for `count` images, and the table of them that is converted."""
    paths = [data / name for name in list_images(data)]
    sizes = {path: read_header(path.read_bytes()).size for path in paths}
    samples = []
    for number in range(count):
        path = paths[number % len(paths)]
        width, height = sizes[path]
        ends = np.sort(np.random.default_rng(number).uniform(0, 1, (BOXES, 2, 2)), axis=1) * (width - 1, height - 1)
        boxes = np.concatenate([ends[:, 0].astype(int), ends[:, 1].astype(int) + 1], axis=1)
        mask = np.zeros((height, width), np.uint8)
        for value, (left, top, right, bottom) in enumerate(boxes.tolist(), 1):
            mask[top:bottom, left:right] = value
        Image.fromarray(mask).save(folder / f"{number}.png")
        names = [f"class {value}" for value in range(BOXES)]
        # Files that are repeated get names of their own, which no reader of the table takes for one file.
        (folder / f"{number}{path.suffix}").symlink_to(path.resolve())
        row = {"path": f"{number}{path.suffix}", "label": f"label {number % 2}", "mask": f"{number}.png"}
        samples.append({**row, "boxes": boxes.tolist(), "names": names})
    (folder / "all.jsonl").write_text("\n".join(map(json.dumps, samples)))
    return samples


def rate(batches: Iterable[Any], use: Callable[[Any], int], spent: list[float]) -> float:
    """Images per second of one epoch; `use` gives the number in a batch. Processor time goes to `spent`."""
    began, before = time.perf_counter(), processor_seconds()
    images = sum(use(batch) for batch in batches)
    seconds = time.perf_counter() - began
    spent.append(1e6 * (processor_seconds() - before) / images)
    return images / seconds


def processor_seconds() -> float:
    """Of this process and its workers, which is the same on a busy machine."""
    ticks = 0
    for worker in multiprocessing.active_children():
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def augmented(batch: Batch) -> int:
    """Flip half of the images, and what belongs to them."""
    plan = draw(POLICY, batch.ids, seed=0, epoch=0)
    apply(plan, batch.inputs, dtype=torch.uint8)
    if "boxes" in batch.fields:
        moved = apply_boxes(plan, batch.fields["boxes"], batch.counts["boxes"], SIZE)
        moved.along(batch.fields["names"])
    if "mask" in batch.fields:
        apply_masks(plan, batch.fields["mask"])
    return batch.samples


class Annotated(Dataset[tuple[Any, ...]]):
    """The files, decoded and augmented as v2's users write it."""

    def __init__(self, folder: Path, samples: list[dict[str, Any]], asked: tuple[str, ...]) -> None:
        self._folder, self._samples, self._asked = folder, samples, asked
        steps: list[torch.nn.Module] = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
        self._transform = v2.Compose([*steps, v2.SanitizeBoundingBoxes()] if "boxes" in asked else steps)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        sample = self._samples[index]
        image = tv_tensors.Image(decode_image(str(self._folder / sample["path"]), "RGB", apply_exif_orientation=True))
        target: dict[str, Any] = {}
        if "boxes" in self._asked:
            size = (image.shape[1], image.shape[2])
            target["boxes"] = tv_tensors.BoundingBoxes(sample["boxes"], format="XYXY", canvas_size=size)
            target["labels"] = torch.arange(BOXES)
        if "mask" in self._asked:
            target["mask"] = tv_tensors.Mask(decode_image(str(self._folder / sample["mask"]), mode="UNCHANGED")[0])
        image, target = self._transform(image, target)
        return image, *target.values()


def stacked(samples: list[tuple[Any, ...]]) -> list[Any]:
    """A batch: tensors of one shape are stacked, boxes and labels stay lists."""
    return [
        torch.stack(values) if values[0].dim() > 2 or len({value.shape for value in values}) == 1 else values
        for values in map(list, zip(*samples, strict=True))
    ]


if __name__ == "__main__":
    main()
