"""Ctrl-C and SIGTERM as a wish: the step ends, a checkpoint is written, the run stops. A second Ctrl-C is obeyed."""

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupt:
    """`with Interrupt() as interrupt: ... if interrupt.signal: ...`"""

    def __init__(self) -> None:
        self.signal = 0  # the signal's number, once it came

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal = number
