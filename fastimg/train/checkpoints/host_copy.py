"""A copy of a run's tensors in host memory: allocated once, filled while training continues, read by the writer."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

_ALIGN = 256  # bytes


class HostCopy:
    """Room for the tensors of one checkpoint, pinned where a GPU fills it. It grows if a later checkpoint needs more.

    On a CPU a copy is there when `take` returns. On a GPU it is only enqueued. What the next forward pass changes
    (running statistics, sums) is copied on the step's own stream, in order with it. What only an optimiser's step
    changes (weights, moments, averages), nearly everything, is copied on a stream of its own, beside the forward and
    backward pass of the next step; that step's stream waits for the copy just before its optimiser writes (`hold`).
    A snapshot in the device's memory would need no wait, but as much memory as the weights and moments take.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._room = torch.empty(0, dtype=torch.uint8)
        self._stream: torch.cuda.Stream | None = None
        self._begun: torch.cuda.Event | None = None
        self._done: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._begun = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def take(self, tree: Any, beside: Collection[int] = ()) -> Any:
        """The same dicts, lists and values, with tensors in this room. The copy before is overwritten.

        `beside`: addresses of tensors that only an optimiser's step changes.
        """
        sources = list(_tensors(tree))
        sizes = [-(-source.numel() * source.element_size() // _ALIGN) * _ALIGN for source in sources]
        if sum(sizes) > self._room.numel():
            self._room = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        flat = self._room.numpy()
        targets = []
        start = 0
        for source, size in zip(sources, sizes, strict=True):
            # By way of NumPy each has a storage of its own: torch.save writes whole storages.
            part = torch.from_numpy(flat[start : start + source.numel() * source.element_size()]).view(source.dtype)
            # Dense tensors keep their strides, so that a copy is one block, and moments keep their layout.
            strides = torch.empty_like(source, device="meta").stride()
            targets.append(part.as_strided(source.shape, strides))
            start += size
        self._copy(sources, targets, beside)
        return _rebuilt(tree, iter(targets))

    @torch.no_grad()
    def _copy(self, sources: list[torch.Tensor], targets: list[torch.Tensor], beside: Collection[int]) -> None:
        later = []
        for source, target in zip(sources, targets, strict=True):
            if self._stream is not None and source.is_cuda and source.data_ptr() in beside:
                later.append((source, target))
            else:  # what lies in host memory is copied now
                target.copy_(source, non_blocking=True)
        if self._stream is None or self._begun is None or self._done is None:
            return
        self._begun.record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._begun)  # the step that made these tensors, and the copies above
        with torch.cuda.stream(self._stream):
            for source, target in later:
                target.copy_(source, non_blocking=True)
            self._done.record(self._stream)

    def hold(self) -> None:
        """Let the current stream wait until all is copied. The host goes on."""
        if self._done is not None:
            torch.cuda.current_stream(self._device).wait_event(self._done)

    def arrive(self) -> None:
        """Wait until all is copied; called by the thread that writes."""
        if self._done is not None:
            self._done.synchronize()


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _rebuilt(tree: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The tree with other tensors, and containers of its own."""
    if isinstance(tree, torch.Tensor):
        return next(tensors)
    if isinstance(tree, Mapping):
        return {key: _rebuilt(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_rebuilt(value, tensors) for value in tree])
    return tree
