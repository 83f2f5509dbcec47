"""What ranks tell each other while one of them may work for hours: strings, through torchrun's store.

A collective of the process group ends a run that waits longer than the group's timeout, ten minutes with NCCL. Here a
rank waits for as long as the others give signs of life: each counts up a key of its own. It ends once a rank has failed
(`rank_failures`), or has given no sign for `PATIENCE`.
"""

import time
from threading import Event, Thread
from typing import TYPE_CHECKING

from .rank_failures import LostRankError, connection, prefixed

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

BEAT = 2.0  # seconds between two signs of life
PATIENCE = 60.0  # seconds without one, where a rank that lives needs few: a thread of its own gives them
_FIRST_LOOK = 0.001  # seconds
_LAST_LOOK = 0.1  # seconds; between looks for a key, which become rarer


class RankExchange:
    """One rank's side of it. All ranks call `gather` equally often, in the same order, as they do with collectives."""

    def __init__(self, store: "Store", failures: "Store", rank: int, world_size: int) -> None:
        self._store = store
        self._failures = failures
        self._rank = rank
        self._world_size = world_size
        self._turn = 0
        self._alive = [f"alive {other}" for other in range(world_size)]
        self._signs = [b""] * world_size  # the last that were seen
        self._silent = [0.0] * world_size  # seconds in which they were looked for, and were the same
        self._looked = time.monotonic()
        self._ended = Event()
        self._thread = Thread(target=self._beat, name="fastimg-alive", daemon=True)
        self._thread.start()

    def gather(self, value: str) -> list[str]:
        """Every rank's value, on every rank, as soon as all have called it. Raises LostRankError."""
        turn = self._turn
        self._turn += 1
        self._store.set(f"{turn} {self._rank}", value.encode("utf-8", "surrogateescape"))  # type: ignore[arg-type]
        if self._store.add(f"{turn} there", 1) == self._world_size:
            self._store.set(f"{turn} all", "1")
        self._wait_for(f"{turn} all")
        keys = [f"{turn} {rank}" for rank in range(self._world_size)]
        values = [value.decode("utf-8", "surrogateescape") for value in self._store.multi_get(keys)]
        if turn > 0:  # all are here, and have left the turn before
            own = ["there", "all"] if self._rank == 0 else []
            for name in (self._rank, *own):
                self._store.delete_key(f"{turn - 1} {name}")
        return values

    def close(self) -> None:
        """Give no more signs of life."""
        self._ended.set()
        self._thread.join(BEAT)

    def _wait_for(self, key: str) -> None:
        pause = _FIRST_LOOK
        while not self._store.check([key]):
            if self._failures.check(["failed"]):
                raise LostRankError("it failed")
            self._look_for_life()
            time.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK)

    def _look_for_life(self) -> None:
        """Raises LostRankError where a rank has been silent for too long.

        Time in which this process did not look, or was suspended itself, does not count.
        """
        now = time.monotonic()
        passed = now - self._looked
        if passed < BEAT:
            return
        self._looked = now
        there = self._store.check(self._alive)
        signs = self._store.multi_get(self._alive) if there else self._signs  # `multi_get` would wait for them
        for rank, (sign, before) in enumerate(zip(signs, self._signs, strict=True)):
            self._silent[rank] = self._silent[rank] + min(passed, 2 * BEAT) if sign == before else 0.0
        self._signs = signs
        longest = max(self._silent)
        if longest > PATIENCE:
            lost = self._silent.index(longest)
            raise LostRankError(f"rank {lost} has given no sign of life for {longest:.0f} seconds")

    def _beat(self) -> None:
        while True:
            try:
                self._store.add(self._alive[self._rank], 1)
            except RuntimeError:  # the store has gone with its host: whoever waits for something hears of it
                return
            if self._ended.wait(BEAT):
                return


def join(rank: int, world_size: int, generation: str) -> RankExchange:
    """Connect to the store of the launcher. `generation` tells restarts apart, which may meet at the same store.

    Raises LostRankError where the store cannot be reached.
    """
    store = connection()
    if store is None:
        raise LostRankError("the store of the launcher cannot be reached")
    return RankExchange(prefixed(store, f"fastimg exchange {generation}"), prefixed(store), rank, world_size)
