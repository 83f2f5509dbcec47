"""Ctrl-C and SIGTERM as a request to stop: the step ends, a checkpoint is written, and the run stops. A second Ctrl-C
stops it at once."""

import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self

STOPPING = (signal.SIGINT, signal.SIGTERM)  # weakest first


class Interrupt:
    """`with Interrupt() as interrupt: ... if interrupt.signal: ...`"""

    def __init__(self) -> None:
        self.signal = 0  # number of the signal, once it has arrived

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in STOPPING}
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


def votes(heard: int) -> list[float]:
    """What a rank adds to a sum over all ranks: one number per signal of STOPPING, 1 for the one that it heard.

    The sum counts the ranks that heard each signal, so `strongest` can take the maximum. It travels with sums that the
    ranks exchange anyway and needs no collective of its own.
    """
    return [float(heard == number) for number in STOPPING]


def strongest(counts: Sequence[float]) -> int:
    """The strongest signal that any rank heard, from the sum of all ranks' `votes`; 0 if none heard one."""
    return max((int(number) for number, count in zip(STOPPING, counts, strict=True) if count), default=0)
