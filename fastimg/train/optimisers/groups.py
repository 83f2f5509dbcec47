"""Parameter groups: which parameters decay, how fast each learns, and the rate that a step sets."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fastimg.models.blocks import blocks


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    norm_weight_decay: float = 0.0,
    layer_decay: float | None = None,
    *,
    frozen_too: bool = False,
    norm_lr_scale: float = 1.0,
    outer: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Trainable parameters (`frozen_too`: all) in groups with a `weight_decay` and an `lr_scale`.

    Matrices and filters decay by `weight_decay`; norms, biases and other vectors by `norm_weight_decay`; parameters
    that a timm model exempts, such as position embeddings and tokens, never decay. Norms learn `norm_lr_scale` times as
    fast, but do not decay faster: their decay is divided by it, as optimisers multiply it by the learning rate. With
    `layer_decay`, each block has that share of the learning rate of the block above it, and the head the full rate
    (Howard and Ruder, 2018; Bao et al., 2021).

    With `outer`, names of parameters, groups have `use_fallback`, as timm's Muon reads it: false for what decays and is
    not among them.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad or frozen_too}
    exempts = getattr(model, "no_weight_decay", None)
    exempt: set[str] = set(exempts()) if callable(exempts) else set()
    never = exempt if norm_weight_decay else set()  # else they are vectors like others
    norms = _norm_parameters(model) if norm_lr_scale != 1.0 else set()
    parts: list[tuple[float, Iterable[str]]] = [(1.0, parameters)]
    if layer_decay is not None:
        cut = blocks(model)
        parts = [(layer_decay ** (len(cut) - 1 - place), block.parameters) for place, block in enumerate(cut)]
    groups: list[dict[str, Any]] = []
    for scale, names in parts:
        own = [(name, parameters[name]) for name in names if name in parameters]
        faster = [p for name, p in own if name in norms]
        own = [(name, p) for name, p in own if name not in norms]
        decayed = [p for name, p in own if p.ndim > 1 and name not in exempt]
        vectors = [p for name, p in own if (p.ndim <= 1 or name in exempt) and name not in never]
        others = [p for name, p in own if name in never]
        kinds = [(decayed, weight_decay), (vectors, norm_weight_decay), (others, 0.0)]
        if outer is not None:
            outside = [p for name, p in own if p.ndim > 1 and name not in exempt and name in outer]
            decayed = [p for name, p in own if p.ndim > 1 and name not in exempt and name not in outer]
            kinds = [(decayed, weight_decay), (outside, weight_decay), *kinds[1:]]
        new = [{"params": params, "weight_decay": decay, "lr_scale": scale} for params, decay in kinds if params]
        if faster:
            decay = norm_weight_decay / norm_lr_scale
            new.append({"params": faster, "weight_decay": decay, "lr_scale": scale * norm_lr_scale})
        if outer is not None:
            for group in new:
                group["use_fallback"] = group["params"] is not decayed
        groups += new
    return groups


def _norm_parameters(model: nn.Module) -> set[str]:
    """The names of the parameters of norms."""
    kinds = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    norms = ((prefix, module) for prefix, module in model.named_modules() if isinstance(module, kinds))
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in norms
        for name, _ in module.named_parameters(recurse=False)
    }


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group to its share of `lr`, for fused steps on a GPU rounded to float32.

    CUDA graphs read it from a tensor, which fused kernels take as float32 only: rounded, it is the same without graphs.
    """
    for group in optimizer.param_groups:
        rate = lr * group.get("lr_scale", 1.0)
        group["lr"] = float(np.float32(rate)) if takes_float32(group) else rate


def takes_float32(group: Mapping[str, Any]) -> bool:
    """Whether a step of these parameters is fused and runs on a GPU."""
    return bool(group.get("fused")) and group["params"][0].is_cuda
