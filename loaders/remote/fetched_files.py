"""Shards of an object store, read as if they were here: a ShardFiles of containers/watch.

A few shards stay open for the next samples, without a lock, so that the cache may make room of them; after each read
the file is looked at: what was read of it counts if it is still what was verified. A shard is fetched by the first
thread that misses it, if it was not fetched ahead. With a cache of 0 bytes, samples are read one by one, each by a
request for its range.
"""

import contextlib
import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.readahead import ask_all, pieces
from fastimg.loaders.containers.watch import FileParts, fill
from fastimg.loaders.errors import DataError, ShardError, UnavailableError
from fastimg.loaders.runtime.file_locks import unlock_and_close
from fastimg.loaders.runtime.scratch import Encoded
from fastimg.loaders.runtime.stopping import Cancelled, cancelled_by
from fastimg.loaders.wording import plural

from .awaited_shards import AwaitedShards
from .cache.held_shards import HeldShard, HeldShards
from .cache.shard_cache import TOUCH
from .cache.sizes import in_words
from .cache.wanted_files import WantedFile, stamp
from .fetching import RANGE, STREAMS
from .mirrors import Lease, Mirror
from .present_shards import PresentShards

PEEKS = 16  # at a shard that is not here; whoever asks more often has it fetched
AHEAD = 2  # shards that are fetched in the background at once; of one range each, as many as there are streams
_TIMES = 5  # a sample is read, if its shard is taken for another one meanwhile
_NOT_OPEN = -1  # instead of a descriptor
SLACK = 2  # shards beyond the samples in use and those that are fetched ahead: half begun at either end


class FetchedFiles:
    """The tar shards of one split. Raises DataError where one cannot be had."""

    def __init__(self, mirror: Mirror, shards: Sequence[WantedFile], indexes: Sequence[WantedFile]) -> None:
        self.mirror = mirror
        self._shards = shards
        self._indexes = indexes
        self._peeks = [0] * len(shards)
        self._held = HeldShards()
        self._awaited = awaited = AwaitedShards(mirror, shards)
        self._swept = time.monotonic()  # when files that are gone were closed
        mirror.cache.closes(self._held)
        self.by_ranges = mirror.cache.limit == 0
        for shard in () if self.by_ranges else shards:
            mirror.cache.check(mirror.folder / shard.name, shard)
        ranges = max((-(-shard.size // RANGE) for shard in shards), default=1)
        self._at_once = AHEAD if mirror.grouped is not None else max(AHEAD, AHEAD * STREAMS // min(ranges, STREAMS))

        def bring(number: int) -> None:  # without a reference to these files, which end the threads when they are gone
            mirror.bring(shards[number])
            awaited.arrived(number)

        self._ahead = _Ahead(bring, self._at_once)

    def fill(self, number: int, view: memoryview, offset: int) -> None:
        """See ShardFiles."""
        if self.by_ranges:
            self.mirror.read_bound(self._shards[number], view, offset)
            return
        opened = 0
        while opened < _TIMES:
            shard = self._held.take(number)
            if shard is None:
                shard = self._opened(number)
                opened += 1
            failure: OSError | EOFError | None = None
            try:
                fill(shard.file, view, offset)
            except (OSError, EOFError) as error:
                failure = error
            if failure is None:
                if self._given_back(number, shard):
                    return
                continue  # the cache has taken it for another shard meanwhile
            verified, _ = shard.looked()
            os.close(shard.file)
            if verified:
                raise ShardError(
                    f"{self._path(number)}: cannot be read ({failure}); delete it, and it is fetched again"
                ) from failure
        raise UnavailableError(
            f"{self._path(number)}: altered each of the {_TIMES} times that it was read; give a larger cache_limit=, "
            "or a folder that nobody else writes to"
        )

    def fill_group(self, parts: FileParts, encoded: Encoded) -> npt.NDArray[np.bool_]:
        """See ShardFiles: what is in shards that are here."""
        numbers = parts.numbers
        if self.by_ranges:
            return np.zeros(len(numbers), np.bool_)
        from fastimg.loaders.runtime.file_reads import fill_parts  # numba, which opening a dataset does not need

        opened: dict[int, HeldShard] = {}
        sound: dict[int, bool] = {}
        try:
            for number in dict.fromkeys(numbers):
                shard = self._held_or_here(number)
                if shard is not None:
                    opened[number] = shard
            files = [opened[number].file if number in opened else _NOT_OPEN for number in numbers]
            filled = fill_parts(files, encoded, parts.sizes, parts.offsets)
        finally:
            for number, shard in opened.items():
                sound[number] = self._given_back(number, shard)
        return filled & [sound.get(number, False) for number in numbers]

    def peek(self, number: int, size: int, offset: int) -> bytes:
        """See ShardFiles: of a shard that is not here, no more than this is fetched for PEEKS times."""
        shard = self._shards[number]
        if not self.mirror.has(shard) and (self.by_ranges or self._peeks[number] < PEEKS):
            self._peeks[number] += 1
            return self.mirror.read_alike(shard, size, offset)
        file = self.mirror.open(shard)
        try:
            return os.pread(file, size, offset)
        finally:
            unlock_and_close(file)

    def look(self, number: int) -> None:
        """See ShardFiles: each read has looked."""

    def ahead(
        self, numbers: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """See ShardFiles: shards that are here are read ahead, others fetched in the background."""
        if self.by_ranges:
            return
        if (now := time.monotonic()) - self._swept >= TOUCH:
            self._held.sweep()
            self._swept = now
            self._awaited.renew(now)
        for number in np.unique(numbers).tolist():
            self._awaited.add(number)
            if not self.mirror.has(self._shards[number]):
                self._ahead.request(number)
                continue
            chosen = numbers == number
            with contextlib.suppress(OSError):  # deleted meanwhile: the reader will fetch it
                file = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    ask_all(pieces(np.full(np.count_nonzero(chosen), file), offsets[chosen], sizes[chosen]))
                finally:
                    os.close(file)

    def present(self) -> Iterable[Path]:
        """See ShardFiles."""
        return PresentShards(self.mirror, self._shards, self._indexes)

    @property
    def lengths(self) -> npt.NDArray[np.uint64]:
        """See ShardFiles."""
        return np.array([shard.size for shard in self._shards], np.uint64)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self._shards)

    @property
    def count(self) -> int:
        """Number of shards."""
        return len(self._shards)

    @property
    def unit(self) -> str:
        """What is fetched as a whole: a shard; or a group of files, where nobody has converted them."""
        return "shard" if self.mirror.grouped is None else "group"

    def counted(self, count: int) -> str:
        """A number of shards in words, or of groups of files."""
        return plural(count, self.unit) + ("" if self.mirror.grouped is None else " of files")

    def held(self) -> int:
        """How many shards are in the cache now."""
        return sum(map(self.mirror.has, self._shards))

    def first(self, reach: int, samples: int) -> tuple[int, int]:
        """How many shards, and their bytes, hold the first `reach` of `samples` in an order by shards; about that."""
        count = min(-(-max(reach, 1) * self.count // max(samples, 1)), self.count)
        return count, self.size * count // max(self.count, 1)

    def about(self) -> str:
        """Where samples come from, and by which way, in words."""
        return self.mirror.about()

    def lease(self, most: int) -> tuple[list[int], list[Lease]]:
        """The first shards, at least one and up to `most` bytes, in the cache for as long as the leases are kept.

        Returns their numbers, too. Raises DataError.
        """
        ends = np.cumsum([shard.size for shard in self._shards])
        count = max(int(np.searchsorted(ends, most, side="right")), 1)
        numbers = list(range(min(count, len(self._shards))))
        return numbers, [self.mirror.lease(self._shards[number]) for number in numbers]

    def rate(self, seconds: float) -> float:
        """Bytes per second that the store gives as many streams as fetch shards, for at least `seconds`.

        Nothing is kept. Raises DataError.
        """
        places = [(shard, at) for shard in self._shards for at in range(0, shard.size, RANGE)]
        began = time.perf_counter()
        got = 0
        turn = itertools.cycle(places)
        with ThreadPoolExecutor(AHEAD * STREAMS, "fastimg-network") as pool:
            while True:
                block = list(itertools.islice(turn, min(AHEAD * STREAMS, len(places))))
                got += sum(pool.map(lambda place: len(self.mirror.read_part(place[0], RANGE, place[1])), block))
                if (took := time.perf_counter() - began) >= seconds:
                    return got / took

    def check_order(
        self,
        order: str,
        by_shards: bool,
        window: int,
        samples: int,
        ahead: int,
        numbers: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Refuse an order that would fetch shards again and again. Raises DataError.

        `samples` are read, of the shards `numbers`, by default of all; `ahead`: those of the batches that are being
        filled, and that are read ahead.
        """
        shards = self._shards if numbers is None else [self._shards[number] for number in numbers.tolist()]
        total, limit = sum(shard.size for shard in shards), self.mirror.cache.limit
        if total <= limit or self.by_ranges:
            return
        url, holds = self.mirror.url, f"the cache holds {in_words(limit)} of its {in_words(total)}"
        if order == "random" or (order == "quasi-random" and not by_shards):
            raise DataError(
                f"{url}: {holds}, and the order {order} would fetch every shard again and again; use "
                "order='quasi-random' with block='shard', or give a larger cache_limit="
            )
        reach = window if order == "quasi-random" else 0
        count = min(-(-(reach + ahead) * len(shards) // max(samples, 1)) + SLACK + self._at_once, len(shards))
        needed = count * max(shard.size for shard in shards)
        if needed > limit:
            of_window = f" of a window of {plural(window, 'sample')}; give a smaller window=, or" if reach else "; give"
            raise DataError(
                f"{url}: {holds}, and needs {in_words(needed)} for {self.counted(count)}{of_window} a larger "
                "cache_limit="
            )

    def close(self) -> None:
        """See ShardFiles: nothing more is fetched ahead."""
        self._ahead.close()
        self._held.close()
        self._awaited.clear()

    def _held_or_here(self, number: int) -> HeldShard | None:
        """An open file of a shard, unless it has to be fetched."""
        return self._held.take(number) or (self._opened(number) if self.mirror.has(self._shards[number]) else None)

    def _given_back(self, number: int, shard: HeldShard) -> bool:
        """Keep or close a shard; whether what was read of it is what was verified."""
        verified, kept = shard.looked()
        if verified and kept:
            self.mirror.use(shard, self._shards[number], awaited=self._awaited.read(number))
            self._held.give(number, shard)
        else:
            os.close(shard.file)
        return verified

    def _opened(self, number: int) -> HeldShard:
        """An open file of a shard, without a lock, to be held or closed."""
        wanted = self._shards[number]
        return HeldShard(self.mirror.open(wanted, locked=False), stamp(wanted))

    def _path(self, number: int) -> Path:
        return self.mirror.folder / self._shards[number].name


def fetched_files(dataset: object) -> FetchedFiles | None:
    """The shards of a dataset that are fetched from an object store, if they are."""
    files = getattr(dataset, "shard_files", None)
    return files if isinstance(files, FetchedFiles) else None


class _Ahead:
    """Threads that fetch what is requested, one after the other. What fails is met again by the reader."""

    def __init__(self, bring: Callable[[int], None], threads: int) -> None:
        self._bring = bring
        self._threads = threads
        self._lock = threading.Lock()
        self._pending: set[int] = set()
        self._queue: queue.SimpleQueue[int | None] | None = None
        self._over = threading.Event()
        self._end: Callable[[], object] = lambda: None

    def request(self, number: int) -> None:
        with self._lock:
            if number in self._pending:
                return
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                self._pending = set()
                self._over = threading.Event()
                for place in range(self._threads):
                    threading.Thread(
                        target=_work,
                        args=(self._queue, self._pending, self._bring, self._over),
                        name=f"fastimg-ahead-{place}",
                        daemon=True,
                    ).start()
                self._end = weakref.finalize(self, _finish, self._queue, self._threads, self._over)
            self._pending.add(number)
            self._queue.put(number)

    def close(self) -> None:
        with self._lock:
            self._end()
            self._queue = None
            self._pending = set()


def _work(
    todo: "queue.SimpleQueue[int | None]", pending: set[int], bring: Callable[[int], None], over: threading.Event
) -> None:
    with contextlib.suppress(Cancelled), cancelled_by(over.is_set):
        while (number := todo.get()) is not None:
            with contextlib.suppress(Exception):  # the reader meets the same error, and reports it
                bring(number)
            pending.discard(number)


def _finish(todo: "queue.SimpleQueue[int | None]", threads: int, over: threading.Event) -> None:
    """End the threads after the ranges that they are fetching."""
    over.set()
    with contextlib.suppress(queue.Empty):
        while True:
            todo.get_nowait()
    for _ in range(threads):
        todo.put(None)
