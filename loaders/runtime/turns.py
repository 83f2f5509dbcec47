"""Turns: of samples that take less time than a switch between threads, one thread at a time makes rows.

Without machine code each sample takes a dozen calls that give up Python's lock. Another thread that waits for the lock
takes it then, and the first one has to wait: for JPEGs of 64 x 64 pixels two threads on two cores took longer than one
(`benchmarks/small_folders.py --sides 64`). Beyond 4 KB, about 100 x 100 pixels, two are faster.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .stopping import Cancelled

_SMALL = 4096  # bytes of a sample, on average
_SLOW = 100e-6  # seconds: a read that takes longer waits for a disk, and more than one thread should
_ENOUGH = 32  # reads in turn before their time counts
_LOOKS = 0.05  # seconds of waiting, after which a thread looks whether it still has to


class Turns:
    """Whether the threads of one iteration take turns, by what they have read so far.

    Counting needs no lock: a number that is lost between two threads changes an average a little.
    """

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed
        self._lock = threading.Lock()
        self._reads = 0
        self._bytes = 0
        self._timed = 0  # reads in turn
        self._seconds = 0.0  # of these

    @property
    def taken(self) -> bool:
        """Whether samples are small, and read at once."""
        if not self._allowed or self._bytes >= _SMALL * self._reads:
            return False
        return self._timed < _ENOUGH or self._seconds < _SLOW * self._timed

    @contextmanager
    def turn(self, is_cancelled: Callable[[], bool]) -> Iterator[bool]:
        """Wait for this thread's turn, where turns are taken. Whether they are. Raises Cancelled.

        The thread whose turn it is may be the one that cancels, and waits for the others.
        """
        if not self.taken:
            yield False
            return
        while not self._lock.acquire(timeout=_LOOKS):
            if is_cancelled():
                raise Cancelled
        try:
            yield True
        finally:
            self._lock.release()

    def count(self, reads: int, nbytes: int, seconds: float, in_turn: bool) -> None:
        """Add what a thread has read one by one, in how many seconds, and whether that was its turn."""
        self._reads += reads
        self._bytes += nbytes
        if in_turn:
            self._timed += reads
            self._seconds += seconds
