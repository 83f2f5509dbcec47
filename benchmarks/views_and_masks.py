"""Two checkouts: several views, masks, and images that are kept on the device, of PNG, JPEG and stored pixels.

    python benchmarks/views_and_masks.py BEFORE AFTER --data FOLDER [--repeats 7]

BEFORE and AFTER are folders, each with an environment in .venv, and FOLDER has photographs. They are scaled to a longer
side of 256 pixels and stored as PNG with a PNG mask each, as JPEG, and 192 x 192 as pixels in a .beton; 5,000 images of
32 x 32 pixels are drawn. Each checkout reads all of it in its own process with two threads, from a warm page cache,
after a first epoch that compiles; the processes take turns. Processor time is that of a process; a digest tells whether
both give the same pixels.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from images import list_images
from PIL import Image
from rich.console import Console

from fastimg import convert
from fastimg.loaders import Loader, RandomCrop, View, open_dataset
from fastimg.loaders.backends.resident import ResidentImages
from fastimg.loaders.compiling_ahead import compile_for
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField

SIDE, TINY, COUNT = 192, 32, 5000
VIEWS = [View(crop=160, n=2, scale=(0.4, 1.0)), View(crop=96, n=4, scale=(0.05, 0.4))]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "PNG, one crop": ("png", {"crop": 160}),
    "PNG, with masks": ("png", {"crop": 160, "fields": ["mask"]}),
    "PNG, with numbers": ("png", {"crop": 160, "fields": []}),
    "PNG, six views": ("png", {"views": VIEWS}),
    "JPEG, with masks": ("jpeg", {"crop": 160, "fields": ["mask"]}),
    "JPEG, six views": ("jpeg", {"views": VIEWS}),
    "raw, one crop": ("raw", {"crop": 160}),
    "raw, six views": ("raw", {"views": VIEWS}),
    "raw, resident": ("raw", {"resident": True}),
    "raw 32, resident": ("tiny", {"resident": True}),
    "PNG, resident": ("png", {"resident": True}),
}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="*", metavar="CHECKOUT")
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--read", action="store_true", help=argparse.SUPPRESS)  # in a checkout's process
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "views_and_masks.jsonl")
    args = parser.parse_args()
    if args.read:
        print(json.dumps({name: one(args.data / kind, settings) for name, (kind, settings) in CASES.items()}))
        return
    before, after = args.checkouts
    runs: dict[Path, list[dict[str, Any]]] = {before: [], after: []}
    with tempfile.TemporaryDirectory(prefix="fastimg-views-and-masks-") as scratch:
        write(args.data, Path(scratch), args.images)
        for number in range(args.repeats + 1):
            for checkout, found in runs.items():
                python, script = checkout.resolve() / ".venv" / "bin" / "python", Path(__file__).resolve()
                command = [python, script, "--read", "--data", scratch]
                done = subprocess.run(command, capture_output=True, text=True, cwd=checkout)
                if done.returncode:
                    sys.exit(f"{checkout}: {done.stderr[-2000:]}")
                if number:  # the first one compiles
                    found.append(json.loads(done.stdout.splitlines()[-1]))
    shared = {"data": args.data.resolve().name, "images": args.images, "before": commit(before), "after": commit(after)}
    rows = []
    for name in CASES:
        spreads = {
            f"{when} {what}": measure.Spread.of([run[name][what] for run in runs[checkout]])
            for when, checkout in (("before", before), ("after", after))
            for what in ("cpu_us", "img_per_s")
        }
        same = len({run[name]["digest"] for found in runs.values() for run in found}) == 1
        ratio = spreads["after cpu_us"].median / spreads["before cpu_us"].median
        row = {"case": name, **spreads, "cpu ratio": f"{ratio:.2f}", "same pixels": same}
        record = {"benchmark": "views_and_masks", **shared, **row}
        measure.append(args.out, {**measure.flat(record), "environment": measure.environment()})
        rows.append({key: value.text() if isinstance(value, measure.Spread) else value for key, value in row.items()})
    measure.show(Console(width=160), f"two threads, {args.repeats} runs of each checkout in turn", rows)


def write(data: Path, folder: Path, count: int) -> None:
    """Convert the photographs to `png`, `jpeg` and `raw` in a folder, and draw `tiny`."""
    rows: dict[str, list[dict[str, str]]] = {"png": [], "jpeg": []}
    with BetonWriter(folder / "raw", {"image": BetonField("rgb"), "label": BetonField("int")}, count) as raw:
        for number, name in enumerate(list_images(data)[:count]):
            image = Image.open(data / name).convert("RGB")
            raw.add({"image": np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)), "label": number % 2})
            image.thumbnail((256, 256), Image.Resampling.LANCZOS)
            boxes = np.sort(np.random.default_rng(number).uniform(0, 1, (8, 2, 2)), axis=1) * image.size
            mask = np.zeros(image.size[::-1], np.uint8)
            for value, (left, top, right, bottom) in enumerate(boxes.reshape(8, 4).astype(int).tolist(), 1):
                mask[top:bottom, left:right] = value
            Image.fromarray(mask).save(folder / f"{number}.mask.png")
            for kind, found in rows.items():
                image.save(folder / f"{number}.{kind}", quality=90)
                found.append({"path": f"{number}.{kind}", "label": f"{number % 2}", "mask": f"{number}.mask.png"})
    rng = np.random.default_rng(0)
    with BetonWriter(folder / "tiny", {"image": BetonField("rgb"), "label": BetonField("int")}, COUNT) as tiny:
        for _ in range(COUNT):
            tiny.add({"image": rng.integers(0, 256, (TINY, TINY, 3), np.uint8), "label": 0})
    for kind, found in rows.items():
        (folder / f"{kind}.jsonl").write_text("\n".join(map(json.dumps, found)))
        convert(folder / f"{kind}.jsonl", folder / kind, field=("mask:mask",))
    for kind in ("raw", "tiny"):
        (folder / kind).rename(folder / f"{kind}.beton")


def one(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Processor time an image and images a second of a case, and a digest of its pixels."""
    torch.set_num_threads(1)
    path = path if path.exists() else path.with_suffix(".beton")
    if "resident" in settings:
        dataset = open_dataset(path)
        crop = RandomCrop(size=TINY, padding=4)

        def load() -> torch.Tensor:
            return ResidentImages(dataset, crop, workers=2).load()

        load()
        cpu, seconds = timed(load)
        return told(cpu, seconds, len(dataset), [load()])
    with Loader(path, batch_size=40, workers=2, seed=0, **settings) as loader:
        compile_for(loader._decoder, loader.dataset, None)
        first = [tensor.clone() for batch in loader for tensor in tensors(batch)]  # of epoch 0
        cpu, seconds = timed(lambda: [sum(batch.samples for batch in loader) for _ in range(3)])
        return told(cpu, seconds, 3 * len(loader.dataset), first)


def tensors(batch: Any) -> list[torch.Tensor]:
    """All that a batch has of its images."""
    return [*(batch.views or [batch.inputs]), *batch.fields.values()]


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds."""
    cpu, began = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - cpu, time.perf_counter() - began


def told(cpu: float, seconds: float, images: int, pixels: list[torch.Tensor]) -> dict[str, Any]:
    """What is recorded of a case."""
    digest = hashlib.sha256()
    for tensor in pixels:
        digest.update(tensor.contiguous().numpy().tobytes())
    return {"cpu_us": 1e6 * cpu / images, "img_per_s": images / seconds, "digest": digest.hexdigest()[:16]}


def commit(checkout: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
