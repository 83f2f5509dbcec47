"""Plans on a GPU: `reference.augment` in Triton, bit for bit; pixels are read once and written once.

Pointwise operations become look-up tables [3, 256] per image, built on the device and composed up to the next colour or
sharpness; those after the last of these are composed with the normalisation. So the pass over the pixels warps, blends
if an image drew colour or sharpness, and looks up once. Before it, one statistics pass for each column that needs one
(a policy draws at most 2, see `Plan.passes`) reads only the images that drew contrast, autocontrast or equalize,
through the same warp and operations. There is no synchronisation: the plan is one small tensor, sent once. Temporary
memory, from PyTorch's allocator: per image 768 bytes for each column, 771 values of the result's type, and 6.2 kB for
each statistics pass.

Everything is integer arithmetic except blends (float32) and autocontrast (float64): one multiplication and one
addition, which `enable_fp_fusion=False` keeps apart. `tests/augment/test_fused.py` compares it with the reference under
Triton's interpreter on the CPU, for every operation, type and odd size; compiles the launched kernels for an H200
(sm_90), without spills or fused multiplications; and, with `-m gpu`, compares on a device, which has not been done yet.

Not measured. The floor of 1024 x 3 x 224 x 224, uint8 to bfloat16, is 462 MB: 0.108 ms at 4.3 TB/s. By the machine code
of the pass over the pixels (Triton 3.9), a value takes 21 instructions with flips and 27 with warps: 0.11 and 0.14 ms
at the issue rate of an H200 (132 SMs x 4 at 1.75 GHz). Statistics of all images would read 154 MB more.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .ops import STATISTICS, Op
from .plan import Plan, Sized, to_device
from .policy import Policy
from .reference import normalisation_table

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.uint8: torch.uint8}
_INTERPRETED = bool(triton.knobs.runtime.interpret)
# Pixels per program. Statistics programs take more, since each ends with 768 atomic additions.
BLOCK, COUNTED_BLOCK = (4096, 4096) if _INTERPRETED else (1024, 4096)
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}


def _kernel(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


# Constants for the kernels. The statistics of an image are int64 [770]: a histogram for each channel, the sum of L, and
# one value of padding. A normalisation table has 771 entries: 3 * 256, and three for erased pixels.
COUNTS, ENTRIES = tl.constexpr(770), tl.constexpr(771)
FIXED = tl.constexpr(Sized.FIXED)
STILL, FLIPPED, WARPED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
BRIGHTNESS, COLOR, CONTRAST = (
    tl.constexpr(int(Op.BRIGHTNESS)),
    tl.constexpr(int(Op.COLOR)),
    tl.constexpr(int(Op.CONTRAST)),
)
SHARPNESS, POSTERIZE, SOLARIZE = (
    tl.constexpr(int(Op.SHARPNESS)),
    tl.constexpr(int(Op.POSTERIZE)),
    tl.constexpr(int(Op.SOLARIZE)),
)
AUTOCONTRAST, EQUALIZE = tl.constexpr(int(Op.AUTOCONTRAST)), tl.constexpr(int(Op.EQUALIZE))


def fused(
    plan: Plan | None,
    images: torch.Tensor,
    table: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """uint8 images [B, 3, H, W] with any strides -> [B, 3, H, W], channels-last: the same bits as `reference.augment`.

    With `plan` None images are only normalised. `table` is `normalisation_table` in `dtype`, on the images' device; the
    result is written to `out` if given. Raises ValueError for images that are not on a GPU, unless Triton's interpreter
    is on.
    """
    if not (images.is_cuda or _INTERPRETED):
        raise ValueError(f"the fused backend needs images on a GPU; they are on {images.device}: leave backend out")
    if out is None:
        out = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)
    if not len(images):
        return out
    while plan is not None and (early := _early_sharpness(plan)):
        first, plan = _cut(plan, early)
        images = fused(first, images, _levels(images.device), torch.uint8)
    if sum((n - 1) * step for n, step in zip(images.shape[1:], images.stride()[1:], strict=True)) >= 2**31:
        images = images.contiguous(memory_format=torch.channels_last)  # offsets within an image are 32 bits
    with torch.cuda.device_of(images):  # type: ignore[no-untyped-call]
        _launch(plan, images, table.view(_BITS[dtype]), out)
    return out


def _launch(plan: Plan | None, images: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Launch tables and statistics in turn, up to the last column, then the pass over the pixels."""
    (batch, _, height, width), strides, columns = images.shape, images.stride(), _columns(plan)
    words = before = final = table  # placeholders, never read
    shape = {"WORDS": 0, "COUNT": columns.count, "HEIGHT": height, "WIDTH": width}
    image = {"WARP": _warp(plan), "COLORS": columns.colors, "MAPPED": columns.mapped}
    if plan is not None:
        rows = [np.flatnonzero(np.isin(plan.ops.numpy()[:, k], list(STATISTICS))) for k in columns.statistics]
        words = to_device(_words(plan.sized(height, width), rows), images.device)
        shape["WORDS"] = words.shape[1]
    if columns.count:
        before = torch.empty(batch, columns.count, 768, dtype=torch.uint8, device=images.device)
        final = torch.empty(batch, ENTRIES.value, dtype=table.dtype, device=images.device)
        counts = torch.zeros(len(rows), batch, COUNTS.value, dtype=torch.int64, device=images.device)
        start, counted = 0, table
        for number, stop in enumerate((*columns.statistics, columns.count)):
            if stop:
                run = {"START": start, "STOP": stop, "COUNTED": start in columns.statistics}
                _tables[(batch,)](final, before, counted, words, table, **run, **shape, **OPTIONS)
            if stop < columns.count:
                start, counted = stop, counts[number]
                turn = {"COLUMN": stop, "LIST": number, "BLOCK": COUNTED_BLOCK}
                grid = (len(rows[number]) * triton.cdiv(height * width, COUNTED_BLOCK),)
                if grid[0]:
                    _statistics[grid](counted, images, *strides, words, before, **turn, **image, **shape, **OPTIONS)
    kind = {"SHARPENS": columns.sharpens, "ERASES": plan is not None and plan.erasing is not None}
    image |= {"TOGETHER": max(4 // table.element_size(), 1), "BLOCK": BLOCK}
    grid = (batch * triton.cdiv(height * width, BLOCK),)
    _pixels[grid](out.view(table.dtype), images, *strides, words, before, final, **kind, **image, **shape, **OPTIONS)


@dataclasses.dataclass(frozen=True)
class _Columns:
    """What the kernels are specialised for. Sets of columns are bit masks.

    A column with several operations, TrivialAugment's, counts as holding any of them, whatever a batch drew: so a
    policy needs few kernels.
    """

    count: int
    colors: int  # columns that may hold COLOR
    mapped: int  # columns that a look-up may precede
    statistics: tuple[int, ...]  # columns that may need statistics
    sharpens: bool  # whether the last column may hold SHARPNESS


def _columns(plan: Plan | None) -> _Columns:
    any_of = [] if plan is None else [ops if len(ops) == 1 else frozenset(Op) for ops in plan.columns]
    if plan is not None and any_of and plan.trivial.any():  # even if the batch has one image only
        any_of[-1] = frozenset(Op)
    return _Columns(
        count=len(any_of),
        colors=sum(1 << k for k, ops in enumerate(any_of) if Op.COLOR in ops),
        mapped=sum(2 << k for k, ops in enumerate(any_of) if ops != {Op.COLOR}),
        statistics=tuple(k for k, ops in enumerate(any_of) if ops & STATISTICS),
        sharpens=bool(any_of) and Op.SHARPNESS in any_of[-1],
    )


def _warp(plan: Plan | None) -> int:
    if plan is None:
        return int(STILL.value)
    return int((WARPED if plan.trivial.any() or plan.angle.any() else FLIPPED).value)


def _words(sized: Sized, rows: Sequence[npt.NDArray[np.int64]]) -> torch.Tensor:
    """The plan's words int32 [B, 10 + 2 K + P]: the last P columns begin with the rows of each statistics pass."""
    lists = torch.zeros(len(sized.words), len(rows), dtype=torch.int32)
    for number, selected in enumerate(rows):
        lists[: len(selected), number] = torch.from_numpy(selected)
    return torch.cat([sized.words, lists], dim=1)


def _early_sharpness(plan: Plan) -> int:
    """The number of columns up to the first with sharpness, if others follow, else 0. No policy draws such a plan."""
    return next((k + 1 for k, ops in enumerate(plan.columns[:-1]) if Op.SHARPNESS in ops), 0)


def _cut(plan: Plan, count: int) -> tuple[Plan, Plan]:
    """Split a plan: the warp and the first `count` columns, then the rest."""
    replaced, still = dataclasses.replace, torch.zeros_like(plan.hflip)
    first = replaced(plan, ops=plan.ops[:, :count], magnitudes=plan.magnitudes[:, :count], erasing=None)
    rest = replaced(plan, ops=plan.ops[:, count:], magnitudes=plan.magnitudes[:, count:], hflip=still, vflip=still)
    return first, replaced(rest, angle=torch.zeros_like(plan.angle), trivial=torch.zeros_like(plan.trivial))


@functools.lru_cache(maxsize=16)
def _levels(device: torch.device) -> torch.Tensor:
    return normalisation_table(Policy(), torch.uint8).to(device)


@_kernel
def _tables(
    final,
    before,
    counts,
    words,
    table,
    START: tl.constexpr,
    STOP: tl.constexpr,
    COUNTED: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Look-up tables for columns START to STOP of one image: before [B, COUNT, 768] and, at the end, final [B, 771].

    `before` a column: the look-ups composed since the last colour, sharpness or the warp. `final`: the same after the
    last column, normalised. If COUNTED, counts [B, 770] holds the statistics for column START.
    """
    b = tl.program_id(0)
    row, before, final = words + b * WORDS, before + b * (COUNT * 768), final + b * ENTRIES
    channel = tl.arange(0, 4)[:, None]
    level = tl.arange(0, 256)[None, :]
    entry = channel * 256 + level
    real = entry < 768
    lut = level + 0 * channel
    if START > 0:
        lut = tl.load(before + START * 768 + entry, mask=real, other=0).to(tl.int32)
    for column in tl.static_range(START, STOP):
        op, magnitude = _operation(row, column, COUNT)
        if op == BRIGHTNESS:
            lut = _blend(0 * lut, lut, magnitude)
        elif op == POSTERIZE:
            dropped = (8 - magnitude).to(tl.int32)
            lut = (lut >> dropped) << dropped
        elif op == SOLARIZE:
            lut = tl.where(lut.to(tl.float32) < magnitude, lut, 255 - lut)
        elif (op == COLOR) | (op == SHARPNESS):
            lut = level + 0 * channel
        if COUNTED and column == START:
            if op == CONTRAST:
                total = tl.load(counts + b * COUNTS + 768)
                mean = (2 * total + HEIGHT * WIDTH) // (2 * HEIGHT * WIDTH)
                lut = _blend(mean.to(tl.int32) + 0 * lut, lut, magnitude)
            elif op == AUTOCONTRAST:
                lut = _autocontrast(tl.load(counts + b * COUNTS + entry, mask=real, other=0), level, lut)
            elif op == EQUALIZE:
                lut = _equalize(tl.load(counts + b * COUNTS + entry, mask=real, other=0).to(tl.int32), level, lut)
        if column + 1 < COUNT:
            tl.store(before + (column + 1) * 768 + entry, lut.to(tl.uint8), mask=real)
    if STOP == COUNT:
        tl.store(final + entry, tl.load(table + channel * 256 + lut, mask=real, other=0), mask=real)
        erased = 768 + tl.arange(0, 4)
        tl.store(final + erased, tl.load(table + erased, mask=erased < ENTRIES, other=0), mask=erased < ENTRIES)


@_kernel
def _autocontrast(histogram, level, lut):
    """`ops.lookup` for levels lut [4, 256], in float64."""
    present = histogram > 0
    low = tl.min(tl.where(present, level, 255), axis=1)[:, None]
    high = tl.max(tl.where(present, level, 0), axis=1)[:, None]
    span = tl.maximum(high - low, 1).to(tl.float64)
    scale = tl.full(span.shape, 255.0, tl.float64) / span
    offset = (0 - low).to(tl.float64) * scale
    product = lut.to(tl.float64) * scale
    stretched = tl.minimum(tl.maximum(product + offset, 0.0), 255.0).to(tl.int32)
    return tl.where(high <= low, lut, stretched)


@_kernel
def _equalize(histogram, level, lut):
    """`ops.lookup` for levels lut [4, 256]; counts of 8,192 x 8,192 pixels fit 32 bits."""
    below = tl.cumsum(histogram, axis=1) - histogram
    total = tl.sum(histogram, axis=1)[:, None]
    top = tl.max(tl.where(histogram > 0, level, 0), axis=1)[:, None]
    lightest = tl.sum(tl.where(level == top, histogram, 0), axis=1)[:, None]
    step = (total - lightest) // 255
    spread = (step // 2 + tl.gather(below, lut, 1)) // tl.maximum(step, 1)
    return tl.where(step == 0, lut, tl.minimum(spread, 255))


@_kernel
def _statistics(
    counts,
    images,
    s_n,
    s_c,
    s_h,
    s_w,
    words,
    before,
    COLUMN: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Add a block of pixels to the statistics that the image's column COLUMN needs: counts int64 [B, 770]."""
    BLOCKS: tl.constexpr = (HEIGHT * WIDTH + BLOCK - 1) // BLOCK
    b = tl.load(words + (tl.program_id(0) // BLOCKS) * WORDS + (FIXED + 2 * COUNT + LIST))
    row, before, counts = words + b * WORDS, before + b * (COUNT * 768), counts + b * COUNTS
    image = (images + b.to(tl.int64) * s_n, s_c, s_h, s_w)
    pixel = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < HEIGHT * WIDTH
    y = pixel // WIDTH
    x = pixel - y * WIDTH
    red, green, blue = _pixel(image, row, before, x, y, valid, COLUMN, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    if (MAPPED >> COLUMN) & 1:
        red, green, blue = _mapped(before + COLUMN * 768, red, green, blue)
    op, _ = _operation(row, COLUMN, COUNT)
    if op == CONTRAST:
        gray = tl.where(valid, _luma(red, green, blue), 0)
        tl.atomic_add(counts + 768, tl.sum(gray, axis=0).to(tl.int64))
    else:
        _count(counts, red, valid)
        _count(counts + 256, green, valid)
        _count(counts + 512, blue, valid)


@_kernel
def _count(counts, level, valid):
    histogram = tl.histogram(level, 256, mask=valid)
    tl.atomic_add(counts + tl.arange(0, 256), histogram.to(tl.int64), mask=histogram > 0)


@_kernel
def _pixels(
    out,
    images,
    s_n,
    s_c,
    s_h,
    s_w,
    words,
    before,
    final,
    SHARPENS: tl.constexpr,
    ERASES: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute one block of one image's pixels in out [B, H, W, 3]."""
    BLOCKS: tl.constexpr = (HEIGHT * WIDTH + BLOCK - 1) // BLOCK
    b = tl.program_id(0) // BLOCKS
    row, before = words + b * WORDS, before + b * (COUNT * 768)
    if COUNT > 0:
        final += b * ENTRIES
    image = (images + b.to(tl.int64) * s_n, s_c, s_h, s_w)
    first = (tl.program_id(0) % BLOCKS) * BLOCK
    pixel = first + tl.arange(0, BLOCK)
    valid = pixel < HEIGHT * WIDTH
    y = pixel // WIDTH
    x = pixel - y * WIDTH
    if SHARPENS:
        op, factor = _operation(row, COUNT - 1, COUNT)
        if op == SHARPNESS:
            red, green, blue = _sharpened(
                image, row, before, x, y, valid, factor, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH
            )
        else:
            red, green, blue = _pixel(
                image, row, before, x, y, valid, COUNT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH
            )
    else:
        red, green, blue = _pixel(image, row, before, x, y, valid, COUNT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    green += 256
    blue += 512
    if ERASES:
        top, left, bottom, right = tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
        erased = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        red, green, blue = tl.where(erased, 768, red), tl.where(erased, 769, green), tl.where(erased, 770, blue)
    _store(
        out + (b.to(tl.int64) * HEIGHT * WIDTH + first) * 3,
        *(tl.load(final + red), tl.load(final + green), tl.load(final + blue)),
        3 * (HEIGHT * WIDTH - first),
        TOGETHER,
        BLOCK,
    )


@_kernel
def _store(out, red, green, blue, count, TOGETHER: tl.constexpr, BLOCK: tl.constexpr):
    """Store the first `count` values of [BLOCK, 3] in memory order, so that adjacent lanes store adjacent values.

    Blocks are powers of two, so each pixel carries a fourth value up to shared memory. A thread stores TOGETHER values,
    4 bytes: with 16, the compiler's choice, five lanes of a warp would read the same bank.
    """
    four = tl.reshape(tl.join(tl.join(red, blue), tl.join(green, blue)), [4 * BLOCK])  # red, green, blue, blue
    value = tl.arange(0, 4 * BLOCK)
    taken = tl.gather(four, tl.minimum(value // 3 * 4 + value % 3, 4 * BLOCK - 1), 0)
    tl.store(tl.max_contiguous(out + value, TOGETHER), taken, mask=(value < 3 * BLOCK) & (value < count))


@_kernel
def _sharpened(
    image,
    row,
    before,
    x,
    y,
    valid,
    factor,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """SHARPNESS as the last column: recomputes each pixel's neighbours. The outermost pixels are unchanged."""
    LAST: tl.constexpr = COUNT - 1
    red, green, blue = x * 0, x * 0, x * 0  # sums of nine pixels
    red_here, green_here, blue_here = red, green, blue
    for number in range(9):
        u = tl.minimum(tl.maximum(x + (number % 3 - 1), 0), WIDTH - 1)
        v = tl.minimum(tl.maximum(y + (number // 3 - 1), 0), HEIGHT - 1)
        r, g, b = _pixel(image, row, before, u, v, valid, LAST, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
        if (MAPPED >> LAST) & 1:
            r, g, b = _mapped(before + LAST * 768, r, g, b)
        red, green, blue = red + r, green + g, blue + b
        if number == 4:
            red_here, green_here, blue_here = r, g, b
    inner = (x > 0) & (x < WIDTH - 1) & (y > 0) & (y < HEIGHT - 1)
    return (
        _blend(tl.where(inner, _smooth(red, red_here), red_here), red_here, factor),
        _blend(tl.where(inner, _smooth(green, green_here), green_here), green_here, factor),
        _blend(tl.where(inner, _smooth(blue, blue_here), blue_here), blue_here, factor),
    )


@_kernel
def _pixel(
    image,
    row,
    before,
    x,
    y,
    valid,
    END: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue after the warp and the colours before column END; look-ups since then are still pending."""
    red, green, blue = _warped(image, row, x, y, valid, WARP, HEIGHT, WIDTH)
    for column in tl.static_range(END):
        if (COLORS >> column) & 1:
            op, factor = _operation(row, column, COUNT)
            if op == COLOR:
                if (MAPPED >> column) & 1:
                    red, green, blue = _mapped(before + column * 768, red, green, blue)
                gray = _luma(red, green, blue)
                red, green, blue = _blend(gray, red, factor), _blend(gray, green, factor), _blend(gray, blue, factor)
    return red, green, blue


@_kernel
def _warped(image, row, x, y, valid, WARP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Red, green and blue of the warped image at (x, y), zeros outside: `reference.warp`."""
    levels, s_c, s_h, s_w = image
    if WARP == STILL:
        u, v = x, y
    elif WARP == FLIPPED:
        u = tl.where(tl.load(row) < 0, WIDTH - 1 - x, x)
        v = tl.where(tl.load(row + 4) < 0, HEIGHT - 1 - y, y)
    else:
        u = (tl.load(row) * x + tl.load(row + 1) * y + tl.load(row + 2)) >> 16
        v = (tl.load(row + 3) * x + tl.load(row + 4) * y + tl.load(row + 5)) >> 16
        valid = valid & (u >= 0) & (u < WIDTH) & (v >= 0) & (v < HEIGHT)
    pixel = levels + (v * s_h + u * s_w)
    red = tl.load(pixel, mask=valid, other=0).to(tl.int32)
    green = tl.load(pixel + s_c, mask=valid, other=0).to(tl.int32)
    blue = tl.load(pixel + 2 * s_c, mask=valid, other=0).to(tl.int32)
    return red, green, blue


@_kernel
def _mapped(tables, red, green, blue):
    """Look up levels in tables uint8 [3, 256]."""
    red = tl.load(tables + red).to(tl.int32)
    green = tl.load(tables + 256 + green).to(tl.int32)
    blue = tl.load(tables + 512 + blue).to(tl.int32)
    return red, green, blue


@_kernel
def _operation(row, column: tl.constexpr, COUNT: tl.constexpr):
    """The Op of a column and its magnitude float32, from an image's words."""
    return tl.load(row + (FIXED + column)), tl.load(row + (FIXED + COUNT + column)).to(tl.float32, bitcast=True)


@_kernel
def _luma(red, green, blue):
    """`ops.luma`."""
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@_kernel
def _smooth(total, centre):
    """`ops.smooth` from the sum of nine levels and the one in the centre."""
    return (2 * (total + 4 * centre) + 13) // 26


@_kernel
def _blend(degenerate, level, factor):
    """`ops.blend` for int32 levels."""
    product = factor * (level - degenerate).to(tl.float32)
    return tl.minimum(tl.maximum(degenerate.to(tl.float32) + product, 0.0), 255.0).to(tl.int32)
