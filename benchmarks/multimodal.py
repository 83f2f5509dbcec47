"""Images and texts together, on real ones, where neither tells anything alone.

    python benchmarks/multimodal.py --dogs-vs-cats FOLDER --sst2 train.tsv --weights mobilenetv2.safetensors \\
        --encoder hf:FOLDER [--seeds 5]

Each photograph of a cat or a dog gets a sentence of a film review. The label is `same` if a dog comes with praise, or a
cat with blame, and `other` else: of each animal, and of each opinion, half the samples are `same`. A fifth of the pairs
are held out. Encoders are frozen, their embeddings are kept, and a row is one head on them: its last validation's
top-1 over the seeds of the head and the order. `parts` are the same images and sentences with their own labels, which
says how well each input can be read at all.
"""

import argparse
import contextlib
import csv
import io
import os
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import measure
from rich.console import Console

from fastimg.cli import run
from fastimg.train.checkpoints import run_directory as rundir

_MLP = ("--head", "mlp")


@dataclass(frozen=True)
class Head:
    """A row: what is read, and the flags of the head."""

    name: str
    data: str  # pairs, or parts with other labels
    inputs: tuple[str, ...]  # image, text
    flags: tuple[str, ...] = ()


HEADS = (
    Head("image alone: cat or dog", "animals", ("image",), _MLP),
    Head("text alone: praise or blame", "opinions", ("text",), _MLP),
    Head("image alone", "pairs", ("image",), _MLP),
    Head("text alone", "pairs", ("text",), _MLP),
    Head("both, concat, linear", "pairs", ("image", "text"), ("--combiner", "concat")),
    Head("both, concat, mlp", "pairs", ("image", "text"), ("--combiner", "concat", *_MLP)),
    Head("both, gated, linear", "pairs", ("image", "text"), ("--combiner", "gated")),
    Head("both, gated, mlp", "pairs", ("image", "text"), ("--combiner", "gated", *_MLP)),
)


def main() -> None:
    """Train, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dogs-vs-cats", type=Path, required=True, help="a folder with cats/ and dogs/")
    parser.add_argument("--sst2", type=Path, required=True, help="a tsv of sentences and their labels, 0 or 1")
    parser.add_argument("--weights", type=Path, required=True, help="of timm's mobilenetv2_100 with pad_type=same")
    parser.add_argument("--encoder", required=True, help="text encoder: hf:FOLDER or hf:NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--img-size", type=int, default=160)
    parser.add_argument("--cache", type=Path, help="keep embeddings here; default: in a temporary folder")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "multimodal.jsonl")
    args = parser.parse_args()
    environment = measure.environment()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for name, column in (("pairs", "label"), ("animals", "animal"), ("opinions", "opinion")):
            source = manifest(Path(folder) / f"{name}.csv", column, args)
            fastimg("convert", source, f"{folder}/{name}", "--path-column", "image", "--text-column", "sentence")
        for number, head in enumerate(HEADS):
            found = [trained(head, Path(folder), f"{number}-{seed}", seed, args) for seed in range(args.seeds)]
            spread = measure.Spread.of(found)
            row = {"head": head.name, "data": head.data, "flags": " ".join(head.flags), "top1": spread}
            setting = {"epochs": args.epochs, "img_size": args.img_size, "seeds": args.seeds, "each": found}
            measure.append(
                args.out, {"benchmark": "multimodal", **measure.flat(row), **setting, "environment": environment}
            )
            table.append({**row, "top1": spread.text()})
            measure.show(Console(width=120), "top-1 of the last validation", table[-1:])
    measure.show(Console(width=120), "top-1 of the last validation", table)


def manifest(path: Path, column: str, args: argparse.Namespace) -> Path:
    """A csv of pairs whose labels are those of `column`; the same pairs for every column."""
    drawn = random.Random(0)
    with args.sst2.open(encoding="utf-8", newline="") as file:
        said = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if len(row) == 2]
    opinions = {label: drawn.sample([text for text, own in said if own == label], 1000) for label in ("0", "1")}
    rows = []
    for animal in ("cat", "dog"):
        files = sorted((args.dogs_vs_cats / f"{animal}s").iterdir())[:1000]
        drawn.shuffle(files)
        for number, image in enumerate(files):
            opinion = str(number % 2)
            fields = {"animal": animal, "opinion": "praise" if opinion == "1" else "blame"}
            fields["label"] = "same" if (animal == "dog") == (opinion == "1") else "other"
            split = "val" if number % 10 < 2 else "train"
            rows.append((os.path.abspath(image), opinions[opinion].pop(), fields[column], split))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "sentence", "label", "split"), *rows])
    return path


def trained(head: Head, folder: Path, name: str, seed: int, args: argparse.Namespace) -> float:
    """The last validation's top-1 of one run."""
    image = ("--arch", "mobilenetv2_100", "--model-kwargs", "pad_type=same", "--weights", args.weights)
    image += ("--img-size", args.img_size)
    model = image if "image" in head.inputs else ("--arch", args.encoder)
    if len(head.inputs) == 2:
        model += ("--text-arch", args.encoder)
    places = ("--output", folder / "runs", "--name", name, "--cache-dir", args.cache or folder / "cache")
    flags = ("--freeze", "backbone", "--epochs", args.epochs, "--seed", seed, "--val-interval", args.epochs)
    fastimg("train", folder / head.data, *model, *head.flags, *flags, *places)
    (score,) = (record["top1"] for record in rundir.read_log(folder / "runs" / name) if record["kind"] == "val")
    shutil.rmtree(folder / "runs" / name)  # a checkpoint holds both encoders
    return round(score, 4)


def fastimg(*arguments: object) -> None:
    """Run a command in this process. Raises SystemExit with what it said if it fails."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run([str(argument) for argument in arguments])
    if code:
        sys.exit(f"fastimg {' '.join(map(str, arguments))}: {said.getvalue()[-2000:]}")


if __name__ == "__main__":
    main()
