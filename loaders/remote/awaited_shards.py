"""Shards of a dataset that were asked for, and that nobody has read yet.

In the cache they count as used later than others: those that were read may not be needed any more, and would otherwise
outlast them, as they were used after these had arrived.
"""

import time
from collections.abc import Sequence

from .cache.wanted_files import WantedFile
from .mirrors import Mirror

AWAITED = 60.0  # seconds by which they count as used later; a program that dies leaves them in favour for no longer


class AwaitedShards:
    """Numbers of `shards` of a mirror. Any thread may ask."""

    def __init__(self, mirror: Mirror, shards: Sequence[WantedFile]) -> None:
        self._mirror = mirror
        self._shards = shards
        self._marked: dict[int, float] = {}  # when each was last marked in the cache

    def add(self, number: int) -> None:
        """Note that a shard is asked for, and mark it if it is here."""
        if number not in self._marked:
            self._marked[number] = 0.0
            if self._mirror.has(self._shards[number]):
                self._mark(number)

    def arrived(self, number: int) -> None:
        """Mark a shard that has arrived, unless it was read already."""
        if number in self._marked:
            self._mark(number)

    def renew(self, now: float) -> None:
        """Mark again those that have waited for long."""
        for number, marked in list(self._marked.items()):
            if marked and now - marked >= AWAITED / 2:
                self._mark(number)

    def read(self, number: int) -> bool:
        """Whether a shard was awaited until now, that it is read."""
        return self._marked.pop(number, None) is not None

    def clear(self) -> None:
        """Nothing is awaited any more."""
        self._marked.clear()

    def _mark(self, number: int) -> None:
        self._mirror.expect(self._shards[number], AWAITED)
        if number in self._marked:
            self._marked[number] = time.monotonic()
