"""Open files of shards that were read a moment ago, so that not every sample opens one."""

import os
import threading
import weakref
from collections.abc import Callable

HELD = 16  # open files: the shards of a window, for a few threads


class HeldShards:
    """At most HELD open files of numbered shards, each of which one thread reads at a time. Any thread may ask.

    Nothing locks them, so the cache may delete any of them. Its content stays until it is closed, and so does its room
    on the disk: `sweep` closes what is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[int, int]] = []  # shard and descriptor, the one read last at the end
        weakref.finalize(self, _close_all, self._idle)

    def take(self, number: int) -> int | None:
        """A descriptor of a shard, for the caller to give back or to close."""
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == number:
                    return self._idle.pop(place)[1]
        return None

    def give(self, number: int, file: int) -> None:
        """Keep a descriptor for the next one that reads the shard."""
        with self._lock:
            self._idle.append((number, file))
            oldest = self._idle.pop(0)[1] if len(self._idle) > HELD else None
        if oldest is not None:
            os.close(oldest)

    def sweep(self, current: Callable[[int, int], bool]) -> None:
        """Close what is not current any more, which `current(number, descriptor)` says."""
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if not current(*self._idle[place]):
                    os.close(self._idle.pop(place)[1])

    def close(self) -> None:
        """Close all that nobody reads."""
        with self._lock:
            _close_all(self._idle)


def _close_all(idle: list[tuple[int, int]]) -> None:
    while idle:
        os.close(idle.pop()[1])
