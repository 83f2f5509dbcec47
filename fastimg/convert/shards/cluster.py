"""The shards of a plan as tasks on the nodes of a Ray cluster.

A task writes some shards, one after the other, each into a folder of its own below `ATTEMPTS` in the destination, and
prepares samples of the next while one goes to the disk. The process that converts moves each to its place as soon as it
is whole, and writes the journal. So nothing that a lost node may still do changes a dataset.

Where the destination is a URL, the folder is the node's, and the task uploads the shard from there. A lost node may
then still write a shard that another node has written, with the same bytes.
"""

import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.cluster.connection import alive, room
from fastimg.cluster.shared_places import ATTEMPTS, shared_places
from fastimg.cluster.tasks import ClusterTasks, TaskCount
from fastimg.convert.delivery.node_delivery import DeliveredShard, NodeDelivery
from fastimg.convert.image_preparation import Prepared, prepared_in_order
from fastimg.convert.journal import Finished
from fastimg.convert.plan import Shard
from fastimg.convert.sources.folders import waiting_mapped
from fastimg.convert.sources.samples import Source, SourceReader, WrappingReader
from fastimg.convert.sources.streams import Spool, SpoolReader
from fastimg.convert.stored.stand_ins import is_stand_in
from fastimg.convert.writers import TarStore
from fastimg.errors import UsageError
from fastimg.loaders.containers.tars.shards import move_shard
from fastimg.loaders.folders.folder import Mapped
from fastimg.loaders.folders.ignored import Ignored
from fastimg.wording import plural

from .writing import ShardWork, write_shard

_PROGRESS = 1.0  # seconds between two words about a task's progress


class NodeShard(NamedTuple):
    """A shard that a task has written, and the folder in which it lies."""

    finished: Finished
    folder: Path


@dataclass(frozen=True, kw_only=True)
class NodeWork:
    """What all tasks of a conversion have in common.

    place: where each makes a folder of its own, in a folder that all nodes share, or on its node, which uploads.
    """

    shards: ShardWork
    place: Path | NodeDelivery


def refuse_source(source: Source, to_store: bool) -> None:
    """Raise UsageError for a source that nodes cannot read where they share no folder of the destination."""
    if to_store and _spools(source):
        raise UsageError(
            f"--backend ray: {source.src} is read from front to back, once, into a temporary file, which nodes read "
            "from the destination's folder; give one that all nodes share, not a URL, or leave out --backend ray"
        )


def _spools(source: Source) -> list[Spool]:
    """The temporary files of a source that is read from front to back."""
    found = [reader.spool for reader in map(_innermost, source.readers) if isinstance(reader, SpoolReader)]
    return list({id(spool): spool for spool in found}.values())


def _innermost(reader: SourceReader) -> SourceReader:
    return _innermost(reader.reader) if isinstance(reader, WrappingReader) else reader


def threads_of(asked: int | None, nodes: Sequence[dict[str, float]], shards: int) -> int:
    """How many cores a task takes: those that are asked for, else one, and more where there are few shards."""
    if asked is not None:
        return asked
    cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    return max(1, min(min(cores, default=1), sum(cores) // max(1, shards)))


class ShardTasks:
    """Writes shards on a cluster: into `place`, from where `take` brings them to the destination."""

    def __init__(
        self,
        tasks: ClusterTasks,
        place: Path | NodeDelivery,
        take: Callable[[NodeShard | DeliveredShard], object],
        say: Callable[[str], object],
    ) -> None:
        self._tasks = tasks
        self._place = place
        self._take = take
        self._say = say

    def write(self, work: ShardWork, todo: Sequence[Shard], tick: Callable[[int], object]) -> Iterator[Finished]:
        """Write these shards. Yields the line of each once it is in its place, in any order."""
        self._share(work.source)
        listed = replace(work.source, splits={}, ignored=Ignored(), remarks=())
        common = NodeWork(shards=replace(work, source=listed), place=self._place)
        items = (replace(shard, entries=shard.entries.compact()) for shard in todo)
        written = self._tasks.results(
            _write_on_node,
            common,
            items,
            lambda shard: f"{shard.name}.tar",
            total=len(todo),
            size=lambda shard: len(shard.entries),
            tick=tick,
        )
        for _, made in written:
            self._take(made)
            yield made.finished

    def _share(self, source: Source) -> None:
        """Let the nodes read what this process has read of a source into temporary files."""
        for number, spool in enumerate(_spools(source)):
            assert isinstance(self._place, Path), "refuse_source"
            path = self._place / f"source-{number}"
            if spool.share(path):
                self._say(f"ray         copied the temporary file of {source.src} to {path}, where nodes read it")


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
    place: Path | NodeDelivery,
    take: Callable[[NodeShard | DeliveredShard], object],
    threads: int | None,
    shards: int,
    say: Callable[[str], object],
) -> Iterator[tuple[ShardTasks, int]]:
    """What writes shards on a cluster, and how many threads each has. Raises UsageError.

    place: where shards are made, see NodeWork. take: brings one from there to the destination.
    """
    attempts = place if isinstance(place, Path) else None
    with ExitStack() as stack:
        if attempts is not None:
            attempts.mkdir(exist_ok=True)
            stack.callback(shutil.rmtree, attempts, ignore_errors=True)
        here = [path for path in sources if path.exists() and not is_stand_in(path)]
        places = stack.enter_context(shared_places("conversion", here, attempts))
        nodes = alive(ray)
        cores = threads_of(threads, nodes, shards)
        amounts = {"CPU": float(cores)}
        tasks = ClusterTasks(ray, places, amounts, say, "continue with the same command and --resume")
        using = sum(room([node], amounts) > 0 for node in nodes)
        say(
            f"ray         {plural(using, 'node')}, {plural(tasks.slots, 'shard')} at a time, each by "
            f"{plural(cores, 'core')}"
        )
        yield ShardTasks(tasks, place, take, say), cores


def attempts_in(folder: Path) -> Path:
    """The folder in which tasks make shards for a destination that all nodes share."""
    return folder.resolve() / ATTEMPTS


def move_into(folder: Path, made: NodeShard) -> None:
    """Bring a shard from the folder in which a task has written it."""
    if made.finished.name:
        move_shard(made.folder / made.finished.name, folder)
    shutil.rmtree(made.folder, ignore_errors=True)


def _write_on_node(common: NodeWork, part: Sequence[Shard]) -> Iterator[int | NodeShard | DeliveredShard]:
    """The task: of each shard the progress, then the shard."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    work, place = common.shards, common.place
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Pillow warns about images that it can decode
        pool = stack.enter_context(ThreadPoolExecutor(work.workers, "prepare"))
        writer = stack.enter_context(ThreadPoolExecutor(1, "write"))
        stack.callback(work.source.close)
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
        while wait([written], _PROGRESS).not_done:
            yield count.take()
        return written.result()
