"""Compare two checkouts of fastimg: the same commands on the same data, alternating.

    python benchmarks/checkouts.py BEFORE AFTER --images FOLDER [--more FOLDER] [--weights FILE] [--repeats 3]

BEFORE and AFTER are folders, each with an environment in .venv. Every command runs once to warm up before it is
measured. The results are wall time, CPU time (less affected by other work on the machine), and what the commands
report: validation accuracies, shard sizes, and whether the shards and the trained weights of both are identical.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import measure
from rich.console import Console

Found = dict[str, float | str]  # measurements and reported values of one command


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs=2, metavar="CHECKOUT")
    parser.add_argument("--images", type=Path, required=True, help="photographs by class")
    parser.add_argument("--more", type=Path, help="another dataset")
    parser.add_argument("--weights", type=Path, help="safetensors of mobilenetv2_100 for a frozen encoder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "checkouts.jsonl")
    args = parser.parse_args()
    runs: dict[tuple[str, str], list[Found]] = {}
    for number in range(args.repeats + 1):
        for checkout in args.checkouts:
            with tempfile.TemporaryDirectory() as folder:
                for name, found in once(checkout, Path(folder), args):
                    if number:
                        runs.setdefault((name, _commit(checkout)), []).append(found)
    rows = []
    environment = measure.environment()
    for (name, commit), all_found in runs.items():
        row = {"what": name, "commit": commit, **_summary(all_found)}
        flat = measure.flat({key: value for key, value in row.items() if value is not None})
        measure.append(args.out, {"benchmark": "checkouts", **flat, "environment": environment})
        rows.append({key: v.text() if isinstance(v, measure.Spread) else v for key, v in row.items()})
    measure.show(Console(width=140), "two checkouts", rows)


def once(checkout: Path, folder: Path, args: argparse.Namespace) -> list[tuple[str, Found]]:
    """Run every command of one checkout, and return the measurements."""
    found = [("demo", _timed(checkout, ["demo", "--output", f"{folder}/demo"], partial(_accuracy, folder / "demo")))]
    for images in filter(None, (args.images, args.more)):
        shards = folder / images.name
        convert = ["convert", str(images), str(shards), "--val-fraction", "0.2", "--overwrite"]
        found.append((f"convert {images.name}", _timed(checkout, convert, partial(_shards, shards))))
        found.append((f"verify {images.name}", _timed(checkout, ["verify", str(shards), "--deep"])))
        train = ["train", str(shards), "--arch", "resnet18", "--img-size", "96", "-b", "32", "--epochs", "2", "--aa"]
        train += ["trivial", "--output", f"{folder}/runs", "--name", "images"]
        result = _timed(checkout, train, partial(_trained, folder / "runs" / "images"))
        found.append((f"train resnet18, {images.name}", result))
        shutil.rmtree(folder / "runs")
        if args.weights is None:
            continue
        train = ["train", str(shards), "--arch", "mobilenetv2_100", "--model-kwargs", "pad_type=same"]
        train += [
            "--weights",
            str(args.weights),
            "--freeze",
            "backbone",
            "--epochs",
            "10",
            "--output",
            f"{folder}/runs",
        ]
        train += ["--cache-dir", f"{folder}/cache-{images.name}", "--name", images.name]
        result = _timed(checkout, train, partial(_accuracy, folder / "runs" / images.name))
        found.append((f"frozen encoder, {images.name}", result))
    return found


def _timed(checkout: Path, arguments: list[str], report: Callable[[], Found] = dict) -> Found:
    """Run `fastimg` of a checkout. Raises SystemExit with its last line of output if it fails."""
    program = [str(checkout / ".venv" / "bin" / "fastimg"), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(program, capture_output=True, text=True, env={**environment, "FASTIMG_PROFILE": "off"})
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{checkout}: {' '.join(arguments)}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu, **report()}


def _accuracy(folder: Path) -> Found:
    """The best validation accuracy in the newest metrics.jsonl below a folder."""
    logs = sorted(folder.rglob("metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    records = [json.loads(line) for line in logs[-1].read_text().splitlines()]
    return {"accuracy": max(record["top1"] for record in records if record["kind"] == "val")}


def _trained(folder: Path) -> Found:
    """The accuracy, and a digest of the best weights: of the tensors' bytes, not of the header of the file."""
    (weights,) = folder.glob("best/model.safetensors")
    content = weights.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    return _accuracy(folder) | {"sha256": hashlib.sha256(content[header:]).hexdigest()[:16]}


def _shards(folder: Path) -> Found:
    """The total size of the shards, and a digest of all their bytes."""
    files = sorted(folder.glob("*.tar"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return {"bytes": float(sum(file.stat().st_size for file in files)), "sha256": digest.hexdigest()[:16]}


def _summary(runs: list[Found]) -> dict[str, measure.Spread | str | float | None]:
    """The median of numbers; for words and constant values, the value itself."""
    row: dict[str, measure.Spread | str | float | None] = {}
    for key in ("seconds", "cpu_seconds", "accuracy", "bytes", "sha256"):
        values = [run[key] for run in runs if key in run]
        if not values:
            row[key] = None
        elif len(set(values)) == 1:
            row[key] = values[0]
        else:
            row[key] = measure.Spread.of([float(value) for value in values])
    return row


def _commit(checkout: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
