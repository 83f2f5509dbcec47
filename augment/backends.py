"""Carry out a plan on a batch, on the device that the batch is on."""

import functools
import importlib
from collections.abc import Callable
from typing import Literal, get_args

import torch

from . import reference
from .plan import Plan
from .policy import Policy

Backend = Literal["reference", "cpu", "fused"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)

_Fused = Callable[[Plan | None, torch.Tensor, torch.Tensor, torch.dtype, torch.Tensor | None], torch.Tensor]


def apply(
    plan: Plan | None,
    images: torch.Tensor,
    policy: Policy | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    backend: Backend | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """uint8 images [B, 3, H, W] of any strides, or [B, H, W, 3] -> the model's input [B, 3, H, W], channels-last.

    In `dtype`: float32, bfloat16 and float16 are normalised; uint8 is not. `policy` is the plan's own where none is
    given. `plan` None is evaluation: normalisation alone, by `policy`. Every backend gives the same bits; `backend_of`
    tells which is taken where none is named. `out` takes the result where given: it saves the memory's first touch.

    Raises ValueError for a plan with mixup or cutmix, which change the targets too: `mix` carries out all of it. Raises
    ValueError for images (none, too), a plan, a type, a backend or an `out` that do not fit.
    """
    if plan is not None and plan.mixing is not None:
        raise ValueError(
            "the plan mixes images (mixup or cutmix), which changes the targets too: call "
            "`images, targets = mix(plan, images, targets, num_classes)` instead of apply"
        )
    if images.dim() == 4 and images.shape[1] != 3 and images.shape[3] == 3:
        images = images.permute(0, 3, 1, 2)
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise ValueError(
            "images must be uint8 [B, 3, H, W] or [B, H, W, 3], with one image and one pixel at least; "
            f"they are {images.dtype} {list(images.shape)}"
        )
    policy = policy or (None if plan is None else plan.policy)
    if policy is None:
        raise ValueError("without a plan there is no policy to normalise by: give one")
    if dtype not in DTYPES:
        raise ValueError(f"images become {', '.join(map(str, DTYPES))}; {dtype} was asked for")
    if plan is not None and len(plan) != len(images):
        raise ValueError(f"the plan and the images differ in number: {len(plan)} and {len(images)}")
    if out is not None:
        _check_out(out, images, dtype)
    table = _table(policy, dtype, images.device)
    match backend or backend_of(images.device):
        case "cpu" if images.device.type == "cpu":
            from . import cpu  # numba takes its time to import, for nothing where there is a GPU

            return cpu.augment(plan, images, table, out)
        case "fused" if (fused := _fused()) is not None:
            return fused(plan, images, table, dtype, out)
        case "reference":
            result = reference.augment(plan, images, table)
            return result if out is None else out.copy_(result)
        case name:
            raise ValueError(_no_backend(name, images.device))


def backend_of(device: torch.device) -> Backend:
    """What `apply` takes for images on a device: compiled code on the CPU, Triton on a GPU where it is installed."""
    if device.type == "cpu":
        return "cpu"
    return "fused" if device.type == "cuda" and _fused() is not None else "reference"


@functools.cache
def _fused() -> _Fused | None:
    try:
        fused: _Fused = importlib.import_module(f"{__package__}.fused").fused
    except ImportError:  # Triton has no wheel for this system
        return None
    return fused


def _no_backend(name: str, device: torch.device) -> str:
    if name not in get_args(Backend):
        return f"backend is one of {', '.join(get_args(Backend))}; it was {name!r}"
    if name == "fused":
        return "the fused backend needs Triton, which is not installed: pip install triton, or leave backend out"
    return f"the cpu backend takes images on the CPU; they are on {device}: leave backend out"


def _check_out(out: torch.Tensor, images: torch.Tensor, dtype: torch.dtype) -> None:
    if out.shape != images.shape or out.dtype != dtype or out.device != images.device:
        raise ValueError(
            f"out must be {dtype} {list(images.shape)} on {images.device}; "
            f"it is {out.dtype} {list(out.shape)} on {out.device}"
        )
    if not out.is_contiguous(memory_format=torch.channels_last):
        raise ValueError("out must be channels-last: make it with memory_format=torch.channels_last")


@functools.lru_cache(maxsize=16)
def _table(policy: Policy, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return reference.normalisation_table(policy, dtype).to(device)
