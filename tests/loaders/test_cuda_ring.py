"""The CUDA rings with a device that is as late as possible: streams run at any time and in any order.

Streams and events are simulated on the CPU. Enqueued work runs at random moments, but only after the events that its
stream waits for. A missing wait therefore gives wrong bytes in some of the schedules.
"""

import contextlib
import random
from collections import deque

import numpy as np
import pytest
import torch

from fastimg.loaders.backends.nvcodec import SETS, DecodedImage
from fastimg.loaders.batch import LABEL_FIELDS, Field
from fastimg.loaders.ring import CudaRing, Slot, SlotLayout

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
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: DEVICE.stream())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: DEVICE.entered(stream))
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
    """An epoch of `steps`, whose kernels read each batch when the device reaches it. Slots are filled ahead."""

    def dispatch(step):
        slot = slots[step % len(slots)]
        fill(slot, first + step)
        DEVICE.pass_time()
        ring.begin(slot)

    for step in range(min(len(slots), steps)):
        dispatch(step)
    for step in range(steps):
        tensors = ring.hand_over(slots[step % len(slots)])
        read = tensors["inputs"], tensors["weight"]
        DEVICE.current.work.append(lambda read=read, wanted=first + step: seen.append((wanted, levels(read))))
        DEVICE.pass_time()
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
        slots = [Slot(LAYOUT, pinned=False) for _ in range(2 + seed % 3)]
        for epoch in range(4):
            train(ring, slots, 1 + (seed + epoch) % 7, 40 * epoch, seen, stop_early)
            set_size(ring, slots, images((seed + 3 * epoch) % SIZE + 1))
        while DEVICE.run():
            pass
        assert len(seen) >= 4 and all(found == [wanted] for wanted, found in seen), (seed, seen)
        assert ring.copy_seconds == pytest.approx(len(seen) / 1000)  # every copy was timed, and nothing else


@pytest.mark.parametrize("forgotten", ["_settle", "wait for consumed", "wait for copied"])
def test_what_is_left_out_is_noticed(device, monkeypatch, forgotten):
    """The simulation detects the faults that it is made for."""
    if forgotten == "_settle":  # what the release of an abandoned batch does
        monkeypatch.setattr(CudaRing, "release", lambda self: None)
    else:
        real, side = Stream.wait_event, forgotten == "wait for consumed"
        monkeypatch.setattr(
            Stream, "wait_event", lambda s, e: None if (s is not DEVICE.consumer) == side else real(s, e)
        )
    wrong = 0
    for seed in range(150):
        ring, seen = device(seed), []
        slots = [Slot(LAYOUT, pinned=False) for _ in range(2)]
        for epoch in range(4):
            train(ring, slots, 1 + (seed + epoch) % 7, 40 * epoch, seen, stop_early=True)
        while DEVICE.run():
            pass
        wrong += any(found != [wanted] for wanted, found in seen)
    assert wrong


def test_memory_is_reused_once_the_last_step_has_read_it(device):
    """The allocator gives the buffers' memory to the stream on which they were allocated, here another one."""
    for seed in range(50):
        ring, seen = device(seed), []
        buffers = [buffer.tensor for buffer in ring._buffers]
        allocating, DEVICE.current = DEVICE.current, DEVICE.stream()
        train(ring, [Slot(LAYOUT, pinned=False) for _ in range(2)], 1 + seed % 7, 0, seen, stop_early=seed % 2 == 1)
        allocating.work.append(lambda buffers=buffers: [buffer.fill_(0xFF) for buffer in buffers])
        while DEVICE.run():
            pass
        assert seen and all(found == [wanted] for wanted, found in seen), (seed, seen)


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
