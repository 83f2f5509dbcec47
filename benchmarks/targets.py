"""One model with three targets against three models with one: accuracy, wall time, processor time and peak memory.

    python benchmarks/targets.py --data FOLDER --weights mobilenetv2.safetensors [--repeats 3]

FOLDER has a folder of images for each class. A table is made of it with three columns: the class, the longer side of
the original picture in pixels (a number), and the colours that cover at least a tenth of it (several labels). It is
converted once; every fifth picture is for validation. Each variant is `fastimg train` in its own process, and the
variants take turns. All models start from the same weights and are trained whole.
"""

import argparse
import colorsys
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np
from accuracies import fastimg
from PIL import Image
from rich.console import Console

from fastimg.train.checkpoints import run_directory as rundir

_HUES = ((20, "red"), (45, "orange"), (70, "yellow"), (165, "green"), (260, "blue"), (330, "purple"), (361, "red"))
_SHARE = 0.1  # of the pixels that a colour must cover
VARIANTS = {"one": ("class", "side", "colours"), "class": ("class",), "side": ("side",), "colours": ("colours",)}
SCORES = ("class.top1", "side.mae", "side.r2", "colours.map", "colours.f1")


def main() -> None:
    """Make the table, train, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder of images for each class")
    parser.add_argument("--weights", type=Path, required=True, help="weights of mobilenetv2_100 with pad_type=same")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--img-size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "targets.jsonl")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = write_table(args.data, folder / "table.csv")
        declared = ("--target", "class", "--target", "side:number", "--target", "colours:multilabel")
        fastimg("convert", folder / "table.csv", folder / "D", *declared)
        for repeat in range(args.repeats):
            for variant, targets in VARIANTS.items():
                runs[variant].append(trained(folder, f"{variant}{repeat}", targets, repeat, args))
    settings = {"samples": samples, "epochs": args.epochs, "img_size": args.img_size, "n": args.repeats}
    rows = [{"variant": variant, **medians(found)} for variant, found in runs.items()]
    alone = [row for row in rows if row["variant"] != "one"]
    three: dict[str, Any] = {"variant": "three models", "peak_mb": max(row["peak_mb"] for row in alone)}
    three |= {key: round(sum(row[key] for row in alone), 1) for key in ("seconds", "cpu_seconds")}
    three |= {score: row[score] for row in alone for score in SCORES if score in row}
    for row in [*rows, three]:
        record = {"benchmark": "targets", "data": args.data.name, **settings, **row}
        measure.append(args.out, {**record, "environment": measure.environment()})
    measure.show(Console(width=160), "one model with three targets, and three models", [*rows, three])


def write_table(data: Path, table: Path) -> int:
    """A row for each image below `data`: path, split, class, longer side and colours. Returns the number of rows."""
    files = sorted(path for path in data.resolve().rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "split", "class", "side", "colours"))
        for number, path in enumerate(files):
            with Image.open(path) as image:
                side, small = max(image.size), image.convert("RGB").resize((32, 32))
            split = "train" if number % 5 else "val"
            writer.writerow(
                (os.path.relpath(path, table.parent), split, path.parent.name, side, "|".join(colours(small)))
            )
    return len(files)


def colours(image: Image.Image) -> list[str]:
    """The names of the colours that cover at least `_SHARE` of an image, sorted; a neutral one if there is no other."""
    counts: dict[str, int] = {}
    pixels = np.asarray(image, np.float64).reshape(-1, 3) / 255.0
    for red, green, blue in pixels.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        if value < 0.2:
            name = "black"
        elif saturation < 0.2:
            name = "white" if value > 0.8 else "grey"
        else:
            name = next(name for most, name in _HUES if hue * 360.0 < most)
        counts[name] = counts.get(name, 0) + 1
    return sorted(name for name, count in counts.items() if count >= _SHARE * len(pixels))


def trained(folder: Path, name: str, targets: Sequence[str], seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Train on some of the targets: the best validation's scores, and what the process used."""
    command = [sys.executable, "-m", "fastimg", "train", str(folder / "D"), "--targets", ",".join(targets)]
    command += ["--arch", "mobilenetv2_100", "--model-kwargs", "pad_type=same", "--weights", str(args.weights)]
    command += ["--img-size", str(args.img_size), "--epochs", str(args.epochs), "-b", str(args.batch_size)]
    command += ["--seed", str(seed), "--output", str(folder / "runs"), "--name", name]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command[2:])}: {(said.strip().splitlines() or ['no message'])[-1]}")
    validated = [record for record in rundir.read_log(folder / "runs" / name) if record["kind"] == "val"]
    best = min(validated, key=lambda record: record["loss"])
    if len(targets) == 1:  # a class alone is logged without the target's name
        best = {f"{targets[0]}.{key}": value for key, value in best.items()} | best
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(usage.ru_maxrss / 1024),
        **{score: best[score] for score in SCORES if score in best},
    }


def medians(found: list[dict[str, float]]) -> dict[str, Any]:
    """The median of each number over the repeats, and the range of the scores."""
    row: dict[str, Any] = {key: round(statistics.median(run[key] for run in found), 4) for key in found[0]}
    row["ranges"] = json.dumps(
        {key: [min(v), max(v)] for key in SCORES if (v := [run[key] for run in found if key in run])}
    )
    return row


if __name__ == "__main__":
    main()
