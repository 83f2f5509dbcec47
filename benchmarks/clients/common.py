"""What the clients share: the command line, small models, and the record of what a run saw, as JSON.

A client is a short training script in the manner of one trainer, with two heads: `--loader torch` (or ffcv), and
`--loader fastimg`, which differs by at most three lines. Under torchrun it trains on ranks.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
from torch import nn
from torchvision.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PIXELS = 4  # in each direction: of an image's colour, which is the same everywhere in the images of tests


def arguments(
    description: str | None, loaders: tuple[str, str] = ("torch", "fastimg"), **defaults: str | int
) -> argparse.Namespace:
    """The command line, which all clients have; `defaults` are further ones. Seeds torch, and gives it one thread."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("data", type=Path, metavar="DATA", help="a folder with train and val")
    parser.add_argument("--loader", choices=loaders, default=loaders[-1])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--workers", type=int, default=2, help="processes of a DataLoader, threads of ours")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="linear", help="linear, or a name of timm's")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--out", type=Path, required=True, help="JSON; with ranks, FILE.0, FILE.1, ...")
    parser.add_argument("--stop-after", type=int, default=math.inf, metavar="STEPS", help="as if it had been stopped")
    parser.add_argument("--checkpoint", type=Path, help="where it is saved when training stops")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT")
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    return args


def ranks() -> tuple[int, int]:
    """(rank, world size): of torch.distributed, or as torchrun's environment says."""
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def transforms(size: int) -> tuple[Compose, Compose]:
    """torchvision's, for training and for validation."""
    last = [ToTensor(), Normalize(MEAN, STD)]
    return (
        Compose([RandomResizedCrop(size, (0.2, 1.0)), RandomHorizontalFlip(), *last]),
        Compose([Resize(size * 8 // 7), CenterCrop(size), *last]),
    )


def model(name: str, classes: int) -> nn.Module:
    """`linear`: of an image's mean colour, which costs nothing; otherwise one of timm's."""
    if name == "linear":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))
    import timm

    return timm.create_model(name, num_classes=classes)


class Record:
    """What a run saw. Made right before the loaders are, as `first_batch` counts from there.

    seen: of each epoch, each image's mean colour as [red, green, blue] from 0 to 255, before normalisation.
    losses: of each step. seconds: of each epoch, training only. evaluated: as seen, of the last evaluation.
    """

    def __init__(self, out: Path, stop_after: float = math.inf) -> None:
        self.out, self.stop_after = out, stop_after
        self.seen: list[list[list[int]]] = []
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.evaluated: list[list[int]] = []
        self.first_batch: float | None = None
        self.counted = self.correct = 0
        self.made = self.began = time.perf_counter()

    @property
    def steps(self) -> int:
        """The number of training steps so far."""
        return len(self.losses)

    @property
    def stopped(self) -> bool:
        """Whether `--stop-after` steps are done."""
        return self.steps >= self.stop_after

    def begin_epoch(self) -> None:
        """Before the loop over the training loader."""
        self.seen.append([])
        self.began = time.perf_counter()

    def batch(self, images: torch.Tensor) -> None:
        """A batch for training, normalised."""
        if not self.seen:  # continued within an epoch, which a trainer may not call a beginning
            self.begin_epoch()
        if self.first_batch is None:
            self.first_batch = time.perf_counter() - self.made
        self.seen[-1] += colours(images)

    def step(self, loss: float | torch.Tensor) -> None:
        """A training step is done."""
        self.losses.append(float(loss))

    def end_epoch(self) -> None:
        """After the loop over the training loader."""
        self.seconds.append(time.perf_counter() - self.began)

    def begin_evaluation(self) -> None:
        """Before an evaluation: the last one counts."""
        self.counted = self.correct = 0
        self.evaluated = []

    def evaluate(self, images: torch.Tensor, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """A batch of an evaluation, and the model's outputs."""
        self.evaluated += colours(images)
        self.counted += len(targets)
        self.correct += int((outputs.argmax(1) == targets).sum())

    def write(self) -> None:
        """Once, at the end of each rank's process."""
        rank, world_size = ranks()
        names = ("seen", "losses", "seconds", "first_batch", "steps", "evaluated", "counted", "correct")
        file = self.out if world_size == 1 else self.out.with_name(f"{self.out.name}.{rank}")
        file.write_text(json.dumps({name: getattr(self, name) for name in names}))


def thinned(images: torch.Tensor) -> torch.Tensor:
    """Some pixels of each image: enough for its colour, and few to gather."""
    every = max(1, images.shape[-1] // _PIXELS)
    return images[:, :, every // 2 :: every, every // 2 :: every]


def colours(images: torch.Tensor) -> list[list[int]]:
    """[B, 3, H, W], normalised by MEAN and STD -> each image's mean colour, from 0 to 255."""
    mean = thinned(images).float().mean((2, 3)).cpu()
    return ((mean * torch.tensor(STD) + torch.tensor(MEAN)) * 255).round().int().tolist()
