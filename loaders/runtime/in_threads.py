"""The rows of a batch on as many threads as torch uses, as in `augment`: the two libraries do not know each other."""

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Call `work(first, last)` for parts of range(count), which has to give up Python's lock to gain by it."""
    all_threads = torch.get_num_threads()
    threads = min(all_threads, count)
    part = -(-count // (8 * threads)) if threads > 1 else count
    starts = itertools.count(0, part)  # its `next` is atomic

    def parts() -> None:
        while (first := next(starts)) < count:
            work(first, min(first + part, count))

    others = [_pool(os.getpid(), all_threads - 1).submit(parts) for _ in range(threads - 1)]
    try:
        parts()
    finally:
        for other in others:
            other.result()


@functools.lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads besides the caller's; a forked process starts its own."""
    return ThreadPoolExecutor(max(threads, 1), thread_name_prefix=f"loader-{process}")
