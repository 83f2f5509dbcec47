"""Progress output: one live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from fastimg.wording import for_terminal

from .terminal import say

UNITS = {"images": "img/s", "texts": "texts/s", "embeddings": "embeddings/s"}  # of what a step takes
_BAR = 8  # columns: with one and a rate, a line of a short run has 80
_GAP = "  "
_DRAWN = 2  # times a second: the thread that draws takes Python's lock from the one that trains


@dataclass(frozen=True)
class Line:
    """The state of a training run at a step."""

    epoch: int  # from 0
    step: int  # steps done in this epoch
    loss: float
    score: str  # such as: top1 45.00%
    lr: float
    speed: float  # samples per second
    wait_share: float  # share of the time since the last line that was spent waiting for data
    eta: float  # seconds to the end of the run
    unit: str = "images"  # of UNITS

    @property
    def rate(self) -> str:
        """Samples per second, in words."""
        return f"{self.speed:7.1f} {UNITS[self.unit]}"

    @property
    def waiting(self) -> str:
        """The share of waiting, in words."""
        return f"data wait {self.wait_share:4.0%}"

    def text(self) -> str:
        """The state as one line."""
        return (
            f"loss {self.loss:.4f}  {self.score}  lr {self.lr:.2e}  {self.rate}  {self.waiting}  "
            f"ETA {duration(self.eta)}"
        )


def duration(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def spent(seconds: float) -> str:
    """The time that something took: 0.4 s, and 0:12 or 1:02:03 from ten seconds on."""
    return f"{max(seconds, 0.1):.1f} s" if seconds < 9.95 else duration(seconds)


class Display:
    """`with Display(console, epochs, steps) as display: display.show(line)`.

    On a terminal one line is drawn twice a second, by a thread, and at the end: its clock and its ETA move while a step
    takes longer than that. What does not fit into the width is left out, the least important first.
    """

    def __init__(self, console: Console, epochs: int, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._epochs, self._steps = epochs, steps
        self._clock = clock
        self._began = clock()
        self._epoch = self._step = 0
        self._line: Line | None = None
        self._shown_at = self._noted_at = self._began
        self._note = ""
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(self, console=console, transient=True, refresh_per_second=_DRAWN)

    def __enter__(self) -> Self:
        self._began = self._clock()
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    @property
    def live(self) -> bool:
        """Whether a line is drawn again and again, so that numbers between two lines are of use."""
        return self._live is not None

    def show(self, line: Line) -> None:
        """Show the state at a step, which is logged; on a live line, unless a later one was seen there."""
        seen = self._line
        if self._live and (seen is None or (line.epoch, line.step) >= (seen.epoch, seen.step)):
            self.glance(line)
        if not self._live:
            self.say(f"epoch {line.epoch + 1}/{self._epochs}  step {line.step}/{self._steps}  {line.text()}")

    def glance(self, line: Line) -> None:
        """Show the state at a step between two that are logged; only on the live line.

        A speed of 0 is not known, as after the first steps of an epoch: the one before counts on.
        """
        now, before = self._clock(), self._line
        if line.speed == 0 and before is not None:
            eta = max(0.0, before.eta - (now - self._shown_at))
            line = replace(line, speed=before.speed, wait_share=before.wait_share, eta=eta)
        self._line, self._shown_at = line, now

    def advance(self, epoch: int, step: int) -> None:
        """Move on to a step, or to the beginning of an epoch, without synchronizing with the device."""
        self._epoch, self._step, self._note = epoch, step, ""

    def note(self, text: str) -> None:
        """Say what is going on between steps, until `advance`; only on the live line."""
        if text.partition(" ")[0] != self._note.partition(" ")[0]:
            self._noted_at = self._clock()
        self._note = text

    def say(self, text: str) -> None:
        """Print a line that stays."""
        say(self._console, text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._clock()
        epoch, step, line, note = self._epoch, self._step, self._line, self._note
        current = line is not None and line.epoch == epoch  # its loss is the mean over this epoch
        parts = [
            _Part(4, duration(now - self._began)),
            _Part(0, f"epoch {epoch + 1}/{self._epochs}"),
            _Part(6, "", bar=step / max(self._steps, 1)),
            _Part(1, f"{step}/{self._steps}"),
        ]
        if note:
            parts.append(_Part(2, f"{note}, {duration(now - self._noted_at)}"))
        elif line is None:
            parts.append(_Part(2, "in the first step" if step == 0 else "training"))
        if current and not note:
            assert line is not None
            parts += [_Part(2, f"loss {line.loss:.4f}"), _Part(5, line.score)]
        if line is not None and line.speed > 0:
            parts.append(_Part(3, f"ETA {duration(max(0.0, line.eta - (now - self._shown_at)))}"))
        if current and not note:
            assert line is not None
            timed = [_Part(7, line.rate.strip()), _Part(8, line.waiting)] if line.speed > 0 else []
            parts += [*timed, _Part(9, f"lr {line.lr:.2e}")]
        yield _drawn(_fitting(parts, options.max_width), "-" if options.ascii_only else "━")


@dataclass(frozen=True)
class _Part:
    """A piece of the live line."""

    place: int  # 0: the most important
    text: str
    bar: float | None = None  # the share of a bar that is filled, drawn instead of the text

    @property
    def width(self) -> int:
        return _BAR if self.bar is not None else Text(self.text).cell_len


def _fitting(parts: Sequence[_Part], width: int) -> list[_Part]:
    """The parts that fit into `width` columns, in their order; the most important ones are taken first."""
    kept: list[_Part] = []
    left = width + len(_GAP)
    for part in sorted(parts, key=lambda part: part.place):
        if part.width + len(_GAP) <= left:
            kept.append(part)
            left -= part.width + len(_GAP)
    return [part for part in parts if part in kept]


def _drawn(parts: Sequence[_Part], stroke: str) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for part in parts:
        line.append(_GAP if line else "")
        if part.bar is None:
            line.append(for_terminal(part.text))
            continue
        filled = int(min(1.0, part.bar) * _BAR)
        line.append(stroke * filled, "bar.complete").append(stroke * (_BAR - filled), "bar.back")
    return line


class _Timed:
    """A text, and for how long it has been shown."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began = time.monotonic()

    def __rich__(self) -> Text:
        seconds = time.monotonic() - self._began
        since = f"{_GAP}{duration(seconds)}" if seconds >= 1 else ""
        return Text(for_terminal(self._text) + since, no_wrap=True, overflow="ellipsis")


class Status:
    """A status line: live on a terminal, with the time that it takes; one line after the other elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.status(_Timed("")) if console.is_terminal else None
        if self._live is not None:
            self._live.start()

    def __call__(self, text: str) -> None:
        """Say what is starting."""
        if self._live is not None:
            self._live.update(_Timed(text))
        else:
            say(self._console, text)

    def end(self) -> None:
        """Remove the live line."""
        if self._live is not None:
            self._live.stop()


@contextmanager
def telling(console: Console, text: str) -> Iterator[None]:
    """Show `text` as the status while the block runs."""
    status = Status(console)
    status(text)
    try:
        yield
    finally:
        status.end()


def telling_live(console: Console, text: str) -> AbstractContextManager[None]:
    """Show `text` as the status while the block runs, but only on a terminal."""
    return telling(console, text) if console.is_terminal else nullcontext()
