"""The ring of `DeviceDecode`: images are decoded and resized on the device.

    slot full -> thread: codec decodes the batch -> side stream: copy, `ragged.resize` -> event -> consumer's stream

The ring has its own thread, so that decoding continues while the consumer computes: a codec's call returns only when
the batch is decoded, or nearly. It decodes into one of two sets of images while the other is resized. Memory is
allocated at the first batch of each slot; the codec owns its decoded images.
"""

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.crop import Window
from fastimg.loaders.errors import OVER, ImageError, WorkerError
from fastimg.loaders.ring import Slot, SlotLayout
from fastimg.loaders.runtime.times import Spans

from .nvcodec import SETS, BatchDecoder, DecodedImage
from .ragged import LEFT_ALONE, Box, place, resize

_OWN = frozenset({"place", "table"})  # fields of a slot for the ring only, not part of the batch


class Cut(NamedTuple):
    """A JPEG for the codec to decode, and the box of its pixels that is needed."""

    jpeg: bytes | memoryview
    parsed: object | None  # by the codec; None: it cannot decode this JPEG
    box: Box  # of stored pixels
    orientation: int  # EXIF, not applied yet
    window: Window


class Codec(NamedTuple):
    """The decoder on the device, and `on_host`, which decodes what that refuses into a row [S, S, 3].

    `on_host` is called from any of up to `threads` threads, and raises ImageError.
    """

    device: BatchDecoder
    on_host: Callable[[Cut, npt.NDArray[np.uint8]], None]
    threads: int


class SideStream:
    """A CUDA stream next to the consumer's. On the CPU, where tests interpret the kernel, everything is synchronous."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.copies = Spans()  # begun and settled by the ring's thread
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def handle(self) -> int:
        """The stream as an integer, for other libraries."""
        return 0 if self._stream is None else int(self._stream.cuda_stream)

    def event(self) -> Any:
        """A new event; it counts as done until it is recorded."""
        if self._stream is None:
            return None
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # cores are for decoding

    def enter(self) -> AbstractContextManager[Any]:
        """A context in which work is enqueued on this stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """A context whose work is timed as copying."""
        if self._stream is None:
            yield
            return
        self.copies.begin(self._stream)
        yield
        self.copies.end(self._stream)

    def wait(self, event: Any) -> None:
        """Let work that is enqueued from now on wait for the event."""
        if self._stream is not None:
            self._stream.wait_event(event)

    def settle(self, event: Any) -> None:
        """Block the host until the event is done."""
        if self._stream is not None:
            event.synchronize()

    def record(self, event: Any) -> None:
        """Record the event: it is done when everything enqueued so far is done."""
        if self._stream is not None:
            event.record(self._stream)

    def finish(self) -> None:
        """Block the host until everything enqueued so far is done."""
        if self._stream is not None:
            ended = self.event()
            ended.record(self._stream)
            ended.synchronize()

    def consumer(self) -> Any:
        """The current stream of the calling thread."""
        return None if self._stream is None else torch.cuda.current_stream(self._device)


@dataclass
class _Lane:
    """The device's side of a slot."""

    fields: torch.Tensor  # the slot's bytes from `place` on
    out: torch.Tensor  # bytes of the batch [B, S, S, 3]
    ready: Any  # event: `out` and the fields are complete
    consumed: Any  # event: the consumer has read them


class RaggedRing:
    """Makes batches [B, S, S, 3] from slots whose fields are `inputs` [S, S, 3], `place`, `table` and further ones.

    The host fills `inputs` only in rows whose table begins with LEFT_ALONE and in rows that the codec refuses.
    """

    def __init__(self, layout: SlotLayout, device: torch.device, codec: Codec) -> None:
        self.ready: torch.cuda.Event | None = None
        self._device = device
        self._codec = codec
        self.view(layout)
        self._room = layout.nbytes - self._sent, math.prod(self._shape)  # bytes of a lane's memory
        self._side = SideStream(device)
        self._read = deque(self._side.event() for _ in range(SETS))  # of the codec's images: they have been resized
        self._lanes: dict[int, _Lane] = {}  # by the slot's id; slots live as long as their loader
        self._made: dict[int, BaseException | None] = {}  # by the slot's id: None if the batch is made, or its error
        self._queue: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._held: tuple[_Lane, Any] | None = None  # of the batch that the consumer has, and its stream
        self._hosts: ThreadPoolExecutor | None = None

    @property
    def copy_seconds(self) -> float:
        """See `Ring`."""
        return self._side.copies.seconds

    def begin(self, slot: Slot) -> None:
        """See `Ring`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="fastimg-loader-ring", daemon=True)
            self._thread.start()
        self._queue.put(slot)

    def hand_over(self, slot: Slot) -> dict[str, torch.Tensor]:
        """See `Ring`. Raises WorkerError if the device failed."""
        with self._changed:
            while id(slot) not in self._made:
                if self._thread is None:
                    raise RuntimeError(OVER)
                self._changed.wait()
            failure = self._made.pop(id(slot))
        if failure is not None:
            raise WorkerError(f"a batch could not be made on {self._device}: {failure!r}") from failure
        lane = self._lanes[id(slot)]
        consumer = self._side.consumer()
        if consumer is not None:
            consumer.wait_event(lane.ready)  # sync point: the step waits for its data
        self._held = (lane, consumer)
        self.ready = lane.ready
        further = {name: tensor for name, tensor in self._tensors(lane).items() if name not in _OWN}
        return {**further, "inputs": self._batch(lane)}

    def reclaim(self) -> None:
        """See `Ring`."""
        if self._held is not None:
            lane, _ = self._held
            self._settle(lane, self._side.consumer())

    def release(self) -> None:
        """See `Ring`."""
        self._drop_waiting()  # or the thread would decode them first
        thread = self._thread
        self._thread = None
        if thread is not None:
            self._queue.put(None)
            if (
                thread is threading.current_thread()
            ):  # a loader that was garbage-collected while this thread made a batch
                return
            thread.join()
        if self._held is not None:
            self._settle(*self._held)
        self._drop_waiting()
        self._side.finish()  # slots that nobody requested may still be copied, and will be refilled
        for lane in self._lanes.values():  # their memory is freed on the side stream
            self._side.wait(lane.consumed)
        with self._changed:
            self._made.clear()
            self._changed.notify_all()
        if self._hosts is not None:
            self._hosts.shutdown()
            self._hosts = None

    def view(self, layout: SlotLayout) -> None:
        """See `Ring`."""
        (*_, size, _) = next(iter(layout.fields.values()))[2]
        self._layout = layout
        self._shape = (layout.rows, size, size, 3)
        self._sent = layout.fields["place"][0]  # a slot's bytes are copied from here on

    def _settle(self, lane: _Lane, stream: Any) -> None:
        self._held = None
        if stream is not None:
            lane.consumed.record(stream)
            lane.ready.synchronize()  # sync point: the slot's bytes are copied; it waits only if the device lags

    def _drop_waiting(self) -> None:
        """Forget the slots that nobody will ask for."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def _work(self) -> None:
        entered = self._device.type != "cuda"
        while (slot := self._queue.get()) is not None:
            failure: BaseException | None = None
            try:
                if not entered:
                    torch.cuda.set_device(self._device)
                    entered = True
                self._make(slot, self._lanes.get(id(slot)) or self._lane(slot))
            except BaseException as error:  # noqa: BLE001 - every error is handed to the consumer
                failure = error
            with self._changed:
                self._made[id(slot)] = failure
                self._changed.notify_all()
            del slot, failure

    def _lane(self, slot: Slot) -> _Lane:
        with self._side.enter():  # so that the allocator ties these to the side stream
            fields, out = (torch.empty(size, dtype=torch.uint8, device=self._device) for size in self._room)
        lane = _Lane(fields, out, self._side.event(), self._side.event())
        self._lanes[id(slot)] = lane
        return lane

    def _tensors(self, lane: _Lane) -> dict[str, torch.Tensor]:
        return self._layout.tensors(lane.fields, self._sent)

    def _batch(self, lane: _Lane) -> torch.Tensor:
        return lane.out[: math.prod(self._shape)].view(self._shape)

    def _make(self, slot: Slot, lane: _Lane) -> None:
        """Decode the slot's images; enqueue the copy and the resize."""
        tensors = self._tensors(lane)
        out = self._batch(lane)
        used = self._layout.nbytes
        self._decode(slot)
        with self._side.enter():
            self._side.wait(lane.consumed)  # until the last step that read these buffers is over
            with self._side.copying():
                lane.fields[: used - self._sent].copy_(slot.buffer[self._sent : used], non_blocking=True)
                inputs = self._layout.tensors(slot.buffer)["inputs"]
                for start, stop in _runs(slot.arrays["table"][:, 0] == LEFT_ALONE):
                    out[start:stop].copy_(inputs[start:stop], non_blocking=True)
            resize(tensors["place"], tensors["table"], out)
            self._side.record(lane.ready)
            self._side.record(self._read[-1])

    def _decode(self, slot: Slot) -> None:
        """Decode the slot's cuts and note where their pixels are; the host decodes those that the codec refuses."""
        cuts = [(row, cut) for row, cut in enumerate(slot.arrays["cut"]) if isinstance(cut, Cut)]
        self._side.settle(self._read[0])  # the codec itself does not wait until what it overwrites has been read
        parsed = [cut.parsed for _, cut in cuts if cut.parsed is not None]
        decoded = iter(self._codec.device.decode(parsed, self._side.handle))
        self._read.rotate(-1)  # to the end, where it is recorded anew
        refused = []
        for row, cut in cuts:
            image = None if cut.parsed is None else next(decoded)
            if image is None or not _contains(image, cut.box):
                refused.append((row, cut))
            else:
                slot.arrays["place"][row] = place(image.address, image.strides, cut.box, cut.orientation)
        slot.arrays["cut"][:] = None
        if refused:
            self._hosts = self._hosts or ThreadPoolExecutor(self._codec.threads, "fastimg-loader-host")
            for _ in self._hosts.map(lambda item: _decode_on_host(slot, self._codec, *item), refused):
                pass


def _contains(image: DecodedImage, box: Box) -> bool:
    return box[0] + box[2] <= image.width and box[1] + box[3] <= image.height


def _runs(chosen: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs of consecutive True: [(start, stop)]."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _decode_on_host(slot: Slot, codec: Codec, row: int, cut: Cut) -> None:
    slot.rerouted[row] = "the GPU's decoder refused it"
    table = slot.arrays["table"][row]
    try:
        codec.on_host(cut, slot.arrays["inputs"][row])
        table[0] = LEFT_ALONE
    except ImageError as error:
        slot.failed[row] = str(error)
        slot.arrays["weight"][row] = 0
        table[:] = 0  # the kernel writes zeros
