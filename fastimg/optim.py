"""Optimisers and schedules: what is updated, by how much, at which step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices and filters decay; norms, biases and other vectors do not."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    named = getattr(model, "no_weight_decay", None)  # timm: position embeddings, class tokens
    exempt: set[str] = set(named()) if callable(named) else set()
    decayed = [p for name, p in trainable if p.ndim > 1 and name not in exempt]
    others = [p for name, p in trainable if p.ndim <= 1 or name in exempt]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(
    model: nn.Module, opt: Literal["adamw", "sgd"], lr: float, weight_decay: float, momentum: float | None
) -> torch.optim.Optimizer:
    """AdamW or Nesterov SGD, fused where the device has a fused kernel (CUDA), else foreach."""
    groups = parameter_groups(model, weight_decay)
    fused = next(model.parameters()).is_cuda
    if opt == "sgd":
        nesterov = momentum is not None and momentum > 0
        sharded = any(isinstance(p, DTensor) for p in model.parameters())  # torch has no fused SGD for those
        return torch.optim.SGD(groups, lr=lr, momentum=momentum or 0.0, nesterov=nesterov, fused=fused and not sharded)
    return torch.optim.AdamW(groups, lr=lr, fused=fused)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate as a pure function of the step: linear warmup, then a fall over the steps that are left."""

    kind: Literal["cosine", "linear", "step", "constant"]
    lr: float  # at the end of warmup
    steps: int  # of the whole run
    warmup_steps: int
    min_lr: float = 0.0
    decay_steps: float = math.inf  # step schedule: between drops, counted from the start
    decay_rate: float = 0.1

    def __call__(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        falls: dict[str, Callable[[], float]] = {
            "cosine": lambda: self.min_lr + (self.lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * share)),
            "linear": lambda: self.lr + (self.min_lr - self.lr) * share,
            "step": lambda: self.lr * self.decay_rate ** math.floor(step / self.decay_steps),
            "constant": lambda: self.lr,
        }
        return falls[self.kind]()


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
