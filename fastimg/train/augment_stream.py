"""Prepares the next batch on a CUDA stream of its own while the previous step is still running.

The host runs a step or more ahead of the GPU. Work that it enqueues on the step's stream waits for that step; work on
this stream waits only for the copy of its batch.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fastimg.loaders import Batch


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The process's one stream for this: torch keeps freed memory for the stream that it was allocated on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class AugmentStream:
    """Has no effect on a CPU, with `stream` "step", and for batches without a `ready` event."""

    def __init__(self, device: torch.device, stream: str = "own") -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and stream != "step":
            self._stream = _side_stream(device)

    @contextmanager
    def step(self, batch: Batch) -> Iterator[None]:
        """Work on `batch` in this context runs beside the previous step; the step's stream waits for it at the end.

        Do not release the batch before the step is enqueued. Pass tensors that are made here and used by the step to
        `keep`.
        """
        if self._stream is None or batch.ready is None:
            yield
            return
        step = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_event(batch.ready)
        with torch.cuda.stream(self._stream):
            yield
        step.wait_stream(self._stream)  # sync point: the step waits for its input

    def keep(self, batch: Batch, *made: torch.Tensor) -> None:
        """Hand over tensors that were made beside the step: their memory is reused only after the step."""
        if self._stream is not None and batch.ready is not None:
            step = torch.cuda.current_stream(self._stream.device)
            for tensor in made:
                tensor.record_stream(step)
