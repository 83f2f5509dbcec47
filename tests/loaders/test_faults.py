"""Faults in a sample, a decoder or a thread: the sample is left out and named, or the run ends with a message."""

import contextlib
import ctypes
import gc
import io
import threading
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders import (
    DataError,
    ImageDecoder,
    ImageError,
    RandomResizedCrop,
    ShardError,
    View,
    ViewDecoder,
    WorkerError,
    open_dataset,
)
from fastimg.loaders import pool as pool_module
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.pool import Pool
from fastimg.loaders.runtime.scratch import Scratch

N = 23  # of the fixture `files`
TRAINING = ImageDecoder(RandomResizedCrop(size=16))
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left", "files_given_back")


# Samples


def test_undecodable_images_have_weight_0(files, pixels_by_id, run, spoil, build, read, real):
    good = pixels_by_id(run(files, TRAINING, batch_size=5, epochs=1))
    spoil(files, 4)
    spoil(files, 11, b"")
    Path(files.sample_name(17)).unlink()
    loader = build(files, TRAINING, batch_size=5)
    batches = read(loader)
    assert sorted(real(batches)) == sorted(set(range(N)) - {4, 11, 17})
    assert pixels_by_id(batches) == {i: pixels for i, pixels in good.items() if i not in (4, 11, 17)}
    assert sorted(loader.unreadable) == [4, 11, 17]
    assert loader.unreadable[11] == "the file is empty" and loader.unreadable[17] == "No such file or directory"
    read(loader)
    assert sorted(loader.unreadable) == [4, 11, 17]  # counted once
    loader.close()
    size = 16 * 16 * 3
    for ids, _, weight, samples, inputs in batches:
        assert samples == sum(weight)
        for bad in {4, 11, 17} & set(ids):
            row = ids.index(bad)
            assert weight[row] == 0.0 and inputs[row * size : (row + 1) * size] == bytes(size)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "WEBP", "BMP", "JPEG"])
@pytest.mark.parametrize("decoder", [TRAINING, ViewDecoder((View(crop=8, n=2),))])
def test_images_that_are_refused_leave_nothing_to_the_garbage_collector(kind, decoder, tmp_path):
    """Its cycles would hold Pillow's canvases, of any size that a file claims, until it runs."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), np.uint8)).save(buffer, kind)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"a.{kind.lower()}").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    dataset = open_dataset(tmp_path)
    rows = {field.name: np.zeros((1, *field.shape), np.uint8) for field in decoder.fields}
    draws = decoder.draw(0, 0, np.zeros(1, np.int64))
    for _ in range(2):  # what is made once is made the first time
        gc.collect()
        gc.disable()
        try:
            failures = decoder.fill(SampleReader(dataset), [0], draws, rows, Scratch())
            assert len(failures) == 1 and isinstance(failures[0][1], ImageError)
            failures.clear()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = BaseException, types.FrameType, Image.Image  # proxies of what is gone have no __class__
            left = [thing for thing in gc.garbage if issubclass(type(thing), kinds)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []


def test_a_half_filled_row_is_zeroed(build, numbers, faulty, read):
    loader = build(numbers(8), faulty(ImageError("half done"), 5), batch_size=8)
    ((ids, _, weight, samples, inputs),) = read(loader)
    loader.close()
    row = ids.index(5)
    assert weight[row] == 0.0 and samples == 7 and inputs[row * 6 : row * 6 + 6] == bytes(6)
    assert loader.unreadable == {5: "half done"}


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("error", [DataError("a shard is gone"), KeyboardInterrupt()])
def test_an_error_in_the_first_of_many_batches_ends_the_run(in_memory, error, build, numbers, faulty, read):
    """Batches behind it are filled before it is waited for: data in memory is decoded on the consumer's thread."""

    class Held(faulty):
        def in_memory(self, dataset):
            return in_memory

    loader = build(numbers(12), Held(error, 1), batch_size=2, order="sequential")
    with pytest.raises(type(error)) as caught:
        read(loader)
    assert caught.value is error
    loader.close()


def test_data_that_is_in_memory_by_now_does_not_wait_for_threads(build, numbers, stamp, read):
    class Changing(stamp):
        held = False

        def in_memory(self, dataset):
            return self.held

    decoder = Changing()
    loader = build(numbers(12), decoder, batch_size=2, order="sequential")
    next(iter(loader))  # and the rest is abandoned
    decoder.held = True
    assert len(read(loader)) == 6
    loader.close()


def test_a_strict_run_names_the_undecodable_image(files, spoil, build, read, real):
    path = spoil(files, 4)
    loader = build(files, TRAINING, on_error="fail")
    with pytest.raises(DataError, match=f"^{path}: .*; repair or remove it, or use on_error=skip") as caught:
        read(loader)
    assert isinstance(caught.value.__cause__, ImageError) and loader.unreadable == {}
    spoil(files, 4, Path(files.sample_name(0)).read_bytes())
    assert sorted(real(read(loader))) == list(range(N))  # repaired: the loader still works
    loader.close()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_fault_in_a_worker_ends_the_run_and_names_the_sample(workers, build, numbers, faulty, read, threads):
    loader = build(numbers(50), faulty(KeyError("oops"), 31), workers=workers)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"^a loader thread failed on numbers/31: KeyError\('oops'\)") as caught:
            read(loader)
        assert isinstance(caught.value.__cause__, KeyError)
    assert len(threads()) == workers  # only the sample is faulty: the threads live, until
    loader.close()
    assert threads() == []


def test_faults_on_every_sample(build, numbers, faulty, read):
    loader = build(numbers(50), faulty(RuntimeError("all bad"), *range(50)), workers=5, batch_size=20)
    for _ in range(3):
        with pytest.raises(WorkerError, match="all bad"):
            read(loader)
    loader.close()


def test_base_exceptions_reach_the_consumer_too(build, numbers, faulty, read):
    loader = build(numbers(50), faulty(SystemExit(3), 31))
    with pytest.raises(SystemExit):
        read(loader)
    loader.close()


@pytest.mark.parametrize(("samples", "workers"), [(50, 2), (4, 1)])  # 4: the thread that failed has nothing to do next
def test_a_failed_loader_is_not_kept_alive_by_its_error(samples, workers, build, numbers, faulty, read, threads):
    loader = build(numbers(samples), faulty(KeyError("oops"), min(31, samples - 1)), workers=workers)
    with contextlib.suppress(WorkerError):
        read(loader)
    gone = weakref.ref(loader)
    gc.disable()  # no reference cycle keeps it
    try:
        del loader
        assert gone() is None and threads() == []
    finally:
        gc.enable()


def test_a_file_that_disappears_while_the_loader_runs(files, build):
    loader = build(files, TRAINING, on_error="fail", batch_size=1)
    with pytest.raises(DataError, match="No such file or directory; repair or remove it"):
        for number, _ in enumerate(loader):
            if number == 2:
                for i in range(N):
                    Path(files.sample_name(i)).unlink()
    loader.close()


# Threads


def test_a_sample_that_runs_out_of_memory_is_named(stamp, build, numbers, read):
    class Greedy(stamp):
        def fill_row(self, data, draws, row, scratch):
            if data[0] == 7:
                raise MemoryError("9 TB")
            super().fill_row(data, draws, row, scratch)

    loader = build(numbers(50), Greedy())
    read(loader)
    assert loader.unreadable == {7: "it needs more memory than there is"}
    loader.close()
    strict = build(numbers(50), Greedy(), on_error="fail")
    with pytest.raises(DataError, match="numbers/7: it needs more memory than there is"):
        read(strict)
    strict.close()


@pytest.fixture
def check_that_it_ends_and_begins_anew(read, real, threads):
    def check(loader, match, cause):
        with pytest.raises(WorkerError, match=match) as caught:
            for _ in range(20):
                read(loader)
        assert isinstance(caught.value.__cause__, cause)
        assert sorted(real(read(loader))) == list(range(len(loader.dataset)))
        assert len(threads()) == loader.workers  # all new threads, none of the old
        loader.close()

    return check


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError])
def test_a_thread_that_dies_while_it_waits(error, build, numbers, read, check_that_it_ends_and_begins_anew):
    loader = build(numbers(50), workers=3)
    read(loader)
    victim = next(thread for thread in threading.enumerate() if thread.name == "fastimg-loader-1")
    struck = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim.ident), ctypes.py_object(error))
    assert struck == 1
    check_that_it_ends_and_begins_anew(loader, f"^a loader thread died: {error.__name__}", error)


@pytest.mark.parametrize("method", ["_take", "_settle"])
def test_a_thread_that_dies_between_two_samples(
    monkeypatch, method, check_that_it_ends_and_begins_anew, build, numbers
):
    calls, whole = [], getattr(Pool, method)

    def failing(self, *args):
        calls.append(args)
        if len(calls) == 5:
            raise MemoryError
        return whole(self, *args)

    monkeypatch.setattr(Pool, method, failing)
    check_that_it_ends_and_begins_anew(build(numbers(50)), "^a loader thread died: MemoryError", MemoryError)


def test_no_memory_for_a_threads_scratch(monkeypatch, check_that_it_ends_and_begins_anew, build, numbers):
    whole, made = pool_module.Scratch, []

    def scratch():
        made.append(threading.current_thread().name)
        if len(made) <= 2:
            raise MemoryError
        return whole()

    monkeypatch.setattr(pool_module, "Scratch", scratch)
    check_that_it_ends_and_begins_anew(build(numbers(50)), "^a loader thread died: MemoryError", MemoryError)


def test_threads_that_cannot_be_started(monkeypatch, build, numbers, read, threads, real):
    whole, started = threading.Thread.start, []

    def start(self):
        if self.name.startswith("fastimg-loader"):
            started.append(self.name)
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
        whole(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    loader = build(numbers(50), workers=5)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        read(loader)
    assert threads() == []
    assert sorted(real(read(loader))) == list(range(50))
    loader.close()


@pytest.mark.parametrize("method", ["will_need", "draw"])
def test_an_error_while_dispatching_work(method, stamp, numbers, build, read, real):
    class Failing(stamp, numbers):
        calls, bad = 0, True

        def _now_and_then(self):
            self.calls += 1
            if self.bad and self.calls == 6:
                raise ShardError("gone")

        def will_need(self, indices):
            if method == "will_need":
                self._now_and_then()

        def draw(self, seed, epoch, ids):
            if method == "draw":
                self._now_and_then()
            return super().draw(seed, epoch, ids)

    both = Failing(50)
    loader = build(both, both)
    with pytest.raises(ShardError, match=r"^gone$"):
        read(loader)
    both.bad = False
    assert sorted(real(read(loader))) == list(range(50))
    loader.close()
