"""Signs of life of processes that fetch files, which may wait for a store for minutes: others wait for the files."""

import contextlib
import os
import threading
from collections.abc import Iterator

BEAT = 10.0  # seconds between two signs of life


@contextlib.contextmanager
def signs_of_life(file: int) -> Iterator[None]:
    """In the block those that wait for the open file see that somebody works on it."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            os.utime(file)

    thread = threading.Thread(target=beat, name="fastimg-fetching", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
