"""`--lr find` against reality: what is trained with the rate that it finds, with `auto`, and with rates around it.

    python benchmarks/lr_find.py --flowers SHARDS --weights mobilenetv2.safetensors [--only SETTING ...] [--seeds 3]

SHARDS have a train and a val split. The range test runs once for each seed. Its curve gives the rate at which the loss
is lowest, and the one at which it falls fastest (steepest), which is what `--lr find` takes. A row is one training: the
top-1 and the loss of its last validation, so that no rate gains by choosing among epochs.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import measure
from rich.console import Console

import fastimg
from fastimg.train.checkpoints import run_directory as rundir

ENCODER = {"arch": "mobilenetv2_100", "model_kwargs": ["pad_type=same"], "amp": False}
SMALL = {"arch": "test_resnet", "img_size": 16, "crop_pct": 1.0, "scale": (0.6, 1.0), "hflip": 0.0, "amp": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "flowers, frozen": {**ENCODER, "freeze": "backbone", "img_size": 160, "epochs": 5, "batch_size": 32},
    "digits, adamw": {**SMALL, "epochs": 3, "batch_size": 32},
    "digits, sgd": {**SMALL, "opt": "sgd", "epochs": 3, "batch_size": 32},
    "flowers, fine-tuned": {**ENCODER, "img_size": 96, "epochs": 2, "batch_size": 32},
}


def main() -> None:
    """Train, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flowers", type=Path, help="shards with a train and a val split")
    parser.add_argument("--weights", type=Path, help="weights of mobilenetv2_100 with pad_type=same")
    parser.add_argument("--only", nargs="+", choices=tuple(SETTINGS), default=tuple(SETTINGS), metavar="SETTING")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "lr_find.jsonl")
    args = parser.parse_args()
    for setting in args.only:
        settings = dict(SETTINGS[setting])
        if setting.startswith("flowers"):
            if args.flowers is None or args.weights is None:
                parser.error(f"{setting}: give --flowers and --weights")
            settings |= {"data": args.flowers, "weights": args.weights}
        rows = [row for seed in range(args.seeds) for row in compared(setting, {**settings, "seed": seed}, args.out)]
        table = []
        for rule in dict.fromkeys(row["rule"] for row in rows):
            own = [row for row in rows if row["rule"] == rule]
            rates = ", ".join(f"{row['lr']:.3g}" for row in own)
            top1 = statistics.mean(row["top1"] for row in own)
            table.append({"rule": rule, "rates": rates, "top1": f"{top1:.2%}", "n": len(own)})
        measure.show(Console(width=110), setting, table)


def compared(setting: str, settings: Mapping[str, Any], out: Path) -> list[dict[str, Any]]:
    """A row for each rate."""
    found, (test,) = trained(settings, "find")
    steepest, lowest = test["steepest"], test["lowest"]
    rates = {
        "auto": "auto",
        "steepest / 10": steepest / 10,
        "steepest / 3": steepest / 3,
        "steepest": steepest,
        "steepest x 3": steepest * 3,
        "steepest x 10": steepest * 10,
        "lowest / 100": lowest / 100,
        "lowest / 10": lowest / 10,
        "lowest": lowest,
    }
    told = {name: test[name] for name in ("lowest", "steepest", "seconds", "rates", "losses")}
    rows = []
    for rule, rate in rates.items():
        row = found if rule == "steepest" else trained(settings, three_digits(rate))[0]
        row = {"benchmark": "lr_find", "setting": setting, "seed": settings["seed"], "rule": rule, **row}
        rows.append(row)
        curve = {"range_test": told} if rule == "steepest" else {}
        measure.append(out, {**row, **curve, "environment": measure.environment()})
    return rows


def trained(settings: Mapping[str, Any], rate: float | str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rate that was used and the last validation, and the records of range tests."""
    with tempfile.TemporaryDirectory() as folder:
        run = fastimg.train(**settings, lr=rate, output=folder).run
        records = rundir.read_log(run)
        config = fastimg_config(run)
    last = [record for record in records if record["kind"] == "val"][-1]
    scores = {name: last[name] for name in ("top1", "loss")}
    return {"lr": config["lr"], **scores}, [record for record in records if record["kind"] == "lr_find"]


def three_digits(rate: float | str) -> float | str:
    """As `--lr find` rounds."""
    return rate if isinstance(rate, str) else float(f"{rate:.3g}")


def fastimg_config(run: Path) -> dict[str, Any]:
    """What the run was trained with."""
    import yaml

    settings: dict[str, Any] = yaml.safe_load((run / rundir.CONFIG).read_text(encoding="utf-8"))
    return settings


if __name__ == "__main__":
    main()
