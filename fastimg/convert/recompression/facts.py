"""What --recompress changed: how many images of each format, their bytes before and after, and how well they match.

A shard's facts are part of its line in the journal, those of all of them stand in dataset.json.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from rich.filesize import decimal

from fastimg.errors import printable
from fastimg.loaders.decode import Pixels


class Recompressed(NamedTuple):
    """What became of one image."""

    format: str  # of the source
    before: int  # bytes
    after: int
    psnr: float | None  # decibels; None for equal pixels
    changes: tuple[str, ...]  # what got lost besides


@dataclass(kw_only=True)
class FormatFacts:
    """What became of the images of one format."""

    images: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    equal: int = 0  # images whose pixels are those of the source
    psnr_mean: float | None = None  # in decibels, of the others, against what the source decodes to
    psnr_worst: float | None = None
    worst: str = ""  # the name of that image

    def joined(self, other: "FormatFacts") -> "FormatFacts":
        """The facts of both."""
        count, more = self.images - self.equal, other.images - other.equal
        worst = min((self, other), key=lambda facts: math.inf if facts.psnr_worst is None else facts.psnr_worst)
        total = (self.psnr_mean or 0.0) * count + (other.psnr_mean or 0.0) * more
        return FormatFacts(
            images=self.images + other.images,
            bytes_before=self.bytes_before + other.bytes_before,
            bytes_after=self.bytes_after + other.bytes_after,
            equal=self.equal + other.equal,
            psnr_mean=total / (count + more) if count + more else None,
            psnr_worst=worst.psnr_worst,
            worst=worst.worst,
        )


@dataclass(kw_only=True)
class RecompressionFacts:
    """What became of some images."""

    formats: dict[str, FormatFacts] = field(default_factory=dict)  # by that of the source
    lost: dict[str, int] = field(default_factory=dict)  # images by what they lost besides

    def add(self, made: Recompressed, name: str) -> None:
        """Count an image that was stored."""
        equal = made.psnr is None
        facts = FormatFacts(
            images=1,
            bytes_before=made.before,
            bytes_after=made.after,
            equal=int(equal),
            psnr_mean=made.psnr,
            psnr_worst=made.psnr,
            worst="" if equal else name,
        )
        both = joined_recompressions(
            [self, RecompressionFacts(formats={made.format: facts}, lost=dict.fromkeys(made.changes, 1))]
        )
        self.formats, self.lost = both.formats, both.lost


@dataclass(kw_only=True)
class StatedRecompression(RecompressionFacts):
    """The same in dataset.json."""

    to: str  # the value of --recompress


def joined_recompressions(several: Iterable[RecompressionFacts]) -> RecompressionFacts:
    """The facts of all images together."""
    formats: dict[str, FormatFacts] = {}
    lost: Counter[str] = Counter()
    for facts in several:
        lost.update(facts.lost)
        for name, each in facts.formats.items():
            formats[name] = formats[name].joined(each) if name in formats else each
    return RecompressionFacts(formats=dict(sorted(formats.items())), lost=dict(sorted(lost.items())))


def psnr(pixels: Pixels, other: Pixels) -> float | None:
    """Peak signal-to-noise ratio of two images [H, W, 3] in decibels; None for equal pixels."""
    error = 0
    for row, changed in zip(pixels, other, strict=True):  # a row at a time, in little memory
        difference = row.astype(np.int64) - changed
        error += int((difference * difference).sum())
    return 10 * math.log10(255**2 * pixels.size / error) if error else None


def recompression_lines(stated: Mapping[str, Any]) -> list[str]:
    """What dataset.json says about it in words: a line for each format, and one for what got lost."""
    lines = [_format_line(name, facts) for name, facts in stated["formats"].items()] or ["no image"]
    lines[0] = f"to {stated['to']}: {lines[0]}"
    if stated["lost"]:
        lines.append("lost: " + ", ".join(f"{what} of {count:,}" for what, count in stated["lost"].items()))
    return lines


def _format_line(name: str, facts: Mapping[str, Any]) -> str:
    sizes = f"{facts['images']:,} {name}, {decimal(facts['bytes_before'])} -> {decimal(facts['bytes_after'])}"
    if facts["psnr_mean"] is None:
        return f"{sizes}, equal pixels"
    equal = f", {facts['equal']:,} with equal pixels" if facts["equal"] else ""
    worst = f"{facts['psnr_worst']:.1f} at worst ({printable(facts['worst'])})"
    return f"{sizes}, PSNR {facts['psnr_mean']:.1f} dB on average, {worst}{equal}"
