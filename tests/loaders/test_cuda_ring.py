"""The CUDA rings with a device that is as late as possible: streams run at any time and in any order.

Streams and events are simulated on the CPU. Enqueued work runs at random moments, but only after the events that its
stream waits for. A missing wait therefore gives wrong bytes in some of the schedules.
"""

import contextlib
import random
import threading
import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastimg.loaders import DataError, ImageError, Loader
from fastimg.loaders import loader as loader_module
from fastimg.loaders import ring as ring_module
from fastimg.loaders.backends.nvcodec import SETS, DecodedImage
from fastimg.loaders.batch import LABEL_FIELDS, Field
from fastimg.loaders.ring import CudaRing, Slot, SlotLayout
from fastimg.loaders.runtime import times

pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
from fastimg.loaders.backends import ragged_ring
from fastimg.loaders.backends.ragged_ring import Cut, RaggedRing

ROWS = 3


def images(size):
    """The layout of batches of images of `size` pixels."""
    return SlotLayout((Field("inputs", (size, size, 3), np.dtype(np.uint8)), *LABEL_FIELDS), ROWS)


def cuts(size):
    """The layout of a decoder on the device."""
    fields = (Field("inputs", (size, size, 3), np.dtype(np.uint8)), Field("place", (4,), np.dtype(np.int64)))
    own = (Field("table", (8 * size,), np.dtype(np.int32)), Field("cut", (), np.dtype(object), blank=None))
    return SlotLayout((*fields, *own, *LABEL_FIELDS), ROWS)


SIZE = 10  # the largest: its pixels and labels are at other offsets than those of smaller ones
LAYOUT = images(SIZE)


class Stream:
    """Work in order: functions, and events to wait for."""

    cuda_stream = 1

    def __init__(self, device=None):
        self.work, self.done = [], 0

    def wait_event(self, event):
        self.work.append(event.mark)  # the event as recorded now

    def wait_stream(self, other):
        self.work.append((other, len(other.work)))

    def synchronize(self):
        while self.done < len(self.work):
            assert DEVICE.run(), "deadlock: what the host waits for cannot happen"

    def step(self):
        """Run the next item if it may run. Returns whether it ran."""
        if self.done == len(self.work):
            return False
        item = self.work[self.done]
        if isinstance(item, tuple):
            stream, position = item
            if stream is not None and stream.done < position:
                return False
        else:
            item()
        self.done += 1
        return True


class Event:
    """A position in a stream's work; an event that was never recorded has happened."""

    def __init__(self, enable_timing=False, blocking=False):
        self.mark, self.timing, self.blocking = (None, 0), enable_timing, blocking

    def record(self, stream):
        self.mark = (stream, len(stream.work))

    def synchronize(self):
        assert self.blocking, "the host would take a core from the decoding threads while it waits"
        stream, position = self.mark
        while stream is not None and stream.done < position:
            assert DEVICE.run(), "deadlock: what the host waits for cannot happen"

    def query(self):
        stream, position = self.mark
        return stream is None or stream.done >= position

    def elapsed_time(self, other):
        assert self.timing and other.timing and self.query() and other.query() and self.mark[0] is other.mark[0]
        return other.mark[1] - self.mark[1]  # one millisecond for each item that ran between the two


class Buffer:
    """Memory of the device: a copy into it runs when its stream reaches it."""

    def __init__(self, tensor):
        self.tensor = tensor

    def copy_(self, source, non_blocking):
        assert non_blocking
        DEVICE.current.work.append(lambda: self.tensor.copy_(source))

    def __getitem__(self, key):
        return Buffer(self.tensor[key])

    def view(self, dtype):
        return self.tensor.view(dtype)

    def data_ptr(self):
        return self.tensor.data_ptr()


class Device:
    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.consumer = self.current = Stream()
        self.streams = [self.consumer]

    def stream(self, device=None):
        self.streams.append(Stream())
        return self.streams[-1]

    @contextlib.contextmanager
    def entered(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def run(self):
        """Run one item of any stream that can. Returns whether there was one."""
        return any(stream.step() for stream in self.draw.sample(self.streams, len(self.streams)))

    def pass_time(self):
        """Run some of the pending work, sometimes none for a while."""
        for _ in range(self.draw.choice((0, 0, 0, 1, 3, 20))):
            self.run()


@pytest.fixture
def device(monkeypatch):
    global DEVICE
    DEVICE = Device(0)
    monkeypatch.setattr(times, "_EVERY", 1)  # every copy is timed
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: DEVICE.stream())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: DEVICE.entered(stream))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: DEVICE.current)

    def begin(seed):
        global DEVICE
        DEVICE = Device(seed)
        ring = CudaRing(LAYOUT, torch.device("cpu"))
        ring._buffers = [Buffer(buffer) for buffer in ring._buffers]
        return ring

    return begin


class Codec:
    """Decodes immediately into reused memory, regardless of pending work of its stream, as hardware engines do."""

    def __init__(self):
        self.memory = [*[0] * (SETS * ROWS), 255]  # the last value stands for places that were never written
        self.calls = 0

    def decode(self, parsed, stream):
        first = self.calls % SETS * ROWS
        self.calls += 1
        self.memory[first : first + len(parsed)] = parsed
        return [DecodedImage(first + number, 1, 1, (0, 0, 0)) for number in range(len(parsed))]


class Decoding(RaggedRing):
    """A ragged ring on the simulated device; the caller does the work of its thread."""

    def __init__(self, codec):
        super().__init__(cuts(SIZE), torch.device("cpu"), ragged_ring.Codec(codec, None, 1))
        self._side._stream = DEVICE.stream()
        self._read = deque(self._side.event() for _ in self._read)

    def _lane(self, slot):
        lane = super()._lane(slot)
        lane.fields = Buffer(lane.fields)
        return lane

    def begin(self, slot):
        self._make(slot, self._lanes.get(id(slot)) or self._lane(slot))
        self._made[id(slot)] = None


def train(ring, slots, steps, first, seen, stop_early):
    """An epoch of `steps`, whose kernels read each batch when the device reaches it. Slots fill ahead, in any order."""
    filling = []

    def dispatch(step):
        slots[step % len(slots)].number = step
        filling.append(step)

    def fill_some(until):
        while until in filling or (filling and DEVICE.draw.random() < 0.5):
            step = filling.pop(DEVICE.draw.randrange(len(filling)))
            fill(slots[step % len(slots)], first + step)
            DEVICE.pass_time()
            ring.begin(slots[step % len(slots)])

    for step in range(min(len(slots), steps)):
        dispatch(step)
    for step in range(steps):
        fill_some(until=step)
        tensors = ring.hand_over(slots[step % len(slots)])
        read = tensors["inputs"], tensors["weight"]
        DEVICE.current.work.append(lambda read=read, wanted=first + step: seen.append((wanted, levels(read))))
        DEVICE.pass_time()
        fill_some(until=None)
        if stop_early and step == steps // 2:
            break  # the batch is never released
        ring.reclaim()
        if step + len(slots) < steps:
            dispatch(step + len(slots))
    ring.release()


def set_size(ring, slots, layout):
    """As the loader does between iterations."""
    for slot in slots:
        slot.view(layout)
    ring.view(layout)


def levels(tensors):
    """All values that occur; memory that was never written may have any value."""
    known = (tensor.double().nan_to_num(-1).clamp(-1, 999) for tensor in tensors)
    return sorted({int(level) for tensor in known for level in tensor.unique()})


def fill(slot, number):
    slot.buffer.fill_(number ^ 0x55)  # bytes between the fields must not be read
    slot.arrays["weight"][...] = number
    if "place" in slot.arrays:
        for cut in slot.arrays["cut"][:, None]:
            cut[0] = Cut(b"", number, (0, 0, 1, 1), 1, None)
    else:
        slot.arrays["inputs"][...] = number


@pytest.mark.parametrize("stop_early", [False, True])
def test_every_kernel_reads_its_own_batch(device, stop_early):
    for seed in range(150):
        ring, seen = device(seed), []
        slots = [Slot(LAYOUT, pinned=False) for _ in range(2 + seed % 5)]
        for epoch in range(4):
            train(ring, slots, 1 + (seed + epoch) % 9, 40 * epoch, seen, stop_early)
            set_size(ring, slots, images((seed + 3 * epoch) % SIZE + 1))
        while DEVICE.run():
            pass
        assert len(seen) >= 4 and all(found == [wanted] for wanted, found in seen), (seed, seen)
        copies = round(1000 * ring.copy_seconds)  # every copy was timed, and nothing else
        assert copies >= len(seen) if stop_early else copies == len(seen)


@pytest.mark.parametrize("forgotten", ["record consumed", "wait for copies", "wait for consumed", "wait for copied"])
def test_what_is_left_out_is_noticed(device, monkeypatch, forgotten):
    """The simulation detects the faults that it is made for."""
    if forgotten == "record consumed":  # what the release of an abandoned batch does
        real = CudaRing.release

        def release(ring):
            ring._consumer = None
            real(ring)

        monkeypatch.setattr(CudaRing, "release", release)
    elif forgotten == "wait for copies":  # that nobody asked for, and whose slots are filled again
        monkeypatch.setattr(CudaRing, "_finish", lambda self: None)
    else:
        real, side = Stream.wait_event, forgotten == "wait for consumed"
        monkeypatch.setattr(
            Stream, "wait_event", lambda s, e: None if (s is not DEVICE.consumer) == side else real(s, e)
        )
    wrong = 0
    for seed in range(150):
        ring, seen = device(seed), []
        slots = [Slot(LAYOUT, pinned=False) for _ in range(2 + seed % 3)]
        for epoch in range(4):
            train(ring, slots, 1 + (seed + epoch) % 7, 40 * epoch, seen, stop_early=True)
        while DEVICE.run():
            pass
        wrong += any(found != [wanted] for wanted, found in seen)
    assert wrong


def numbered(count):
    """Slots that are filled with the numbers of their batches."""
    slots = [Slot(LAYOUT, pinned=False) for _ in range(count)]
    for number, slot in enumerate(slots):
        slot.number = number
        fill(slot, number)
    return slots


def test_copies_are_enqueued_in_order_as_far_as_buffers_are_free(device):
    ring, slots = device(0), numbered(5)

    def copied():
        """Enough for everything that can run now."""
        while DEVICE.run():
            pass
        return [int(buffer.tensor[LAYOUT.fields["inputs"][0]]) for buffer in ring._buffers]

    for buffer in ring._buffers:
        buffer.tensor.fill_(99)
    ring.begin(slots[1])
    assert copied() == [99, 99, 99]  # batch 0 comes first
    ring.begin(slots[0])
    assert copied() == [0, 1, 99]  # nothing was handed over yet
    ring.begin(slots[3])
    ring.begin(slots[2])
    assert copied() == [0, 1, 2]  # no buffer is free
    ring.hand_over(slots[0])
    assert copied() == [0, 1, 2]
    ring.reclaim()
    assert copied() == [3, 1, 2]
    ring.hand_over(slots[1])
    ring.reclaim()
    assert copied() == [3, 1, 2]  # batch 4 is not full
    ring.begin(slots[4])
    assert copied() == [3, 4, 2]


def test_a_slot_that_another_thread_is_about_to_copy_is_handed_over(device):
    """A thread that finds the lock taken leaves its slot to the one that has it; the consumer waits for that."""
    ring, slots = device(0), numbered(2)
    inner = ring._copy

    def in_another_thread(call):
        thread = threading.Thread(target=call)
        thread.start()
        return thread

    def copy(slot, index):
        inner(slot, index)
        if slot.number == 0:
            in_another_thread(lambda: ring.begin(slots[1])).join()
            assert ring._copies.enqueued == 0  # which leaves it to this one

    ring._copy = copy
    ring.begin(slots[0])
    assert ring._copies.enqueued == 2
    ring.hand_over(slots[0])
    ring.reclaim()
    slots[0].number = 2
    with ring._copies.lock:
        in_another_thread(lambda: ring.begin(slots[0])).join()
        assert ring._copies.enqueued == 2
        ring.hand_over(slots[1])
        consumer = in_another_thread(lambda: (ring.reclaim(), ring.hand_over(slots[0])))
        consumer.join(0.1)
        assert consumer.is_alive()
    consumer.join()
    assert ring._copies.enqueued == 3


def test_an_interrupt_while_the_consumer_enqueues_copies(device):
    """It may come just after the lock was taken. In the next iteration other threads can take it all the same."""

    class Interrupted:
        def __init__(self, lock):
            self.lock = lock

        def acquire(self, blocking):
            self.lock.acquire(blocking)
            raise KeyboardInterrupt

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    ring, slots = device(0), numbered(2)
    ring._copies.lock = Interrupted(ring._copies.lock)
    with pytest.raises(KeyboardInterrupt):
        ring.begin(slots[0])
    ring.release()
    thread = threading.Thread(target=lambda: [ring.begin(slot) for slot in slots])
    thread.start()
    thread.join()
    assert ring._copies.enqueued == 2


def test_a_ring_that_is_released_while_it_enqueues_copies(device):
    """By the garbage collector, in the same thread: then no copy is on its way when the slots are filled again."""
    ring, slots = device(0), numbered(2)
    inner = ring._copy

    def copy(slot, index):
        ring._copy = inner
        ring.release()
        inner(slot, index)

    ring._copy = copy
    ring.begin(slots[0])
    assert all(stream.done == len(stream.work) for stream in DEVICE.streams if stream is not DEVICE.consumer)
    for number, slot in enumerate(reversed(slots)):
        slot.number = number
        ring.begin(slot)
    inputs = ring.hand_over(slots[1])["inputs"]
    while DEVICE.run():
        pass
    assert inputs.unique().tolist() == [1]


def test_memory_is_reused_once_the_last_step_has_read_it(device):
    """The allocator gives the buffers' memory to the stream on which they were allocated, here another one."""
    for seed in range(50):
        ring, seen = device(seed), []
        buffers = [buffer.tensor for buffer in ring._buffers]
        allocating, DEVICE.current = DEVICE.current, DEVICE.stream()
        slots = [Slot(LAYOUT, pinned=False) for _ in range(2 + seed % 3)]
        train(ring, slots, 1 + seed % 7, 0, seen, stop_early=seed % 2 == 1)
        allocating.work.append(lambda buffers=buffers: [buffer.fill_(0xFF) for buffer in buffers])
        while DEVICE.run():
            pass
        assert seen and all(found == [wanted] for wanted, found in seen), (seed, seen)


class Immediate:
    """A stream, or an event, of a device that works at once."""

    def __getattr__(self, name):
        return lambda *_: None


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def loader_to_gpu(request, monkeypatch):
    """Makes loaders of numbers whose batches are copied to a GPU, or to memory that stands for it."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    else:
        for name in ("Stream", "Event", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, **__: Immediate())
        for name in ("stream", "device"):
            monkeypatch.setattr(torch.cuda, name, lambda _: contextlib.nullcontext())
        monkeypatch.setattr(loader_module, "_ring", lambda _, layout, device: CudaRing(layout, device))
        monkeypatch.setattr(ring_module, "Spans", lambda: SimpleNamespace(begin=id, end=id, settle=int, seconds=0.0))
    device = "cpu" if request.param == "simulated" else "cuda"
    return lambda *given, **options: Loader(*given, device=device, **options)


def values(batch):
    parts = batch.inputs, batch.targets, batch.weight
    return batch.ids.tolist(), batch.samples, *(part.cpu().clone().tolist() for part in parts)


@pytest.mark.parametrize("workers", [1, 5])
def test_threads_enqueue_the_copies_of_an_epoch(loader_to_gpu, numbers, stamp, workers):
    """In order, whichever slot is full first; weights of samples that failed; and after an iteration that ended early.

    A batch stays what it is while the loader fills the slots behind it.
    """

    class Uneven(stamp):
        def fill_row(self, data, draws, row, scratch):
            if draws[1] < 0.1:
                time.sleep(0.002)
            super().fill_row(data, draws, row, scratch)
            if int.from_bytes(data, "little") % 9 == 4:
                raise ImageError("not an image")

    given = {"batch_size": 8, "workers": workers, "seed": 3, "order": "random"}
    with Loader(numbers(203), Uneven(), **given) as loader:
        wanted = [[values(batch) for batch in loader] for _ in range(3)]
    assert any(0.0 in weight for *_, weight in wanted[0])
    with loader_to_gpu(numbers(203), Uneven(), **given, prefetch=5) as loader:
        for number, batch in enumerate(loader):
            if number % 3 == 0:
                time.sleep(0.003)
            assert values(batch) == wanted[0][number]
        for number, batch in enumerate(loader):
            assert values(batch) == wanted[1][number]
            if number == 4:
                time.sleep(0.01)  # copies of batches behind it are enqueued
                break
        loader.set_epoch(2)
        for number, batch in enumerate(loader):
            assert values(batch) == wanted[2][number]
        assert number == len(loader) - 1


def test_copies_of_batches_of_changing_sizes(loader_to_gpu, files):
    """Smaller ones than the memory was taken for, larger ones, and one iteration that ends early."""
    given = {"batch_size": 4, "crop": 24, "workers": 2, "seed": 0}
    with Loader(files, **given) as loader, loader_to_gpu(files, **given) as copying:
        for size in (24, 9, 40, 40, 17, 24):
            for each in (loader, copying):
                each.set_size(size)
            for number, (batch, copied) in enumerate(zip(loader, copying, strict=True)):
                assert values(batch) == values(copied)
                if size == 9 and number == 1:
                    break
            for each in (loader, copying):
                each.set_epoch(size)


def test_words_of_a_preparation_travel_with_the_batch(loader_to_gpu, files, numbering):
    """In every epoch and of every size, on the loader's device, and in memory of their own with a copy."""
    for copy in (False, True):
        with loader_to_gpu(files, batch_size=4, crop=24, workers=3, seed=2, prefetch=4, copy=copy) as loader:
            before = loader.slot_bytes
            loader.prepare(numbering)
            assert loader.slot_bytes > before
            kept = []
            for epoch, size in enumerate((24, 9, 40)):
                loader.set_size(size)
                for batch in loader:
                    assert batch.made == (2, epoch, (size, size, 3)) and not batch.fields
                    assert batch.words.device == batch.inputs.device
                    assert batch.words.tolist()[:7] == [*batch.keys.tolist(), 77, 77, 77]
                    kept.append((batch.words, batch.keys.tolist()))
            if copy:
                assert all(words.tolist()[:4] == keys for words, keys in kept)


def test_a_decoder_that_fails_ends_an_iteration_with_copies_on_their_way(loader_to_gpu, numbers, stamp):
    class Failing(stamp):
        bad = True

        def fill_row(self, data, draws, row, scratch):
            super().fill_row(data, draws, row, scratch)
            if self.bad and int.from_bytes(data, "little") == 60:
                raise DataError("gone")

    decoder = Failing()
    given = {"batch_size": 4, "workers": 3, "seed": 0, "order": "sequential", "prefetch": 4}
    with Loader(numbers(100), stamp(), **given) as loader:
        wanted = [values(batch) for batch in loader]
    with loader_to_gpu(numbers(100), decoder, **given) as loader:
        with pytest.raises(DataError, match="gone"):
            for batch in loader:
                assert len(batch) == 4
        decoder.bad = False
        loader.set_epoch(0)
        assert [values(batch) for batch in loader] == wanted


@pytest.fixture
def decoding(device, monkeypatch):
    def begin(seed):
        device(seed)
        codec = Codec()

        def resize(places, tables, out):
            def kernel():
                for row, place in enumerate(places[:, 0].tolist()):
                    out[row] = codec.memory[min(place, SETS * ROWS)]

            DEVICE.current.work.append(kernel)

        monkeypatch.setattr(ragged_ring, "resize", resize)
        return Decoding(codec), [Slot(cuts(SIZE), pinned=False) for _ in range(2 + seed % 3)]

    return begin


@pytest.mark.parametrize("stop_early", [False, True])
def test_every_kernel_reads_what_was_decoded_for_it(decoding, stop_early):
    for seed in range(150):
        (ring, slots), seen = decoding(seed), []
        for epoch in range(4):
            train(ring, slots, 1 + (seed + epoch) % 7, 40 * epoch, seen, stop_early)
            set_size(ring, slots, cuts((seed + 3 * epoch) % SIZE + 1))
        while DEVICE.run():
            pass
        assert len(seen) >= 4 and all(found == [wanted] for wanted, found in seen), (seed, seen)
        ring._side.copies.settle()  # as its thread would with the next copy
        copies = round(1000 * ring.copy_seconds)
        assert copies >= len(seen) if stop_early else copies == len(seen)


@pytest.mark.parametrize("forgotten", ["settle", "release"])
def test_decoding_too_early_is_noticed(decoding, monkeypatch, forgotten):
    if forgotten == "settle":  # the codec then overwrites memory from which the batch before the last is still read
        monkeypatch.setattr(ragged_ring.SideStream, "settle", lambda self, event: None)
    else:
        monkeypatch.setattr(RaggedRing, "release", lambda self: None)
    wrong = 0
    for seed in range(150):
        (ring, slots), seen = decoding(seed), []
        for epoch in range(4):
            train(ring, slots, 1 + (seed + epoch) % 7, 40 * epoch, seen, stop_early=True)
        while DEVICE.run():
            pass
        wrong += any(found != [wanted] for wanted, found in seen)
    assert wrong
