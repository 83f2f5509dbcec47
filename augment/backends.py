"""Apply a plan to a batch, on the batch's own device."""

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Literal, get_args

import torch

from . import lines, reference
from .deep import augment_deep, takes
from .plan import Plan
from .policy import Policy

Backend = Literal["reference", "cpu", "fused"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)

_compiles_nothing: ContextVar[bool] = ContextVar("compiles_nothing", default=False)

_LINES = {"fused": lines.line_of, "cpu": lines.double_line_of}

_PLAIN = {3: Policy(), 1: Policy(mean=(0.0,), std=(1.0,))}  # by channels: between stages, levels are not normalised


def apply(
    plan: Plan | None,
    images: torch.Tensor,
    policy: Policy | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    backend: Backend | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """uint8 images [B, C, H, W] with any strides, or [B, H, W, C] -> the model's input [B, C, H, W], channels-last.

    uint16 images of 16 bits, and bands [B, C, H, W] of uint8, uint16 or float32 with a policy of C means, are moved,
    normalised and erased, and nothing else, by plain torch (`deep`).

    C is 3, 1 for gray images and a policy with one mean, or that of bands. The compiled backends augment gray images as
    three equal channels, of which they return one; the reference shows that this is the same.

    The result has type `dtype`; float32, bfloat16 and float16 are normalised, uint8 is not. `policy` defaults to the
    plan's own. With `plan` None, for evaluation, images are only normalised, by `policy`. Every backend returns the
    same bits; `backend_of` gives the default. If `out` is given, the result is written into it, which avoids the cost
    of touching new memory.

    Raises ValueError for a plan with mixup or cutmix, which also change the targets (use `mix`), and for images (an
    empty batch included), a plan, a type, a backend or an `out` that do not fit.
    """
    if plan is not None and plan.mixing is not None:
        raise ValueError(
            "the plan mixes images (mixup or cutmix), which changes the targets too: call "
            "`images, targets = mix(plan, images, targets, num_classes)` instead of apply"
        )
    policy = policy or (None if plan is None else plan.policy)
    if policy is None:
        raise ValueError("a policy is required when there is no plan: it holds the normalisation")
    images = _channels_first(images, policy)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}; got {dtype}")
    if plan is not None and len(plan) != len(images):
        raise ValueError(f"the plan and the batch differ in size: {len(plan)} and {len(images)}")
    if out is not None:
        _check_out(out, images, dtype)
    if takes(images, policy):
        deep = augment_deep(plan, images, policy, dtype)
        return deep if out is None else out.copy_(deep)
    kind = backend or backend_of(images.device)
    _check_backend(kind, images.device)
    if policy.channels == 1 and kind != "reference":
        tripled = apply(plan, images.expand(-1, 3, -1, -1), policy.tripled, dtype, backend=kind)
        return tripled[:, :1].contiguous() if out is None else out.copy_(tripled[:, :1])
    if plan is not None and plan.then:
        *earlier, plan = plan.stages
        for stage in earlier:
            images = _levels(kind, stage, images)
    return _one_stage(kind, plan, images, policy, dtype, out)


def _channels_first(images: torch.Tensor, policy: Policy) -> torch.Tensor:
    """Images as [B, C, H, W]. Raises ValueError for other types than those of `apply`, and for other channels."""
    channels = policy.channels
    if images.dim() == 4 and images.shape[1] != channels and images.shape[3] == channels:
        images = images.permute(0, 3, 1, 2)
    levels = images.dtype in (torch.uint8, torch.uint16) or (images.dtype == torch.float32 and policy.as_stored)
    if not levels or images.dim() != 4 or images.shape[1] != channels or 0 in images.shape:
        raise ValueError(
            f"images must be uint8 [B, {channels}, H, W] or [B, H, W, {channels}], with at least one image and one "
            f"pixel; got {images.dtype} {list(images.shape)}"
            + (f": the policy's mean is for {channels}" if images.dim() == 4 and channels not in images.shape else "")
            + ("; bands of float32 take a policy with as_stored=True" if channels not in (1, 3) and not levels else "")
        )
    return images


def _one_stage(
    kind: Backend,
    plan: Plan | None,
    images: torch.Tensor,
    policy: Policy,
    dtype: torch.dtype,
    out: torch.Tensor | None,
) -> torch.Tensor:
    line = _LINES[kind](policy, dtype) if kind in _LINES else None
    return _by_table(kind, plan, images, _table(policy, dtype, images.device), out, line)


def look_up(images: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """uint8 images [B, 3, H, W] -> the values that a table [3, 256] on their device has for each channel and level.

    Channels-last, in the table's type: for a normalisation that is given as a table instead of by a policy.
    """
    words = torch.cat([table.flatten(), table.new_zeros(3)])
    return _by_table(backend_of(images.device) if table.dtype in DTYPES else "reference", None, images, words, None)


def _by_table(
    kind: Backend,
    plan: Plan | None,
    images: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor | None,
    line: lines.LevelLine | None = None,
) -> torch.Tensor:
    if kind == "cpu":
        from . import cpu  # numba is slow to import, and not needed on a GPU

        return cpu.augment(plan, images, table, out, line)
    if kind == "fused" and (fused := _fused()) is not None:
        launched: torch.Tensor = fused.fused(plan, images, table, table.dtype, out, line)
        return launched
    result = reference.augment(plan, images, table)
    return result if out is None else out.copy_(result)


def _levels(kind: Backend, plan: Plan, images: torch.Tensor) -> torch.Tensor:
    """uint8 images [B, 3, H, W] -> the same after a stage that others follow, in memory of its own, channels-last."""
    out = None
    if kind == "cpu":
        from . import cpu

        batch, _, height, width = images.shape
        out = cpu.between.tensor((batch, height, width, 3), torch.uint8).permute(0, 3, 1, 2)
    images = _one_stage(kind, plan, images, _PLAIN[images.shape[1]], torch.uint8, out)
    if plan.chain_mix is not None:
        images = reference.mix_chains(plan.chain_mix, images, functools.partial(_levels, kind))
    if plan.blur is None or not len(plan.blur.rows):
        return images
    if kind == "cpu":
        from . import cpu

        return cpu.blur(plan.blur, images)
    if kind == "fused" and (fused := _fused()) is not None:
        blurred: torch.Tensor = fused.blur(plan.blur, images)
        return blurred
    return reference.blur(plan.blur, images)


def backend_of(device: torch.device) -> Backend:
    """The default backend for images on a device: compiled code on a CPU, Triton on a GPU if it is installed."""
    if device.type == "cpu":
        return "reference" if _compiles_nothing.get() else "cpu"
    return "fused" if device.type == "cuda" and _fused() is not None else "reference"


def named(device: torch.device) -> str:
    """What augments images on a device by default, as programs print it."""
    kind = backend_of(device)
    if kind != "fused":
        return {"cpu": "compiled code on the CPU", "reference": "plain torch"}[kind]
    counting = importlib.import_module(f"{__package__}.fused.counting")
    return f"Triton on the GPU, statistics by {counting.counter_of(device).words}"


@contextmanager
def compiling_nothing() -> Iterator[None]:
    """Inside the block, images on a CPU are augmented by plain torch, to the same bits: for few of them, which takes
    less time than to compile code that is not in the machine's cache yet."""
    before = _compiles_nothing.set(True)
    try:
        yield
    finally:
        _compiles_nothing.reset(before)


def seconds_to_compile(plan: Plan) -> float:
    """About how long it takes, on one core of a shared server, to compile the code that applies plans such as this one
    on a CPU; 0 if that is in this process or in the machine's cache."""
    from . import cpu

    return max(map(cpu.seconds_to_compile, plan.stages))


def _check_backend(kind: str, device: torch.device) -> None:
    if kind == "reference" or (kind == "cpu" and device.type == "cpu") or (kind == "fused" and _fused() is not None):
        return
    raise ValueError(_no_backend(kind, device))


@functools.cache
def _fused() -> ModuleType | None:
    try:
        return importlib.import_module(f"{__package__}.fused")
    except ImportError:  # Triton has no wheel for this system
        return None


def _no_backend(name: str, device: torch.device) -> str:
    if name not in get_args(Backend):
        return f"backend must be one of {', '.join(get_args(Backend))}; got {name!r}"
    if name == "fused":
        return "the fused backend needs Triton, which is not installed: pip install triton, or leave backend out"
    return f"the cpu backend needs images on the CPU; they are on {device}: leave backend out"


def _check_out(out: torch.Tensor, images: torch.Tensor, dtype: torch.dtype) -> None:
    if out.shape != images.shape or out.dtype != dtype or out.device != images.device:
        raise ValueError(
            f"out must be {dtype} {list(images.shape)} on {images.device}; "
            f"got {out.dtype} {list(out.shape)} on {out.device}"
        )
    if not out.is_contiguous(memory_format=torch.channels_last):
        raise ValueError("out must be channels-last: allocate it with memory_format=torch.channels_last")


@functools.lru_cache(maxsize=16)
def _table(policy: Policy, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return reference.normalisation_table(policy, dtype).to(device)
