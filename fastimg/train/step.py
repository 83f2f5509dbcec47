"""One optimiser step, in one place: training, the search for a batch size and `fastimg bench` all call it.

optimiser_step: for each micro-batch  augment -> forward_backward,  then  update
forward_backward: forward -> loss / true batch size over ranks -> backward -> counting
update: (accumulated: gradients * nominal / true batch size) -> update_weights -> lookahead, moving average
update_weights: unscale -> clip -> optimiser -> scaler -> zero_grad

`forward_backward` and `update_weights` are the same work on the device in every step, at the same addresses: what moves
with the run is in tensors that were filled before. So CUDA graphs may repeat them (`graphs`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import ClassVar

import torch

from fastimg.augment.mixing import mix_images
from fastimg.data.model_input import model_input
from fastimg.data.planning import plan_of
from fastimg.embeddings.text_rows import inputs_beside
from fastimg.errors import UsageError
from fastimg.loaders import Batch
from fastimg.loaders.runtime.times import named
from fastimg.models import ranks as parallel

from .augment_stream import AugmentStream
from .optimisers.groups import set_lr
from .run import Run
from .work import MicroBatch

_KORNIA = 0x6B6F726E  # keeps Kornia's random numbers apart from dropout's


def optimiser_step(
    run: Run, batches: Iterator[Batch], count: int, stream: AugmentStream, asked: Callable[[], int] = lambda: 0
) -> int:
    """Train on the next `count` batches and update the weights once. Returns the strongest request of any rank, else 0.

    `count` is --grad-accum-steps, or fewer at the end of an epoch. `asked` gives this rank's request, if it has one:
    to save, or a signal (see `signals.votes`).
    """
    config = run.setup.config
    progress = run.progress
    ranks = run.setup.ranks
    work = progress.work
    rows = 0
    progress.first_bad.begin(progress.step + 1)
    for number, batch in enumerate(islice(batches, count), start=1):
        last = number == count
        rows += batch.samples
        seed = seed_of(config.seed, progress.step, number % config.grad_accum_steps, ranks.rank)
        with named("augment"):
            with stream.step(batch):
                counted = progress.counts.begin(rows, asked(), whole=count == 1) if last else ()
                prepared = augment(run, batch, seed, work.room(batch))
                micro_batch = work.inputs(taught(run, batch, prepared))
            stream.keep(batch, *counted, *micro_batch.tensors)
        seed_generators(seed, ranks.device)
        # Sync point between ranks, inside the last backward pass: gradients are averaged.
        with named("forward and backward"), parallel.accumulate(progress.parallel, last):
            work.forward_backward(micro_batch)
        run.accounting.account.add(batch.samples, run.accounting.backlog.drained())
    with named("update"):
        return update(run)


def augment(run: Run, batch: Batch, seed: int, out: torch.Tensor | None = None) -> MicroBatch:
    """Augment and normalise a batch, with its targets. `seed` is Kornia's; all else depends on sample ids.

    Images that are not mixed are written to `out`, if it is given.
    """
    setup = run.setup
    weight = batch.weight
    config = setup.config
    policy = setup.input.policy
    plan = None if config.no_aug else plan_of(policy, batch, config.seed, setup.view(run.progress.epoch))
    targets = setup.data.targets.truths(batch)
    dtype = setup.precision.input_dtype
    into = None if policy.mixes else out
    images = model_input(plan, batch.inputs, policy, dtype, setup.input.kornia, seed ^ _KORNIA, into)
    if policy.mixes:
        images, mixture = mix_images(plan, images, weight)
        targets = setup.tasks.mixed(targets, mixture)
    return MicroBatch(images, targets, weight, beside=inputs_beside(batch, dtype))


def taught(run: Run, batch: Batch, prepared: MicroBatch) -> MicroBatch:
    """With the logits that the teacher gave once, if they are kept."""
    setup = run.setup
    if setup.distillation is None:
        return prepared
    logits = setup.distillation.looked_up(batch, run.progress.epoch, setup.data.loader.unreadable)
    return replace(prepared, taught=logits)


def forward_backward(run: Run, batch: MicroBatch, launched: Callable[[], None] = lambda: None) -> None:
    """Add the gradients of the mean loss over the step's samples, and count the batch in the run's meter.

    Losses are divided by `StepCounts.denominator`. `launched` is called when the host has enqueued the forward pass.
    """
    setup = run.setup
    progress = run.progress
    with setup.precision.autocast(), _enough_for_norms(run):
        logits = progress.parallel(batch.images, *batch.beside)
    losses = setup.tasks.losses(logits, batch.targets)
    if setup.distillation is not None:
        theirs = setup.distillation.logits(batch.images) if batch.taught is None else batch.taught
        losses = setup.distillation.blended(losses, logits, theirs)
    total = (losses.total * batch.weight).sum() / progress.counts.denominator()
    launched()
    setup.optimisation.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
    progress.first_bad.note(total.detach())
    progress.meter.add(logits.detach(), losses.detach(), batch.targets, batch.weight)


def update(run: Run) -> int:
    """The optimiser's step on the gradients of a step's batches. Returns the strongest request of any rank, else 0."""
    optimisation = run.setup.optimisation
    progress = run.progress
    optimizer = optimisation.optimizer
    request = average_gradients(run)
    set_lr(optimizer, optimisation.schedule(progress.step))
    progress.writer.hold()  # the weights may still be on the way to a checkpoint
    progress.work.update_weights()
    if optimisation.lookahead is not None and optimisation.lookahead.due(progress.step + 1):
        parallel.agree_on_buffers(run.setup.trained, run.setup.ranks)  # sync point between ranks
        optimisation.lookahead.step(optimizer, progress.step + 1)
    if optimisation.ema is not None:
        optimisation.ema.update(progress.step)
    progress.step += 1
    return request


def average_gradients(run: Run) -> int:
    """Make accumulated gradients the mean over the samples that counted, on all ranks, and agree on a request.

    Returns the strongest request; with several ranks on GPUs, the strongest of a few steps before.

    At the end of an epoch, and with images that could not be read, there are fewer samples than the nominal batch, by
    which the losses of accumulated batches were divided: multiplying by nominal / true gives the mean over those.
    """
    ranks = run.setup.ranks
    counts = run.progress.counts
    beside = run.setup.tasks.parameters  # which DistributedDataParallel does not know
    for parameter in beside:
        if ranks.world_size > 1 and parameter.grad is not None:
            ranks.sum(parameter.grad).div_(ranks.world_size)
    factor = counts.correction()
    if factor is not None:
        parallel.scale_gradients([*run.progress.parameters, *beside], factor)
    return counts.end()


def update_weights(run: Run) -> None:
    """Clip the gradients, let the optimiser take its step at the rates that its groups have, and drop the gradients."""
    config = run.setup.config
    optimizer = run.setup.optimisation.optimizer
    scaler = run.setup.optimisation.scaler
    if config.clip_grad is not None:
        scaler.unscale_(optimizer)  # clipping compares with the true norm
        parallel.clip_gradients(run.progress.parameters, config.clip_grad)
    scaler.step(optimizer)  # with fp16, a sync point unless fused: it skips the step if a gradient overflowed
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


class EagerWork:
    """Runs the two parts of a step as they are; see `StepWork`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    warm: ClassVar[int] = 1  # it compiles kernels, chooses algorithms and allocates memory

    def room(self, batch: Batch) -> torch.Tensor | None:
        """None: augmentation makes memory of its own."""
        return None

    def inputs(self, made: MicroBatch) -> MicroBatch:
        """What was made."""
        return made

    def forward_backward(self, batch: MicroBatch) -> None:
        """See StepWork."""
        forward_backward(self._run, batch, self._run.accounting.backlog.mark)

    def update_weights(self) -> None:
        """See StepWork."""
        update_weights(self._run)

    def forget(self) -> None:
        """There is nothing to forget."""

    def tell(self, say: Callable[[str], None]) -> None:
        """There is nothing to say."""


@contextmanager
def _enough_for_norms(run: Run) -> Iterator[None]:
    """A batch norm that sees one value per channel has no variance: report that as a batch size that is too small."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UsageError(
            f"--batch-size {run.setup.batch_size}: a batch norm of {run.setup.config.arch} sees a single value per "
            "channel, which has no variance; give at least 2, or a larger --img-size"
        ) from error


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed what dropout and Kornia draw from. `torch.manual_seed` would record a stack trace for each unused device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def seed_of(seed: int, step: int, micro: int, rank: int) -> int:
    """The seed of torch's generators for one forward pass, so that resuming needs no saved generator state."""
    return (seed * 1_000_003 + step * 4099 + micro * 67 + rank * 7919) & 0x7FFFFFFFFFFFFFFF
