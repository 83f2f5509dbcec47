"""A process for trials as the pool sees it, wherever it runs."""

import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

WORKER = ("-m", "fastimg.search.worker")  # what Python is started with
GRACE = 60.0  # seconds that a trial has for its last step and its checkpoint


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process ended. lost: with its node, so that the trial is not to blame. killed: by SIGKILL."""

    reason: str
    lost: bool = False
    killed: bool = False


class TrialProcess(Protocol):
    """A process that runs one trial at a time.

    Its end of the connection closes when it has ended. arrived: whether it can be given a trial at once; otherwise it
    says so by the message `Arrived`.
    """

    connection: Connection
    arrived: bool

    def terminate(self) -> None:
        """Ask it to end its trial."""
        ...

    def kill(self) -> None:
        """End it."""
        ...

    def ended(self) -> ProcessEnd:
        """How it ended; waits until it has."""
        ...


class TrialHosts(Protocol):
    """What starts processes.

    count: of processes. device: cpu or cuda, what their trials are given; of several GPUs a process sees its own. wait:
    seconds in which one process has to arrive. look: seconds between calls of `check`; None for none.
    """

    count: int
    device: str
    wait: float
    look: float | None

    @property
    def grace(self) -> float:
        """Seconds that trials have now for their last steps and checkpoints, where the search ends."""
        ...

    def check(self) -> None:
        """Raises UserError where processes are out of reach."""
        ...

    def start(self, place: int) -> TrialProcess:
        """Start one of them, also in the place of one that has ended."""
        ...

    def told(self, nodes: Sequence[str]) -> str:
        """The line that tells on which nodes processes have arrived."""
        ...


def end_of(process: "subprocess.Popen[bytes]") -> ProcessEnd:
    """How a process of this machine ended; waits until it has."""
    code = process.wait()
    if code == -signal.SIGKILL:
        return ProcessEnd(reason="its process was killed, by the system where memory runs out", killed=True)
    if code < 0:
        return ProcessEnd(reason=f"its process was ended by {signal.Signals(-code).name}")
    return ProcessEnd(reason=f"its process ended with exit code {code}")
