"""What runs on a node of a Ray cluster: an actor, which starts a process for trials and carries its messages.

The process is the one that a search starts on its own machine. It ends when the actor does, however that ends.
"""

import contextlib
import os
import sys
import time
from collections.abc import Sequence

from fastimg.cluster.connection import node_name
from fastimg.cluster.shared_places import SharedPlaces, unseen
from fastimg.search.messages import Arrived, HostFault, Message
from fastimg.system.core_shares import CoreClaim

from .machine import LocalProcess, started
from .process import ProcessEnd

_SETTLED = 2.0  # seconds after which an actor whose process was killed is not ending itself


class TrialNode:
    """The actor. `receive` waits for a message of the process; the other methods answer at once.

    arguments: of Python, which start the process. cores: how many it may use; 0 for all. memory: of the GPU, the share
    that it may take; None for all.
    """

    def __init__(self, arguments: Sequence[str], cores: int, memory: float | None) -> None:
        self._arguments = tuple(arguments)
        self._claim = CoreClaim(cores)
        self._memory = memory
        self._process: LocalProcess | None = None

    def begin(self, places: SharedPlaces) -> Arrived | HostFault:
        """Start the process, if this node sees what it needs."""
        node = node_name()
        fault = unseen(places, node)
        if fault is not None:
            return HostFault(words=fault)
        command = (sys.executable, *self._arguments)
        self._process = started(
            command, self._claim.cores, dict(os.environ), folder=str(places.here), memory=self._memory
        )
        return Arrived(node=node)

    def send(self, message: Message) -> None:
        """Pass a message on to the process; one that is gone is noticed by `receive`."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            self._process.connection.send(message)

    def receive(self) -> Message | ProcessEnd:
        """The next message of the process, or how it ended."""
        assert self._process is not None
        try:
            message: Message = self._process.connection.recv()
        except (EOFError, ConnectionError):
            self._claim.release()
            end = self._process.ended()
            if end.killed:  # perhaps by Ray: a node that ends kills what its actors started, then the actors
                time.sleep(_SETTLED)
            return end
        return message

    def terminate(self) -> None:
        """Ask the process to end its trial."""
        assert self._process is not None
        self._process.terminate()

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
