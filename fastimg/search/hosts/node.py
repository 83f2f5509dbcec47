"""What runs on a node of a Ray cluster: an actor, which starts a process for trials and carries its messages.

The process is the one that a search starts on its own machine. It ends when the actor does, however that ends.
"""

import contextlib
import heapq
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastimg import __version__
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.search.messages import Arrived, HostFault, Message
from fastimg.system.core_shares import CoreClaim

from .machine import LocalProcess, started
from .process import ProcessEnd

_ENTRIES = 100  # of the data that are looked for on each node


@dataclass(frozen=True, kw_only=True)
class SharedPlaces:
    """What a node has to see as the search sees it.

    entries: some of the data's folder. token, word: a file in the search's folder, and what is written in it. here: the
    folder from which relative paths count.
    """

    version: str
    data: Path
    entries: tuple[str, ...]
    token: Path
    word: str
    here: Path


def shared_places(data: Path, folder: Path) -> SharedPlaces:
    """What this process sees. Writes the token."""
    handle, name = tempfile.mkstemp(prefix=".seen-", dir=folder.resolve())
    word = secrets.token_hex(8)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(word)
    here = mirror_at(data) is None  # an object store is opened by each node
    return SharedPlaces(
        version=__version__,
        data=data.resolve() if here else Path(),
        entries=_entries(data) if here else (),
        token=Path(name),
        word=word,
        here=Path.cwd(),
    )


def unseen(places: SharedPlaces, node: str) -> str | None:
    """What is missing on this node, a sentence; None if nothing is."""
    if places.version != __version__:
        return f"{node}: has fastimg {__version__}, and the search {places.version}; install the same on all nodes"
    remedy = "a search on a cluster needs a folder that all nodes share"
    if not places.data.exists():
        return f"{node}: does not see the data, {places.data}; {remedy}"
    if not all((places.data / name).exists() for name in places.entries):
        return f"{node}: has other files in {places.data} than the machine that searches; {remedy}"
    folder = places.token.parent
    try:
        word = places.token.read_text(encoding="ascii")
        tempfile.TemporaryFile(dir=folder).close()
    except FileNotFoundError:
        return f"{node}: does not see the folder of the search, {folder}; {remedy}"
    except OSError as error:
        return f"{node}: cannot write to the folder of the search, {folder}: {error.strerror or error}"
    if word != places.word:
        return f"{node}: has another folder at {folder} than the machine that searches; {remedy}"
    if not places.here.is_dir():
        return (
            f"{node}: does not see {places.here}, from which relative paths count; start the search in a shared folder"
        )
    return None


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
            return self._process.ended()
        return message

    def terminate(self) -> None:
        """Ask the process to end its trial."""
        assert self._process is not None
        self._process.terminate()


def node_name() -> str:
    """How people and Ray call the node that this actor is on."""
    import ray

    return f"{socket.gethostname()} (node {ray.get_runtime_context().get_node_id()[:8]})"


def _entries(data: Path) -> tuple[str, ...]:
    """Names in a folder, the first of them; none of a file."""
    return tuple(heapq.nsmallest(_ENTRIES, os.listdir(data))) if data.is_dir() else ()
