"""Progress output: one live line on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from .terminal import say

UNITS = {"images": "img/s", "texts": "texts/s"}


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
    unit: str = "images"

    def text(self) -> str:
        """The state as one line."""
        return (
            f"loss {self.loss:.4f}  {self.score}  lr {self.lr:.2e}  "
            f"{self.speed:7.1f} {UNITS[self.unit]}  data wait {self.wait_share:4.0%}  ETA {duration(self.eta)}"
        )


def duration(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Display:
    """`with Display(console, epochs, steps) as display: display.show(line)`."""

    def __init__(self, console: Console, epochs: int, steps: int) -> None:
        self._console = console
        self._epochs, self._steps = epochs, steps
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("epoch {task.fields[epoch]}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.completed}/{task.total}  {task.fields[text]}", markup=False),
                console=console,
                transient=True,
            )
            self._task: TaskID = self._progress.add_task("", total=steps, epoch="", text="")

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def show(self, line: Line) -> None:
        """Show the state at a step."""
        epoch = f"{line.epoch + 1}/{self._epochs}"
        if self._progress:
            self._progress.update(self._task, completed=line.step, epoch=epoch, text=line.text())
        else:
            self.say(f"epoch {epoch}  step {line.step}/{self._steps}  {line.text()}")

    def advance(self, epoch: int, step: int) -> None:
        """Move the bar by a step, without synchronizing with the device."""
        if self._progress:
            self._progress.update(self._task, completed=step, epoch=f"{epoch + 1}/{self._epochs}")

    def note(self, text: str) -> None:
        """Say what is going on between steps; only on the live line."""
        if self._progress:
            self._progress.update(self._task, text=text)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        say(self._console, text)


class Status:
    """A status line: live on a terminal, one line after the other elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.status("") if console.is_terminal else None
        if self._live is not None:
            self._live.start()

    def __call__(self, text: str) -> None:
        """Say what is starting."""
        if self._live is not None:
            self._live.update(text)
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
