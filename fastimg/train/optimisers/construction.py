"""Optimisers from their names and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fastimg.config.intent import SCHEDULE_FREE
from fastimg.errors import UsageError, reason_of
from fastimg.models.blocks import blocks

from . import catalogue
from .groups import parameter_groups
from .schedule_free import ScheduleFree

Implementation = Literal["auto", "fused", "foreach"]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What is asked of an optimiser beside its name. `more` is handed to its class."""

    lr: float
    momentum: float | None
    impl: Implementation
    sharded: bool
    more: dict[str, Any]


def build_optimizer(
    model: nn.Module,
    opt: str,
    lr: float,
    weight_decay: float,
    momentum: float | None,
    *,
    impl: Implementation = "auto",
    norm_weight_decay: float = 0.0,
    layer_decay: float | None = None,
    frozen_too: bool = False,
    norm_lr_scale: float = 1.0,
    eps: float | None = None,
    betas: Sequence[float] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> torch.optim.Optimizer:
    """The optimiser `opt` over `parameter_groups`: a name of `catalogue`. `auto` is fused if torch has that.

    Fused is the fastest on CPUs too: ResNet-50's step took 41 ms of processor time with AdamW and 30 with SGD, foreach
    144 and 103, a loop 149 and 110. Raises UsageError if there is no such kernel, and for values that the optimiser
    refuses.
    """
    muon = opt not in ("adamw", "sgd") and catalogue.optimizer_class(opt).__name__ == "Muon"
    groups = parameter_groups(
        model,
        weight_decay,
        norm_weight_decay,
        layer_decay,
        frozen_too=frozen_too,
        norm_lr_scale=norm_lr_scale,
        outer=_outer(model) if muon else None,
    )
    sharded = any(isinstance(p, DTensor) for p in model.parameters())
    more = dict(kwargs or {})
    more |= {} if eps is None else {"eps": eps}
    more |= {} if betas is None else {"betas": tuple(betas)}
    asked = _Asked(lr=lr, momentum=momentum, impl=impl, sharded=sharded, more=more)
    try:
        if opt in ("adamw", "sgd"):
            return _tuned(opt, groups, asked)
        if opt in SCHEDULE_FREE:
            return _schedule_free(opt, groups, asked)
        built = _of_timm(opt, groups, asked)
    except (ValueError, TypeError, AssertionError) as error:
        raise UsageError(f"--opt {opt}: {reason_of(error)}; see its arguments in timm's or torch's pages") from error
    if muon and not any(not group["use_fallback"] for group in groups):
        raise UsageError(f"--opt {opt} has no effect: no hidden matrix of the model trains; use --opt adamw")
    return built


def has_fused(opt: str) -> bool:
    """Whether an optimiser's step can be fused kernels, in which a gradient scaler needs nothing from the host."""
    if opt in ("adamw", "sgd"):
        return True
    return opt not in (*SCHEDULE_FREE, "adagrad") and "fused" in catalogue.arguments(opt)


def _tuned(opt: str, groups: list[dict[str, Any]], asked: _Asked) -> torch.optim.Optimizer:
    """AdamW, or SGD with Nesterov's momentum."""
    shards = opt == "sgd" and asked.sharded  # which torch's fused SGD does not take
    if shards and asked.impl == "fused":
        raise UsageError("--opt-impl fused: torch has no fused SGD for sharded weights; use foreach, or --opt adamw")
    fused = asked.impl != "foreach" and not shards
    how: dict[str, Any] = {"fused": fused, "foreach": not fused, **asked.more}
    if opt == "sgd":
        momentum = asked.momentum or 0.0
        sgd = torch.optim.SGD(groups, lr=asked.lr, momentum=momentum, **{"nesterov": momentum > 0, **how})
        return _with_momentum(sgd) if fused else sgd
    return torch.optim.AdamW(groups, lr=asked.lr, **how)


def _with_momentum(sgd: torch.optim.SGD) -> torch.optim.SGD:
    """Fused SGD with zeros as momentum, from which its first step is the same, bit for bit.

    torch 2.11 to 2.15 allocate momentum in the first step without filling it, which the kernel leaves to chance where
    fp16's gradients overflow in that step; and refuse a step in which only some parameters of a group have momentum, as
    after --freeze. With dampening, which the first step leaves out, it stays torch's.
    """
    for group in sgd.param_groups:
        if group["momentum"] and not group["dampening"]:
            for p in group["params"]:
                sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return sgd


def _of_timm(opt: str, groups: list[dict[str, Any]], asked: _Asked) -> torch.optim.Optimizer:
    """One of timm's, with the arguments that its name stands for."""
    taken = catalogue.arguments(opt)
    impl = asked.impl
    fused = has_fused(opt) and not (asked.sharded and "momentum" in taken)
    if impl != "auto" and not (fused if impl == "fused" else "foreach" in taken):
        raise UsageError(f"--opt-impl {impl}: {opt} has no such implementation; leave it out")
    how: dict[str, Any] = {**catalogue.implied(opt), **asked.more}
    if catalogue.takes_momentum(opt):
        how["momentum"] = 0.9 if asked.momentum is None else asked.momentum
        if how["momentum"] == 0 and "nesterov" not in asked.more:
            how.pop("nesterov", None)
    if fused and impl != "foreach":
        how["fused"] = True
    elif "foreach" in taken:
        how["foreach"] = True
    if "deterministic" in taken:  # its random numbers are then the same on all ranks
        how.setdefault("deterministic", True)
    for group in groups:  # some remember the highest rate of each group from here
        group["lr"] = asked.lr * group["lr_scale"]
    return catalogue.optimizer_class(opt)(groups, lr=asked.lr, **how)  # type: ignore[no-any-return]


def _schedule_free(opt: str, groups: list[dict[str, Any]], asked: _Asked) -> torch.optim.Optimizer:
    if asked.impl == "fused":
        raise UsageError(f"--opt-impl fused: {opt} has no such implementation; leave it out")
    if opt == "schedule_free_sgd":
        return ScheduleFree(groups, lr=asked.lr, beta=0.9 if asked.momentum is None else asked.momentum, **asked.more)
    beta, beta2 = asked.more.pop("betas", (0.9, 0.999))
    return ScheduleFree(groups, lr=asked.lr, beta=beta, beta2=beta2, **asked.more)


def _outer(model: nn.Module) -> frozenset[str]:
    """The parameters of the stem and of the head: what Muon leaves to AdamW (Jordan et al., 2024)."""
    parts = blocks(model)
    return frozenset((*parts[0].parameters, *parts[-1].parameters))


def implementation(optimizer: torch.optim.Optimizer) -> Literal["fused", "foreach", "for-loop"]:
    """The implementation that the optimiser uses."""
    group = optimizer.param_groups[0]
    return "fused" if group.get("fused") else "foreach" if group.get("foreach") else "for-loop"
