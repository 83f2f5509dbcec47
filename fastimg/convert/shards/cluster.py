"""The shards of a plan as tasks on the nodes of a Ray cluster.

A task writes some shards, one after the other, each into a folder of its own below `ATTEMPTS` in the destination, and
prepares samples of the next while one goes to the disk. The process that converts moves each to its place as soon as it
is whole, and writes the journal. So nothing that a lost node may still do changes a dataset.

Where the destination is a URL, the folder is the node's, and the task uploads the shard from there. A lost node may
then still write a shard that another node has written, with the same bytes.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fastimg.cluster.connection import alive, room
from fastimg.cluster.shared_places import shared_places
from fastimg.cluster.tasks import MOST, ClusterTasks, TaskCount
from fastimg.convert.delivery.node_delivery import DeliveredShard, NodeDelivery
from fastimg.convert.image_preparation import Prepared, prepared_in_order
from fastimg.convert.journal import Finished
from fastimg.convert.plan import Shard
from fastimg.convert.sources.folders import waiting_mapped
from fastimg.convert.stored.stand_ins import is_stand_in
from fastimg.convert.writers import TarStore
from fastimg.loaders.folders.folder import Mapped
from fastimg.loaders.folders.ignored import Ignored
from fastimg.loaders.runtime.in_order import working_threads
from fastimg.wording import plural

from .exchange import Exchange, NodeShard, Say
from .writing import ShardWork, write_shard

PROGRESS = 1.0  # seconds between two words about a task's progress

Tick = Callable[[int], object]


@dataclass(frozen=True, kw_only=True)
class NodeWork:
    """What all tasks of a conversion have in common.

    place: where each makes a folder of its own, in a folder that all nodes share, or on its node, which uploads.
    """

    shards: ShardWork
    place: Path | NodeDelivery


def threads_of(asked: int | None, nodes: Sequence[dict[str, float]], shards: int) -> int:
    """How many cores a task takes: those that are asked for, else one, and more where there are few shards."""
    if asked is not None:
        return asked
    cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    return max(1, min(min(cores, default=1), sum(cores) // max(1, shards)))


class ShardTasks:
    """Makes something of shards on a cluster. `shards`: those whose samples the nodes may read."""

    def __init__(
        self, tasks: ClusterTasks, exchange: Exchange, work: ShardWork, shards: Sequence[Shard], say: Say
    ) -> None:
        self.exchange = exchange
        self._tasks = tasks
        self._placed = exchange.share(work.source, shards, say)
        listed = replace(work.source, splits={}, ignored=Ignored(), remarks=())
        self._common = NodeWork(shards=replace(work, source=listed), place=exchange.place)

    def write(self, todo: Sequence[Shard], tick: Tick) -> Generator[Finished, None, None]:
        """Write these shards as tars. Yields the line of each once it is in its place, in any order."""
        with closing(self.results(_write_on_node, todo, ".tar", tick)) as written:
            for _, made in written:
                self.exchange.take_shard(made)
                yield made.finished

    def results(
        self,
        work: Callable[[NodeWork, Sequence[Shard]], Iterator[Any]],
        shards: Sequence[Shard],
        suffix: str,
        tick: Tick,
        most: int = MOST,
    ) -> Generator[tuple[Shard, Any], None, None]:
        """See `ClusterTasks.results`. suffix: of what is made of a shard, in messages."""
        yield from self._tasks.results(
            work,
            self._common,
            map(self._placed, shards),
            lambda shard: f"{shard.name}{suffix}",
            total=len(shards),
            size=lambda shard: len(shard.entries),
            tick=tick,
            most=most,
        )


@contextmanager
def listing(ray: Any, sources: Sequence[Path], cores: int, say: Callable[[str], object]) -> Iterator[Mapped]:
    """How the folders of a source are listed: by tasks of so many cores on a cluster, or here, if `ray` is None.

    What lies in an object store has been listed by this process.

    Raises UsageError where no node has these cores.
    """
    if ray is None or any(map(is_stand_in, sources)):
        yield waiting_mapped
        return
    with shared_places("conversion", [path for path in sources if path.exists()], None) as places:
        tasks = ClusterTasks(ray, places, {"CPU": float(cores)}, say, "run this again")
        yield partial(tasks.mapped, what="the listing")


@contextmanager
def shard_tasks(
    ray: Any,
    sources: Sequence[Path],
    exchange: Exchange,
    work: Callable[[int], ShardWork],
    threads: int | None,
    shards: Sequence[Shard],
    say: Say,
) -> Iterator[ShardTasks]:
    """What makes something of shards on a cluster. Raises UsageError, OSError and NotDelivered.

    work: by the number of threads that each task has. shards: see ShardTasks.
    """
    with exchange.open():
        here = [path for path in sources if path.exists() and not is_stand_in(path)]
        folder = exchange.place if isinstance(exchange.place, Path) else None
        with shared_places("conversion", here, folder) as places:
            nodes = alive(ray)
            cores = threads_of(threads, nodes, len(shards))
            amounts = {"CPU": float(cores)}
            tasks = ClusterTasks(ray, places, amounts, say, "continue with the same command and --resume")
            using = sum(room([node], amounts) > 0 for node in nodes)
            say(
                f"ray         {plural(using, 'node')}, {plural(tasks.slots, 'shard')} at a time, each by "
                f"{plural(cores, 'core')}"
            )
            yield ShardTasks(tasks, exchange, work(cores), shards, say)


@contextmanager
def preparing(common: NodeWork) -> Iterator[ThreadPoolExecutor]:
    """The threads of a task that prepare samples. At the end the source is closed."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Pillow warns about images that it can decode
        stack.callback(common.shards.source.close)
        yield stack.enter_context(working_threads(common.shards.workers, "prepare"))


def _write_on_node(common: NodeWork, part: Sequence[Shard]) -> Iterator[int | NodeShard | DeliveredShard]:
    """The task: of each shard the progress, then the shard."""
    work, place = common.shards, common.place
    with preparing(common) as pool, ThreadPoolExecutor(1, "write") as writer:
        entries = work.source.announced(entry for shard in part for entry in shard.entries)
        prepared = prepared_in_order(pool, work.prepare(), entries, work.workers, "tar")
        for shard in part:
            if isinstance(place, Path):
                folder = Path(tempfile.mkdtemp(prefix=f"{shard.name}-", dir=place))
                made: NodeShard | DeliveredShard = NodeShard(
                    (yield from _written(work, shard, prepared, writer, folder)), folder
                )
            else:
                with place.folder(shard.name) as folder:
                    made = place.deliver(folder, (yield from _written(work, shard, prepared, writer, folder)))
            yield made


def _written(
    work: ShardWork, shard: Shard, prepared: Iterator[Prepared | str], writer: ThreadPoolExecutor, folder: Path
) -> Generator[int, None, Finished]:
    """Write a shard into a folder; yields the number of samples now and then."""
    count = TaskCount()
    with TarStore(folder) as store:
        written = writer.submit(write_shard, work, shard, prepared, store, count.add)
        while wait([written], PROGRESS).not_done:
            yield count.take()
        return written.result()
