"""What tests of threads share."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest


def ending(monkeypatch: pytest.MonkeyPatch, name: str) -> threading.Event:
    """An event that is set when the threads of this name have been told to end, before they are waited for."""
    ended = threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def shutdown_and_tell(pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        shutdown(pool, wait=False, cancel_futures=cancel_futures)
        if pool._thread_name_prefix == name:
            ended.set()
        shutdown(pool, wait)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown_and_tell)
    return ended
