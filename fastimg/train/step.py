"""One optimiser step, in one place: training, the search for a batch size and `fastimg bench` all call it.

optimiser_step: for each micro-batch  augment -> forward_backward,  then  update
update:         true batch size over ranks -> unscale -> clip -> optimiser -> scaler -> zero_grad -> moving average
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice

import torch

from fastimg.augment.mixing import mix_images
from fastimg.data.model_input import model_input
from fastimg.data.planning import plan_of
from fastimg.embeddings.text_rows import inputs_beside
from fastimg.errors import UsageError
from fastimg.loaders import Batch
from fastimg.loaders.runtime.times import named
from fastimg.models import ranks as parallel
from fastimg.system.signals import votes

from .augment_stream import AugmentStream
from .optimisers.groups import set_lr
from .run import Run
from .tasks.task import Truth

_KORNIA = 0x6B6F726E  # keeps Kornia's random numbers apart from dropout's


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass takes: images [B, ...], the targets of each task, weight [B].

    taught: the teacher's logits [B, C], where they are kept.
    """

    images: torch.Tensor
    targets: tuple[Truth, ...]
    weight: torch.Tensor
    beside: tuple[torch.Tensor, ...] = ()  # what the model takes after the images: texts, and which inputs are there
    taught: torch.Tensor | None = None


def optimiser_step(
    run: Run, batches: Iterator[Batch], count: int, stream: AugmentStream, asked: Callable[[], int] | None = None
) -> int:
    """Train on the next `count` batches and update the weights once. Returns the strongest request of any rank, else 0.

    `count` is --grad-accum-steps, or fewer at the end of an epoch. `asked` gives this rank's request, if it has one:
    to save, or a signal (see `signals.votes`).
    """
    config = run.setup.config
    ranks = run.setup.ranks
    rows = 0
    for number, batch in enumerate(islice(batches, count), start=1):
        micro = number % config.grad_accum_steps
        seed = seed_of(config.seed, run.progress.step, micro, ranks.rank)
        with named("augment"):
            micro_batch = taught(run, batch, augment(run, batch, stream, seed))
        seed_generators(seed, ranks.device)
        # Sync point between ranks, inside the last backward pass: gradients are averaged.
        with named("forward and backward"):
            forward_backward(run, micro_batch, parallel.accumulate(run.progress.parallel, last=number == count))
        rows += batch.samples
        run.accounting.account.add(batch.samples, run.accounting.backlog.drained())
    with named("update"):
        return update(run, rows, asked() if asked is not None else 0)


def augment(run: Run, batch: Batch, stream: AugmentStream, seed: int) -> MicroBatch:
    """Augment and normalise a batch, beside the step before it. `seed` is Kornia's; all else depends on sample ids."""
    setup = run.setup
    weight = batch.weight
    config = setup.config
    policy = setup.input.policy
    plan = None if config.no_aug else plan_of(policy, batch, config.seed, setup.view(run.progress.epoch))
    with stream.step(batch):
        targets = setup.data.targets.truths(batch)
        dtype = setup.precision.input_dtype
        kornia = setup.input.kornia
        images = model_input(plan, batch.inputs, policy, dtype, kornia, seed ^ _KORNIA)
        if policy.mixes:
            images, mixture = mix_images(plan, images, weight)
            targets = setup.tasks.mixed(targets, mixture)
    stream.keep(batch, images, *(tensor for truth in targets for tensor in truth.tensors))
    return MicroBatch(images, targets, weight, beside=inputs_beside(batch, dtype))


def taught(run: Run, batch: Batch, prepared: MicroBatch) -> MicroBatch:
    """With the logits that the teacher gave once, if they are kept."""
    setup = run.setup
    if setup.distillation is None:
        return prepared
    logits = setup.distillation.looked_up(batch, run.progress.epoch, setup.data.loader.unreadable)
    return replace(prepared, taught=logits)


def forward_backward(run: Run, batch: MicroBatch, sync: AbstractContextManager[object] | None = None) -> None:
    """Add the gradients of the mean loss over the nominal batch, and count the batch in the run's meter.

    Gradients are divided by batch size x accumulation, whatever `batch.weight` says: `update` corrects that. `sync` is
    a context for the passes.
    """
    setup = run.setup
    progress = run.progress
    with sync or nullcontext():
        with setup.precision.autocast(), _enough_for_norms(run):
            logits = progress.parallel(batch.images, *batch.beside)
        losses = setup.tasks.losses(logits, batch.targets)
        if setup.distillation is not None:
            theirs = setup.distillation.logits(batch.images) if batch.taught is None else batch.taught
            losses = setup.distillation.blended(losses, logits, theirs)
        total = (losses.total * batch.weight).sum() / setup.nominal_batch
        run.accounting.backlog.mark()
        setup.optimisation.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
    progress.first_bad.note(total.detach(), progress.step + 1)
    progress.meter.add(logits.detach(), losses.detach(), batch.targets, batch.weight)


def update(run: Run, rows: int, request: int = 0) -> int:
    """The optimiser's step on the gradients of `rows` samples. Returns the strongest request of any rank, else 0."""
    config = run.setup.config
    optimisation = run.setup.optimisation
    progress = run.progress
    optimizer = optimisation.optimizer
    scaler = optimisation.scaler
    request = average_gradients(run, rows, request)
    if config.clip_grad is not None:
        scaler.unscale_(optimizer)  # clipping compares with the true norm
        parallel.clip_gradients(progress.parameters, config.clip_grad)
    set_lr(optimizer, optimisation.schedule(progress.step))
    progress.writer.hold()  # the weights may still be on the way to a checkpoint
    scaler.step(optimizer)  # with fp16, a sync point unless fused: it skips the step if a gradient overflowed
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if optimisation.lookahead is not None and optimisation.lookahead.due(progress.step + 1):
        parallel.agree_on_buffers(run.setup.trained, run.setup.ranks)  # sync point between ranks
        optimisation.lookahead.step(optimizer, progress.step + 1)
    if optimisation.ema is not None:
        optimisation.ema.update(progress.step)
    progress.step += 1
    return request


def average_gradients(run: Run, rows: int, request: int) -> int:
    """Make the gradients the mean over the samples that counted, on all ranks, and agree on a request.

    Returns the strongest request; with several ranks on GPUs, the strongest of a few steps before.

    Gradients were divided by the nominal batch. At the end of an epoch, and with images that could not be read, there
    are fewer samples: multiplying by nominal / true gives the mean over those. Sync point between ranks: the number of
    samples and the ranks' votes for a request are one vector and one sum.
    """
    ranks = run.setup.ranks
    nominal = run.setup.nominal_batch
    beside = run.setup.tasks.parameters  # which DistributedDataParallel does not know
    parameters = [*run.progress.parameters, *beside]
    if ranks.world_size == 1:
        if rows != nominal:
            parallel.scale_gradients(parameters, nominal / max(rows, 1))
        return request
    # Filled on the device: copying a list there would wait for all the work that is enqueued.
    own = [torch.full((), float(value), device=ranks.device) for value in (rows, *votes(request))]
    total = ranks.sum(torch.stack(own))
    for parameter in beside:
        if parameter.grad is not None:
            ranks.sum(parameter.grad).div_(ranks.world_size)
    parallel.scale_gradients(parameters, nominal * ranks.world_size / total[0].clamp(min=1.0))
    return run.progress.requests.add(total[1:])  # a sync point on a CPU; on a GPU only with steps long past


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
