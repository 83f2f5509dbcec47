"""Says that the first batch waits for shards of an object store: before it does, and every few seconds meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastimg.loaders.remote.cache.sizes import in_words
from fastimg.loaders.remote.fetched_files import FetchedFiles, fetched_files
from fastimg.train.run import Run

INTERVAL = 10.0  # seconds between two lines


@contextmanager
def first_shards(run: Run, say: Callable[[str], None]) -> Iterator[None]:
    """Tell `say` while the first step of a run waits for shards that the cache lacks; nothing is told of other data."""
    files = fetched_files(run.setup.data.loader.dataset)
    if files is None or files.by_ranges or (held := files.held()) == files.count:
        yield
        return
    config = run.setup.config
    reach = (config.order_window or 0) // 2 if config.order == "quasi-random" else 0
    needed, size = files.first(reach, len(run.setup.data.loader.dataset))
    say(
        f"object store: {held} of {files.counted(files.count)} in the cache; the first batch waits for about "
        f"{files.counted(needed)} ({in_words(size)})"
    )
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(run, files, size, say, over), name="fastimg-first", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(run: Run, files: FetchedFiles, size: int, say: Callable[[str], None], over: threading.Event) -> None:
    step, before = run.progress.step, files.mirror.cache.spent.bytes
    while not over.wait(INTERVAL) and run.progress.step == step:
        got = files.mirror.cache.spent.bytes - before
        say(f"object store: {in_words(got)} fetched of about {in_words(size)} for the first batch")
