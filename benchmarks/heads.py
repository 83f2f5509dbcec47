"""The best initialisation and learning rate for a new classifier on a frozen trunk; features are computed once.

    python benchmarks/heads.py --weights FILE --data SHARDS [SHARDS ...]

The head trains as in `fastimg train --freeze backbone`: AdamW, label smoothing 0.1, warm-up over a fifth of the steps,
then linear decay to 0. A row is the mean over seeds of the last validation's top-1.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import measure
import torch
import torch.nn.functional as F
from rich.console import Console

from fastimg.augment import Policy, apply
from fastimg.loaders import CenterCrop, Loader
from fastimg.models.heads import HeadInit, init_head
from fastimg.models.registry import build
from fastimg.train.optimisers.construction import build_optimizer
from fastimg.train.optimisers.groups import set_lr
from fastimg.train.optimisers.schedules import Schedule

INITS: tuple[HeadInit, ...] = ("zeros", "xavier", "he")
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="shards with a train and a val split")
    parser.add_argument(
        "--weights", type=Path, required=True, help="weights of timm's mobilenetv2_100 with pad_type=same"
    )
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "heads.jsonl")
    args = parser.parse_args()
    environment = measure.environment()
    console = Console(width=100)
    for data in args.data:
        train, val = (_features(data, split, args) for split in ("train", "val"))
        rows = []
        for init in INITS:
            for rate in RATES:
                found = [_accuracy(train, val, init, rate, seed, args) for seed in range(args.seeds)]
                row = {"data": data.name, "init": init, "lr": rate, "top1": measure.Spread.of(found)}
                mean = round(statistics.mean(found), 4)
                rows.append({**row, "top1": row["top1"].text(), "mean": mean})
                setting = {"batch_size": args.batch_size, "steps": args.steps, "size": args.size}
                record = {"benchmark": "heads", **measure.flat(row), "mean": mean, **setting}
                measure.append(args.out, {**record, "environment": environment})
        measure.show(console, f"{data.name}, {args.steps} steps of {args.batch_size}", rows)


def _features(data: Path, split: str, args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """The classifier's input [N, 1280], and the classes [N]."""
    model = build("mobilenetv2_100", 2, weights=args.weights, kwargs={"pad_type": "same"}, img_size=args.size)
    p = model.preprocessing
    net: Any = model.module.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    crop = CenterCrop(size=args.size, resize=round(args.size / 0.875), interpolation=p.interpolation)
    policy = Policy(mean=p.mean, std=p.std)
    features = []
    targets = []
    with torch.inference_mode(), Loader(data, batch_size=64, split=split, order="sequential", crop=crop) as loader:
        for batch in loader:
            kept = batch.weight > 0
            seen = net.forward_head(net.forward_features(apply(None, batch.inputs, policy)), pre_logits=True)
            features.append(seen[kept].clone())
            targets.append(batch.targets[kept].clone())
    return torch.cat(features).clone(), torch.cat(targets)


def _accuracy(
    train: tuple[torch.Tensor, torch.Tensor],
    val: tuple[torch.Tensor, torch.Tensor],
    init: HeadInit,
    rate: float,
    seed: int,
    args: argparse.Namespace,
) -> float:
    (features, targets) = train
    torch_seed = torch.manual_seed(seed)
    head = torch.nn.Sequential(torch.nn.Linear(features.shape[1], int(targets.max()) + 1))
    init_head(head, "0", init)
    optimizer = build_optimizer(head, "adamw", rate, 0.05, None)
    schedule = Schedule(kind="linear", lr=rate, steps=args.steps, warmup_steps=round(0.2 * args.steps))
    order = torch.randperm(len(targets), generator=torch_seed)
    for step in range(args.steps):
        at = step * args.batch_size % len(targets)
        if at + args.batch_size > len(targets):
            order = torch.randperm(len(targets), generator=torch_seed)
        rows = order[at : at + args.batch_size]
        set_lr(optimizer, schedule(step))
        F.cross_entropy(head(features[rows]), targets[rows], label_smoothing=0.1).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.inference_mode():
        return float((head(val[0]).argmax(dim=1) == val[1]).float().mean())


if __name__ == "__main__":
    main()
