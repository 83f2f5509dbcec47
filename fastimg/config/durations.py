"""Durations of training as people write them: 16ep, 300ba, 100000sp, 0.2dur (MosaicML Composer's `Time`)."""

import math
import re
from dataclasses import dataclass
from typing import Literal, cast

from fastimg.errors import UsageError
from fastimg.wording import several

Unit = Literal["ep", "ba", "sp", "dur"]

_WORDS: dict[Unit, str] = {"ep": "epoch", "ba": "step", "sp": "sample"}
_WRITTEN = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(ep|ba|sp|dur|)", re.IGNORECASE)
_EXAMPLES = "16ep (epochs), 300ba (optimiser steps), 100000sp (samples)"


@dataclass(frozen=True)
class Span:
    """A length of training: epochs (ep), optimiser steps (ba), samples (sp), or a share of the run (dur)."""

    value: float
    unit: Unit

    def steps(self, steps_per_epoch: float, global_batch: int, total_steps: float | None = None) -> float:
        """The span in optimiser steps, not rounded. `total_steps`, of the whole run, is for shares alone."""
        if self.unit == "dur":
            assert total_steps is not None, "a share needs something to be a share of"
            return self.value * total_steps
        return self.value * {"ep": float(steps_per_epoch), "ba": 1.0, "sp": 1 / global_batch}[self.unit]

    @property
    def text(self) -> str:
        """As `parse` reads it: 5ep."""
        return f"{int(self.value) if self.value.is_integer() else self.value!r}{self.unit}"

    def __str__(self) -> str:
        number = f"{self.value:,.12g}"
        return (
            f"{number} of the run"
            if self.unit == "dur"
            else f"{number} {_WORDS[self.unit] if number == '1' else several(_WORDS[self.unit])}"
        )


def parse(text: str, flag: str, whole: bool = False) -> Span:
    """`text` as a span; a bare number means epochs. `whole`: the length of the run, which is above 0 and not a share.

    Raises UsageError naming `flag` and what could be written.
    """
    examples = _EXAMPLES if whole else f"{_EXAMPLES} or 0.2dur (share of the run)"
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{flag} {text}: write a number and its unit, as {examples}")
    value = float(match[1])
    unit = cast(Unit, match[2].lower() or "ep")
    if not 0 <= value < math.inf:
        raise UsageError(f"{flag} {text}: a span is 0 or more; write it as {examples}")
    if whole and unit == "dur":
        raise UsageError(f"{flag} {text}: a run cannot be a share of itself; write {examples}")
    if whole and value == 0:
        raise UsageError(f"{flag} {text}: nothing would be trained; write {examples}")
    if unit == "dur" and value > 1:
        raise UsageError(f"{flag} {text}: a share of the run is a number from 0 to 1; or write {_EXAMPLES}")
    if unit in ("ba", "sp") and not value.is_integer():
        raise UsageError(f"{flag} {text}: {_WORDS[unit]}s are whole numbers; write {examples}")
    return Span(value, unit)
