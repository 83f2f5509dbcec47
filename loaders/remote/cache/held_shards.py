"""Open files of shards that were read a moment ago, so that not every sample opens one."""

import os
import threading
import time
import weakref

HELD = 16  # open files: the shards of a window, for a few threads


class HeldShard:
    """An open file that was verified. It has the modification time `written`, in nanoseconds, until somebody alters it.

    `used` is when it was last marked as used, by the monotonic clock.
    """

    __slots__ = ("_written", "file", "used")

    def __init__(self, file: int, written: int) -> None:
        self.file = file
        self.used = time.monotonic()
        self._written = written

    def current(self) -> bool:
        """Whether it is what was verified, and was not deleted: 2 us, before each read."""
        status = os.fstat(self.file)
        return status.st_mtime_ns == self._written and status.st_nlink > 0

    def whole(self) -> bool:
        """Whether all that was read of it until now is what was verified: the cache has not written over it."""
        return os.fstat(self.file).st_mtime_ns == self._written


class HeldShards:
    """At most HELD open files of numbered shards, each of which one thread reads at a time. Any thread may ask.

    Nothing locks them, so the cache may delete any of them, or write another shard over it. What was deleted keeps its
    content until it is closed, and its room on the disk: `sweep` closes what is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[int, HeldShard]] = []  # by the shard's number, the one read last at the end
        weakref.finalize(self, _close_all, self._idle)

    def take(self, number: int) -> HeldShard | None:
        """A file of a shard, for the caller to give back or to close."""
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == number:
                    return self._idle.pop(place)[1]
        return None

    def give(self, number: int, shard: HeldShard) -> None:
        """Keep a file for the next one that reads the shard."""
        with self._lock:
            self._idle.append((number, shard))
            oldest = self._idle.pop(0)[1] if len(self._idle) > HELD else None
        if oldest is not None:
            os.close(oldest.file)

    def sweep(self) -> None:
        """Close what is not current any more."""
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if not self._idle[place][1].current():
                    os.close(self._idle.pop(place)[1].file)

    def close(self) -> None:
        """Close all that nobody reads."""
        with self._lock:
            _close_all(self._idle)


def _close_all(idle: list[tuple[int, HeldShard]]) -> None:
    while idle:
        os.close(idle.pop()[1].file)
