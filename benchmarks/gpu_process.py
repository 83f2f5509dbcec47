"""Run a section in its own process group for a limited time. Imports no torch."""

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_TICK = 0.05  # seconds


@dataclass(frozen=True)
class Ended:
    """How a process ended. `item` is the item in progress, if the process did not end by itself."""

    code: int  # exit status, or minus the signal number that killed it
    stopped: str  # why it was stopped; empty if it ended by itself
    item: dict[str, Any] | None

    def words(self) -> str:
        """A description for people."""
        if self.stopped:
            return self.stopped
        if self.code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-self.code).name}"
        return f"ended with exit status {self.code}"


class Child:
    """A process and its descendants. It inherits this process's output, and ends when this process ends.

    Before each item the process writes a line of JSON to `status`: `item` (its name), `seconds` (its limit), `behind`
    (the number of items left after it), and `fields` for a record.
    """

    def __init__(self, command: Sequence[str], status: Path, seconds: float) -> None:
        status.write_text("")
        self._status = status
        self._limit = time.monotonic() + seconds
        self._seconds = seconds
        self._item: dict[str, Any] | None = None
        self._item_began = time.monotonic()
        self._read = 0
        # In its own group, but in this session, so that ending the session ends it too. The pipe closes when this
        # process ends.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
        self.pid = self._process.pid

    def wait(self, at_most: float = math.inf) -> Ended:
        """Wait until it ends, or until its time, its item's time or `at_most` is over; then end it and its children."""
        stopped = ""
        self._limit = min(self._limit, time.monotonic() + at_most)
        while not self._exited():
            self._look()
            now = time.monotonic()
            if now > self._limit:
                stopped = f"stopped at its limit of {min(self._seconds, at_most):.0f} s"
            elif self._item is not None and now > self._item_began + self._item["seconds"]:
                stopped = f"stopped at the limit of {self._item['seconds']:.0f} s for an item"
            if stopped:
                break
            time.sleep(_TICK)
        code = self.stop()
        self._look()
        return Ended(code, stopped, self._item if stopped or code not in (0, 1) else None)

    def finished(self) -> bool:
        """Whether it has ended by itself. Does not wait."""
        return self._exited()

    def stop(self, grace: float = GRACE) -> int:
        """Send SIGTERM, and SIGKILL to the rest of the group after `grace` seconds. Returns the exit status."""
        limit = time.monotonic() + grace
        if not self._exited():
            os.kill(self.pid, signal.SIGTERM)
        while not self._exited() and time.monotonic() < limit:
            time.sleep(_TICK)
        if self._process.returncode is None:  # not reaped yet, so its id still belongs to its group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def _exited(self) -> bool:
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _look(self) -> None:
        """Read which items have begun since the last call."""
        lines = self._status.read_text().splitlines(keepends=True)
        for line in lines[self._read :]:
            if line.endswith("\n"):
                self._item = json.loads(line)
                self._item_began = time.monotonic()
                self._read += 1

    def begun(self) -> list[str]:
        """The names of all items that have begun."""
        return [json.loads(line)["item"] for line in self._status.read_text().splitlines()]


class StoppedError(BaseException):
    """Raised when a signal asks to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Inside the block, the first SIGINT or SIGTERM raises StoppedError; later ones are ignored."""

    def end(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedError(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
