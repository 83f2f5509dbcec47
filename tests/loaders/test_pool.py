"""The pool's threads: how many are woken, and how many rows each of them takes."""

import threading

import pytest

from fastimg.loaders.pool import Pool

pytestmark = pytest.mark.usefixtures("watchdog")


@pytest.fixture
def chunks(monkeypatch):
    """The (start, stop) of each chunk that a thread has filled, and which thread that was."""
    found = []
    fill = Pool._try_rows

    def noted(pool, number, chunk, scratch):
        if chunk.stop > chunk.start:
            found.append((chunk.start, chunk.stop, number))
        return fill(pool, number, chunk, scratch)

    monkeypatch.setattr(Pool, "_try_rows", noted)
    return found


@pytest.mark.parametrize(
    ("batch", "workers", "prefetch", "rows"),
    [
        (256, 16, 3, 16),  # with two batches at once, a chunk of each for every thread
        (256, 16, 6, 32),  # with five, more rows for each of them
        (256, 8, 3, 32),
        (256, 2, 3, 32),
        (256, 1, 3, 64),
        (64, 16, 6, 10),
        (8, 16, 6, 1),
        (100, 3, 3, 25),  # alike, in place of 32, 32, 32 and 4
    ],
)
def test_rows_of_a_chunk(build, numbers, chunks, batch, workers, prefetch, rows):
    with build(numbers(8 * batch), batch_size=batch, workers=workers, prefetch=prefetch) as loader:
        assert sum(made.samples for made in loader) == 8 * batch
    count = -(-batch // rows)
    assert len(chunks) == 8 * count
    starts = list(range(0, batch, rows))
    assert {(start, stop) for start, stop, _ in chunks} == set(zip(starts, [*starts[1:], batch], strict=True))


def test_a_lone_batch_is_for_all_threads(build, numbers, chunks):
    with build(numbers(256), batch_size=256, workers=16, prefetch=6) as loader:
        assert sum(batch.samples for batch in loader) == 256
    assert len(chunks) == 16


def test_the_consumer_wakes_one_thread(build, numbers, monkeypatch):
    """While none takes rows, more batches wake no other thread."""
    woken = []

    def hand_out(pool, rows):
        kept(pool, rows)
        woken.append(pool._wakes.qsize())

    kept = Pool._hand_out
    monkeypatch.setattr(Pool, "_hand_out", hand_out)
    monkeypatch.setattr(Pool, "_work", lambda *_: None)
    monkeypatch.setattr(Pool, "wait", lambda *_: None)
    with build(numbers(400), batch_size=100, workers=3) as loader:
        next(iter(loader))
    assert woken == [1, 1, 1]


def test_each_thread_wakes_the_next(build, numbers, stamp):
    """Three threads, each of which waits in its chunk until all have one."""
    together = threading.Barrier(3)

    class Together(stamp):
        def fill(self, reader, ids, draws, rows, scratch):
            together.wait(30)
            return super().fill(reader, ids, draws, rows, scratch)

    with build(numbers(36), Together(), batch_size=12, workers=3, prefetch=2) as loader:
        assert sum(batch.samples for batch in loader) == 36
