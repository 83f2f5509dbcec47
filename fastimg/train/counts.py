"""How many samples a step trains on, over all ranks, and what ranks ask for: known before the loss is."""

from collections.abc import Callable

import torch

from fastimg.models.ranks import Ranks
from fastimg.system.signals import votes

from .metrics import Requests


class StepCounts:
    """What the loss of a step's samples is divided by, so that gradients are the mean over those that count.

    A step of one batch knows its samples when the batch arrives. The numbers of all ranks are added up while the model
    runs, and the loss is divided by their sum. Where batches are accumulated, the next one arrives after the backward
    pass of the one before: losses are divided by the nominal batch, and `correction` is for the gradients.
    """

    def __init__(self, ranks: Ranks, nominal: int) -> None:
        self._ranks = ranks
        self._nominal = nominal
        self._requests = Requests(ranks.device)
        self._own = torch.full((), float(nominal), device=ranks.device)  # stays where it is: graphs read it
        self._filled = float(nominal)
        self._rows = 0
        self._request = 0
        self._whole = False
        self._pending: Callable[[], torch.Tensor] | None = None
        self._total: torch.Tensor | None = None  # samples and votes of all ranks; of several ranks only

    def begin(self, rows: int, request: int, *, whole: bool) -> tuple[torch.Tensor, ...]:
        """The step's last batch has arrived: this rank has `rows` samples; `whole` if it is the only batch.

        Several ranks' numbers of samples and votes for a request are one vector and one sum, which begins here, behind
        the work of the current stream, and is waited for by the stream that calls `denominator` or `correction`.
        Returns the tensors that another stream will read.
        """
        self._rows, self._request, self._whole = rows, request, whole
        self._total = None
        if self._ranks.world_size == 1:
            return ()
        # Filled on the device: copying a list there would wait for all the work that is enqueued.
        device = self._ranks.device
        own = torch.stack([torch.full((), float(value), device=device) for value in (rows, *votes(request))])
        self._pending = self._ranks.begin_sum(own)
        return (own,)

    def denominator(self) -> torch.Tensor:
        """What a rank divides the losses of a batch by: a float32 scalar on the device. A sync point between ranks."""
        total = self._summed() if self._whole else None
        if total is not None:
            return total[0].clamp(min=1.0) / self._ranks.world_size  # ranks average their gradients
        value = float(max(self._rows, 1) if self._whole else self._nominal)
        if value != self._filled:
            self._own.fill_(value)
            self._filled = value
        return self._own

    def correction(self) -> float | torch.Tensor | None:
        """The factor for gradients of losses that were divided by the nominal batch; None where none is needed."""
        total = self._summed()
        if self._whole:
            return None
        if total is not None:
            return self._nominal * self._ranks.world_size / total[0].clamp(min=1.0)
        return None if self._rows == self._nominal else self._nominal / max(self._rows, 1)

    def end(self) -> int:
        """The step is over. Returns the strongest request; with several ranks on GPUs, that of a few steps before."""
        self._whole = False
        total, self._total = self._summed(), None
        if total is None:
            return self._request
        return self._requests.add(total[1:])  # a sync point on a CPU; on a GPU only with steps long past

    def _summed(self) -> torch.Tensor | None:
        """The sums over several ranks, waited for once."""
        if self._pending is not None:
            self._total, self._pending = self._pending(), None
        return self._total

    def forget(self) -> None:
        """Leave unread what ranks asked for: it was granted, or will be asked for again."""
        self._requests.forget()
