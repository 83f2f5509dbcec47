"""What is launched for a batch: its plan in words, and what the kernels are specialised for."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton  # type: ignore[import-untyped]

from fastimg.augment.lines import LevelLine
from fastimg.augment.ops import LOOKUPS, STATISTICS, TRIVIAL, Op, trivial_table
from fastimg.augment.plan import Plan, Sized, to_device
from fastimg.augment.policy import Policy
from fastimg.augment.reference import normalisation_table

from .constants import (
    COUNTED_BLOCK,
    COUNTS,
    ENTRIES,
    FLIPPED,
    LEVELS,
    LINE,
    LOOKED,
    OPTIONS,
    PIXEL_OPTIONS,
    PIXELS,
    RUNS,
    SHARP,
    SHIFTED,
    STILL,
    TABLE,
    THREADS,
    WARPED,
    is_interpreted,
)
from .counting import count, counter_of
from .passes import _pixels
from .statistics import _statistics
from .tables import _tables

_INTERPRETED = is_interpreted
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.uint8: torch.uint8}
_TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]  # SINGLE, BRAIN, HALF, BYTE
_STATISTICS, _LOOKUPS, _COLORS = (
    np.isin(np.arange(len(Op)), list(ops)) for ops in (STATISTICS, LOOKUPS, {Op.COLOR, Op.SHARPNESS, Op.HUE})
)
_HUES = 8  # in a mask of columns, the bit of the first that may hold HUE
_TRIVIAL = frozenset(TRIVIAL.values())


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
    elif out.data_ptr() % 16:  # values are written in words
        out.copy_(fused(plan, images, table, dtype, None, line))
        return out
    if not len(images):
        return out
    size = images.shape[2], images.shape[3]
    while plan is not None and _ahead(plan, *size) is None and (early := _early_sharpness(plan)):
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
    (batch, _, height, width), strides = images.shape, images.stride()
    launch = None if plan is None else _ahead(plan, height, width) or launch_of(plan, height, width)
    columns = _columns(None) if launch is None else launch.columns
    words = luts = final = counted = table  # placeholders, never read
    shape = {"WORDS": 0, "COUNT": columns.count, "HEIGHT": height, "WIDTH": width}
    image = {"FILL": _fill(plan), "WARP": _warp(plan), "COLORS": columns.colors, "MAPPED": columns.mapped}
    ending = {"ENDING": _ending(out.dtype, line)}
    if launch is not None:
        words, lists = _sent(plan, launch, images.device), launch.lists
        shape["WORDS"] = words.shape[1]
    if columns.count:
        luts = torch.empty(batch, columns.count + 1, 768, dtype=torch.uint8, device=images.device)
        if ending["ENDING"] == TABLE.value:
            final = torch.empty(batch, ENTRIES.value, dtype=table.dtype, device=images.device)
        counts = torch.zeros(len(lists), batch, COUNTS.value, dtype=torch.int64, device=images.device)
        start = 0
        for number, stop in enumerate((*columns.statistics, columns.count)):
            if stop:
                run = {"START": start, "STOP": stop, "COUNTED": start in columns.statistics, "ADDS": columns.adds}
                _tables[(batch,)](final, luts, counted, words, table, **run, **ending, **shape, **OPTIONS)
            if stop < columns.count:
                start, counted = stop, counts[number]
                turn = {"COLUMN": stop, "LIST": number, **image, **shape}
                _count(lists[number], counted, images, words, luts, turn)
    kind: dict[str, Any] = {"SHARPENS": columns.sharpens, "ERASES": plan is not None and plan.erasing is not None}
    kind |= {"PATHS": _paths(images, out, kind, image), "TYPE": _TYPES.index(out.dtype), "THREADS": THREADS}
    kind["EACH"] = 16 if height * width >= 64 * THREADS else 8
    grid = (batch * triton.cdiv(height * width, kind["EACH"] * THREADS),)
    six = (0.0,) * 6 if line is None else (*line.scales, *line.biases)
    _pixels[grid](
        *(out.view(table.dtype), images, *strides, words, luts, counted, final, *six),
        **kind,
        **ending,
        **image,
        **shape,
        **PIXEL_OPTIONS,
    )


def _count(
    listed: "_Listed",
    counts: torch.Tensor,
    images: torch.Tensor,
    words: torch.Tensor,
    luts: torch.Tensor,
    turn: Mapping[str, int],
) -> None:
    """Launch the statistics pass for a column: in CUDA C++, and in Triton for the images that it leaves."""
    (_, _, height, width), counter = images.shape, counter_of(images.device)
    others = listed.others if counter.missing is None else len(listed.rows)
    grid = (others * triton.cdiv(height * width, COUNTED_BLOCK),)
    if grid[0]:
        _statistics[grid](counts, images, *images.stride(), words, luts, **turn, BLOCK=COUNTED_BLOCK, **OPTIONS)
    if len(listed.rows) > others:
        column, columns = turn["COLUMN"], turn["COUNT"]
        kinds, rows = words[:, Sized.FIXED + column], words[others:, Sized.FIXED + 2 * columns + turn["LIST"]]
        tables = luts[:, column] if (turn["MAPPED"] >> column) & 1 else None
        count(counter, counts, images, kinds, rows, len(listed.rows) - others, tables)


def _ending(dtype: torch.dtype, line: LevelLine | None) -> int:
    if dtype == torch.uint8:
        return int(LEVELS.value)
    return int((TABLE if line is None else LINE).value)


def _paths(images: torch.Tensor, out: torch.Tensor, kind: Mapping[str, Any], image: Mapping[str, int]) -> int:
    """The paths that images may take, by their layout and by what the policy may draw."""
    width = images.shape[3]
    group = 4 if out.dtype == torch.float32 else 8  # of bytes that a thread reads at once
    flat = images.stride()[1:] == (1, 3 * width, 3) and 3 * width % group == 0
    if not flat or images.stride(0) % group or images.data_ptr() % group:
        return int(PIXELS.value)
    simple = image["WARP"] != WARPED.value and not (image["COLORS"] or kind["SHARPENS"] or kind["ERASES"])
    if simple:
        return int(RUNS.value)
    shifted = SHIFTED.value * (image["WARP"] == WARPED.value and image["FILL"] == 0)
    return int(RUNS.value + PIXELS.value + shifted + SHARP.value * (kind["SHARPENS"] and group == 8))


@dataclasses.dataclass(frozen=True)
class _Columns:
    """What the kernels are specialised for. Sets of columns are bit masks.

    A column with several operations, TrivialAugment's, counts as holding any of them, whatever a batch drew: so a
    policy needs few kernels.
    """

    count: int
    colors: int  # columns that may hold COLOR, and, from bit 8, those that may hold HUE
    mapped: int  # columns that a look-up may precede
    statistics: tuple[int, ...]  # columns that may need statistics
    sharpens: bool  # whether the last column may hold SHARPNESS
    adds: bool  # whether any may hold what TrivialAugment does not have


def _columns(plan: Plan | None) -> _Columns:
    any_of: list[frozenset[Op]] = []
    if plan is not None and plan.kinds is not None:
        any_of = list(plan.kinds)
    elif plan is not None:
        any_of = [ops if len(ops) == 1 else _TRIVIAL | ops for ops in plan.columns]
        if any_of and plan.trivial.any():  # even if the batch has one image only
            any_of[-1] |= _TRIVIAL
    assert len(any_of) <= _HUES
    return _Columns(
        count=len(any_of),
        colors=sum(1 << k for k, ops in enumerate(any_of) if Op.COLOR in ops)
        + sum(1 << (k + _HUES) for k, ops in enumerate(any_of) if Op.HUE in ops),
        mapped=sum(2 << k for k, ops in enumerate(any_of) if not ops <= {Op.COLOR, Op.HUE}),
        statistics=tuple(k for k, ops in enumerate(any_of) if ops & STATISTICS),
        sharpens=bool(any_of) and Op.SHARPNESS in any_of[-1],
        adds=any(not ops <= _TRIVIAL for ops in any_of),
    )


@dataclasses.dataclass(frozen=True)
class Launch:
    """A stage of a plan for images of one size, as the kernels take it."""

    words: torch.Tensor  # int32 [B, 10 + 2 K + P + 1], on the host
    columns: _Columns
    lists: "tuple[_Listed, ...]"  # for each statistics pass


def launch_of(plan: Plan, height: int, width: int) -> Launch:
    """What is launched for a stage of a plan."""
    columns, still = _columns(plan), _still(plan)
    lists = tuple(_listed(plan, still, k) for k in columns.statistics)
    return Launch(_words(plan, plan.sized(height, width), lists, columns, still), columns, lists)


def work_out(plan: Plan, height: int, width: int) -> Launch | None:
    """What will be launched for a stage of a plan; None for one that takes several launches."""
    return None if _early_sharpness(plan) else launch_of(plan, height, width)


def _ahead(plan: Plan, height: int, width: int) -> Launch | None:
    """What is launched, if it was worked out before."""
    known = plan.ahead is not None and plan.ahead.is_of(plan, height, width)
    found: Launch | None = plan.ahead.launch if known and plan.ahead is not None else None
    return found


def _sent(plan: Plan | None, launch: Launch, device: torch.device) -> torch.Tensor:
    """The launch's words on the device: they may have come with the batch."""
    ahead = None if plan is None else plan.ahead
    if ahead is None or ahead.launch is not launch or ahead.sent is None or ahead.sent.device != device:
        return to_device(launch.words, device)
    return ahead.sent


def _fill(plan: Plan | None) -> int:
    """The colour outside of warped images: red, green and blue in a byte each."""
    if plan is None or plan.warps is None:
        return 0
    red, green, blue = plan.warps.fill
    return red + (green << 8) + (blue << 16)


def _warp(plan: Plan | None) -> int:
    if plan is None:
        return int(STILL.value)
    warped = plan.warps is not None or plan.trivial.numpy().any() or plan.angle.numpy().any()
    return int((WARPED if warped else FLIPPED).value)


@dataclasses.dataclass(frozen=True)
class _Listed:
    """The images that need statistics in a column: first those that only the Triton pass counts, then all others."""

    rows: npt.NDArray[np.int64]
    others: int  # how many come first: they are warped or coloured before the column


def _listed(plan: Plan, still: npt.NDArray[np.bool_], column: int) -> _Listed:
    ops = plan.ops.numpy()
    rows = np.flatnonzero(_STATISTICS[ops[:, column]])
    plain = still[rows]
    if column:
        plain &= ~_COLORS[ops[rows, :column]].any(axis=1)
    return _Listed(np.concatenate([rows[~plain], rows[plain]]), int(len(rows) - plain.sum()))


def _words(
    plan: Plan,
    sized: Sized,
    lists: Sequence[_Listed],
    columns: "_Columns",
    still: npt.NDArray[np.bool_],
) -> torch.Tensor:
    """The plan's words int32 [B, 10 + 2 K + P + 1].

    P columns begin with the rows of each statistics pass. The last column says which path an image takes.
    """
    taken = sized.words.numpy()
    words = np.zeros((len(taken), taken.shape[1] + len(lists) + 1), np.int32)
    words[:, : taken.shape[1]] = taken
    for number, listed in enumerate(lists):
        words[: len(listed.rows), taken.shape[1] + number] = listed.rows
    words[:, -1] = _drawn(plan, taken, columns, still)
    return torch.from_numpy(words)


def _still(plan: Plan) -> npt.NDArray[np.bool_]:
    """Whether images [B] are at most flipped."""
    if _warp(plan) != WARPED.value:
        return np.ones(len(plan), np.bool_)
    still: npt.NDArray[np.bool_] = _unmoved()[plan.trivial.numpy()] & (plan.angle.numpy() == 0.0)
    if plan.warps is not None:
        linear, shift = plan.warps.linear.numpy(), plan.warps.shift.numpy()
        still &= (linear == (1.0, 0.0, 0.0, 1.0)).all(axis=1) & (shift == 0.0).all(axis=1)
    return still


def _drawn(
    plan: Plan, words: npt.NDArray[np.int32], columns: "_Columns", still: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """The last words [B]: RUNS, SHIFTED or SHARP by what an image drew, and LOOKED, see `constants`."""
    ops = plan.ops.numpy()
    whole, looked = words[:, 8] == 0, np.zeros(len(words), np.bool_)  # no box is erased
    sharp, shifted = np.zeros(len(words), np.bool_), np.zeros(len(words), np.bool_)
    if columns.sharpens:
        sharp = still & whole & (ops[:, -1] == Op.SHARPNESS) & ~(_COLORS | _LOOKUPS)[ops[:, :-1]].any(axis=1)
    if _warp(plan) == WARPED.value and _fill(plan) == 0:  # rows of the result are rows of the image
        shifted = ~still & (np.abs(words[:, 0]) == 1 << 16) & (words[:, 3] == 0)
    runs = (still | shifted) & whole
    for column in range(columns.count):
        colored = _COLORS[ops[:, column]]
        runs &= ~colored
        looked = (looked & ~colored) | _LOOKUPS[ops[:, column]]
    drawn: npt.NDArray[np.int32] = runs * np.int32(RUNS.value) + looked * np.int32(LOOKED.value)
    drawn += sharp * np.int32(SHARP.value) + (shifted & runs) * np.int32(SHIFTED.value)
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
    plan = replaced(plan, kinds=None)
    first = replaced(plan, ops=plan.ops[:, :count], magnitudes=plan.magnitudes[:, :count], erasing=None)
    plan = replaced(plan, warps=None)
    rest = replaced(plan, ops=plan.ops[:, count:], magnitudes=plan.magnitudes[:, count:], hflip=still, vflip=still)
    return first, replaced(rest, angle=torch.zeros_like(plan.angle), trivial=torch.zeros_like(plan.trivial))


@functools.lru_cache(maxsize=16)
def _levels(device: torch.device) -> torch.Tensor:
    return normalisation_table(Policy(), torch.uint8).to(device)
