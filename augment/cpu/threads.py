"""The threads that share a batch."""

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Call `work(first, last)` for chunks of range(count), on as many threads as torch uses."""
    all_threads = torch.get_num_threads()
    threads = min(all_threads, count)
    chunk = -(-count // (8 * threads)) if threads > 1 else count
    starts = itertools.count(0, chunk)  # its `next` is atomic

    def chunks() -> None:
        while (first := next(starts)) < count:
            work(first, min(first + chunk, count))

    # The pool does not depend on `count`, or a call for few images would end the threads of the next one.
    others = [_thread_pool(os.getpid(), all_threads - 1).submit(chunks) for _ in range(threads - 1)]
    try:
        chunks()
    finally:
        for other in others:
            other.result()


@functools.lru_cache(maxsize=1)
def _thread_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads besides the caller's; a forked process starts its own."""
    return ThreadPoolExecutor(max(threads, 1), thread_name_prefix=f"augment-{process}")
