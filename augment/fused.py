"""Plans on a GPU: `reference.augment` in Triton, bit for bit; pixels are read once and written once.

Look-ups, [3, 256] per image, are built on the device and composed up to the next colour or sharpness. A level becomes
a value by one fused multiply-add and one rounding where that gives the table's bits in all 768 entries (`lines`: bf16
and fp16 as a rule), and by the table, composed with the last look-up, where not. An image takes one of two paths, which
the host writes beside its plan. One that is at most flipped and looked up, in a batch that is channels-last with rows
of whole words, is a run of values: a thread takes 8 consecutive ones three times, reads 8 bytes (bytes one by one where
mirrored) and stores 16. Loads of 16 bytes would need stores with gaps or an exchange between threads. Any other image
(warped, coloured, sharpened, erased, strided) goes pixel by pixel, 8 consecutive ones a thread. Before this pass, one
statistics pass for each column that needs one (a policy draws at most 2, see `Plan.passes`) reads only the images that
drew contrast, autocontrast or equalize, through the same warp and operations. There is no synchronisation: the plan is
one small tensor, sent once. Temporary memory, from PyTorch's allocator: per image 768 bytes for each column and once
more, 771 values of the result's type where there is no line, and 6.2 kB for each statistics pass.

Everything is integer arithmetic except the line, blends (float32) and autocontrast (float64): one multiplication and
one addition, which `enable_fp_fusion=False` keeps apart. `tests/augment/test_fused.py` compares it with the reference
under Triton's interpreter on the CPU, for every operation, type and odd size; compiles the launched kernels for an H200
(sm_90), and looks at accesses and roundings there; and, with `-m gpu`, compares on a device, which has not been done.

Not measured: predicted from machine code (`benchmarks/kernels.py`, `results/kernels.jsonl`, Triton 3.9) for 1024 x 3 x
224 x 224, uint8 to bfloat16, on an H200. The floor is 462 MB: 0.108 ms at 4.3 TB/s. Flips: 8.1 instructions a value,
so 0.042 ms at the issue rate: 0.107 to 0.150 ms, from perfect overlap to none. TrivialAugment: 15.7, and with
statistics and tables 0.131 to 0.220 ms; with Triton 3.6, whose histograms are made of votes, 0.166 to 0.256 ms.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .lines import LevelLine
from .ops import LOOKUPS, STATISTICS, Op, trivial_table
from .plan import Plan, Sized, to_device
from .policy import Policy
from .reference import normalisation_table

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.uint8: torch.uint8}
_TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]  # SINGLE, BRAIN, HALF, BYTE
_STATISTICS, _LOOKUPS, _COLORS = (
    np.isin(np.arange(len(Op)), list(ops)) for ops in (STATISTICS, LOOKUPS, {Op.COLOR, Op.SHARPNESS})
)
_INTERPRETED = bool(triton.knobs.runtime.interpret)
# Threads of a program, with 8 pixels each; and pixels of a statistics program, which ends with 768 atomic additions.
THREADS, COUNTED_BLOCK = (512, 4096) if _INTERPRETED else (128, 2048)
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
PIXEL_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


def _kernel(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


# Constants for the kernels. The statistics of an image are int64 [770]: a histogram for each channel, the sum of L, and
# one value of padding. A normalisation table has 771 entries: 3 * 256, and three for erased pixels.
COUNTS, ENTRIES = tl.constexpr(770), tl.constexpr(771)
FIXED = tl.constexpr(Sized.FIXED)
STILL, FLIPPED, WARPED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# How a level becomes a value: by a table, by a line (scale * level + bias, as in `lines`), or not at all.
TABLE, LINE, LEVELS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# An image's last word is the sum of RUNS if it takes that path, being at most flipped and looked up, and LOOKED if a
# look-up follows its last colour. The paths that a kernel contains are RUNS, PIXELS or both.
RUNS, PIXELS, LOOKED = tl.constexpr(1), tl.constexpr(2), tl.constexpr(2)
SINGLE, BRAIN, HALF, BYTE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # types of the result
INTERPRETED = tl.constexpr(_INTERPRETED)
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
    line: LevelLine | None = None,
) -> torch.Tensor:
    """uint8 images [B, 3, H, W] with any strides -> [B, 3, H, W], channels-last: the same bits as `reference.augment`.

    With `plan` None images are only normalised. `table` is `normalisation_table` in `dtype`, on the images' device,
    and `line` gives the same values, if there is such a line (`lines.line_of`). The result is written to `out` if
    given. Raises ValueError for images that are not on a GPU, unless Triton's interpreter is on.
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
        _launch(plan, images, table.view(_BITS[dtype]), line, out)
    return out


def _launch(
    plan: Plan | None, images: torch.Tensor, table: torch.Tensor, line: LevelLine | None, out: torch.Tensor
) -> None:
    """Launch tables and statistics in turn, up to the last column, then the pass over the pixels."""
    (batch, _, height, width), strides, columns = images.shape, images.stride(), _columns(plan)
    words = luts = final = table  # placeholders, never read
    shape = {"WORDS": 0, "COUNT": columns.count, "HEIGHT": height, "WIDTH": width}
    image = {"WARP": _warp(plan), "COLORS": columns.colors, "MAPPED": columns.mapped}
    ending = {"ENDING": _ending(out.dtype, line)}
    if plan is not None:
        rows = [np.flatnonzero(_STATISTICS[plan.ops.numpy()[:, k]]) for k in columns.statistics]
        words = to_device(_words(plan, plan.sized(height, width), rows, columns), images.device)
        shape["WORDS"] = words.shape[1]
    if columns.count:
        luts = torch.empty(batch, columns.count + 1, 768, dtype=torch.uint8, device=images.device)
        if ending["ENDING"] == TABLE.value:
            final = torch.empty(batch, ENTRIES.value, dtype=table.dtype, device=images.device)
        counts = torch.zeros(len(rows), batch, COUNTS.value, dtype=torch.int64, device=images.device)
        start, counted = 0, table
        for number, stop in enumerate((*columns.statistics, columns.count)):
            if stop:
                run = {"START": start, "STOP": stop, "COUNTED": start in columns.statistics}
                _tables[(batch,)](final, luts, counted, words, table, **run, **ending, **shape, **OPTIONS)
            if stop < columns.count:
                start, counted = stop, counts[number]
                turn = {"COLUMN": stop, "LIST": number, "BLOCK": COUNTED_BLOCK}
                grid = (len(rows[number]) * triton.cdiv(height * width, COUNTED_BLOCK),)
                if grid[0]:
                    _statistics[grid](counted, images, *strides, words, luts, **turn, **image, **shape, **OPTIONS)
    kind: dict[str, Any] = {"SHARPENS": columns.sharpens, "ERASES": plan is not None and plan.erasing is not None}
    kind |= {"PATHS": _paths(images, out, kind, image), "TYPE": _TYPES.index(out.dtype), "THREADS": THREADS}
    grid = (batch * triton.cdiv(height * width, 8 * THREADS),)
    six = (0.0,) * 6 if line is None else (*line.scales, *line.biases)
    _pixels[grid](
        *(out.view(table.dtype), images, *strides, words, luts, final, *six),
        **kind,
        **ending,
        **image,
        **shape,
        **PIXEL_OPTIONS,
    )


def _ending(dtype: torch.dtype, line: LevelLine | None) -> int:
    if dtype == torch.uint8:
        return int(LEVELS.value)
    return int((TABLE if line is None else LINE).value)


def _paths(images: torch.Tensor, out: torch.Tensor, kind: Mapping[str, Any], image: Mapping[str, int]) -> int:
    """The paths that images may take, by their layout and by what the policy may draw."""
    width = images.shape[3]
    group = 4 if out.dtype == torch.float32 else 8
    flat = images.stride()[1:] == (1, 3 * width, 3) and 3 * width % group == 0
    if not flat:
        return int(PIXELS.value)
    simple = image["WARP"] != WARPED.value and not (image["COLORS"] or kind["SHARPENS"] or kind["ERASES"])
    return int(RUNS.value) if simple else int(RUNS.value + PIXELS.value)


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


def _words(plan: Plan, sized: Sized, rows: Sequence[npt.NDArray[np.int64]], columns: "_Columns") -> torch.Tensor:
    """The plan's words int32 [B, 10 + 2 K + P + 1].

    P columns begin with the rows of each statistics pass. The last column says which path an image takes.
    """
    taken = sized.words.numpy()
    words = np.zeros((len(taken), taken.shape[1] + len(rows) + 1), np.int32)
    words[:, : taken.shape[1]] = taken
    for number, selected in enumerate(rows):
        words[: len(selected), taken.shape[1] + number] = selected
    words[:, -1] = _drawn(plan, taken, columns)
    return torch.from_numpy(words)


def _drawn(plan: Plan, words: npt.NDArray[np.int32], columns: "_Columns") -> npt.NDArray[np.int32]:
    """The last words [B]: RUNS if an image is at most flipped and looked up, LOOKED if it is after its last colour."""
    ops = plan.ops.numpy()
    runs, looked = words[:, 8] == 0, np.zeros(len(words), np.bool_)  # no box is erased
    if _warp(plan) == WARPED.value:
        runs &= _unmoved()[plan.trivial.numpy()] & (plan.angle.numpy() == 0.0)
    for column in range(columns.count):
        colored = _COLORS[ops[:, column]]
        runs &= ~colored
        looked = (looked & ~colored) | _LOOKUPS[ops[:, column]]
    drawn: npt.NDArray[np.int32] = runs * np.int32(RUNS.value) + looked * np.int32(LOOKED.value)
    return drawn


@functools.cache
def _unmoved() -> npt.NDArray[np.bool_]:
    """Whether rows of TrivialAugment's table [868] leave pixels where they are."""
    table = trivial_table()
    still = (table.linear == (1.0, 0.0, 0.0, 1.0)).all(axis=1) & (table.shift == 0.0).all(axis=1)
    return np.asarray(still, np.bool_)


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
    luts,
    counts,
    words,
    table,
    START: tl.constexpr,
    STOP: tl.constexpr,
    COUNTED: tl.constexpr,
    ENDING: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Look-up tables for columns START to STOP of one image: luts [B, COUNT + 1, 768] and final [B, 771].

    `luts` before a column, and after the last: the look-ups composed since the last colour, sharpness or the warp.
    `final`, where a table ends the pass: the same after the last column, normalised. If COUNTED, counts [B, 770]
    holds the statistics for column START.
    """
    b = tl.program_id(0)
    row, luts, final = words + b * WORDS, luts + b * ((COUNT + 1) * 768), final + b * ENTRIES
    channel = tl.arange(0, 4)[:, None]
    level = tl.arange(0, 256)[None, :]
    entry = channel * 256 + level
    real = entry < 768
    lut = level + 0 * channel
    if START > 0:
        lut = tl.load(luts + START * 768 + entry, mask=real, other=0).to(tl.int32)
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
        tl.store(luts + (column + 1) * 768 + entry, lut.to(tl.uint8), mask=real)
    if STOP == COUNT and ENDING == TABLE:
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
    luts,
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
    row, luts, counts = words + b * WORDS, luts + b * ((COUNT + 1) * 768), counts + b * COUNTS
    image = (images + b.to(tl.int64) * s_n, s_c, s_h, s_w)
    pixel = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < HEIGHT * WIDTH
    y = pixel // WIDTH
    x = pixel - y * WIDTH
    red, green, blue = _pixel(image, row, luts, x, y, valid, COLUMN, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    if (MAPPED >> COLUMN) & 1:
        red, green, blue = _mapped(luts + COLUMN * 768, red, green, blue)
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
    luts,
    final,
    scale_red,
    scale_green,
    scale_blue,
    bias_red,
    bias_green,
    bias_blue,
    PATHS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    SHARPENS: tl.constexpr,
    ERASES: tl.constexpr,
    THREADS: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute 8 * THREADS pixels of one image in out [B, H, W, 3]: 24 values a thread."""
    BLOCK: tl.constexpr = 8 * THREADS
    BLOCKS: tl.constexpr = (HEIGHT * WIDTH + BLOCK - 1) // BLOCK
    LOOKS: tl.constexpr = COUNT > 0 and ENDING != TABLE
    b = tl.program_id(0) // BLOCKS
    first = (tl.program_id(0) % BLOCKS) * BLOCK
    row, luts = words + b * WORDS, luts + b * ((COUNT + 1) * 768)
    if ENDING == TABLE and COUNT > 0:
        final += b * ENTRIES
    image = (images + b.to(tl.int64) * s_n, s_c, s_h, s_w)
    out += b.to(tl.int64) * (HEIGHT * WIDTH * 3)
    ending = (final, luts + COUNT * 768)
    line = (scale_red, scale_green, scale_blue, bias_red, bias_green, bias_blue)
    if PATHS == RUNS:
        drawn = RUNS + LOOKED
        if COUNT > 0:
            drawn = tl.load(row + (WORDS - 1))
        _run(out, image, row, ending, line, first, drawn, LOOKS, ENDING, TYPE, THREADS, WARP, HEIGHT, WIDTH)
    elif PATHS == RUNS + PIXELS:
        drawn = tl.load(row + (WORDS - 1))
        if drawn & RUNS:
            _run(out, image, row, ending, line, first, drawn, LOOKS, ENDING, TYPE, THREADS, WARP, HEIGHT, WIDTH)
        else:
            _each(
                *(out, image, row, luts, ending, line, first, drawn, LOOKS, ENDING, TYPE, SHARPENS, ERASES, THREADS),
                *(WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH),
            )
    else:
        drawn = 0
        if COUNT > 0:
            drawn = tl.load(row + (WORDS - 1))
        _each(
            *(out, image, row, luts, ending, line, first, drawn, LOOKS, ENDING, TYPE, SHARPENS, ERASES, THREADS),
            *(WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH),
        )


@_kernel
def _run(
    out,
    image,
    row,
    ending,
    line,
    first,
    drawn,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    WARP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Values in memory order, of an image that is at most flipped and looked up: whole words in, whole words out."""
    mirrored = 0
    if WARP != STILL:
        mirrored = tl.load(row)
    if WARP != STILL and mirrored < 0:
        if LOOKS and (drawn & LOOKED) != 0:
            _values(out, image, row, ending, line, first, True, True, ENDING, TYPE, THREADS, WARP, HEIGHT, WIDTH)
        else:
            _values(out, image, row, ending, line, first, True, False, ENDING, TYPE, THREADS, WARP, HEIGHT, WIDTH)
    else:
        if LOOKS and (drawn & LOOKED) != 0:
            _values(out, image, row, ending, line, first, False, True, ENDING, TYPE, THREADS, WARP, HEIGHT, WIDTH)
        else:
            _values(out, image, row, ending, line, first, False, False, ENDING, TYPE, THREADS, WARP, HEIGHT, WIDTH)


@_kernel
def _values(
    out,
    image,
    row,
    ending,
    line,
    first,
    MIRRORED: tl.constexpr,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    THREADS: tl.constexpr,
    WARP: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sweeps of GROUP consecutive values a thread. A row is a multiple of GROUP, so groups do not cross rows.

    The channel of a group's value j is (channel of the first + j) % 3, and only that of the first differs by thread: so
    three offsets, factors and so on serve all sweeps.
    """
    ROW: tl.constexpr = 3 * WIDTH
    GROUP: tl.constexpr = 4 if TYPE == SINGLE else 8
    thread = tl.arange(0, THREADS)[:, None]
    number = tl.arange(0, GROUP)[None, :]
    channel = (thread * GROUP) % 3  # in the first sweep, since blocks begin with red
    levels, _, _, _ = image
    red, green, blue, red_bias, green_bias, blue_bias = line
    scales = _by_channel(channel, red, green, blue)
    biases = _by_channel(channel, red_bias, green_bias, blue_bias)
    offsets = _by_channel(channel, 0, 256, 512)
    upside = 0
    if WARP != STILL:
        upside = tl.load(row + 4)
    for sweep in tl.static_range(24 // GROUP):
        turn = (number + (sweep * THREADS * GROUP) % 3) % 3  # known to the compiler for each register
        start = first * 3 + sweep * (THREADS * GROUP) + thread * GROUP
        valid = start < HEIGHT * ROW
        if MIRRORED:
            y = start // ROW
            column = start - y * ROW
            y = tl.where(upside < 0, HEIGHT - 1 - y, y)
            last = y * ROW + (ROW - 3) - column  # red of the pixel at the mirrored place
            red_here, green_here, blue_here = _by_channel(channel, last, last + 2, last + 4)
            source = _turned(turn, red_here, green_here, blue_here) - number
        else:
            source = start + number
            if WARP != STILL and upside < 0:
                source += tl.multiple_of((HEIGHT - 1 - 2 * (start // ROW)) * ROW, [1, GROUP])
        level = tl.load(levels + source, mask=valid, other=0).to(tl.int32)
        offset = _turned(turn, offsets[0], offsets[1], offsets[2])
        scale = _turned(turn, scales[0], scales[1], scales[2])
        bias = _turned(turn, biases[0], biases[1], biases[2])
        value = _ended(level, offset, scale, bias, ending, LOOKS, ENDING, TYPE)
        tl.store(out + (start + number), value, mask=valid)


@_kernel
def _by_channel(channel, red, green, blue):
    """What belongs to a channel, the next one, and the one after it."""
    return (
        tl.where(channel == 0, red, tl.where(channel == 1, green, blue)),
        tl.where(channel == 0, green, tl.where(channel == 1, blue, red)),
        tl.where(channel == 0, blue, tl.where(channel == 1, red, green)),
    )


@_kernel
def _turned(turn, first, second, third):
    return tl.where(turn == 0, first, tl.where(turn == 1, second, third))


@_kernel
def _ended(level, offset, scale, bias, ending, LOOKS: tl.constexpr, ENDING: tl.constexpr, TYPE: tl.constexpr):
    """The bits of the result for levels of a channel: `offset` is 256 * channel."""
    final, lut = ending
    if ENDING == TABLE:
        bits = tl.load(final + (offset + level))
    else:
        if LOOKS:
            level = tl.load(lut + (offset + level)).to(tl.int32)
        bits = level.to(tl.uint8) if ENDING == LEVELS else _rounded(level.to(tl.float32), scale, bias, TYPE)
    return bits


@_kernel
def _rounded(level, scale, bias, TYPE: tl.constexpr):
    """The bits of level * scale + bias in TYPE: rounded once to float32, then to the nearest of TYPE, ties to even."""
    if INTERPRETED:  # it may round a product luts adding, and bfloat16 towards zero
        value = (level.to(tl.float64) * scale + bias).to(tl.float32)
        if TYPE == BRAIN:
            bits = value.to(tl.int32, bitcast=True)
            bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
        elif TYPE == HALF:
            bits = value.to(tl.float16).to(tl.int16, bitcast=True)
        else:
            bits = value.to(tl.int32, bitcast=True)
    else:
        value = tl.fma(level, scale, bias)
        if TYPE == SINGLE:
            bits = value.to(tl.int32, bitcast=True)
        elif TYPE == BRAIN:
            bits = value.to(tl.bfloat16).to(tl.int16, bitcast=True)
        else:
            bits = value.to(tl.float16).to(tl.int16, bitcast=True)
    return bits


@_kernel
def _each(
    out,
    image,
    row,
    luts,
    ending,
    line,
    first,
    drawn,
    LOOKS: tl.constexpr,
    ENDING: tl.constexpr,
    TYPE: tl.constexpr,
    SHARPENS: tl.constexpr,
    ERASES: tl.constexpr,
    THREADS: tl.constexpr,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Pixel by pixel: 8 consecutive pixels a thread, for whatever an image drew and however it lies in memory."""
    thread = tl.arange(0, THREADS)[:, None]
    number = tl.arange(0, 8)[None, :]
    if WIDTH % 8 == 0:  # a thread's pixels lie in one row
        start = first + thread * 8
        y = start // WIDTH
        corner = (start - y * WIDTH, y, start < HEIGHT * WIDTH)
        x = corner[0] + number
        valid = corner[2] & (number >= 0)
        y = y + 0 * number
    else:
        corner = (0, 0, 0)  # never read
        start = first + thread * 8 + number
        y = start // WIDTH
        x = start - y * WIDTH
        valid = start < HEIGHT * WIDTH
    if SHARPENS:
        op, factor = _operation(row, COUNT - 1, COUNT)
        if op == SHARPNESS:
            red, green, blue = _sharpened(
                image, row, luts, x, y, valid, corner, factor, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH
            )
        else:
            red, green, blue = _pixel(image, row, luts, x, y, valid, COUNT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    else:
        red, green, blue = _pixel(image, row, luts, x, y, valid, COUNT, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    if LOOKS and (drawn & LOOKED) != 0:
        red, green, blue = _mapped(ending[1], red, green, blue)
    red_scale, green_scale, blue_scale, red_bias, green_bias, blue_bias = line
    red = _ended(red, 0, red_scale, red_bias, ending, False, ENDING, TYPE)
    green = _ended(green, 256, green_scale, green_bias, ending, False, ENDING, TYPE)
    blue = _ended(blue, 512, blue_scale, blue_bias, ending, False, ENDING, TYPE)
    if ERASES:
        top, left, bottom, right = tl.load(row + 6), tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
        erased = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        red = tl.where(erased, tl.load(ending[0] + 768), red)
        green = tl.where(erased, tl.load(ending[0] + 769), green)
        blue = tl.where(erased, tl.load(ending[0] + 770), blue)
    _interleaved(out, red, green, blue, first, THREADS, HEIGHT, WIDTH)


@_kernel
def _interleaved(out, red, green, blue, first, THREADS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Store [THREADS, 8] of each channel as [THREADS, 24], in three pieces of 8 values: registers are only renamed."""
    r0, r1, r2, r3, r4, r5, r6, r7 = _eight(red, THREADS)
    g0, g1, g2, g3, g4, g5, g6, g7 = _eight(green, THREADS)
    b0, b1, b2, b3, b4, b5, b6, b7 = _eight(blue, THREADS)
    number = tl.arange(0, 8)[None, :]
    start = first * 3 + tl.arange(0, THREADS)[:, None] * 24 + number
    total = HEIGHT * WIDTH * 3
    tl.store(out + start, _joined(r0, g0, b0, r1, g1, b1, r2, g2), mask=start < total)
    tl.store(out + start + 8, _joined(b2, r3, g3, b3, r4, g4, b4, r5), mask=start + 8 < total)
    tl.store(out + start + 16, _joined(g5, b5, r6, g6, b6, r7, g7, b7), mask=start + 16 < total)


@_kernel
def _eight(values, THREADS: tl.constexpr):
    """The columns of [THREADS, 8]."""
    even, odd = tl.split(tl.reshape(values, [THREADS, 2, 2, 2]))
    v04, v26 = tl.split(even)
    v15, v37 = tl.split(odd)
    v0, v4 = tl.split(v04)
    v2, v6 = tl.split(v26)
    v1, v5 = tl.split(v15)
    v3, v7 = tl.split(v37)
    return v0, v1, v2, v3, v4, v5, v6, v7


@_kernel
def _joined(v0, v1, v2, v3, v4, v5, v6, v7):
    """The reverse of `_eight`."""
    even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
    odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
    return tl.reshape(tl.join(even, odd), [v0.shape[0], 8])


@_kernel
def _sharpened(
    image,
    row,
    luts,
    x,
    y,
    valid,
    corner,
    factor,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """SHARPNESS as the last column: recomputes each pixel's neighbours. The outermost pixels are unchanged."""
    pair, blue, here = x * 0, x * 0, x * 0  # sums of nine pixels, red and green in one number; and the pixel itself
    if WIDTH % 8 == 0:  # a thread's pixels lie in one row: sums of three pixels in each column, then of three columns
        first, above, inside = corner
        pair_before, blue_before, pair_after, blue_after = 0 * first, 0 * first, 0 * first, 0 * first
        for number in range(3):
            r, g, b = _near(
                image,
                row,
                luts,
                x,
                _clamped(y + (number - 1), HEIGHT),
                valid,
                WARP,
                COLORS,
                MAPPED,
                COUNT,
                HEIGHT,
                WIDTH,
            )
            pair, blue = pair + (r + (g << 16)), blue + b
            if number == 1:
                here = r + (g << 8) + (b << 16)
        for number in range(3):
            v = _clamped(above + (number - 1), HEIGHT)
            u = _clamped(first - 1, WIDTH)
            r, g, b = _near(image, row, luts, u, v, inside, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            pair_before, blue_before = pair_before + (r + (g << 16)), blue_before + b
            u = _clamped(first + 8, WIDTH)
            r, g, b = _near(image, row, luts, u, v, inside, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            pair_after, blue_after = pair_after + (r + (g << 16)), blue_after + b
        pair = _neighbours(pair_before, pair, pair_after)
        blue = _neighbours(blue_before, blue, blue_after)
    else:
        for number in range(9):
            u, v = _clamped(x + (number % 3 - 1), WIDTH), _clamped(y + (number // 3 - 1), HEIGHT)
            r, g, b = _near(image, row, luts, u, v, valid, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
            pair, blue = pair + (r + (g << 16)), blue + b
            if number == 4:
                here = r + (g << 8) + (b << 16)
    red, green = pair & 0xFFFF, pair >> 16
    red_here, green_here, blue_here = here & 0xFF, (here >> 8) & 0xFF, here >> 16
    inner = (x > 0) & (x < WIDTH - 1) & (y > 0) & (y < HEIGHT - 1)
    return (
        _blend(tl.where(inner, _smooth(red, red_here), red_here), red_here, factor),
        _blend(tl.where(inner, _smooth(green, green_here), green_here), green_here, factor),
        _blend(tl.where(inner, _smooth(blue, blue_here), blue_here), blue_here, factor),
    )


@_kernel
def _near(
    image,
    row,
    luts,
    x,
    y,
    valid,
    WARP: tl.constexpr,
    COLORS: tl.constexpr,
    MAPPED: tl.constexpr,
    COUNT: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Red, green and blue before the last column."""
    LAST: tl.constexpr = COUNT - 1
    red, green, blue = _pixel(image, row, luts, x, y, valid, LAST, WARP, COLORS, MAPPED, COUNT, HEIGHT, WIDTH)
    if (MAPPED >> LAST) & 1:
        red, green, blue = _mapped(luts + LAST * 768, red, green, blue)
    return red, green, blue


@_kernel
def _clamped(position, SIDE: tl.constexpr):
    return tl.minimum(tl.maximum(position, 0), SIDE - 1)


@_kernel
def _neighbours(before, values, after):
    """Sums of three neighbours along rows of [THREADS, 8], between those of the column before and the one after."""
    v0, v1, v2, v3, v4, v5, v6, v7 = _eight(values, values.shape[0])
    first, last = tl.reshape(before, [values.shape[0]]), tl.reshape(after, [values.shape[0]])
    return _joined(
        *(first + v0 + v1, v0 + v1 + v2, v1 + v2 + v3, v2 + v3 + v4),
        *(v3 + v4 + v5, v4 + v5 + v6, v5 + v6 + v7, v6 + v7 + last),
    )


@_kernel
def _pixel(
    image,
    row,
    luts,
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
    """Red, green and blue after the warp and the colours luts column END; look-ups since then are still pending."""
    red, green, blue = _warped(image, row, x, y, valid, WARP, HEIGHT, WIDTH)
    for column in tl.static_range(END):
        if (COLORS >> column) & 1:
            op, factor = _operation(row, column, COUNT)
            if op == COLOR:
                if (MAPPED >> column) & 1:
                    red, green, blue = _mapped(luts + column * 768, red, green, blue)
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
