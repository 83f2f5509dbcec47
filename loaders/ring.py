"""Slots and rings: a slot is one flat buffer, allocated once and filled by threads; a ring copies it to the device."""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.runtime.times import Spans

from .batch import Field

UNMADE = -1  # `Slot.pending` while it is not known which samples the slot will hold
_ALIGN = 256
_COLLECTED = ("targets", "weight")
_TORCH = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.uint16): torch.uint16,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class SlotLayout:
    """Where each field of a batch lies in a slot's flat buffer. Raises ValueError for invalid fields."""

    def __init__(self, fields: Sequence[Field], batch_size: int) -> None:
        self.rows = batch_size
        self.fields: dict[str, tuple[int, int, tuple[int, ...], np.dtype[Any]]] = {}
        self.apart: set[str] = set()  # names of fields whose first two dimensions are swapped in the buffer
        self.objects: list[str] = []  # names of fields of dtype object, which are not in the buffer
        self.nbytes = 0
        for name, shape, dtype, _, apart in fields:
            if name in self.fields or name in self.objects:
                raise ValueError(f"two fields of a batch are called {name!r}; rename the decoder's field")
            if np.dtype(dtype).hasobject and shape == ():
                self.objects.append(name)
                continue
            if np.dtype(dtype) not in _TORCH:
                known = ", ".join(map(str, _TORCH))
                raise ValueError(f"the field {name!r} is of type {np.dtype(dtype)}; a batch can hold {known}")
            if apart:
                if not shape:
                    raise ValueError(f"the field {name!r} is apart, but has no dimension; give it a shape of (n, ...)")
                self.apart.add(name)
            shape = (shape[0], batch_size, *shape[1:]) if apart else (batch_size, *shape)
            size = int(np.prod(shape)) * dtype.itemsize
            self.fields[name] = (self.nbytes, size, shape, dtype)
            self.nbytes += -(-size // _ALIGN) * _ALIGN

    def arrays(self, buffer: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
        """NumPy views of a host buffer, by field."""
        flat = buffer.numpy()
        arrays = {
            name: flat[offset : offset + size].view(dtype).reshape(shape)
            for name, (offset, size, shape, dtype) in self.fields.items()
        }
        arrays |= {name: arrays[name].swapaxes(0, 1) for name in self.apart}
        return arrays | {name: np.full(self.rows, None, object) for name in self.objects}

    def tensors(self, buffer: torch.Tensor, start: int = 0) -> dict[str, torch.Tensor]:
        """Tensor views of a buffer on any device, by field. The buffer may begin with the field at offset `start`."""
        tensors = {
            name: buffer[offset - start : offset - start + size].view(_TORCH[dtype]).view(shape)
            for name, (offset, size, shape, dtype) in self.fields.items()
            if offset >= start
        }
        return tensors | {name: tensors[name].transpose(0, 1) for name in self.apart & tensors.keys()}


class Slot:
    """One batch in host memory, pinned if a GPU will fetch it. `pending` counts the chunks of rows yet to be filled."""

    number = 0  # of the batch that it holds, from 0 in each iteration; set before the slot is filled

    def __init__(self, layout: SlotLayout, pinned: bool) -> None:
        self.buffer = torch.zeros(layout.nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.view(layout)
        self.failed: dict[int, str] = {}  # row -> reason; set by the ring
        self.rerouted: dict[int, str] = {}  # row -> reason; set by the ring if another decoder took over
        self.pending = 0
        self.made: object = None  # what a `Preparation` has made of the batch

    def view(self, layout: SlotLayout) -> None:
        """View the buffer as `layout`, which must fit into it. No thread may use the slot meanwhile."""
        assert layout.nbytes <= self.buffer.numel()
        self.arrays = layout.arrays(self.buffer)


class Ring(Protocol):
    """Turns full slots into the tensors of batches."""

    ready: torch.cuda.Event | None  # recorded when the last batch handed over is complete

    @property
    def copy_seconds(self) -> float:
        """Seconds spent on copies to the device. Called by the consumer; may not count the last copies yet."""

    def begin(self, slot: Slot) -> None:
        """Called when `slot` is full, by the thread that filled it, once before `hand_over`. Does not block."""

    def hand_over(self, slot: Slot) -> dict[str, torch.Tensor]:
        """`inputs` [B, H, W, 3], `targets` and `weight` [B] on the device, valid at least until `reclaim`.

        Everything else in the result, except `ids`, is an additional field of the batch.

        Rows that could not be decoded are listed in `slot.failed` and have weight 0, in the slot and on the device.
        Rows that another decoder took over are listed in `slot.rerouted`.
        """

    def reclaim(self) -> None:
        """The consumer has enqueued everything that reads the last batch: its slot may be filled again."""

    def release(self) -> None:
        """The iteration has ended, complete or not: all slots may be filled again. May be called twice."""

    def view(self, layout: SlotLayout) -> None:
        """Use `layout` from now on; it needs no more bytes than the first one. Called between iterations."""


class HostRing:
    """For a consumer that computes on the host: it reads the slot itself."""

    ready: torch.cuda.Event | None = None
    copy_seconds = 0.0  # nothing is copied

    def __init__(self, layout: SlotLayout) -> None:
        self._layout = layout

    def begin(self, slot: Slot) -> None:
        """Does nothing."""

    def hand_over(self, slot: Slot) -> dict[str, torch.Tensor]:
        """The batch's fields, valid until `reclaim`; those that evaluations collect, a few bytes, for good.

        The tensors are objects that only this batch has. They are made of arrays: torch's own functions wait for
        Python's lock each time, which the threads that fill small rows take often.
        """
        arrays = {name: slot.arrays[name] for name in self._layout.fields}
        arrays |= {name: arrays[name].copy() for name in _COLLECTED if name in arrays}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def reclaim(self) -> None:
        """Does nothing: the slot may be filled again as it is."""

    def release(self) -> None:
        """Does nothing: no copy can be in progress."""

    def view(self, layout: SlotLayout) -> None:
        """See `Ring`."""
        self._layout = layout


class _Copies:
    """The copies of one iteration, in the order of batches."""

    def __init__(self) -> None:
        # An RLock: the garbage collector may release the ring in a thread that enqueues copies. One for each iteration:
        # an interrupt just after `acquire` leaves it locked.
        self.lock = threading.RLock()
        self.full: dict[int, Slot] = {}  # by the batch's number: slots that are full, and whose copy is not enqueued
        self.enqueued = 0  # batches whose copies are
        self.reclaimed = 0  # batches that the consumer has given back

    def has_next(self, buffers: int) -> bool:
        """Whether the next copy can be enqueued: a buffer is free, and the slot is full."""
        return self.enqueued < self.reclaimed + buffers and self.enqueued in self.full


class CudaRing:
    """For a consumer that computes on a GPU: one copy on a side stream fetches a slot.

    A copy is enqueued as soon as its slot is full, the copies before it are enqueued, and a buffer is free: by the
    thread that filled the slot, or by the consumer when it gives a batch back. Enqueued when the batch is handed over,
    it would begin only then, and a step that waits for the host would wait for the copy, too.

    Events, not record_stream, show when memory is free: `copied` frees the host slot and lets the consumer's stream
    continue; `consumed` frees the device buffer. With `depth` buffers the host may run `depth - 1` batches ahead.
    """

    def __init__(self, layout: SlotLayout, device: torch.device, depth: int = 3) -> None:
        self._layout = layout
        self._device = device
        self._allocator = torch.cuda.current_stream(device)  # the buffers' memory is reused there once they are gone
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(layout.nbytes, dtype=torch.uint8, device=device) for _ in range(depth)]
        # `blocking`: a host that waits for the device sleeps, instead of taking a core from the decoding threads.
        self._copied = [torch.cuda.Event(blocking=True) for _ in range(depth)]  # type: ignore[no-untyped-call]
        self._consumed = [torch.cuda.Event() for _ in range(depth)]  # type: ignore[no-untyped-call]
        self._spans = Spans()
        self._copies = _Copies()
        self._last = 0  # the buffer of the last batch handed over
        self._consumer: torch.cuda.Stream | None = None  # the consumer's stream while it has a batch
        self.ready: torch.cuda.Event | None = None
        self._stream.wait_stream(self._allocator)

    @property
    def copy_seconds(self) -> float:
        """See `Ring`."""
        with self._copies.lock:
            self._spans.settle()
            return self._spans.seconds

    def begin(self, slot: Slot) -> None:
        """Enqueue the copy of the slot, and of full ones behind it, if their turn has come."""
        self._copies.full[slot.number] = slot
        self._enqueue_unlocked()

    def hand_over(self, slot: Slot) -> dict[str, torch.Tensor]:
        """The batch's fields on the device, valid until `reclaim`."""
        if slot.number >= self._copies.enqueued:  # another thread is about to enqueue it
            with self._copies.lock:
                self._enqueue()
        assert slot.number < self._copies.enqueued, "a slot that was not begun, or is handed over out of turn"
        index = slot.number % len(self._buffers)
        self._last = index
        self._consumer = torch.cuda.current_stream(self._device)
        self.ready = self._copied[index]
        self._consumer.wait_event(self._copied[index])  # sync point: the step waits for its data
        return self._layout.tensors(self._buffers[index])

    def reclaim(self) -> None:
        """The consumer has enqueued everything that reads the last batch: its buffer is the next copy's."""
        self._consumed[self._last].record(torch.cuda.current_stream(self._device))
        self._consumer = None
        self._copied[self._last].synchronize()  # sync point: the slot has been copied; waits only if copies lag
        self._copies.reclaimed += 1
        self._enqueue_unlocked()

    def release(self) -> None:
        """A consumer that stopped early has not returned its batch: work that it enqueued may still read it."""
        with self._copies.lock:
            if self._consumer is not None:
                self._consumed[self._last].record(self._consumer)
            self._finish()
            self._copies = _Copies()
            self._consumer = None

    def view(self, layout: SlotLayout) -> None:
        """See `Ring`."""
        self._layout = layout

    def _enqueue_unlocked(self) -> None:
        """Enqueue the copies whose turn has come, unless another thread is at it, which then enqueues these, too.

        Nothing waits for the lock here: the thread that filled a slot may hold one that others need.
        """
        copies = self._copies
        while copies.has_next(len(self._buffers)) and copies.lock.acquire(blocking=False):
            try:
                self._enqueue()
            finally:
                copies.lock.release()

    def _enqueue(self) -> None:
        """Enqueue the copies whose turn has come. The caller holds the lock."""
        copies = self._copies
        depth = len(self._buffers)
        while copies.has_next(depth):
            self._copy(copies.full.pop(copies.enqueued), copies.enqueued % depth)
            copies.enqueued += 1
        if copies is not self._copies:  # released meanwhile, by this thread
            self._finish()

    def _copy(self, slot: Slot, index: int) -> None:
        """Enqueue the copy of a slot to a buffer, from any thread."""
        used = self._layout.nbytes
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._consumed[index])  # the last step that read this buffer has finished
            self._spans.begin(self._stream)
            self._buffers[index][:used].copy_(slot.buffer[:used], non_blocking=True)
            self._spans.end(self._stream)
            self._copied[index].record(self._stream)

    def _finish(self) -> None:
        """Wait for the copies that are enqueued, and let the memory's next owner wait for what reads the buffers."""
        for event in self._copied:  # sync point: slots that nobody requested may still be copied, and will be refilled
            event.synchronize()
        for event in self._consumed:  # or, with another stream than the consumer's, memory is reused too early
            self._allocator.wait_event(event)
