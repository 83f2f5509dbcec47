"""Blurring on the CPU: `reference.blur`, compiled, on as many threads as torch uses."""

import threading
from typing import Any

import numpy as np
import torch

from fastimg.augment.ops import blur_weights
from fastimg.augment.plan import Blurring

from .compiled import compiled, is_kept, position, uint8, uint32
from .threads import in_threads

_local = threading.local()


def blur(blurring: Blurring, images: torch.Tensor) -> torch.Tensor:
    """Blur the images of a uint8 batch [B, 3, H, W], channels-last, that drew it; the batch itself is changed."""
    pixels = images.permute(0, 2, 3, 1).numpy()
    assert pixels.flags.c_contiguous  # compiled code does not check strides
    rows, weights = blurring.rows.numpy(), blur_weights(blurring.radius.numpy()).astype(np.uint32)

    def work(first: int, last: int) -> None:
        _blur(pixels, rows[first:last], weights[first:last], _scratch(pixels[0].size))

    in_threads(work, len(rows))
    return images


def seconds_to_compile() -> float:
    """About how long the functions for `blur` take to compile; 0 if they are there, or in the cache."""
    return 0.0 if is_kept(_blur) else 2.0


def _scratch(size: int) -> Any:
    """This thread's memory for two images."""
    memory = getattr(_local, "memory", None)
    if memory is None or memory.shape[1] < size:
        memory = _local.memory = np.empty((2, size), np.uint8)
    return memory


@compiled
def _blur(pixels: Any, rows: Any, weights: Any, memory: Any) -> None:
    """Three boxes along rows, then three along columns, of the images `rows` of pixels uint8 [B, H, W, 3]."""
    _, height, width, _ = pixels.shape
    size = height * width * 3
    for number in range(len(rows)):
        image = pixels[rows[number]].ravel()
        first, second = memory[0, :size], memory[1, :size]
        box, inside, beyond = weights[number, 0], weights[number, 1], weights[number, 2]
        _along_rows(image, first, height, width, box, inside, beyond)
        _along_rows(first, second, height, width, box, inside, beyond)
        _along_rows(second, first, height, width, box, inside, beyond)
        _along_columns(first, second, height, width, box, inside, beyond)
        _along_columns(second, first, height, width, box, inside, beyond)
        _along_columns(first, image, height, width, box, inside, beyond)


@compiled
def _along_rows(taken: Any, put: Any, height: int, width: int, box: int, inside: int, beyond: int) -> None:
    """One box along the rows of an image [H * W * 3]."""
    for y in range(height):
        start = y * width * 3
        for x in range(width):
            before, after = max(x - 1, 0) * 3, min(x + 1, width - 1) * 3
            far, beyond_far = max(x - 2, 0) * 3, min(x + 2, width - 1) * 3
            for channel in range(3):
                line = start + channel
                near = uint32(taken[position(line + before)]) + uint32(taken[position(line + after)])
                ends = uint32(taken[position(line + far)]) + uint32(taken[position(line + beyond_far)])
                put[position(line + 3 * x)] = _averaged(
                    uint32(taken[position(line + 3 * x)]), near, ends, box, inside, beyond
                )


@compiled
def _along_columns(taken: Any, put: Any, height: int, width: int, box: int, inside: int, beyond: int) -> None:
    """One box along the columns of an image [H * W * 3]."""
    length = width * 3
    for y in range(height):
        before, after = max(y - 1, 0) * length, min(y + 1, height - 1) * length
        far, beyond_far = max(y - 2, 0) * length, min(y + 2, height - 1) * length
        for entry in range(length):
            near = uint32(taken[position(before + entry)]) + uint32(taken[position(after + entry)])
            ends = uint32(taken[position(far + entry)]) + uint32(taken[position(beyond_far + entry)])
            here = uint32(taken[position(y * length + entry)])
            put[position(y * length + entry)] = _averaged(here, near, ends, box, inside, beyond)


@compiled
def _averaged(here: int, near: int, ends: int, box: int, inside: int, beyond: int) -> Any:
    """The level from the sums of the two pixels beside it, and of the two beside those."""
    if box == 0:
        total = uint32(here * inside) + uint32(near * beyond)
    else:
        total = uint32(uint32(here + near) * inside) + uint32(ends * beyond)
    return uint8(uint32(total + uint32(1 << 23)) >> uint32(24))
