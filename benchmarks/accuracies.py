"""The accuracies stated in docs/train.md and docs/embeddings-and-text.md: each of their commands once, on real data.

    python benchmarks/accuracies.py --dogs-vs-cats FOLDER --flowers FOLDER --weights mobilenetv2.safetensors \\
        --imdb FOLDER --sst2 train.tsv --ag-news train.csv --encoder hf:FOLDER [--only imdb,flowers]

Datasets that are not given are skipped. Each dataset is converted with the validation share that its row states, and
each row is one `fastimg train` with its own cache. On a CPU a command always gives the same accuracy, so each runs
once.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import measure
from rich.console import Console

from fastimg.train.checkpoints import run_directory as rundir

_FROZEN = ("--freeze", "backbone")
_MLP = ("--head", "mlp")


@dataclass(frozen=True)
class Row:
    """A command on a dataset: its flags in addition to those of the model."""

    data: str  # the name of a command-line option
    flags: tuple[str, ...]
    without_weights: bool = False


ROWS = (
    Row("imdb", _FROZEN),
    *(Row("sst2", flags) for flags in (_FROZEN, (*_FROZEN, *_MLP), ("--epochs", "1"))),
    *(Row("ag_news", flags) for flags in (_FROZEN, (*_FROZEN, *_MLP))),
    Row("dogs_vs_cats", (*_FROZEN, *_MLP, "--epochs", "20")),
    Row("dogs_vs_cats", (*_FROZEN, "--img-size", "160", "--epochs", "3")),
    Row("dogs_vs_cats", ("--img-size", "160", "--epochs", "3")),
    Row("dogs_vs_cats", ("--img-size", "160", "--epochs", "3"), without_weights=True),
    Row("flowers", (*_FROZEN, "--img-size", "160", "-b", "16")),
    Row("flowers", (*_FROZEN, *_MLP, "--img-size", "160", "-b", "16")),
    Row("flowers", ("--img-size", "160", "-b", "16", "--epochs", "10")),
)
CONVERT = {  # how each dataset is converted
    "imdb": ("--val-fraction", "0.2"),
    "sst2": ("--val-fraction", "0.1", "--no-header"),
    "ag_news": ("--val-fraction", "0.1", "--no-header"),
    "dogs_vs_cats": ("--val-fraction", "0.2"),
    "flowers": ("--val-fraction", "0.2"),
}
_TEXTS = {  # columns of tables without a header row
    "sst2": ("--text-column", "1", "--label-column", "2"),
    "ag_news": ("--text-column", "2", "--label-column", "1"),
}


def main() -> None:
    """Train, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in CONVERT:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path)
    parser.add_argument("--weights", type=Path, help="weights of mobilenetv2_100 with pad_type=same")
    parser.add_argument("--encoder", help="text encoder: hf:FOLDER or hf:NAME")
    parser.add_argument("--only", help="names of datasets, separated by commas")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "accuracies.jsonl")
    args = parser.parse_args()
    chosen = [name for name in CONVERT if getattr(args, name) and (not args.only or name in args.only.split(","))]
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            fastimg("convert", getattr(args, name), f"{folder}/{name}", *CONVERT[name], *_TEXTS.get(name, ()))
        for number, row in enumerate(row for row in ROWS if row.data in chosen):
            found = trained(row, Path(folder), number, args)
            record = {"benchmark": "accuracies", "data": row.data, "flags": " ".join(row.flags), **found}
            measure.append(args.out, {**record, "environment": measure.environment()})
            table.append({key: value for key, value in record.items() if key != "benchmark"})
    measure.show(Console(width=140), "best validation", table)


def trained(row: Row, folder: Path, number: int, args: argparse.Namespace) -> dict[str, float | int | bool]:
    """One row: the best validation accuracy, the number of validation samples, and the command's wall time."""
    model = ["--arch", args.encoder]
    if row.data in ("dogs_vs_cats", "flowers"):
        model = ["--arch", "mobilenetv2_100", "--model-kwargs", "pad_type=same"]
        model += [] if row.without_weights else ["--weights", str(args.weights)]
    places = ["--output", f"{folder}/runs", "--name", str(number)]
    if row.flags[:2] == _FROZEN:
        places += ["--cache-dir", f"{folder}/cache{number}"]
    began = time.perf_counter()
    fastimg("train", folder / row.data, *model, *row.flags, *places)
    seconds = round(time.perf_counter() - began, 1)
    validated = [record for record in rundir.read_log(folder / "runs" / str(number)) if record["kind"] == "val"]
    best = max(validated, key=lambda record: record["top1"])
    return {
        "top1": round(best["top1"], 4),
        "samples": best["samples"],
        "epoch": best["epoch"],
        "from_weights": not row.without_weights,
        "seconds": seconds,
    }


def fastimg(*arguments: object) -> None:
    """Run a command. Raises SystemExit with its last line of output if it fails."""
    command = [sys.executable, "-m", "fastimg", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[2:])}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


if __name__ == "__main__":
    main()
