"""Seconds per epoch of a model on a dataset: fully trained, with a frozen encoder, and with cached embeddings.

    python benchmarks/embed.py --images FOLDER --weights mobilenetv2.safetensors --texts FOLDER --encoder hf:FOLDER

Each variant is `fastimg train` in its own process with its own cache; variants are interleaved. An epoch includes
training, validation and saving, as recorded in metrics.jsonl; the value is the median over the run's epochs. `command`
is the wall time of the whole command; with cached embeddings it includes the single pass that computes them, which
`once` gives separately. A bar chart of the medians is written next to the results.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import measure
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from fastimg.train.checkpoints import run_directory as rundir

VARIANTS: dict[str, tuple[str, ...]] = {
    "trained": (),
    "frozen": ("--freeze", "backbone", "--cache-embeddings", "off"),
    "frozen, kept": ("--freeze", "backbone"),
}


def main() -> int:
    """Measure, print, and append the results. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a converted dataset, or a folder of images by class")
    parser.add_argument("--arch", default="mobilenetv2_100")
    parser.add_argument("--model-kwargs", nargs="*", default=["pad_type=same"])
    parser.add_argument("--weights", type=Path, help="weights of --arch; default: random weights")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--texts", type=Path, help="a converted dataset of texts")
    parser.add_argument("--encoder", help="hf:FOLDER or hf:NAME")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of the head on cached embeddings")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--trained-repeats", type=int, default=1, help="epochs of the variant that trains all parameters"
    )
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "embed.jsonl")
    parser.add_argument("--plot", type=Path, default=measure.RESULTS / "embed.png")
    args = parser.parse_args()
    if (args.texts is None) != (args.encoder is None):
        parser.error("--texts and --encoder go together")
    tasks: dict[str, list[str]] = {}
    if args.images is not None:
        weights = [] if args.weights is None else ["--weights", str(args.weights)]
        kwargs = ["--model-kwargs", *args.model_kwargs] if args.model_kwargs else []
        tasks["images"] = [str(args.images), "--arch", args.arch, *weights, *kwargs, "--img-size", str(args.size)]
    if args.texts is not None:
        tasks["texts"] = [str(args.texts), "--arch", args.encoder]
    if not tasks:
        parser.error("give --images, or --texts and --encoder, or both")

    console = Console(width=None if sys.stdout.isatty() else 120)
    environment = measure.environment()
    found = {task: _measure(flags, args) for task, flags in tasks.items()}
    for task, variants in found.items():
        frozen = variants["frozen"]["epoch"].median
        rows = []
        for name, spreads in variants.items():
            times = round(frozen / spreads["epoch"].median, 2)
            rows.append({"variant": name, **{key: spread.text() for key, spread in spreads.items()}, "times": times})
            record: dict[str, Any] = {"benchmark": "embed", "task": task, "variant": name, "epochs": args.epochs}
            for key, spread in spreads.items():
                record |= spread.fields(f"{key}_seconds")
            described = {"flags": [Path(flag).name if "/" in flag else flag for flag in tasks[task]]}
            measure.append(args.out, {**record, **described, "frozen_over_this": times, "environment": environment})
        measure.show(console, f"{task}: seconds (range, n); times: frozen epoch / this epoch", rows)
    _plot(found, args.plot)
    return 0


def _measure(flags: list[str], args: argparse.Namespace) -> dict[str, dict[str, measure.Spread]]:
    """By variant: seconds per epoch, of the whole command, and of the single pass that computes embeddings."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for repeat in range(max(args.repeats, args.trained_repeats)):
        for name, more in VARIANTS.items():
            if repeat >= (args.trained_repeats if name == "trained" else args.repeats):
                continue
            epochs = args.epochs if name == "frozen, kept" else 1
            for key, value in _run([*flags, *more, "--epochs", str(epochs)]).items():
                values[name][key].append(value)
    return {
        name: {key: measure.Spread.of(numbers) for key, numbers in by_key.items()} for name, by_key in values.items()
    }


def _run(flags: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="fastimg-embed-") as folder:
        # Texts store their tokens in the cache too, so every variant has its own cache.
        own = ["--cache-dir", f"{folder}/cache"] if "--freeze" in flags or "hf:" in " ".join(flags) else []
        command = [sys.executable, "-m", "fastimg", "train", *flags, *own, "-o", f"{folder}/runs", "--name", "run"]
        began = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"}
        )
        whole = time.perf_counter() - began
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {(done.stderr.strip().splitlines() or ['no error message'])[-1]}")
        records = rundir.read_log(Path(folder) / "runs" / "run")
    epochs = [r["train_seconds"] + r["val_seconds"] + r["save_seconds"] for r in records if r["kind"] == "epoch"]
    once = [r["seconds"] for r in records if r["kind"] == "cache"]
    return {"epoch": statistics.median(epochs), "command": whole} | ({"once": once[0]} if once else {})


def _plot(found: dict[str, dict[str, dict[str, measure.Spread]]], file: Path) -> None:
    """A bar chart of seconds per epoch, on a logarithmic axis, with the range over the repeats."""
    figure = Figure(figsize=(4.5 * len(found), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (task, variants) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        spreads = [spreads["epoch"] for spreads in variants.values()]
        heights = [spread.median for spread in spreads]
        low = [spread.median - spread.low for spread in spreads]
        high = [spread.high - spread.median for spread in spreads]
        bars = axis.bar(list(variants), heights, yerr=[low, high], capsize=4)
        axis.bar_label(bars, [f"{height:.3g} s" for height in heights], padding=3)
        axis.set(title=task, ylabel="seconds per epoch", yscale="log")
        axis.set_ylim(top=max(heights) * 4)
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
