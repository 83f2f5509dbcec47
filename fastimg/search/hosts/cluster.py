"""Processes for trials on the nodes of a Ray cluster. Ray is imported by `connected` alone."""

import contextlib
import hashlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fastimg.cluster.connection import alive, end_earlier, joined, namespace_of, room, usual
from fastimg.cluster.head import ClusterHead
from fastimg.cluster.shared_places import SharedPlaces, shared_places
from fastimg.config.values.trial_resources import written
from fastimg.errors import UsageError, reason_of
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.search.messages import HostFault
from fastimg.wording import plural

from .node import TrialNode
from .process import GRACE, WORKER, ProcessEnd

_COMMAND = "search"
_ANSWER = 5.0  # seconds in which the threads of a process end
_TURN = 0.2  # seconds after which a thread that waits looks whether it is still needed
_ROOM = 600.0  # seconds to wait for the cluster to have room for one process
_LOOK = 1.0  # seconds between looks at the cluster's head
_LAST = 15.0  # seconds that trials have for a checkpoint without the head: Ray ends the search after 60
_CALLS = 4  # of an actor at a time: one of them waits for messages


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """What is asked of a cluster.

    amounts: what a trial takes, by Ray's names; empty for the usual. device: auto, cpu or cuda. memory: whether a trial
    may take no more of a GPU's memory than its share of the GPU.
    """

    address: str | None
    amounts: Mapping[str, float]
    jobs: int | None
    device: str
    memory: bool
    data: Path
    folder: Path


@contextlib.contextmanager
def connected(asked: ClusterRequest) -> Iterator["RayHosts"]:
    """The hosts of a cluster. Raises UserError where it cannot be reached, UsageError for what no node has."""
    with joined(_COMMAND, asked.address) as ray:
        nodes = alive(ray)
        amounts = dict(asked.amounts) or usual(nodes, asked.device)
        if asked.device == "cuda" and "GPU" not in amounts:
            raise UsageError("--device cuda: a trial has no GPU; add gpu=1 to --resources-per-trial")
        if asked.device == "cpu" and "GPU" in amounts:
            raise UsageError("--device cpu: a trial has a GPU; leave gpu out of --resources-per-trial")
        count = asked.jobs or room(nodes, amounts)
        if count == 0:
            raise UsageError(
                f"no node of the cluster has {written(amounts)} for a trial; ask for less with --resources-per-trial, "
                "or give --jobs N to wait for larger nodes"
            )
        prefix = hashlib.sha256(str(asked.folder.resolve()).encode()).hexdigest()[:16]
        end_earlier(ray, _COMMAND, prefix)
        data = () if mirror_at(asked.data) else (asked.data,)  # an object store is opened by each node
        with shared_places(_COMMAND, data, asked.folder) as places:
            hosts = RayHosts(ray, count, amounts, asked.memory, prefix, places)
            try:
                yield hosts
            finally:
                hosts.leave()


class RayHosts:
    """An actor per process, each with what a trial takes, wherever the cluster has room."""

    wait = _ROOM
    look: float | None = _LOOK
    arguments: Sequence[str] = WORKER  # what Python is started with

    def __init__(
        self, ray: Any, count: int, amounts: Mapping[str, float], limit: bool, prefix: str, places: SharedPlaces
    ) -> None:
        self.count = count
        self.device = "cuda" if "GPU" in amounts else "cpu"
        self._ray = ray
        self._amounts = dict(amounts)
        self._memory = amounts.get("GPU") if limit else None
        self._prefix = prefix
        self._places = places
        self._numbers = itertools.count()
        self._head = ClusterHead(ray, "search --backend ray", "the same command goes on when there is one again")
        self._looked = 0.0
        self._processes: list[RayProcess] = []

    @property
    def grace(self) -> float:
        """See TrialHosts."""
        return GRACE if self._head.there else _LAST

    def check(self) -> None:
        """See TrialHosts. Raises ClusterLost."""
        if time.monotonic() - self._looked >= _LOOK:
            self._looked = time.monotonic()
            self._head.answers()

    def start(self, place: int) -> "RayProcess":
        """Ask for an actor; the process arrives when the cluster has room for it. Raises ClusterLost."""
        while not self._head.answers():  # asked for an actor, Ray would wait for it
            time.sleep(_LOOK)
        custom = {name: amount for name, amount in self._amounts.items() if name not in ("CPU", "GPU", "memory")}
        cores = self._amounts.get("CPU", 0)
        options: dict[str, Any] = {
            "num_cpus": cores,
            "num_gpus": self._amounts.get("GPU", 0),
            "resources": custom,
            "max_concurrency": _CALLS,
            "name": f"{self._prefix} {place} {next(self._numbers)}",
            "namespace": namespace_of(_COMMAND),
        }
        if "memory" in self._amounts:
            options["memory"] = int(self._amounts["memory"])
        actor = self._ray.remote(TrialNode).options(**options).remote(self.arguments, int(cores), self._memory)
        process = RayProcess(self._ray, actor, self._places)
        self._processes = [each for each in self._processes if not each.over] + [process]
        return process

    def leave(self) -> None:
        """End the threads of all processes: Ray ends a program whose threads use it while it is disconnected."""
        for process in self._processes:
            process.leave()

    def told(self, nodes: Sequence[str]) -> str:
        """How many processes are there, and where."""
        each = f"a trial has {written(self._amounts)}"
        if not nodes:
            return f"ray         the cluster has no room yet; {each}"
        words = f"ray         {plural(len(nodes), 'process')} on {plural(len(set(nodes)), 'node')}; {each}"
        late = self.count - len(nodes)
        return f"{words}; {late} more when the cluster has room" if late else words


class RayProcess:
    """A process on a node, and its actor. Two threads carry messages between the pool's connection and the actor."""

    def __init__(self, ray: Any, actor: Any, places: SharedPlaces) -> None:
        self.arrived = False
        self._ray = ray
        self._actor = actor
        self._end = ProcessEnd(reason="its node was lost, or its actor ended", lost=True)
        self._leaving = threading.Event()
        ours, self._socket = socket.socketpair()
        self.connection = Connection(ours.detach())
        self._theirs = Connection(os.dup(self._socket.fileno()))
        self._threads = [
            threading.Thread(target=self._receive, args=(places,), name="fastimg-ray-in", daemon=True),
            threading.Thread(target=self._send, name="fastimg-ray-out", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether none of its threads runs any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def terminate(self) -> None:
        """Ask it to end its trial."""
        self._actor.terminate.remote()

    def kill(self) -> None:
        """End it, and wait for that."""
        self._actor.kill.remote()  # the head, which ends actors, may be lost
        self._ray.kill(self._actor)
        self.leave()

    def leave(self) -> None:
        """End the threads, and with them the pool's connection."""
        self._leaving.set()
        with contextlib.suppress(OSError):  # it is closed
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_ANSWER)

    def ended(self) -> ProcessEnd:
        """How it ended."""
        self._threads[0].join()
        return self._end

    def _receive(self, places: SharedPlaces) -> None:
        errors = self._ray.exceptions
        try:
            message = self._answer(self._actor.begin.remote(places))
            while not isinstance(message, ProcessEnd):
                self._theirs.send(message)
                message = self._answer(self._actor.receive.remote())
            self._end = message
        except (errors.RayActorError, _LeavingError):
            pass
        except errors.RayError as error:
            words = (
                f"a node of the cluster cannot run trials: {reason_of(error)}; install the same fastimg on all nodes"
            )
            with contextlib.suppress(OSError):
                self._theirs.send(HostFault(words=words))
        except OSError:  # the pool has closed the connection
            pass
        finally:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)  # the pool reads what is left, then the end
            with contextlib.suppress(errors.RayError):
                self._ray.kill(self._actor)

    def _send(self) -> None:
        """Carry what the pool sends, until it closes its end; then nothing is needed any more."""
        with self._socket, self._theirs:
            with contextlib.suppress(EOFError, OSError, _LeavingError, self._ray.exceptions.RayError):
                while True:
                    self._answer(self._actor.send.remote(self._theirs.recv()))
            self._threads[0].join()

    def _answer(self, call: Any) -> Any:
        """What a call of the actor returns. Raises _LeavingError when nobody waits for it any more."""
        while not self._ray.wait([call], timeout=_TURN, fetch_local=False)[0]:
            if self._leaving.is_set():
                raise _LeavingError
        return self._ray.get(call)


class _LeavingError(Exception):
    """The process is not needed any more."""
