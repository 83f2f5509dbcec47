"""Processes for trials on this machine: one per device, each with its share of the cores."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from fastimg.system.core_shares import even_share

from .process import GRACE, WORKER, ProcessEnd, end_of


@dataclass(eq=False)
class LocalProcess:
    """A process that this one has started."""

    process: "subprocess.Popen[bytes]"
    connection: Connection
    arrived: bool = True

    def terminate(self) -> None:
        """Ask it to end its trial."""
        self.process.terminate()

    def kill(self) -> None:
        """End it, and wait for that."""
        self.process.kill()
        self.process.wait()

    def ended(self) -> ProcessEnd:
        """How it ended."""
        return end_of(self.process)


class LocalHosts:
    """A process per device, on this machine.

    devices: cpu, or cuda:N, where N is what CUDA_VISIBLE_DEVICES names a GPU by. inherited: handles that the processes
    keep open, as the lock of the search's folder.
    """

    command: Sequence[str] = (sys.executable, *WORKER)  # what starts a process
    wait = 0.0
    look: float | None = None
    grace = GRACE

    def __init__(self, devices: Sequence[str], inherited: Sequence[int] = ()) -> None:
        self.count = len(devices)
        self.device = "cpu" if devices[0] == "cpu" else "cuda"
        self._devices = list(devices)
        self._inherited = tuple(inherited)

    def start(self, place: int) -> LocalProcess:
        """Start a process. It has a session of its own, so that Ctrl-C reaches the search alone."""
        device = self._devices[place]
        environment = dict(os.environ)
        if device != "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda:")
        return started(self.command, even_share(place, self.count), environment, self._inherited)

    def check(self) -> None:
        """Nothing: the end of a process closes its connection."""

    def told(self, nodes: Sequence[str]) -> str:
        """Nothing: all processes are there at once."""
        return ""


def started(
    command: Sequence[str],
    cores: Sequence[int],
    environment: dict[str, str],
    inherited: Sequence[int] = (),
    folder: str | None = None,
    memory: float | None = None,
) -> LocalProcess:
    """A process for trials.

    cores: it is bound to; none for all. folder: it works in. memory: of the GPU, the share that it may take.
    """
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [*command, str(theirs.fileno()), ",".join(map(str, cores)), "" if memory is None else str(memory)],
        stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(), *inherited),
        start_new_session=True,
        env=environment,
        cwd=folder,
    )
    theirs.close()
    return LocalProcess(process, Connection(ours.detach()))
