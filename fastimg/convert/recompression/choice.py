"""The value of --recompress."""

import re
from dataclasses import dataclass

from fastimg.errors import UsageError

LOSSLESS = "lossless"


@dataclass(frozen=True)
class Recompression:
    """What becomes of images that are no JPEGs: JPEGs of a quality, or without one the same pixels in fewer bytes."""

    quality: int | None

    def __str__(self) -> str:
        return LOSSLESS if self.quality is None else f"jpeg:{self.quality}"


def parse_recompression(text: str) -> Recompression:
    """`lossless` or `jpeg:Q`, Q from 1 to 100. Raises UsageError."""
    match = re.fullmatch(r"jpeg:([0-9]{1,3})", text)
    if text != LOSSLESS and not (match and 1 <= int(match[1]) <= 100):
        raise UsageError(f"--recompress {text}: give lossless, or jpeg: with a quality of 1 to 100, as in jpeg:95")
    return Recompression(int(match[1]) if match else None)
