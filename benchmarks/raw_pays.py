"""What raw pixels cost and gain by the size of images: JPEG, flat and tiled, and PNG in tar shards, raw in a `.beton`.

    python -W ignore benchmarks/raw_pays.py --data FOLDER       # about 3 minutes

FOLDER has photographs, of which images are made whose longer side is one of --sides; of JPEGs the quality is 90.
`fastimg convert` stores them four times: `jpeg` (--tile off), `tiled`, `png` (rows in groups from 193 rows on), and
`raw` (--format beton --raw-fraction 1). The loader cuts a RandomResizedCrop to the side, of 224 at most, with two
threads, from a warm page cache. Epochs of the four take turns: images a second, the process's time on processors for an
image, and how many times as many images a second raw pixels give, the median over the rounds.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import torch
from formats import Task, write_images
from measure import Spread
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import Loader, RandomResizedCrop

IMAGES = {32: 8192, 64: 4096, 128: 2048, 192: 1024, 256: 1024, 500: 256}  # by their longer side
CROP = 224  # at most
FORMS: dict[str, tuple[str, dict[str, Any]]] = {  # the files, and how they are converted
    "jpeg": ("jpg", {"tile": "off"}),
    "tiled": ("jpg", {}),
    "png": ("png", {}),
    "raw": ("jpg", {"format": "beton", "raw_fraction": 1.0}),
}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--sides", type=int, nargs="+", default=list(IMAGES), choices=list(IMAGES), metavar="SIDE")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "raw_pays.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for side in args.sides:
        with tempfile.TemporaryDirectory(prefix="fastimg-raw-") as scratch:
            found = _measured(side, Path(scratch), args)
        for row in found:
            rows.append(row)
            about = {"benchmark": "raw_pays", "workers": args.workers, "images": IMAGES[side]}
            measure.append(args.out, {**about, **measure.flat(row), "environment": measure.environment()})
    shown = [{key: v.text() if isinstance(v, Spread) else v for key, v in row.items()} for row in rows]
    measure.show(Console(width=150), f"{args.workers} threads, n = {args.repeats}", shown)


def _measured(side: int, scratch: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each of FORMS."""
    loaders, nbytes, written = dict[str, Loader](), dict[str, int](), set[str]()
    for name, (extension, options) in FORMS.items():
        task = Task(extension, side, 0, IMAGES[side], options={"quality": 90} if extension == "jpg" else {})
        if extension not in written:
            write_images(scratch / "files" / extension, args.data, task)
            written.add(extension)
        made = scratch / name
        convert(Convert(src=scratch / "files" / extension, dst=made, **options), Console(quiet=True))
        files = [file for file in made.rglob("*") if file.suffix in (".tar", ".beton")]
        nbytes[name] = round(sum(file.stat().st_size for file in files) / IMAGES[side])
        crop = RandomResizedCrop(size=min(side, CROP))
        loaders[name] = Loader(made, batch_size=128, crop=crop, seed=1, workers=args.workers)
        loaders[name].compile()
    seconds = {name: list[float]() for name in FORMS}
    busy = {name: list[float]() for name in FORMS}
    for turn in range(2 + args.repeats):  # two that warm up
        for name, loader in loaders.items():
            began, before = time.perf_counter(), time.process_time()
            count = sum(batch.samples for batch in loader)
            elapsed, worked = time.perf_counter() - began, time.process_time() - before
            assert count == IMAGES[side]
            if turn >= 2:
                seconds[name].append(elapsed)
                busy[name].append(worked)
    for loader in loaders.values():
        loader.close()
    return [
        {
            "side": side,
            "form": name,
            "bytes_per_image": nbytes[name],
            "cpu_microseconds": Spread.of([1e6 * one / IMAGES[side] for one in busy[name]]),
            "images_per_second": Spread.of([IMAGES[side] / one for one in seconds[name]]),
            "raw_times": Spread.of([one / raw for one, raw in zip(seconds[name], seconds["raw"], strict=True)]),
        }
        for name in FORMS
    ]


if __name__ == "__main__":
    main()
