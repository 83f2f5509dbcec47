"""Start-up of commands: wall time, peak memory, and number of imported modules.

    python benchmarks/startup.py [--repeats 7] [--only convert,verify]

Each command runs in its own process. Commands alternate, after one warm-up round, so that bytecode and numba's compiled
code are on disk; `first use` measures a conversion without compiled code. `seconds` is from the start of the process to
its end. For `train` it is to the first line and to the end of the first step; for the baseline (import torch and timm,
build the model), to the line that reports it. `cpu` is CPU time, which other programs affect less. `peak` is VmHWM.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import measure
import numpy as np
from PIL import Image
from rich.console import Console

_ARCH, _SIZE = "resnet18", "64"
# Runs before a command, and writes down its measurements at exit.
_WATCHED = """
import atexit, json, os, re, sys
note_file = sys.argv[1]
def note():
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
    with open(note_file, "w") as file:
        json.dump({"peak": peak, "modules": len(sys.modules), "cpu": sum(os.times()[:2])}, file)
atexit.register(note)
"""
_FASTIMG = "sys.argv[0:2] = ['fastimg']\nfrom fastimg.__main__ import main\nmain()\n"
_MODEL = f"import torch, timm\ntimm.create_model({_ARCH!r}, num_classes=2)\nprint('built', flush=True)\n"


@dataclass(frozen=True)
class Command:
    """A program to start. `lines`: the time is measured up to the first line of output that matches."""

    code: str
    arguments: tuple[str, ...] = ()
    line: str | None = None
    exit_code: int = 0
    compiles: bool = False  # without numba's compiled code on disk


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", help="names of commands, separated by commas; default: all")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "startup.jsonl")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder) / "images")
        chosen = {name: c for name, c in commands(folder).items() if args.only is None or name in args.only.split(",")}
        runs = measured(chosen, Path(folder), args.repeats)
    rows = [{"what": name, **summary(found)} for name, found in runs.items()]
    environment = measure.environment()
    for row in rows:
        measure.append(args.out, {"benchmark": "startup", **measure.flat(row), "environment": environment})
    cells = [{key: v.text() if isinstance(v, measure.Spread) else v for key, v in row.items()} for row in rows]
    measure.show(Console(), "start of commands", cells)


def commands(folder: str) -> dict[str, Command]:
    """The programs to measure, by name; `convert` comes before the commands that read its output."""
    images, shards, run = f"{folder}/images", f"{folder}/shards", f"{folder}/run"
    training = (
        *("train", shards, "--arch", _ARCH, "--img-size", _SIZE, "--batch-size", "4", "--epochs", "1", "--no-amp"),
        *("--val-fraction", "0", "--log-interval", "1", "--output", run),
    )
    return {
        "python": Command("pass"),
        "numpy + numba + pyarrow": Command("import numpy, numba, pyarrow"),
        "help": Command(_FASTIMG, ("--help",)),
        "refusal of train": Command(_FASTIMG, ("train", shards, "--epochs", "0"), exit_code=2),
        "convert": Command(_FASTIMG, ("convert", images, shards, "--overwrite")),
        "convert: first use": Command(_FASTIMG, ("convert", images, f"{folder}/first", "--overwrite"), compiles=True),
        "verify": Command(_FASTIMG, ("verify", shards)),
        "inspect: facts": Command(_FASTIMG, ("inspect", shards, "--no-pictures")),
        "inspect: pictures": Command(_FASTIMG, ("inspect", shards, "--output", f"{folder}/pictures")),
        "doctor": Command(_FASTIMG, ("doctor", folder)),
        "torch + timm + model": Command(_MODEL, line="built"),
        "train: first line": Command(_FASTIMG, training, line=""),
        "train: first step": Command(_FASTIMG, training, line=r"step 1/"),
    }


def write_images(folder: Path) -> None:
    """Ten JPEGs of 500 x 375 pixels in two classes."""
    drawn = np.random.default_rng(0)
    for number in range(10):
        file = folder / "ab"[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        rough = Image.fromarray(drawn.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        rough.resize((500, 375), Image.Resampling.BICUBIC).save(file, quality=90)


def measured(commands: Mapping[str, Command], folder: Path, repeats: int) -> dict[str, list[dict[str, float]]]:
    """The measurements of each run, alternating, after one warm-up round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for number in range(repeats + 1):
        for name, command in commands.items():
            run = started(command, folder)
            if number:
                found[name].append(run)
    return found


def started(command: Command, folder: Path) -> dict[str, float]:
    """Run a command once. Raises RuntimeError if it fails."""
    note, compiled = folder / "note.json", folder / "compiled"
    note.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONUNBUFFERED": "1", "FASTIMG_PROFILE": "off"}
    if command.compiles:
        shutil.rmtree(compiled, ignore_errors=True)
        environment["NUMBA_CACHE_DIR"] = str(compiled)
    program = [sys.executable, "-c", _WATCHED + command.code, str(note), *command.arguments]
    began, seconds = time.perf_counter(), 0.0
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if command.line is not None and not seconds and re.search(command.line, line):
                seconds = time.perf_counter() - began
    seconds = seconds if command.line is not None else time.perf_counter() - began
    if process.returncode != command.exit_code or not seconds:
        raise RuntimeError("".join([" ".join(command.arguments), "\n", *said[-20:]]))
    return {"seconds": seconds, **json.loads(note.read_text())}


def summary(runs: list[dict[str, float]]) -> dict[str, measure.Spread | int]:
    """Medians over several runs."""
    spreads = {key: measure.Spread.of([run[key] for run in runs]) for key in ("seconds", "cpu", "peak")}
    return {**spreads, "modules": int(runs[-1]["modules"])}


if __name__ == "__main__":
    main()
