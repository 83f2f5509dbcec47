"""Signs of life of processes that fetch files, which may wait for a store for minutes: others wait for the files."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator

BEAT = 10.0  # seconds between two signs of life


class SignsOfLife:
    """Marks unfinished files as written, BEAT seconds apart, by one thread, which ends when there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: set[int] = set()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def of(self, file: int) -> Iterator[None]:
        """In the block those that wait for the open file see that somebody works on it."""
        with self._lock:
            self._files.add(file)
            if self._thread is None or not self._thread.is_alive():  # of a process that has forked, none is
                self._thread = threading.Thread(target=self._beat, name="fastimg-fetching", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._files.discard(file)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT)
            with self._lock:
                if not self._files:
                    self._thread = None
                    return
                for file in self._files:
                    with contextlib.suppress(OSError):
                        os.utime(file)
