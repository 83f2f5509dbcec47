"""The loader: every sample once, the same bytes however it is run, and an end to everything that goes wrong."""

import contextlib
import dataclasses
import gc
import io
import os
import signal
import tarfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from fastimg.loaders import (
    CenterCrop,
    DataError,
    FilesDataset,
    ImageDecoder,
    ImageError,
    Loader,
    LoaderConfig,
    RandomResizedCrop,
    ShardError,
    WorkerError,
    open_dataset,
)
from fastimg.loaders import loader as loader_module
from fastimg.loaders.counter import uniforms
from fastimg.loaders.pool import Pool
from fastimg.loaders.sample import Field

N = 23
TRAINING = ImageDecoder(RandomResizedCrop(size=16))


@pytest.fixture(autouse=True)
def watchdog():
    """What hangs, fails: an alarm after a minute, and again in case it was swallowed."""

    def ring(signum, frame):
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 60, 1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def nothing_left():
    """Every test ends its loaders' threads."""
    yield
    if threads():
        gc.collect()
    assert threads() == []


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastimg-loader")]


@pytest.fixture
def files(tmp_path, encode):
    """N images of different sizes, JPEG and PNG, with labels of three classes."""
    names = []
    for i in range(N):
        kind = "PNG" if i % 4 == 3 else "JPEG"
        names.append(f"{i:02d}.{kind.lower()}")
        (tmp_path / names[-1]).write_bytes(encode((10 * i, 90, 200 - 5 * i), (40 + i, 60 - i), seed=i, kind=kind))
    return FilesDataset(tmp_path, names, ("a", "b", "c"), [i % 3 for i in range(N)])


class Numbers:
    """A dataset whose sample i holds the number i."""

    classes = ()

    def __init__(self, n, name="numbers"):
        self.name, self.fingerprint = name, f"{name} {n}"
        self.labels = np.arange(n) * 10

    def __len__(self):
        return len(self.labels)

    def read(self, index, scratch):
        view = scratch.encoded(8)
        view[:] = int(index).to_bytes(8, "little")
        return view

    def will_need(self, indices):
        pass

    def sample_name(self, index):
        return f"{self.name}/{index}"

    def close(self):
        pass


class Stamp:
    """A decoder that writes the sample's number and its first draw."""

    fields = (Field("inputs", (1, 2, 3), np.dtype(np.uint8)),)

    def draw(self, seed, epoch, ids):
        return uniforms(seed, epoch, ids, 1, 2)

    def fill(self, data, draws, row, scratch):
        number = int.from_bytes(data, "little")
        row["inputs"][...] = [number % 256, number // 256, int(draws[0] * 256)]


class Faulty(Stamp):
    """A decoder that raises `error` on some numbers."""

    def __init__(self, error, *numbers):
        self.error, self.numbers = error, numbers

    def fill(self, data, draws, row, scratch):
        super().fill(data, draws, row, scratch)
        if int.from_bytes(data, "little") in self.numbers:
            raise self.error


def build(dataset, decoder=None, indices=None, **options):
    options = {"batch_size": 4, "workers": 2} | options
    return Loader(dataset, decoder or Stamp(), LoaderConfig(**options), indices=indices)


def frozen(batch):
    """A batch as bytes and lists, which outlive it."""
    inputs = batch.inputs.numpy().transpose(0, 2, 3, 1).tobytes()
    return batch.ids.tolist(), batch.targets.tolist(), batch.weight.tolist(), batch.samples, inputs


def read(loader):
    """One epoch, or the rest of it."""
    return [frozen(batch) for batch in loader]


def real(batches):
    """Ids of weight 1, in order."""
    return [i for ids, _, weight, _, _ in batches for i, w in zip(ids, weight, strict=True) if w]


def run(dataset, decoder=None, epochs=1, **options):
    loader = build(dataset, decoder, **options)
    try:
        return [batch for _ in range(epochs) for batch in read(loader)]
    finally:
        loader.close()


# What a batch holds


def test_a_batch(files):
    loader = build(files, TRAINING, batch_size=5)
    for batch in loader:
        assert batch.inputs.shape == (5, 3, 16, 16) and batch.inputs.dtype == torch.uint8
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
        assert (batch.targets.dtype, batch.ids.dtype, batch.weight.dtype) == (torch.int64, torch.int64, torch.float32)
        assert (batch.targets == batch.ids % 3).all()
        assert batch.samples == int(batch.weight.sum())
    assert len(loader) == 5 and loader.unreadable == {} and loader.wait_seconds > 0
    loader.close()


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"batch_size": 50}, {"order": "sequential"}])
def test_every_sample_is_read_once(options):
    batches = run(Numbers(N), **options)
    assert sorted(real(batches)) == list(range(N)) and sum(batch[3] for batch in batches) == N
    for ids, targets, _, _, _ in batches:
        assert targets == [10 * i for i in ids]


def test_pixels_are_of_the_sample_that_the_id_names():
    for ids, _, _, _, inputs in run(Numbers(300), batch_size=32, workers=5):
        pixels = np.frombuffer(inputs, np.uint8).reshape(32, 2, 3)
        assert (pixels[:, 0, 0] + 256 * pixels[:, 0, 1].astype(int)).tolist() == ids


def test_labels_that_are_unknown(files):
    files.labels[:] = -1
    assert {t for batch in run(files, TRAINING) for t in batch[1]} == {-1}


def test_a_part_of_a_dataset():
    part = np.array([3, 5, 8, 13, 21, 20, 1])
    batches = run(Numbers(N), indices=part, batch_size=3)
    assert sorted(real(batches)) == sorted(part.tolist())
    assert all(targets == [10 * i for i in ids] for ids, targets, _, _, _ in batches)
    assert real(run(Numbers(N), indices=part, batch_size=3, order="sequential")) == part.tolist()
    assert set(map(tuple, (b[0] for b in batches))).isdisjoint(map(tuple, (b[0] for b in run(Numbers(N)))))


def test_sequential_order_is_padded_with_zeros_of_weight_0(files):
    decoder = ImageDecoder(CenterCrop(size=16, resize=16))
    loader = build(files, decoder, batch_size=9, prefetch=2, order="sequential")
    for _ in range(2):  # the slot of the last batch held the first: its pixels must go
        batches = read(loader)
        assert real(batches) == list(range(N)) and len(batches) == 3
        assert batches[-1][2] == [1.0] * 5 + [0.0] * 4 and batches[-1][3] == 5
        row = 16 * 16 * 3
        assert batches[-1][4][5 * row :] == bytes(4 * row) and any(batches[-1][4][4 * row : 5 * row])
    loader.close()


def test_a_rank_that_has_padding_alone():
    batches = run(Numbers(5), batch_size=4, order="sequential", rank=1, world_size=3)
    assert [(weight, samples, set(inputs)) for _, _, weight, samples, inputs in batches] == [
        ([1.0, 0.0, 0.0, 0.0], 1, {4, 0} | {int(uniforms(0, 0, np.array([4]), 1, 1)[0, 0] * 256)})
    ]
    batches = run(Numbers(5), batch_size=4, order="sequential", rank=2, world_size=3)
    assert [(weight, samples, set(inputs)) for _, _, weight, samples, inputs in batches] == [([0.0] * 4, 0, {0})]


def test_random_padding_is_of_real_images():
    *_, last = run(Numbers(N), batch_size=5)
    assert last[2] == [1.0, 1.0, 1.0, 0.0, 0.0] and last[3] == 3
    pixels = np.frombuffer(last[4], np.uint8).reshape(5, 2, 3)
    assert pixels[:, 0, 0].tolist() == last[0]


# The same bytes however it is run


def test_bytes_do_not_depend_on_workers_or_prefetch(files):
    expected = run(files, TRAINING, epochs=2, workers=1, prefetch=2)
    for workers, prefetch in ((1, 4), (2, 2), (2, 3), (5, 3), (5, 4)):
        assert run(files, TRAINING, epochs=2, workers=workers, prefetch=prefetch) == expected


def pixels_by_id(batches):
    found = {}
    for ids, _, weight, _, inputs in batches:
        size = len(inputs) // len(ids)
        for row, (i, w) in enumerate(zip(ids, weight, strict=True)):
            if w:
                assert i not in found
                found[i] = inputs[row * size : (row + 1) * size]
    return found


def test_a_samples_pixels_do_not_depend_on_batch_or_rank(files):
    expected = pixels_by_id(run(files, TRAINING))
    assert len(set(expected.values())) == N
    assert pixels_by_id(run(files, TRAINING, batch_size=7)) == expected
    ranks = [batch for rank in range(3) for batch in run(files, TRAINING, batch_size=2, rank=rank, world_size=3)]
    assert pixels_by_id(ranks) == expected


def test_epochs_and_seeds_differ(files):
    loader = build(files, TRAINING)
    first, second = read(loader), read(loader)
    assert loader.epoch == 1
    loader.set_epoch(0)
    assert read(loader) == first and loader.epoch == 0
    loader.close()
    assert first != second and real(first) != real(second)
    ours, theirs = pixels_by_id(first), pixels_by_id(second)
    assert sum(ours[i] != theirs[i] for i in ours) > N // 2  # other crops, not just another order
    other = run(files, TRAINING, seed=1)
    assert real(other) != real(first) and pixels_by_id(other) != ours


def test_ranks_take_equal_steps_and_share_the_samples():
    for order in ("random", "sequential"):
        ranks = [run(Numbers(N), batch_size=3, rank=rank, world_size=4, order=order) for rank in range(4)]
        assert {len(batches) for batches in ranks} == {2}
        assert sorted(i for batches in ranks for i in real(batches)) == list(range(N))


# Going on


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_resuming_equals_never_having_stopped(files, workers):
    expected = run(files, TRAINING, epochs=3)
    steps = 6
    for stop in (1, 5, 6, 7, 12):
        first, done = build(files, TRAINING), []
        while len(done) < stop:
            for batch in first:
                done.append(frozen(batch))
                if len(done) == stop:
                    break
        state = first.state_dict()
        first.close()
        assert done == expected[:stop]
        second = build(files, TRAINING, workers=workers, prefetch=2)
        second.load_state_dict(state)
        assert {**second.state_dict(), "epoch": 0, "position": 0} == {**state, "epoch": 0, "position": 0}
        while len(done) < 3 * steps:
            rest = read(second)
            assert rest
            done += rest
        second.close()
        assert done == expected, stop


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (4, 1)])
def test_resuming_with_another_number_of_ranks(before, after):
    taken, states = [], []
    for rank in range(before):
        loader = build(Numbers(50), batch_size=3, rank=rank, world_size=before)
        batches = iter(loader)
        taken += real([frozen(next(batches)), frozen(next(batches))])
        states.append(loader.state_dict())
        loader.close()
    assert all(state == states[0] for state in states) and len(taken) == 6 * before
    left, steps = [], set()
    for rank in range(after):
        loader = build(Numbers(50), batch_size=3, rank=rank, world_size=after)
        loader.load_state_dict(states[0])
        batches = read(loader)
        left += real(batches)
        steps.add(len(batches))
        loader.close()
    assert sorted(taken + left) == list(range(50)) and len(steps) == 1


def test_a_state_from_before_the_first_batch_or_after_the_last():
    expected = run(Numbers(N), epochs=2)
    for epochs, rest in ((0, expected), (1, expected[6:])):
        loader = build(Numbers(N))
        for _ in range(epochs):
            read(loader)
        state = loader.state_dict()
        loader.close()
        again = build(Numbers(N))
        again.load_state_dict(state)
        got = read(again)
        again.close()
        assert got == rest[:6]


def test_a_state_of_other_data_or_another_seed_is_refused():
    loader = build(Numbers(N))
    state = loader.state_dict()
    for other in (
        build(Numbers(N + 1)),
        build(Numbers(N, "others")),
        build(Numbers(N), indices=np.arange(N - 1)),
        build(Numbers(N), indices=np.arange(N)[::-1].copy()),
    ):
        with pytest.raises(DataError, match="not the data that the run began with"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="made with seed 0, the loader has 1"):
        build(Numbers(N), seed=1).load_state_dict(state)


def test_a_state_of_another_part_of_the_data_is_refused():
    ours, theirs = (build(Numbers(N), indices=part) for part in (np.arange(10), np.arange(10, 20)))
    with pytest.raises(DataError, match="not the data"):
        ours.load_state_dict(theirs.state_dict())
    same = build(Numbers(N), indices=np.arange(10))
    same.load_state_dict(ours.state_dict())


# What goes wrong


def spoil(files, index, content=b"\xff\xd8 not really"):
    path = Path(files.sample_name(index))
    path.write_bytes(content)
    return path


def test_images_that_cannot_be_decoded_weigh_nothing(files):
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


def test_a_half_filled_row_is_zeroed():
    loader = build(Numbers(8), Faulty(ImageError("half done"), 5), batch_size=8)
    ((ids, _, weight, samples, inputs),) = read(loader)
    loader.close()
    row = ids.index(5)
    assert weight[row] == 0.0 and samples == 7 and inputs[row * 6 : row * 6 + 6] == bytes(6)
    assert loader.unreadable == {5: "half done"}


def test_an_undecodable_image_fails_a_strict_run_by_name(files):
    path = spoil(files, 4)
    loader = build(files, TRAINING, on_error="fail")
    with pytest.raises(DataError, match=f"^{path}: .*; repair or remove it, or use --on-error skip") as caught:
        read(loader)
    assert isinstance(caught.value.__cause__, ImageError) and loader.unreadable == {}
    spoil(files, 4, Path(files.sample_name(0)).read_bytes())
    assert sorted(real(read(loader))) == list(range(N))  # repaired: the loader is none the worse
    loader.close()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_fault_in_a_worker_ends_the_run_by_name(workers):
    loader = build(Numbers(50), Faulty(KeyError("oops"), 31), workers=workers)
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"^a loader thread failed on numbers/31: KeyError\('oops'\)") as caught:
            read(loader)
        assert isinstance(caught.value.__cause__, KeyError)
    assert len(threads()) == workers  # the fault is the sample's: the threads live, until
    loader.close()
    assert threads() == []


def test_faults_on_every_sample():
    loader = build(Numbers(50), Faulty(RuntimeError("all bad"), *range(50)), workers=5, batch_size=20)
    for _ in range(3):
        with pytest.raises(WorkerError, match="all bad"):
            read(loader)
    loader.close()


def test_what_is_no_exception_reaches_the_consumer_too():
    loader = build(Numbers(50), Faulty(SystemExit(3), 31))
    with pytest.raises(SystemExit):
        read(loader)
    loader.close()


def test_a_failed_loader_is_not_kept_alive_by_its_error():
    loader = build(Numbers(50), Faulty(KeyError("oops"), 31))
    with contextlib.suppress(WorkerError):
        read(loader)
    gone = weakref.ref(loader)
    gc.disable()  # no cycle holds it
    try:
        del loader
        assert gone() is None and threads() == []
    finally:
        gc.enable()


@pytest.fixture
def shards(tmp_path, encode, monkeypatch):
    """A folder of two foreign tars of 12 images each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "tars"
    folder.mkdir()
    for number in range(2):
        with tarfile.open(folder / f"train-{number}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for i in range(12):
                for ext, content in (("jpg", encode(seed=12 * number + i)), ("cls", b"%d" % (i % 2))):
                    info = tarfile.TarInfo(f"{12 * number + i:03d}.{ext}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return folder


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_a_shard_that_is_cut_while_it_is_read_ends_the_run_by_name(shards, on_error):
    dataset = open_dataset(shards)
    loader = build(dataset, TRAINING, batch_size=2, on_error=on_error)
    assert sorted(real(read(loader))) == list(range(24))
    with pytest.raises(ShardError, match=f"^{shards}/train-1.tar: shrank while it was in use"):
        for number, _ in enumerate(loader):
            if number == 1:
                os.truncate(shards / "train-1.tar", 1000)
    loader.close()
    dataset.close()
    assert threads() == []


def test_a_shard_that_is_gone_before_it_was_opened(shards):
    dataset = open_dataset(shards)
    (shards / "train-0.tar").unlink()
    loader = build(dataset, TRAINING)
    for _ in range(2):
        with pytest.raises(ShardError, match=f"^{shards}/train-0.tar: No such file"):
            read(loader)
    loader.close()
    dataset.close()


def test_a_file_that_disappears_while_the_loader_runs(files):
    loader = build(files, TRAINING, on_error="fail", batch_size=1)
    with pytest.raises(DataError, match="No such file or directory; repair or remove it"):
        for number, _ in enumerate(loader):
            if number == 2:
                for i in range(N):
                    Path(files.sample_name(i)).unlink()
    loader.close()


# Stopping


def test_a_consumer_that_stops_early_and_begins_again():
    expected = run(Numbers(N), epochs=3)
    loader = build(Numbers(N))
    for epoch in range(3):
        for number, batch in enumerate(loader):
            assert frozen(batch) == expected[6 * epoch + number]
            if number == epoch:
                break
    loader.close()


class Slow(Stamp):
    """Counts the rows that are being filled, and takes its time."""

    def __init__(self):
        self.lock, self.inside, self.calls = threading.Lock(), 0, 0

    def fill(self, data, draws, row, scratch):
        with self.lock:
            self.inside += 1
            self.calls += 1
        time.sleep(0.002)
        super().fill(data, draws, row, scratch)
        with self.lock:
            self.inside -= 1


def test_no_thread_touches_the_slots_after_an_early_stop():
    decoder = Slow()
    loader = build(Numbers(400), decoder, batch_size=40, workers=3)
    for _ in loader:
        break
    calls, held = decoder.calls, [slot.buffer.clone() for slot in loader._slots]
    assert decoder.inside == 0 and calls < 160  # what was still in the queue is dropped
    time.sleep(0.02)
    assert decoder.calls == calls
    assert all(torch.equal(a, slot.buffer) for a, slot in zip(held, loader._slots, strict=True))
    loader.close()


def test_an_exception_of_the_consumer():
    decoder = Slow()
    loader = build(Numbers(100), decoder)
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018
    assert decoder.inside == 0
    assert sorted(real(read(loader))) == list(range(100))
    loader.close()


def test_an_interruption_while_waiting(monkeypatch):
    calls = []
    wait = Pool.wait

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return wait(*args)

    monkeypatch.setattr(Pool, "wait", interrupted)
    decoder = Slow()
    loader = build(Numbers(100), decoder)
    with pytest.raises(KeyboardInterrupt):
        read(loader)
    assert decoder.inside == 0 and len(threads()) == 2
    calls_then = decoder.calls
    time.sleep(0.02)
    assert decoder.calls == calls_then
    loader.close()
    assert threads() == []


def test_a_signal_while_a_worker_is_stuck():
    """Ctrl-C is heard by a consumer that waits for a batch that does not come."""
    release = threading.Event()

    class Stuck(Stamp):
        def fill(self, data, draws, row, scratch):
            release.wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    loader = build(Numbers(100), Stuck())

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


def test_a_second_iteration_ends_the_first():
    expected = run(Numbers(N), epochs=2)
    loader = build(Numbers(N))
    first = iter(loader)
    assert frozen(next(first)) == expected[0]
    assert read(loader) == expected[6:]
    with pytest.raises(RuntimeError, match="this iteration is over: the loader was closed, or iterated anew"):
        next(first)
    loader.close()


def test_interleaved_iterations_never_mix_their_batches():
    loader = build(Numbers(400), batch_size=16)
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


def test_closing_ends_an_iteration_and_iterating_begins_anew():
    expected = run(Numbers(N), epochs=2)
    loader = build(Numbers(N))
    batches = iter(loader)
    assert frozen(next(batches)) == expected[0]
    loader.close()
    assert threads() == []
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(batches)
    assert read(loader) == expected[6:]
    loader.close()
    loader.close()  # twice is once


def test_closing_from_another_thread_wakes_a_consumer_that_waits():
    entered, release = threading.Event(), threading.Event()

    class Stuck(Stamp):
        def fill(self, data, draws, row, scratch):
            entered.set()
            release.wait()

    loader = build(Numbers(100), Stuck())

    def close():
        entered.wait()
        threading.Timer(0.05, release.set).start()
        loader.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(RuntimeError, match="the loader was closed"):
        read(loader)
    closer.join()


def test_a_forgotten_loader_leaves_no_thread():
    loader = build(Numbers(N))
    read(loader)
    assert len(threads()) == 2
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None and threads() == []


def test_a_loader_forgotten_in_the_middle_of_an_epoch():
    batches = iter(build(Numbers(400), Slow(), batch_size=40))
    next(batches)
    del batches
    gc.collect()
    assert threads() == []


def test_a_closed_loader_holds_no_dataset():
    """Every close lets go of the threads and of what they read from."""
    dataset = Numbers(N)
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


def test_nothing_grows_over_the_epochs():
    loader = build(Numbers(N), prefetch=3)
    places, counts = [], []
    for _ in range(20):
        places.append({batch.inputs.data_ptr() for batch in loader})
        counts.append(threading.active_count())
    loader.close()
    assert len(places[0]) == 3 and all(place == places[0] for place in places)
    assert len(set(counts)) == 1
    assert loader.slot_bytes == 256 * 4  # 4 x 6 bytes, and three fields of labels


# What is refused


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"batch_size": -1}, {"prefetch": 1}, {"prefetch": 0}, {"workers": 0}]
)
def test_settings_that_cannot_be(options):
    with pytest.raises(ValueError, match="batch_size and workers must be 1 or more, prefetch 2 or more"):
        LoaderConfig(**({"batch_size": 4} | options))


def test_more_ranks_than_samples():
    with pytest.raises(DataError, match="numbers: 3 samples for 4 ranks; every rank needs at least one: start fewer"):
        build(Numbers(3), rank=0, world_size=4)
    build(Numbers(4), rank=0, world_size=4)
    build(Numbers(3), rank=0, world_size=4, order="sequential")  # an evaluation pads
    for order in ("random", "sequential"):
        with pytest.raises(DataError, match="0 samples"):
            build(Numbers(0), order=order)


def test_devices_that_it_does_not_feed():
    with pytest.raises(ValueError, match="device meta: the loader feeds cpu and cuda"):
        Loader(Numbers(N), Stamp(), LoaderConfig(batch_size=4), "meta")


def test_workers_are_as_many_as_the_cores(monkeypatch):
    monkeypatch.setattr(loader_module, "available_cpus", lambda: 3)
    loader = Loader(Numbers(N), Stamp(), LoaderConfig(batch_size=4))
    assert loader.workers == 3 and threads() == []  # none before the first batch
    read(loader)
    assert len(threads()) == 3
    loader.close()


def test_a_config_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LoaderConfig(batch_size=4).batch_size = 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_are_those_on_the_host(files):
    expected = run(files, TRAINING, epochs=3)
    loader = Loader(files, TRAINING, LoaderConfig(batch_size=4, workers=2, prefetch=2), "cuda")
    got = []
    for _ in range(3):
        for batch in loader:
            assert batch.inputs.is_cuda and batch.targets.is_cuda and batch.weight.is_cuda and not batch.ids.is_cuda
            torch.cuda._sleep(5_000_000)  # the consumer lags behind the copies
            got.append(
                dataclasses.replace(batch, **{n: getattr(batch, n).clone() for n in ("inputs", "targets", "weight")})
            )
    loader.close()
    assert [
        frozen(dataclasses.replace(b, inputs=b.inputs.cpu(), targets=b.targets.cpu(), weight=b.weight.cpu()))
        for b in got
    ] == expected
