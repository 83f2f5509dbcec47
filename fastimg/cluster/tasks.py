"""Independent pieces of work as tasks on the nodes of a Ray cluster; those of lost nodes are done again."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastimg.config.values.trial_resources import written
from fastimg.errors import UsageError, UserError, reason_of
from fastimg.wording import plural

from .connection import alive, node_name, room
from .head import ClusterHead, ClusterLost
from .shared_places import SharedPlaces, unseen

Work = Callable[[Any, list[Any]], Iterator[Any]]  # see `ClusterTasks.results`

MOST = 16  # pieces of work of a task: they may wait for a slow node
LOSSES = 3  # how often a piece of work may be lost with its node
_LOOK = 1.0  # seconds between looks at the cluster
_REFRESH = 5.0  # seconds for which the number of nodes is taken as known
_ROOM = 600.0  # seconds to wait for a node with room, after all of them were lost
_ENDING = 5.0  # seconds in which cancelled tasks end


@dataclass(eq=False)
class _Part:
    """What a task still has to do, in order.

    losses: of the first piece, which is in hand. ticked: what the task has said of its progress with that one.
    """

    items: deque[Any]
    losses: int = 0
    ticked: int = 0


class ClusterTasks:
    """Tasks that take `amounts` each, by Ray's names. `say` prints a message; `goes_on` ends an error's sentence."""

    def __init__(
        self,
        ray: Any,
        places: SharedPlaces,
        amounts: Mapping[str, float],
        say: Callable[[str], object],
        goes_on: str,
    ) -> None:
        self._ray = ray
        self._places = places
        self._amounts = dict(amounts)
        self._say = say
        self._goes_on = goes_on
        self._head = ClusterHead(ray, "--backend ray", goes_on)
        self._room_lost: float | None = None
        self._looked = 0.0
        self.slots = room(alive(ray), amounts)
        if not self.slots:
            raise UsageError(f"--backend ray: no node of the cluster has {written(amounts)} for a {places.job}")

    def results(
        self,
        work: Work,
        common: Any,
        items: Iterable[Any],
        name: Callable[[Any], str],
        *,
        total: int,
        size: Callable[[Any], int] = lambda item: 0,
        tick: Callable[[int], object] = lambda count: None,
        most: int = MOST,
    ) -> Iterator[tuple[Any, Any]]:
        """Each of `total` items with its result, in the order in which they are ready.

        A task takes up to `most` items in a row, and fewer towards the end. On a node, `work(common, part)` yields the
        result of each item of its part as soon as that is made, and before it, now and then, how much has been done of
        it, a number; `tick` is told, and of the rest of an item's `size` when its result is there. `name` calls an item
        in messages. Whatever `work` raises is raised; ClusterLost where the cluster is lost.
        """
        task = self._ray.remote(max_retries=0, max_calls=0)(_on_node)
        options = _options(self._amounts)
        shared = self._ray.put(common)
        waiting = iter(items)
        again: deque[_Part] = deque()
        running: dict[Any, _Part] = {}
        try:
            while True:
                while len(running) < (tasks := 2 * self._slots()):  # so that no node waits for this process
                    if not again:
                        again.append(_Part(deque(islice(waiting, max(1, min(most, total // tasks))))))
                        total -= len(again[0].items)
                    part = again.popleft()
                    if not part.items:
                        break
                    running[task.options(**options).remote(self._places, work, shared, list(part.items))] = part
                if not running:
                    return
                ready, _ = self._ray.wait(list(running), num_returns=1, timeout=_LOOK)
                if not ready:
                    self._head.answers()
                for stream in ready:
                    part = running[stream]
                    try:
                        message = self._ray.get(next(stream))
                    except self._lost_errors() as error:
                        del running[stream]
                        tick(-part.ticked)
                        again.extend(self._lost(part, name(part.items[0]), error))
                    except self._ray.exceptions.RayTaskError as error:
                        raise _own_error(error) from None
                    else:
                        if isinstance(message, int):
                            part.ticked += message
                            tick(message)
                            continue
                        item = part.items.popleft()
                        tick(size(item) - part.ticked)
                        part.losses = part.ticked = 0
                        if not part.items:
                            del running[stream]
                        yield item, message
        finally:
            self._end(list(running))

    def mapped(self, function: Callable[[Any], Any], items: Iterable[Any], *, what: str) -> Iterator[Any]:
        """As `map`, by tasks of several items each. `function` is a module's, or a partial of one."""
        every = list(items)
        size = max(1, len(every) // (4 * self.slots))
        parts = [(start, every[start : start + size]) for start in range(0, len(every), size)]
        made = self.results(_map_on_node, function, parts, lambda _: what, total=len(parts))
        found = {start: values for (start, _), values in made}
        for start, _ in parts:
            yield from found[start]

    def _slots(self) -> int:
        """How many tasks run at a time on the nodes that are there now, 1 or more."""
        now = time.monotonic()
        if now - self._looked > _REFRESH:
            self._looked = now
            if not self._head.answers():  # asked for its nodes, it would be waited for
                return max(1, self.slots)
            self.slots = room(alive(self._ray), self._amounts)
            if self.slots:
                self._room_lost = None
            elif self._room_lost is None:
                self._room_lost = now
                self._say("ray         no node is left that has room; waiting for one")
            elif now - self._room_lost > _ROOM:
                raise ClusterLost(
                    f"--backend ray: the cluster has had no room for {round(_ROOM / 60)} minutes; {self._goes_on}"
                )
        return max(1, self.slots)

    def _lost_errors(self) -> tuple[type[Exception], ...]:
        errors = self._ray.exceptions
        return (
            *(errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError),
            *(errors.OutOfMemoryError, errors.ObjectLostError),
        )

    def _lost(self, part: _Part, name: str, error: Exception) -> list[_Part]:
        """What to run again: what was in hand, which may be to blame, apart from the rest.

        Raises ClusterLost where that has been tried often enough.
        """
        self._looked = 0.0
        out = isinstance(error, self._ray.exceptions.OutOfMemoryError)
        reason = "its node ran out of memory" if out else "its node was lost, or its process killed"
        if part.losses + 1 > LOSSES:
            raise ClusterLost(f"{name}: {reason}, {plural(part.losses + 1, 'time')}; {self._goes_on}")
        self._say(f"ray         {name}: {reason}; it is done again")
        first = _Part(deque([part.items.popleft()]), part.losses + 1)
        return [first, _Part(part.items)] if part.items else [first]

    def _end(self, streams: list[Any]) -> None:
        """End tasks whose results nobody takes any more, and wait for that: they must not write any longer."""
        errors = (self._ray.exceptions.RayError, ValueError, RuntimeError)  # they have ended, or the cluster has
        with contextlib.suppress(*errors):
            for stream in streams:
                self._ray.cancel(stream, force=True)
            if streams and self._head.there:
                ended = [stream.completed() for stream in streams]
                self._ray.wait(ended, num_returns=len(ended), timeout=_ENDING, fetch_local=False)


def _options(amounts: Mapping[str, float]) -> dict[str, Any]:
    """What a task takes, as Ray's options say it."""
    known = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    custom = {name: amount for name, amount in amounts.items() if name not in known}
    return {"num_cpus": 0, "resources": custom} | {
        known[name]: amount for name, amount in amounts.items() if name in known
    }


def _own_error(error: Any) -> BaseException:
    """What the work raised, as it raised it here."""
    cause: BaseException = getattr(error, "cause", None) or error
    if isinstance(cause, ImportError) or "failed to import" in str(cause):
        return UserError(f"a node of the cluster cannot run this: {reason_of(cause)}; install the same fastimg on all")
    return cause


def _on_node(places: SharedPlaces, work: Work, common: Any, part: list[Any]) -> Iterator[Any]:
    """The task."""
    if (fault := unseen(places, node_name())) is not None:
        raise UserError(fault)
    os.chdir(places.here)
    yield from work(common, part)


def _map_on_node(function: Callable[[Any], Any], part: list[tuple[int, list[Any]]]) -> Iterator[list[Any]]:
    for _, items in part:
        yield [function(item) for item in items]


class TaskCount:
    """Samples that a task has done and not yet told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def add(self, count: int = 1) -> None:
        """Some more."""
        with self._lock:
            self._count += count

    def take(self) -> int:
        """How many there are since the last call."""
        with self._lock:
            count, self._count = self._count, 0
        return count
