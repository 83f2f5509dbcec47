"""What helps where classes are rare: each way of docs/imbalance.md on data made 1:50, on a frozen encoder.

    python benchmarks/imbalance.py --weights mobilenetv2.safetensors --rare dogs dogs-vs-cats [--seeds 5] [--out FILE]

DATA is an image folder of class folders. A fifth of each class, the last files by name, is validated on; of the rest,
the classes that --rare names keep one image for fifty of the commonest, another choice for each seed, which is also
the seed of the training. Images are links. Embeddings are kept by content, so the encoder runs once for all runs. The
balanced accuracy is that of the last epoch, so that no way gains by choosing among epochs.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np
from rich.console import Console

import fastimg
from fastimg.train.checkpoints import run_directory as rundir

RATIO = 50
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "--class-weights balanced": {"class_weights": "balanced"},
    "--class-weights effective": {"class_weights": "effective"},
    "--sampler balanced": {"sampler": "balanced"},
    "--sampler sqrt": {"sampler": "sqrt"},
    "--loss focal": {"loss": "focal"},
    "--loss asymmetric": {"loss": "asymmetric"},
    "--logit-adjust 1": {"logit_adjust": 1.0},
}


def main() -> None:
    """Train, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rare", nargs="+", required=True, help="names of the classes that become rare")
    parser.add_argument("--weights", type=Path, required=True, help="weights of mobilenetv2_100 with pad_type=same")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), metavar="WAY")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "imbalance.jsonl")
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in args.only}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            data = Path(folder) / f"data{seed}"
            counts = unbalanced(args.data, data, args.rare, seed)
            for name, settings in ((name, WAYS[name]) for name in args.only):
                began = time.perf_counter()
                score = trained(data, Path(folder), seed, settings, args)
                found[name].append(score["balanced_accuracy"])
                record = {
                    "benchmark": "imbalance",
                    "data": args.data.name,
                    "rare": args.rare,
                    "seed": seed,
                    "way": name,
                }
                record |= {"train": counts, "epochs": args.epochs, "batch": args.batch_size, **score}
                record |= {"seconds": round(time.perf_counter() - began, 1), "environment": measure.environment()}
                measure.append(args.out, record)
    table = [
        {"way": name, "mean": f"{np.mean(values):.2%}", "deviation": f"{np.std(values, ddof=1):.2%}", "n": len(values)}
        for name, values in found.items()
    ]
    measure.show(Console(width=140), f"balanced accuracy, {args.data.name}", table)


def unbalanced(source: Path, target: Path, rare: list[str], seed: int) -> dict[str, int]:
    """Make the folders train and val of links in `target`. Returns the training images of each class."""
    files = {folder.name: sorted(folder.iterdir()) for folder in sorted(source.iterdir()) if folder.is_dir()}
    kept = {name: paths[: -(len(paths) // 5)] for name, paths in files.items()}
    most = max(map(len, kept.values()))
    for name in rare:
        kept[name] = random.Random(seed).sample(kept[name], max(1, round(most / RATIO)))
    held_out = {name: paths[-(len(paths) // 5) :] for name, paths in files.items()}
    for split, chosen in (("train", kept), ("val", held_out)):
        for name, paths in chosen.items():
            (target / split / name).mkdir(parents=True)
            for path in paths:
                (target / split / name / path.name).symlink_to(path.resolve())
    return {name: len(paths) for name, paths in kept.items()}


def trained(
    data: Path, folder: Path, seed: int, settings: dict[str, Any], args: argparse.Namespace
) -> dict[str, float]:
    """The last validation of one run."""
    result = fastimg.train(
        data,
        arch="mobilenetv2_100",
        model_kwargs=["pad_type=same"],
        weights=args.weights,
        freeze="backbone",
        img_size=160,
        epochs=args.epochs,
        batch_size=args.batch_size,
        seed=seed,
        cache_dir=folder / "cache",
        output=folder / "runs",
        **settings,
    )
    last = [record for record in rundir.read_log(result.run) if record["kind"] == "val"][-1]
    names = ("balanced_accuracy", "top1", "loss", "samples")
    return {name: round(last[name], 4) for name in names}


if __name__ == "__main__":
    main()
