"""Batches that are worked out by the loader's threads: in order, whatever the threads do, and none after the end."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from fastimg.loaders import ShardError
from fastimg.loaders.pool import Pool

N = 100


class Watched:
    """Notes which threads draw crops and ask for samples, and how many at a time."""

    def __init__(self, *given):
        super().__init__(*given)
        self.threads, self.asked, self.inside, self.most = set(), [], 0, 0

    def draw(self, seed, epoch, ids):
        self.threads.add(threading.current_thread().name)
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.001 * (int(ids[0]) % 3))
        drawn = super().draw(seed, epoch, ids)
        self.inside -= 1
        return drawn

    def will_need(self, indices):
        self.asked.append(indices.tolist())


@pytest.fixture
def watched(numbers, stamp):
    """A dataset and a decoder in one, which notes what is asked of it."""

    class Both(Watched, stamp, numbers):
        pass

    return Both


@pytest.mark.parametrize("order", ["random", "quasi-random", "sequential"])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_batches_are_made_in_order_and_not_by_the_consumer(run, numbers, build, frozen, watched, order, workers):
    both = watched(N)
    given = {"order": order, "seed": 5, "block": 4, "window": 16} if order == "quasi-random" else {"order": order}
    expected = run(numbers(N), epochs=2, **given)
    loader = build(both, both, workers=workers, prefetch=5, **given)
    assert [frozen(batch) for _ in range(2) for batch in loader] == expected
    loader.close()
    assert threading.main_thread().name not in both.threads and both.most == 1
    assert all(name.startswith("fastimg-loader") for name in both.threads)


def test_a_batch_of_padding_alone_is_waited_for(numbers, build, stamp):
    """No thread fills a row of it, and the consumer is woken all the same."""

    class Late(stamp):
        def draw(self, seed, epoch, ids):
            time.sleep(0.02)
            return super().draw(seed, epoch, ids)

    loader = build(numbers(13), Late(), order="sequential", rank=2, world_size=3, workers=1)
    assert [batch.samples for batch in loader] == [4, 0]
    loader.close()


def test_an_early_end_while_a_batch_is_worked_out(build, numbers, read, real, stamp):
    """The end waits for the thread that works it out; what was asked for besides is dropped."""
    begun, go_on = threading.Event(), threading.Event()

    class Held(stamp):
        calls = 0

        def draw(self, seed, epoch, ids):
            self.calls += 1
            if self.calls == 4:  # of the batch that the consumer has asked for with the second
                begun.set()
                assert go_on.wait(30)
            return super().draw(seed, epoch, ids)

    decoder = Held()
    loader = build(numbers(N), decoder, order="sequential", prefetch=3)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert begun.wait(30)
    closing = threading.Thread(target=batches.close)
    closing.start()
    time.sleep(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join()
    assert decoder.calls == 4
    assert sorted(real(read(loader))) == list(range(N))
    loader.close()


def test_a_loader_abandoned_while_a_batch_is_worked_out_is_collected(build, numbers, stamp, threads):
    """The thread's batch is refused then: that error refers to the loader, and nothing may keep it."""
    begun, go_on = threading.Event(), threading.Event()

    class Held(stamp):
        calls = 0

        def draw(self, seed, epoch, ids):
            self.calls += 1
            if self.calls == 4:
                begun.set()
                assert go_on.wait(30)
            return super().draw(seed, epoch, ids)

    loader = build(numbers(N), Held(), order="sequential", prefetch=3)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert begun.wait(30)
    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    batches.close()
    timer.join()
    gone = weakref.ref(loader)
    del batches, loader
    gc.collect()
    assert gone() is None and threads() == []


def test_an_error_while_a_batch_is_worked_out(build, numbers, read, real, stamp):
    class Failing(stamp):
        bad = True

        def draw(self, seed, epoch, ids):
            if self.bad and 40 in ids:
                raise ShardError("gone")
            return super().draw(seed, epoch, ids)

    decoder = Failing()
    loader = build(numbers(N), decoder, order="sequential", workers=3)
    for _ in range(2):
        seen = []
        with pytest.raises(ShardError, match=r"^gone$"):
            for batch in loader:
                seen += batch.ids.tolist()
        assert seen == list(range(len(seen))) and len(seen) <= 40
    decoder.bad = False
    assert sorted(real(read(loader))) == list(range(N))
    loader.close()


def test_a_thread_that_dies_while_it_works_out_a_batch(build, numbers, read, monkeypatch):
    """The consumer gets its error instead of waiting for the batch."""

    inner = Pool._fill_chunk

    def fill_chunk(pool, number, thread, chunk, scratch):
        if chunk.is_empty:
            raise SystemExit
        inner(pool, number, thread, chunk, scratch)

    monkeypatch.setattr(Pool, "_fill_chunk", fill_chunk)
    loader = build(numbers(N))
    with pytest.raises(Exception, match="a loader thread died: SystemExit"):
        read(loader)
    monkeypatch.setattr(Pool, "_fill_chunk", inner)
    assert len(read(loader)) == len(loader)
    loader.close()


def test_draws_are_those_of_the_whole_batch(numbers, build, stamp):
    """They are drawn once for a batch, not for each chunk of it."""
    drawn = []

    class Counting(stamp):
        def draw(self, seed, epoch, ids):
            drawn.append(len(ids))
            return super().draw(seed, epoch, ids)

    loader = build(numbers(64), Counting(), batch_size=16, workers=4)
    for batch in loader:
        assert len(np.unique(batch.ids)) == 16
    loader.close()
    assert drawn.count(16) == 4
