"""Losses and scores, summed on the device and read only when they are shown."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from fastimg.augment import Policy
from fastimg.config.training import Tta
from fastimg.data.model_input import model_input
from fastimg.embeddings.text_rows import inputs_beside
from fastimg.loaders import BatchSource
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.system.signals import strongest

from .tasks.joint import Losses, Tasks
from .tasks.lookup import TargetLookup
from .tasks.score import AnyScore
from .tasks.task import Truth


class Meter:
    """The sums of the tasks' losses, hits, errors and weights, as one float64 tensor on the device: see `Tasks.count`.

    A `whole` validation is counted by class, too, and ranked by label.
    """

    def __init__(self, tasks: Tasks, device: torch.device, whole: bool = False) -> None:
        self._tasks = tasks
        self.sums = torch.zeros(tasks.sums, dtype=torch.float64, device=device)
        self._counters = [task.counter(device) for task in tasks.all] if whole else []

    def add(self, logits: torch.Tensor, losses: Losses, truths: Sequence[Truth], weight: torch.Tensor) -> None:
        """Count a batch: logits [B, outputs], losses and targets of each task, weight [B]. No sync."""
        self.sums += self._tasks.count(logits, losses, truths, weight)
        if self._counters:
            for counter, part, truth in zip(self._counters, self._tasks.parts(logits), truths, strict=True):
                counter.add(part, truth, weight)

    def reset(self) -> None:
        """Count from zero again, in the same memory."""
        self.sums.zero_()

    def present(self) -> dict[str, int]:
        """How many samples of this rank have each target. A sync point."""
        return self._tasks.present(self.sums.tolist())

    def read(self, ranks: Ranks) -> AnyScore:
        """The scores so far of all ranks, which all call this. A sync point."""
        counted = [counter.read(ranks) for counter in self._counters]
        return self._tasks.score(ranks.sum(self.sums.clone()).tolist(), counted)


class FirstBad:
    """The first step whose loss was not finite, kept on the device: a few kernels a step.

    A float64, so that numbers are exact: 0 as long as all losses were finite, then the least number of a step less
    2^53, which is more steps than any run has.
    """

    _NONE: ClassVar[float] = 2.0**53

    def __init__(self, device: torch.device) -> None:
        self._zero = torch.zeros((), dtype=torch.float64, device=device)
        self._least = self._zero.clone()
        self._number = self._zero.clone()  # of the step, less 2^53

    def begin(self, step: int) -> None:
        """The losses from now on are those of `step`, counted from 1. No sync."""
        self._number.fill_(step - self._NONE)

    def note(self, loss: torch.Tensor) -> None:
        """The loss of a batch of the step. No sync; reads and writes the same memory in every step."""
        nothing = loss * self._zero  # NaN where the loss is infinite, too
        torch.minimum(self._least, nothing.nan_to_num(nan=1.0) * self._number, out=self._least)

    def read(self, ranks: Ranks) -> int | None:
        """The first step on any rank, all of which call this; None if all losses were finite. A sync point."""
        if ranks.world_size > 1:
            dist.all_reduce(self._least, dist.ReduceOp.MIN)
        least = float(self._least)
        return round(least + self._NONE) if least else None


class OnTheWay:
    """Numbers on the way to the host, behind the work that is enqueued now.

    On a GPU they are copied into pinned memory, and an event says when they have arrived: reading them then waits for
    that event, not for all that was enqueued since.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def arrived(self) -> bool:
        """Whether `read` would not wait."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def read(self) -> Any:
        """The numbers as (nested) lists. A sync point where they have not arrived yet."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.tolist()


class Requests:
    """What several ranks ask for, a sum of their `votes` for every step: on its way to the host.

    On a GPU a step reads what was asked for LAG steps before it. Those numbers have arrived, unless the host is so many
    steps ahead: it then waits for the device, which still has work. All ranks read the same step's, whatever has
    arrived where.
    """

    LAG: ClassVar[int] = 4

    def __init__(self, device: torch.device) -> None:
        self._lag = self.LAG if device.type == "cuda" else 0
        self._unread: deque[OnTheWay] = deque()

    def add(self, votes: torch.Tensor) -> int:
        """Send a step's votes. Returns the strongest request of the step whose turn it is, else 0."""
        self._unread.append(OnTheWay(votes))
        return strongest(self._unread.popleft().read()) if len(self._unread) > self._lag else 0

    def forget(self) -> None:
        """Leave unread what is on its way: it was granted, or will be asked for again."""
        self._unread.clear()


@dataclass(frozen=True)
class TracedSteps:
    """Sums of several stretches of steps, on the way to the host."""

    steps: list[int]  # the last of each stretch
    sums: OnTheWay  # [stretches, sums], over all ranks

    def read(self, tasks: Tasks) -> list[tuple[int, AnyScore]]:
        """(Step, score of the steps since the one before). A sync point where the sums have not arrived yet."""
        scores = [tasks.score(row) for row in self.sums.read()]
        return [(step, score) for step, score in zip(self.steps, scores, strict=True) if score.samples]


class Trace:
    """Training step by step: a meter's sums are copied on the device every few steps, and fetched for the log."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._noted: list[tuple[int, torch.Tensor]] = []

    def begin(self, step: int, meter: Meter) -> None:
        """Training starts, or continues, after `step`: what `meter` has counted so far was noted before."""
        self._noted = [(step, meter.sums.clone())]

    def note(self, step: int, meter: Meter, due: bool) -> None:
        """`step` is done; `due` notes it in any case. A step that is noted again counts once. No sync."""
        if (due or step % self._every == 0) and self._noted[-1][0] != step:
            self._noted.append((step, meter.sums.clone()))

    def fetch(self, ranks: Ranks) -> TracedSteps:
        """Send what was noted since the last call to the host, summed over all ranks. No sync; all ranks call it."""
        if len(self._noted) < 2:
            return TracedSteps([], OnTheWay(torch.empty(0)))
        sums = ranks.sum(torch.stack([sums for _, sums in self._noted]).diff(dim=0))
        steps = [step for step, _ in self._noted[1:]]
        self._noted = self._noted[-1:]
        return TracedSteps(steps, OnTheWay(sums))


def answer(
    model: nn.Module, images: torch.Tensor, tta: Tta = False, beside: tuple[torch.Tensor, ...] = ()
) -> torch.Tensor:
    """Logits [B, C] in float32 of images [B, 3, H, W]; `tta`: means over several views of each image.

    "mirror", or True: the image and its mirror image. "mirror-shift": as much again of the images that are shifted by
    a pixel, down right and up left, with their mirror images; edges are mirrored into the gap, so that sides are 2
    pixels or more (Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024). `beside` is what the model takes
    after the images.
    """
    if not tta:
        alone: torch.Tensor = model(images, *beside).float()
        return alone

    def mirrored(view: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = model(view, *beside).float().clone()  # a model with CUDA graphs writes to the same memory
        other: torch.Tensor = model(view.flip(3), *beside).float()
        return (own + other) / 2

    logits = mirrored(images)
    if tta != "mirror-shift":
        return logits
    height, width = images.shape[2:]
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    corners = (padded[:, :, :height, :width], padded[:, :, 2:, 2:])
    shifted = [mirrored(torch.empty_like(images).copy_(corner)) for corner in corners]  # in the images' layout
    return (logits + (shifted[0] + shifted[1]) / 2) / 2


def evaluate(
    model: nn.Module,
    loader: BatchSource,
    lookup: TargetLookup,
    tasks: Tasks,
    policy: Policy,
    precision: Precision,
    ranks: Ranks,
    tta: Tta = False,
    seen: Callable[[int], None] | None = None,
) -> AnyScore:
    """Losses (without label smoothing) and scores over a whole loader, every sample counted once over all ranks.

    `seen` is told the number of batches so far, which a GPU may not have finished.
    """
    meter = Meter(tasks, ranks.device, whole=True)
    model.eval()
    with torch.inference_mode():
        for number, batch in enumerate(loader, start=1):
            with precision.autocast():
                images = model_input(None, batch.inputs, policy, precision.input_dtype)
                logits = answer(model, images, tta, inputs_beside(batch, precision.input_dtype))
            truths = lookup.truths(batch)
            meter.add(logits, tasks.evaluation_losses(logits, truths), truths, batch.weight)
            if seen is not None:
                seen(number)
    return meter.read(ranks)
