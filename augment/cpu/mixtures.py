"""Mixup and cutmix on the CPU: `reference.mix`, compiled, in one pass, on as many threads as torch uses."""

import functools
from typing import Any

import numpy as np
import torch

from .compiled import compiled, float32, inlined, is_kept, uint16, uint32
from .results import mixtures
from .threads import in_threads

TYPES = (torch.float32, torch.bfloat16)  # those in which CPUs train
_NOT_A_NUMBER = 0x7FC0  # bfloat16, as torch rounds to it


def mix(
    words: torch.Tensor, images: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.mix`, into `out` if given. Images [B, C, H, W] and `out` are channels-last or contiguous."""
    batch, channels, height, width = images.shape
    last = images.is_contiguous(memory_format=torch.channels_last)
    if out is None:
        shape = (batch, height, width, channels) if last else (batch, channels, height, width)
        out = mixtures.tensor(shape, images.dtype)
        out = out.permute(0, 3, 1, 2) if last else out
    row = width * channels if last else width
    drawn = words.numpy()
    counts = np.ones(batch, np.bool_) if weight is None else (weight > 0).numpy()
    share = np.empty(batch, np.float32)
    function, kind = (_mix_float32, torch.float32) if images.dtype == torch.float32 else (_mix_bfloat16, torch.uint16)
    source, target = (
        (tensor.permute(0, 2, 3, 1) if last else tensor).view(batch, -1, row).view(kind).numpy()
        for tensor in (images, out)
    )
    assert 0 <= drawn[:, 0].min() <= drawn[:, 0].max() < batch  # compiled code does not check bounds
    in_threads(
        functools.partial(function, source, drawn, drawn.view(np.float32), counts, target, share, height, row // width),
        batch,
    )
    return out, torch.from_numpy(share)


def seconds_to_compile() -> float:
    """About how long the functions for `mix` take to compile, of one type; 0 if they are there, or in the cache."""
    return 0.0 if is_kept(_mix_float32) or is_kept(_mix_bfloat16) else 2.0


@compiled
def _mix_float32(
    images: Any,
    words: Any,
    shares: Any,
    counts: Any,
    out: Any,
    share: Any,
    height: int,
    unit: int,
    first: int,
    last: int,
) -> None:
    """Mix the images from `first` to `last` of float32 [B, lines, row]; a pixel has `unit` values in a row."""
    for number in range(first, last):
        kept = _kept(images, words, shares, counts, out, share, height, unit, number)
        if kept == float32(1.0):
            continue
        taken = float32(1.0) - kept
        own, other, target = images[number], images[words[number, 0]], out[number]
        for line in range(own.shape[0]):
            for place in range(own.shape[1]):
                target[line, place] = own[line, place] * kept + other[line, place] * taken


@compiled
def _mix_bfloat16(
    images: Any,
    words: Any,
    shares: Any,
    counts: Any,
    out: Any,
    share: Any,
    height: int,
    unit: int,
    first: int,
    last: int,
) -> None:
    """The same for the bits of bfloat16."""
    for number in range(first, last):
        kept = _kept(images, words, shares, counts, out, share, height, unit, number)
        if kept == float32(1.0):
            continue
        taken = float32(1.0) - kept
        own, other, target = images[number], images[words[number, 0]], out[number]
        for line in range(own.shape[0]):
            for place in range(own.shape[1]):
                value = _widened(own[line, place]) * kept + _widened(other[line, place]) * taken
                target[line, place] = _rounded(value)


@inlined
def _kept(
    images: Any,
    words: Any,
    shares: Any,
    counts: Any,
    out: Any,
    share: Any,
    height: Any,
    unit: Any,
    number: Any,
) -> Any:
    """Note what an image keeps of itself, and return it if values are to be blended; else write `out`, and return 1."""
    partner = words[number, 0]
    share[number] = shares[number, 1] if counts[partner] else float32(1.0)
    cuts = words[number, 2] != 0 and counts[partner]
    if not cuts and share[number] != float32(1.0):
        return share[number]
    target, other = out[number], images[partner]
    target[:] = images[number]
    if cuts:
        top, left, bottom, right = words[number, 3], words[number, 4] * unit, words[number, 5], words[number, 6] * unit
        for start in range(0, target.shape[0], height):  # a plane
            for line in range(start + top, start + bottom):
                target[line, left:right] = other[line, left:right]
    return float32(1.0)


@inlined
def _widened(bits: Any) -> Any:
    """bfloat16 as float32."""
    return uint32(uint32(bits) << uint32(16)).view(float32)


@inlined
def _rounded(value: Any) -> Any:
    """float32 to the nearest bfloat16, ties to even."""
    bits = float32(value).view(uint32)
    nearest = (bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16)
    return uint16(nearest if value == value else _NOT_A_NUMBER)
