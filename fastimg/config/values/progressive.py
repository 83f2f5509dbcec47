"""Progressive resizing: small training crops first, larger ones towards the end (Howard, 2018)."""

from dataclasses import dataclass

from fastimg.errors import UsageError
from fastimg.wording import plural

_STEP = 32  # pixels: convolutions and patches like multiples


@dataclass(frozen=True)
class Progressive:
    """Crops of `small` pixels up to epoch `start`, of `large` from epoch `end`, and between them in proportion."""

    small: int
    large: int
    start: int
    end: int

    def size(self, epoch: int) -> int:
        """Side of the training crops of epoch `epoch`, counted from 0."""
        if epoch <= self.start:
            return self.small
        if epoch >= self.end:
            return self.large
        exact = self.small + (self.large - self.small) * (epoch - self.start) / (self.end - self.start)
        return min(self.large, max(self.small, round(exact / _STEP) * _STEP))

    @property
    def possible(self) -> list[int]:
        """Every size that some epoch could have."""
        between = range(-(-self.small // _STEP) * _STEP, self.large, _STEP)
        return sorted({self.small, *between, self.large})

    def sizes(self, epochs: int) -> list[int]:
        """Every size that a run of so many epochs has, in order."""
        return list(dict.fromkeys(self.size(epoch) for epoch in range(epochs)))


def parse(sizes: str, epochs: str | None, total: int | None) -> Progressive:
    """`160:192` and `11:13`, of `total` epochs; None where that is not known yet. Raises UsageError."""
    small, large = _pair("--progressive", sizes, "160:192")
    if not 1 <= small < large <= 16384:
        raise UsageError(f"--progressive {sizes}: give a smaller size in pixels, then a larger one, as in 160:192")
    if epochs is None:
        start = round(0.7 * (total or 0))
        end = round(0.85 * (total or 0))
    else:
        start, end = _pair("--progressive-epochs", epochs, "11:13")
        if start > end:
            raise UsageError(f"--progressive-epochs {epochs}: give the earlier epoch first, as in 11:13")
    if total is not None and start >= total - 1 and end >= total:
        raise UsageError(
            f"--progressive {sizes} has no effect: all {plural(total, 'epoch')} would have {small} pixels; "
            "train more epochs, or give earlier --progressive-epochs"
        )
    return Progressive(small, large, start, end)


def _pair(flag: str, text: str, example: str) -> tuple[int, int]:
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"{flag} {text}: give two numbers and a colon, as in {example}")
    return int(parts[0]), int(parts[1])
