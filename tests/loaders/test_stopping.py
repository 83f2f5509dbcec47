"""Consumers that stop, start again, are interrupted, close, drop or fork the loader: no hang, and no thread is left."""

import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from fastimg.loaders.batch import Field
from fastimg.loaders.pool import Pool

N = 23
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left", "files_given_back")


# Stopping


def test_a_consumer_that_stops_early_and_begins_again(run, numbers, build, frozen):
    expected = run(numbers(N), epochs=3)
    loader = build(numbers(N))
    for epoch in range(3):
        for number, batch in enumerate(loader):
            assert frozen(batch) == expected[6 * epoch + number]
            if number == epoch:
                break
    loader.close()


@pytest.fixture
def slow(stamp):
    class Slow(stamp):
        """Counts the rows being filled, and is slow."""

        def __init__(self):
            self.lock, self.inside, self.calls = threading.Lock(), 0, 0

        def fill_row(self, data, draws, row, scratch):
            with self.lock:
                self.inside += 1
                self.calls += 1
            time.sleep(0.002)
            super().fill_row(data, draws, row, scratch)
            with self.lock:
                self.inside -= 1

    return Slow


def test_no_thread_touches_the_slots_after_an_early_stop(slow, build, numbers):
    class Late(slow):
        """Decodes nothing after the first batch until the iteration is cancelled."""

        def fill(self, reader, ids, draws, rows, scratch):
            end = time.monotonic() + 30
            while self.calls >= 40 and not reader._is_cancelled() and time.monotonic() < end:
                time.sleep(0.001)
            return super().fill(reader, ids, draws, rows, scratch)

    decoder = Late()
    loader = build(numbers(400), decoder, batch_size=40, workers=1)
    for _ in loader:
        break
    calls, held = decoder.calls, [slot.buffer.clone() for slot in loader._slots]
    assert decoder.inside == 0 and calls == 40  # queued work is dropped
    time.sleep(0.02)
    assert decoder.calls == calls
    assert all(torch.equal(a, slot.buffer) for a, slot in zip(held, loader._slots, strict=True))
    loader.close()


def test_an_exception_of_the_consumer(slow, build, numbers, real, read):
    decoder = slow()
    loader = build(numbers(100), decoder)
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018
    assert decoder.inside == 0
    assert sorted(real(read(loader))) == list(range(100))
    loader.close()


def test_an_interruption_while_waiting(monkeypatch, slow, build, numbers, read, threads):
    calls = []
    wait = Pool.wait

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return wait(*args)

    monkeypatch.setattr(Pool, "wait", interrupted)
    decoder = slow()
    loader = build(numbers(100), decoder)
    with pytest.raises(KeyboardInterrupt):
        read(loader)
    assert decoder.inside == 0 and len(threads()) == 2
    calls_then = decoder.calls
    time.sleep(0.02)
    assert decoder.calls == calls_then
    loader.close()
    assert threads() == []


def test_a_signal_while_a_worker_is_stuck(stamp, build, numbers, read):
    """Ctrl-C interrupts a consumer that waits for a batch that never comes."""
    release = threading.Event()

    class Stuck(stamp):
        def fill_row(self, data, draws, row, scratch):
            release.wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    loader = build(numbers(100), Stuck())

    def interrupt():
        signal.pthread_kill(main, signal.SIGINT)
        release.set()

    timer = threading.Timer(0.1, interrupt)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            read(loader)
    finally:
        release.set()
        timer.join()
        signal.signal(signal.SIGINT, before)
        loader.close()


def test_a_second_iteration_ends_the_first(run, numbers, build, frozen, read):
    expected = run(numbers(N), epochs=2)
    loader = build(numbers(N))
    first = iter(loader)
    assert frozen(next(first)) == expected[0]
    assert read(loader) == expected[6:]
    with pytest.raises(RuntimeError, match="this iteration is over: the loader was closed, or iterated again"):
        next(first)
    loader.close()


def test_interleaved_iterations_never_mix_their_batches(build, numbers, frozen, real):
    loader = build(numbers(400), batch_size=16)
    for _ in range(20):
        a, b = iter(loader), iter(loader)
        next(a)
        batches = [frozen(next(b)), frozen(next(b)), frozen(next(b))]
        with pytest.raises(RuntimeError):
            next(a)  # writes nothing to the slots that b is filling
        batches += map(frozen, b)
        assert sorted(real(batches)) == list(range(400))
        for ids, targets, _, _, inputs in batches:
            assert targets == [10 * i for i in ids] and [i % 256 for i in ids] == list(inputs[::6])
    loader.close()


def test_closing_ends_an_iteration_and_iterating_starts_again(run, numbers, build, frozen, threads, read):
    expected = run(numbers(N), epochs=2)
    loader = build(numbers(N))
    batches = iter(loader)
    assert frozen(next(batches)) == expected[0]
    loader.close()
    assert threads() == []
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(batches)
    assert read(loader) == expected[6:]
    loader.close()
    loader.close()  # twice is once


def test_closing_from_another_thread_wakes_a_consumer_that_waits(stamp, build, numbers, read):
    entered, release = threading.Event(), threading.Event()

    class Stuck(stamp):
        def fill_row(self, data, draws, row, scratch):
            entered.set()
            release.wait()

    loader = build(numbers(100), Stuck())

    def close():
        entered.wait()
        threading.Timer(0.05, release.set).start()
        loader.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(RuntimeError, match="the loader was closed"):
        read(loader)
    closer.join()


def test_an_unreferenced_loader_leaves_no_thread(build, numbers, read, threads):
    loader = build(numbers(N))
    read(loader)
    assert len(threads()) == 2
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None and threads() == []


def test_a_loader_dropped_within_an_epoch(build, numbers, slow, threads):
    batches = iter(build(numbers(400), slow(), batch_size=40))
    next(batches)
    del batches
    gc.collect()
    assert threads() == []


@pytest.mark.parametrize("what", ["iteration", "loader"])
def test_garbage_is_collected_in_a_thread_of_the_loader(stamp, build, numbers, what):
    """The thread that collects an abandoned iteration, or the loader, is one that works for it: it does not wait."""
    dropped, collected = threading.Event(), threading.Event()

    class Collecting(stamp):
        def fill_row(self, data, draws, row, scratch):
            super().fill_row(data, draws, row, scratch)
            if int.from_bytes(data, "little") == 3:  # of the four that are filled ahead
                assert dropped.wait(20)
                gc.collect()
                collected.set()

    def abandon():
        loader = build(numbers(40), Collecting(), batch_size=1, order="sequential", workers=2, prefetch=4)
        batches = iter(loader)
        next(batches)
        cycle = [batches] if what == "iteration" else [batches, loader]
        cycle.append(cycle)
        return loader if what == "iteration" else None

    gc.disable()
    try:
        loader = abandon()
        dropped.set()
        assert collected.wait(20)
    finally:
        gc.enable()
    if loader is not None:
        assert len([batch.samples for batch in loader]) == 40
        loader.close()
    else:  # the threads end by themselves: the one that collected the loader did not wait for them
        for thread in threading.enumerate():
            if thread.name.startswith("fastimg-loader"):
                thread.join(20)


def test_a_closed_loader_holds_no_dataset(numbers, build, read):
    """Every close releases the threads and their dataset."""
    dataset = numbers(N)
    gone = weakref.ref(dataset)
    loader = build(dataset)
    for _ in range(3):
        read(loader)
        pool = weakref.ref(loader._pool)
        loader.close()
        gc.collect()
        assert pool() is None
    del loader, dataset
    gc.collect()
    assert gone() is None


def test_nothing_grows_over_the_epochs(build, numbers):
    loader = build(numbers(N), prefetch=3)
    places, counts = [], []
    for _ in range(20):
        places.append({batch.inputs.data_ptr() for batch in loader})
        counts.append(threading.active_count())
    loader.close()
    assert len(places[0]) == 3 and all(place == places[0] for place in places)
    assert len(set(counts)) == 1
    assert loader.slot_bytes == 256 * 4  # 4 x 6 bytes, and three fields of labels


# Several iterations, and many times


def test_abandoned_iterations_release_their_memory(stamp, build, numbers):
    class Large(stamp):
        fields = (Field("inputs", (128, 128, 3), np.dtype(np.uint8)),)

    loader = build(numbers(64), Large(), batch_size=16)  # a slot has 0.8 MB
    sizes, objects = [], []
    for number in range(300):
        for _ in loader:
            break
        if number % 100 == 99:
            gc.collect()
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
            objects.append(len(gc.get_objects()))
    assert sizes[-1] - sizes[0] < 16 << 20  # 200 slots would be 160 MB
    assert objects[-1] - objects[0] < 100
    loader.close()


def test_interrupts_at_any_time_leave_the_loader_usable(build, numbers, real, read, threads):
    """Ctrl-C 200 times, at different moments: no hang, no other error, and no thread or sample is lost.

    A kernel timer sends the signal: a thread that sends it would hold the GIL, so that the main thread could only be at
    a few places.
    """
    loader = build(numbers(96), batch_size=32, workers=8)  # 32 chunks a batch: the consumer is often dispatching them
    caught = 0
    before = signal.signal(signal.SIGPROF, signal.default_int_handler)
    try:
        for delay in np.random.default_rng(0).uniform(0.0005, 0.006, 200):
            try:
                signal.setitimer(signal.ITIMER_PROF, delay)
                while True:
                    for _ in loader:
                        pass
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert caught == 200
    assert sorted(real(read(loader))) == list(range(96)) and len(threads()) == 8
    loader.close()


# Processes


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_parents_threads(build, numbers, read, threads):
    """Between iterations it has threads of its own; one in progress may have left locks, which nobody gives back."""
    loader = build(numbers(50))
    expected = read(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    children = [os.fork()]
    if children[0] == 0:  # the child has no threads: waiting for one would hang
        status = 1
        try:
            refused = 0
            for each in (batches, loader):
                try:
                    read(each)
                except RuntimeError as error:
                    refused += "create the loader in this process" in str(error)
            batches.close()
            loader.close()
            status = 0 if refused == 2 else 3
        finally:
            os._exit(status)
    rest = [batch.ids.tolist() for batch in batches]
    assert rest == [batch.ids for batch in expected[1:]]  # the parent is not affected
    children.append(os.fork())
    if children[1] == 0:
        status = 1
        try:
            loader.set_epoch(0)
            if read(loader) == expected and len(threads()) >= 2:
                loader.close()
                status = 0
        finally:
            os._exit(status)
    assert [wait_for(child) for child in children] == [0, 0]
    loader.close()


def wait_for(child, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


SCRIPT = """
    import sys
    from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset

    dataset = open_dataset(sys.argv[1])
    loader = Loader(dataset, ImageDecoder(RandomResizedCrop(size=16)), LoaderConfig(batch_size=2, workers=2))
    print("0", flush=True)
    number = 0
    while True:
        for batch in loader:
            number += 1
            print(number, flush=True)
"""


@pytest.fixture
def interruptible():
    """A shell's background jobs, and what they start, ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_program_may_end_within_an_epoch(image_folder):
    script = f"from fastimg.loaders import Loader\nbatches = iter(Loader({str(image_folder)!r}, batch_size=4, crop=8))"
    ran = subprocess.run([sys.executable, "-c", f"{script}\nnext(batches)"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 3, 30])
def test_ctrl_c_ends_a_program_at_once(image_folder, python, batch, interruptible):
    with subprocess.Popen(
        [python, "-c", textwrap.dedent(SCRIPT), str(image_folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for line in process.stdout:
                if int(line) >= batch:
                    break
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt") and stderr.count("Traceback") == 1
