"""Durations of training as people write them: 16ep, 300ba, 100000sp, 0.2dur (MosaicML Composer's `Time`)."""

import math
import re
from dataclasses import dataclass
from typing import Literal, cast

from fastimg.errors import UsageError
from fastimg.wording import plural, several

Unit = Literal["ep", "ba", "sp", "dur"]

_WORDS: dict[Unit, str] = {"ep": "epoch", "ba": "step", "sp": "sample"}
_WRITTEN = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(ep|ba|sp|dur|)", re.IGNORECASE)
_EXAMPLES = "16ep (epochs), 300ba (optimiser steps), 100000sp (samples)"


@dataclass(frozen=True)
class Interval:
    """How often something happens: every so many optimiser steps, or seconds by the clock. One of them is set."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.seconds is None:
            return several("step") if self.steps is None else plural(self.steps, "step")
        unit, word = next(((size, w) for size, w in _CLOCK_WORDS if self.seconds >= size), (1.0, "second"))
        number = f"{self.seconds / unit:.12g}"
        return f"{number} {word if number == '1' else several(word)}"


_CLOCK = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_CLOCK_WORDS = ((3600.0, "hour"), (60.0, "minute"))
_INTERVAL = re.compile(r"(\d+\.?\d*|\.\d+)\s*(s|m|min|h|)", re.IGNORECASE)


def interval(text: str, flag: str) -> Interval:
    """`200` steps, or `90s`, `10m`, `1.5h` by the clock. Raises UsageError naming `flag` and what could be written."""
    match = _INTERVAL.fullmatch(str(text).strip())
    number, unit = (match[1], match[2].lower()) if match else ("", "")
    if match and not unit and number.isdigit() and int(number) >= 1:
        return Interval(steps=int(number))
    if unit and 0 < float(number) * _CLOCK[unit] < math.inf:
        return Interval(seconds=float(number) * _CLOCK[unit])
    raise UsageError(f"{flag} {text}: give a number of steps, 1 or more, or a time, as 90s, 10m or 1.5h")


def limit(text: str, flag: str) -> float:
    """`90s`, `30m` or `2h` in seconds. Raises UsageError naming `flag` and what could be written."""
    match = _INTERVAL.fullmatch(str(text).strip())
    seconds = float(match[1]) * _CLOCK[match[2].lower()] if match and match[2] else 0.0
    if 0 < seconds < math.inf:
        return seconds
    raise UsageError(f"{flag} {text}: give a time, as 90s, 30m or 2h")


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
