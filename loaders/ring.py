"""Slots of a ring: declared once, allocated once, filled by threads, copied to the device from one flat buffer."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.runtime.times import Spans

from .batch import Field

_ALIGN = 256
_TORCH = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.uint8): torch.uint8,
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
        self.objects: list[str] = []  # fields of dtype object, which are not in the buffer
        self.nbytes = 0
        for name, shape, dtype, _ in fields:
            if name in self.fields or name in self.objects:
                raise ValueError(f"two fields of a batch are called {name!r}; give the decoder's another name")
            if np.dtype(dtype).hasobject and shape == ():
                self.objects.append(name)
                continue
            if np.dtype(dtype) not in _TORCH:
                known = ", ".join(map(str, _TORCH))
                raise ValueError(f"the field {name!r} is of type {np.dtype(dtype)}; a batch can hold {known}")
            shape = (batch_size, *shape)
            size = int(np.prod(shape)) * dtype.itemsize
            self.fields[name] = (self.nbytes, size, shape, dtype)
            self.nbytes += -(-size // _ALIGN) * _ALIGN

    def arrays(self, buffer: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
        """NumPy views of a host buffer, by field."""
        flat = buffer.numpy()
        arrays = {
            name: flat[at : at + size].view(dtype).reshape(shape)
            for name, (at, size, shape, dtype) in self.fields.items()
        }
        return arrays | {name: np.full(self.rows, None, object) for name in self.objects}

    def tensors(self, buffer: torch.Tensor, start: int = 0) -> dict[str, torch.Tensor]:
        """Tensor views of a buffer on any device, by field; the buffer may begin with the field at `start`."""
        return {
            name: buffer[at - start : at - start + size].view(_TORCH[dtype]).view(shape)
            for name, (at, size, shape, dtype) in self.fields.items()
            if at >= start
        }


class Slot:
    """One batch in host memory; pinned where a GPU will fetch it. `pending` chunks of rows are still to be filled."""

    def __init__(self, layout: SlotLayout, pinned: bool) -> None:
        self.buffer = torch.zeros(layout.nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.view(layout)
        self.failed: dict[int, str] = {}  # row -> reason, by the ring
        self.rerouted: dict[int, str] = {}  # row -> reason, by the ring: another decoder took it on
        self.pending = 0

    def view(self, layout: SlotLayout) -> None:
        """View its bytes as `layout`, which must not need more of them. No thread may use the slot meanwhile."""
        assert layout.nbytes <= self.buffer.numel()
        self.arrays = layout.arrays(self.buffer)


class Ring(Protocol):
    """Turns full slots into the tensors of batches."""

    ready: torch.cuda.Event | None  # recorded when the batch handed over last is complete

    @property
    def copy_seconds(self) -> float:
        """Seconds of copies to the device. Called by the consumer; the last copies may not be counted yet."""

    def begin(self, slot: Slot) -> None:
        """`slot` is full. Called once per slot before `hand_over`, by the thread that filled it. Does not block."""

    def hand_over(self, slot: Slot) -> dict[str, torch.Tensor]:
        """`inputs` [B, H, W, 3], `targets` and `weight` [B] on the device, valid until `reclaim` or longer.

        Everything else in the result, except `ids`, is a further field of the batch.

        Rows that could not be finished are in `slot.failed`, with weight 0 in the slot and on the device; rows that
        another decoder took are in `slot.rerouted`.
        """

    def reclaim(self) -> None:
        """The consumer has enqueued all that reads the batch that it got last: its slot is filled again."""

    def release(self) -> None:
        """The iteration is over, finished or not: all slots may be filled again. May be called twice."""

    def view(self, layout: SlotLayout) -> None:
        """From now on slots have `layout`, which needs no more bytes than the first one. Called between iterations."""


class HostRing:
    """The consumer computes on the host: it reads the slot itself."""

    ready: torch.cuda.Event | None = None
    copy_seconds = 0.0  # nothing is copied

    def __init__(self, layout: SlotLayout) -> None:
        self._layout = layout
        self._tensors: dict[int, dict[str, torch.Tensor]] = {}  # by the slot's buffer

    def begin(self, slot: Slot) -> None:
        """Nothing is done ahead."""

    def hand_over(self, slot: Slot) -> dict[str, torch.Tensor]:
        """The batch's fields, valid until `reclaim`."""
        tensors = self._tensors.get(slot.buffer.data_ptr())
        if tensors is None:
            tensors = self._tensors[slot.buffer.data_ptr()] = self._layout.tensors(slot.buffer)
        return tensors

    def reclaim(self) -> None:
        """The consumer is done with the batch that it got last: its slot may be filled again."""

    def release(self) -> None:
        """Nothing is in progress."""

    def view(self, layout: SlotLayout) -> None:
        """See `Ring`."""
        self._layout = layout
        self._tensors.clear()


class CudaRing:
    """The consumer computes on a GPU: a slot is fetched by one copy on a side stream.

    Events, not record_stream, say when memory is free: `copied` frees the host slot and lets the consumer's stream
    begin; `consumed` frees the device buffer. With `depth` buffers the host may run `depth - 1` batches ahead.
    """

    def __init__(self, layout: SlotLayout, device: torch.device, depth: int = 3) -> None:
        self._layout = layout
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(layout.nbytes, dtype=torch.uint8, device=device) for _ in range(depth)]
        self._copied = [torch.cuda.Event() for _ in range(depth)]  # type: ignore[no-untyped-call]
        self._consumed = [torch.cuda.Event() for _ in range(depth)]  # type: ignore[no-untyped-call]
        self._copies = Spans()
        self._last = depth - 1
        self._held: torch.cuda.Stream | None = None  # the consumer's, as long as it has a batch
        self.ready: torch.cuda.Event | None = None
        self._stream.wait_stream(torch.cuda.current_stream(device))

    @property
    def copy_seconds(self) -> float:
        """See `Ring`."""
        self._copies.settle()
        return self._copies.seconds

    def begin(self, slot: Slot) -> None:
        """Nothing is done ahead: the consumer's kernels run ahead, and a copy is enqueued long before they end."""

    def hand_over(self, slot: Slot) -> dict[str, torch.Tensor]:
        """The batch's fields on the device, valid until `depth - 1` more batches were handed over."""
        self._last = at = (self._last + 1) % len(self._buffers)
        used = self._layout.nbytes
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._consumed[at])  # the step that read this buffer last is over
            self._copies.begin(self._stream)
            self._buffers[at][:used].copy_(slot.buffer[:used], non_blocking=True)
            self._copies.end(self._stream)
            self._copied[at].record(self._stream)
        self._held = torch.cuda.current_stream(self._device)
        self.ready = self._copied[at]
        self._held.wait_event(self._copied[at])  # sync point: the step waits for its data
        return self._layout.tensors(self._buffers[at])

    def reclaim(self) -> None:
        """The consumer has enqueued all that reads the batch that it got last."""
        self._settle(torch.cuda.current_stream(self._device))

    def release(self) -> None:
        """A consumer that stopped early did not return its batch: the work it enqueued may still read it."""
        if self._held is not None:
            self._settle(self._held)

    def view(self, layout: SlotLayout) -> None:
        """See `Ring`."""
        self._layout = layout

    def _settle(self, consumer: torch.cuda.Stream) -> None:
        self._held = None
        self._consumed[self._last].record(consumer)
        self._copied[self._last].synchronize()  # sync point: the slot's bytes have left; a wait only if copies lag
