"""The kernel that mixes images with their partners, and how it is launched: `reference.mix`.

One launch for a batch: a program reads a block of an image, and of its partner's where that shows, and writes it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .constants import BRAIN, MIXED_BLOCK, OPTIONS, SINGLE, kernel
from .endings import bits_of

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
TYPES = tuple(_BITS)  # in the order of SINGLE, BRAIN, HALF


def mix(
    words: torch.Tensor, images: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.mix`, into `out` if given. Images [B, C, H, W] and `out` are channels-last or contiguous."""
    batch, channels, height, width = images.shape
    last = images.is_contiguous(memory_format=torch.channels_last)
    if out is None:
        out = torch.empty_like(images)
    share = torch.empty(batch, dtype=torch.float32, device=images.device)
    bits = _BITS[images.dtype]
    counts = words if weight is None else weight.to(torch.float32).contiguous().view(torch.int32)
    shape = {"HEIGHT": height, "ROW": width * channels if last else width, "UNIT": channels if last else 1}
    shape |= {"PLANES": 1 if last else channels, "WEIGHED": weight is not None}
    grid = (batch * triton.cdiv(channels * height * width, MIXED_BLOCK),)
    with torch.cuda.device_of(images):  # type: ignore[no-untyped-call]
        _mixtures[grid](
            *(out.view(bits), share.view(torch.int32), images.view(bits), words, counts),
            **shape,
            TYPE=TYPES.index(images.dtype),
            BLOCK=MIXED_BLOCK,
            **OPTIONS,
        )
    return out, share


@kernel
def _mixtures(
    out,
    shares,
    images,
    words,
    counts,
    WEIGHED: tl.constexpr,
    PLANES: tl.constexpr,
    HEIGHT: tl.constexpr,
    ROW: tl.constexpr,
    UNIT: tl.constexpr,
    TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK values of an image [PLANES, HEIGHT, ROW], of which a pixel has UNIT in a row; in bits of their type."""
    SIZE: tl.constexpr = PLANES * HEIGHT * ROW
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    number = tl.program_id(0) // BLOCKS
    block = tl.program_id(0) % BLOCKS
    words += number * 7
    partner = tl.load(words)
    share = tl.load(words + 1).to(tl.float32, bitcast=True)
    cut = tl.load(words + 2)
    if WEIGHED:
        counts_too = tl.load(counts + partner).to(tl.float32, bitcast=True) > 0.0
        share = tl.where(counts_too, share, 1.0)
        cut = tl.where(counts_too, cut, 0)
    if block == 0:
        tl.store(shares + number, share.to(tl.int32, bitcast=True))
    own = images + number.to(tl.int64) * SIZE
    other = images + partner.to(tl.int64) * SIZE
    place = block * BLOCK + tl.arange(0, BLOCK)
    valid = place < SIZE
    bits = tl.load(own + place, mask=valid, other=0)
    if cut != 0:
        top = tl.load(words + 3)
        left = tl.load(words + 4) * UNIT
        bottom = tl.load(words + 5)
        right = tl.load(words + 6) * UNIT
        # Of one plane, blocks of rows above or below the box do not read the partner.
        if PLANES > 1 or (block * BLOCK < bottom * ROW and (block + 1) * BLOCK > top * ROW):
            line = place // ROW
            x = place - line * ROW
            y = line % HEIGHT
            inside = (y >= top) & (y < bottom) & (x >= left) & (x < right)
            bits = tl.where(inside, tl.load(other + place, mask=valid, other=0), bits)
    elif share != 1.0:
        taken = tl.load(other + place, mask=valid, other=0)
        value = _widened(bits, TYPE) * share + _widened(taken, TYPE) * (1.0 - share)
        bits = bits_of(value, TYPE)
    tl.store(out + number.to(tl.int64) * SIZE + place, bits, mask=valid)


@kernel
def _widened(bits, TYPE: tl.constexpr):
    """Bits of TYPE as float32."""
    if TYPE == SINGLE:
        value = bits.to(tl.float32, bitcast=True)
    elif TYPE == BRAIN:
        value = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        value = bits.to(tl.float16, bitcast=True).to(tl.float32)
    return value
