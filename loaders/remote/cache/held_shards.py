"""Open files of shards that were read a moment ago, so that not every sample opens one."""

import os
import threading
import time
import weakref

HELD = 64  # open files: the shards of a window, for a few threads


class HeldShard:
    """An open file that was verified. It has the modification time `written`, in nanoseconds, until somebody alters it.

    `used` is when it was last marked as used, by the monotonic clock.
    """

    __slots__ = ("_written", "file", "used")

    def __init__(self, file: int, written: int) -> None:
        self.file = file
        self.used = time.monotonic()
        self._written = written

    def looked(self) -> tuple[bool, bool]:
        """Whether all that was read of it until now is what was verified, and whether it is still in the cache.

        It is not what was verified where the cache has written over it; what was only deleted keeps its content.
        """
        status = os.fstat(self.file)
        return status.st_mtime_ns == self._written, status.st_nlink > 0


class HeldShards:
    """At most HELD open files of numbered shards, each of which one thread reads at a time. Any thread may ask.

    Nothing locks them, so the cache may delete any of them, or write another shard over it. What was deleted keeps its
    content until it is closed, and its room on the disk: `sweep` closes what is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[int, list[HeldShard]] = {}  # by the shard's number, the one read last at the end
        self._count = 0
        weakref.finalize(self, _close_all, self._idle)

    def take(self, number: int) -> HeldShard | None:
        """A file of a shard, for the caller to give back or to close."""
        with self._lock:
            idle = self._idle.get(number)
            if idle is None:
                return None
            self._count -= 1
            if len(idle) == 1:
                del self._idle[number]
            return idle.pop()

    def give(self, number: int, shard: HeldShard) -> None:
        """Keep a file for the next one that reads the shard."""
        oldest = None
        with self._lock:
            idle = self._idle.pop(number, None) or []
            idle.append(shard)
            self._idle[number] = idle
            self._count += 1
            if self._count > HELD:
                first = next(iter(self._idle))
                oldest = self._idle[first].pop(0)
                self._count -= 1
                if not self._idle[first]:
                    del self._idle[first]
        if oldest is not None:
            os.close(oldest.file)

    def sweep(self) -> None:
        """Close what is gone, or was written over."""
        with self._lock:
            for number, idle in list(self._idle.items()):
                for shard in [each for each in idle if each.looked() != (True, True)]:
                    idle.remove(shard)
                    self._count -= 1
                    os.close(shard.file)
                if not idle:
                    del self._idle[number]

    def close(self) -> None:
        """Close all that nobody reads."""
        with self._lock:
            _close_all(self._idle)
            self._count = 0


def _close_all(idle: dict[int, list[HeldShard]]) -> None:
    while idle:
        for shard in idle.popitem()[1]:
            os.close(shard.file)
