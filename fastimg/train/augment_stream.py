"""Work on the next batch beside the step before it: on a stream of its own, as soon as the batch is on the device.

The host is ahead of a GPU by a step or more. What it enqueues on the step's stream comes after that step; what it
enqueues here, after the batch's own copy alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fastimg.loaders import Batch


class Beside:
    """On a CPU, with `stream` step, and for batches that do not say when they stand, nothing differs."""

    def __init__(self, device: torch.device, stream: str = "own") -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and stream != "step":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def step(self, batch: Batch) -> Iterator[None]:
        """What reads `batch` in this context runs beside the step; the step's stream waits for it at the end.

        The batch is not to be given back before the step is enqueued. Tensors that are made here and used by the step
        go through `keep`.
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
        """What was made beside the step is the step's now: its memory is free when the step is over."""
        if self._stream is not None and batch.ready is not None:
            step = torch.cuda.current_stream(self._stream.device)
            for tensor in made:
                tensor.record_stream(step)
