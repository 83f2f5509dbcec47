"""`benchmarks/loaders.py --clients`: other projects' trainers with their own loader and with ours, in turn.

Each run is a process of its own that trains a linear model for three epochs (`benchmarks/clients/`). A cold run finds
neither the images in the page cache nor compiled code; the warm run after it finds what it has left, which is little of
ours: so short runs compile nothing. A third run finds what a longer one compiles in the background. Measured are the
first epoch, from the first request until its last step, and the later ones.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import comparisons
import measure
from rich.console import Console

CLIENTS = ("imagenet", "timm_train", "ffcv_train", "lightning_fit", "accelerate_fit", "transformers_fit")
_HERE = Path(__file__).resolve().parent / "clients"
_EPOCHS = 3
_KEPT = "kept"
_HELD_OUT = 0.1  # of the images, in val


def run(args: argparse.Namespace, files: Sequence[Path], shared: Mapping[str, Any], console: Console) -> None:
    """Measure, print, and append the results."""
    rows = []
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="fastimg-clients-") as scratch:
        data = folder_of(files[: args.images], Path(scratch) / "data")
        write_betons(data)
        compile_for(data, Path(scratch))
        for name in args.clients or CLIENTS:
            for row in measured(name, data, args, Path(scratch)):
                rows.append(row)
                measure.append(args.out, {**shared, "workers": args.workers[0], **measure.flat(row)})
    title = f"{args.images} images of {shared['data']}, {args.size} px, batches of {args.batch_size}"
    measure.show(console, title, [cells(row) for row in rows])


def folder_of(files: Sequence[Path], folder: Path) -> Path:
    """Links to the files in train/ and val/, each with the classes a and b."""
    held = int(len(files) * _HELD_OUT)
    for number, file in enumerate(files):
        link = folder / ("val" if number < held else "train") / "ab"[number % 2] / f"{number:06d}{file.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.hardlink_to(file)
        except OSError:  # on another file system
            shutil.copyfile(file, link)
    return folder


def write_betons(data: Path) -> None:
    """train.beton and val.beton beside the folders, of the same JPEGs."""
    for split in ("train", "val"):
        made = data / f"{split}-beton"
        settings = ["--format", "beton", "--tile", "off"]  # FFCV reads tiled JPEGs more slowly
        command = [sys.executable, "-m", "fastimg", "convert", str(data / split), str(made), *settings]
        subprocess.run(command, check=True, capture_output=True)
        (made / "train.beton").rename(data / f"{split}.beton")  # a folder without splits is all training
        shutil.rmtree(made)


def measured(name: str, data: Path, args: argparse.Namespace, scratch: Path) -> Iterator[dict[str, Any]]:
    """A row for each kind of epoch: seconds with the client's loader and with ours, and their ratio of each round."""
    heads = ("ffcv" if name == "ffcv_train" else "torch", "fastimg")
    kinds = ("first, cold", "first, warm", "later", "first, compiled", "later, compiled")
    seconds: dict[tuple[str, str], list[float]] = {(kind, head): [] for kind in kinds for head in heads}
    for _ in range(args.repeats):
        for head in heads:
            shutil.rmtree(scratch / "compiled", ignore_errors=True)
            measure.drop_pages(data)
            cold = trained(name, head, data, args, scratch)
            warm = trained(name, head, data, args, scratch)
            ready = trained(name, head, data, args, scratch, _KEPT)
            seconds["first, cold", head].append(cold[0])
            seconds["first, warm", head].append(warm[0])
            seconds["later", head].append(sum(warm[1:]) / len(warm[1:]))
            seconds["first, compiled", head].append(ready[0])
            seconds["later, compiled", head].append(sum(ready[1:]) / len(ready[1:]))
    theirs, ours = heads
    for kind in kinds:
        ratios = [a / b for a, b in zip(seconds[kind, theirs], seconds[kind, ours], strict=True)]
        yield {
            "client": name,
            "epoch": kind,
            "other": theirs,
            "other_seconds": measure.Spread.of(seconds[kind, theirs]),
            "seconds": measure.Spread.of(seconds[kind, ours]),
            "times_as_fast": measure.Spread.of(ratios),
        }


def compile_for(data: Path, scratch: Path) -> None:
    """Compile what our loader reads the data with, as it does in the background of a longer run."""
    script = (
        "import sys; from fastimg.loaders import Loader\n"
        "for data in sys.argv[1:]: Loader(data, batch_size=32, crop=64).compile()"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(scratch / _KEPT)}
    command = [sys.executable, "-c", script, str(data / "train"), str(data / "train.beton")]
    subprocess.run(command, env=environment, check=True, capture_output=True)


def trained(
    name: str, head: str, data: Path, args: argparse.Namespace, scratch: Path, compiled: str = "compiled"
) -> list[float]:
    """The seconds of each epoch of one run. Raises RuntimeError if it fails."""
    out = scratch / "seconds.json"
    out.unlink(missing_ok=True)
    environment = {each: value for each, value in os.environ.items() if each != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"NUMBA_CACHE_DIR": str(scratch / compiled), "PYTHONWARNINGS": "ignore"}
    options = {
        "loader": head,
        "epochs": _EPOCHS,
        "batch-size": args.batch_size,
        "workers": args.workers[0],
        "size": args.size,
        "seed": 0,
        "model": "linear",
        "out": out,
    }
    given = [text for option, value in options.items() for text in (f"--{option}", str(value))]
    command = [sys.executable, str(_HERE / f"{name}.py"), str(data), *given]
    done = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} --loader {head}: {done.stderr[-2000:]}")
    found = [float(each) for each in json.loads(out.read_text())["seconds"]]
    if len(found) != _EPOCHS:
        raise RuntimeError(f"{name} --loader {head}: seconds of {len(found)} epochs, not of {_EPOCHS}")
    return found


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    return {
        "client": row["client"],
        "epoch": row["epoch"],
        "with": row["other"],
        "seconds, theirs": f"{row['other_seconds'].median:.3g}",
        "seconds, ours": f"{row['seconds'].median:.3g}",
        "times as fast": row["times_as_fast"].text(),
    }


def shared_fields(args: argparse.Namespace, files: Sequence[Path]) -> dict[str, Any]:
    """The fields of a record that all clients of a run share."""
    return comparisons.setting("clients", args, files) | {"size": args.size, "images": args.images, "epochs": _EPOCHS}
