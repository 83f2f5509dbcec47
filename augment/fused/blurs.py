"""The kernel that blurs, and how it is launched: `reference.blur`.

A box at a time: three launches along rows, three along columns, each of which reads and writes the levels of the images
that drew a blur. A box has five pixels at most, so nothing is summed up along a row.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from fastimg.augment.ops import blur_weights
from fastimg.augment.plan import Blurring, to_device

from .constants import BOX_BLOCK, OPTIONS, kernel


def blur(blurring: Blurring, images: torch.Tensor) -> torch.Tensor:
    """Blur the images of a uint8 batch [B, 3, H, W], channels-last, that drew it; the batch itself is changed."""
    _, _, height, width = images.shape
    device, count = images.device, len(blurring.rows)
    rows = to_device(blurring.rows, device)
    weights = to_device(torch.from_numpy(blur_weights(blurring.radius.numpy())), device)
    pixels = images.permute(0, 2, 3, 1)  # [B, H, W, 3], contiguous
    taken = pixels.index_select(0, rows)
    other = torch.empty_like(taken)
    grid = (count * triton.cdiv(height * width * 3, BOX_BLOCK),)
    with torch.cuda.device_of(images):  # type: ignore[no-untyped-call]
        for columns in (False, False, False, True, True, True):
            shape = {"COLUMNS": columns, "BLOCK": BOX_BLOCK, "HEIGHT": height, "WIDTH": width}
            _box[grid](other, taken, weights, **shape, **OPTIONS)
            taken, other = other, taken
    pixels.index_copy_(0, rows, taken)
    return images


@kernel
def _box(
    out,
    images,
    weights,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Averages of BLOCK values over one box along rows or columns, for images [E, H, W, 3]."""
    ROW: tl.constexpr = 3 * WIDTH
    BLOCKS: tl.constexpr = (HEIGHT * ROW + BLOCK - 1) // BLOCK
    e = tl.program_id(0) // BLOCKS
    images += e.to(tl.int64) * (HEIGHT * ROW)
    out += e.to(tl.int64) * (HEIGHT * ROW)
    box = tl.load(weights + 3 * e)
    inside = tl.load(weights + 3 * e + 1).to(tl.uint32)
    beyond = tl.load(weights + 3 * e + 2).to(tl.uint32)
    value = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    valid = value < HEIGHT * ROW
    y = value // ROW
    entry = value - y * ROW
    if COLUMNS:
        at, step, last, start = y, ROW, HEIGHT - 1, entry
    else:
        x = entry // 3
        at, step, last, start = x, 3, WIDTH - 1, y * ROW + (entry - x * 3)
    here = tl.load(images + value, mask=valid, other=0).to(tl.uint32)
    near = _at(images, start, at - 1, step, last, valid) + _at(images, start, at + 1, step, last, valid)
    if box == 0:
        total = here * inside + near * beyond
    else:
        ends = _at(images, start, at - 2, step, last, valid) + _at(images, start, at + 2, step, last, valid)
        total = (here + near) * inside + ends * beyond
    tl.store(out + value, ((total + 8388608) >> 24).to(tl.uint8), mask=valid)


@kernel
def _at(images, start, position, step, last, valid):
    """Levels uint32 at positions along an axis, of the outermost pixel beyond its ends."""
    offset = start + tl.minimum(tl.maximum(position, 0), last) * step
    return tl.load(images + offset, mask=valid, other=0).to(tl.uint32)
