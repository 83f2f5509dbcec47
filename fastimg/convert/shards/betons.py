"""A .beton whose samples are prepared by tasks on the nodes of a Ray cluster, and written by the process that converts.

It is one file for each split, with its fields before the first sample. So tasks look at all samples first. Then each
prepares those of a shard into a file, which the process that converts takes from a shared folder, or fetches from the
store, and writes in its turn. At most two shards for each place of the cluster wait for that, and what was made while a
slow shard is waited for.
"""

import secrets
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from fastimg.cluster.tasks import TaskCount
from fastimg.convert.delivery.temporary_objects import HandedFile
from fastimg.convert.image_preparation import Prepared, prepared_in_order
from fastimg.convert.plan import Shard
from fastimg.convert.survey import Requirements, look_at

from .cluster import PROGRESS, NodeWork, ShardTasks, Tick, preparing
from .prepared_samples import read_prepared, write_prepared
from .writing import ShardWork

_TAKEN = 2  # files that are fetched at once


def requirements(tasks: ShardTasks, shards: Sequence[Shard], tick: Tick) -> Iterator[Requirements]:
    """What the samples of each shard require, in any order."""
    for _, found in tasks.results(_look_on_node, shards, ".beton", tick):
        yield found


def prepared_on_nodes(
    tasks: ShardTasks, shards: Sequence[Shard], tick: Tick
) -> Generator[tuple[Shard, Iterator[Prepared | str]], None, None]:
    """Each shard, in order, with its samples, which are there until the next one is asked for."""
    with ExitStack() as stack:
        made = stack.enter_context(closing(tasks.results(_prepare_on_node, shards, ".beton", tick, most=1)))
        pool = ThreadPoolExecutor(_TAKEN, "fastimg-take")
        stack.callback(pool.shutdown, cancel_futures=True)
        here: dict[tuple[str, int], Future[Path]] = {}
        for shard in shards:
            while (shard.split, shard.number) not in here:
                other, samples = next(made)
                here[other.split, other.number] = pool.submit(tasks.exchange.take_samples, samples)
            path = here.pop((shard.split, shard.number)).result()
            try:
                yield shard, read_prepared(path)
            finally:
                path.unlink(missing_ok=True)


def _look_on_node(common: NodeWork, part: Sequence[Shard]) -> Iterator[int | Requirements]:
    """The task: of each shard the progress, then what its samples require."""
    work = common.shards
    with preparing(common) as pool:
        for shard in part:
            every = Requirements()
            entries = work.source.announced(iter(shard.entries))
            count = _Count()
            for found in look_at(work.source, entries, work.treatment, pool, work.workers * 2, count.add):
                every.join(found)
                yield from count.due()
            yield every


def _prepare_on_node(common: NodeWork, part: Sequence[Shard]) -> Iterator[int | Path | HandedFile]:
    """The task: of each shard the progress, then the file with its samples."""
    work, place = common.shards, common.place
    with preparing(common) as pool:
        for shard in part:
            name = f"{shard.name}-{secrets.token_hex(8)}.prepared"  # no other attempt's; see journal.is_temporary
            if isinstance(place, Path):
                yield from _prepared(work, shard, pool, place / name)
                yield place / name
            else:
                with place.folder(shard.name) as folder:
                    yield from _prepared(work, shard, pool, folder / name)
                    yield place.hand_over(folder / name)


def _prepared(work: ShardWork, shard: Shard, pool: ThreadPoolExecutor, path: Path) -> Iterator[int]:
    """Prepare the samples of a shard into a file; yields their number now and then."""
    entries = work.source.announced(iter(shard.entries))
    count = _Count()
    with path.open("xb") as file:
        for sample in prepared_in_order(pool, work.prepare(), entries, work.workers, "beton"):
            write_prepared(file, sample)
            count.add()
            yield from count.due()


class _Count(TaskCount):
    """A count that is due after PROGRESS seconds each."""

    def __init__(self) -> None:
        super().__init__()
        self._told = time.monotonic()

    def due(self) -> Iterator[int]:
        """The count, if it is due."""
        if time.monotonic() - self._told >= PROGRESS:
            yield self.take()
            self._told = time.monotonic()
