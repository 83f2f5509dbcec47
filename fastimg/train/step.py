"""One micro-batch: augmentation, forward pass, loss, backward pass. The training loop and the search for a batch size
take the same step."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from fastimg.augment import draw, mix
from fastimg.data.model_input import model_input
from fastimg.errors import UsageError
from fastimg.loaders import Batch
from fastimg.loaders.containers.arrays import MULTIPLE

from .augment_stream import Beside
from .losses import losses
from .run import Run

_KORNIA = 0x6B6F726E  # keeps what Kornia draws apart from dropout


def forward_backward(
    run: Run, batch: Batch, beside: Beside, seed: int, sync: AbstractContextManager[object] | None = None
) -> None:
    """Add the gradients of the mean loss over the nominal batch, and count the batch in `run.meter`.

    Gradients are divided by batch x accumulation, whatever `batch.weight` says; `seed` is that of dropout and Kornia,
    `sync` the context of the passes.
    """
    config, precision = run.config, run.precision
    nominal = run.batch_size * config.grad_accum_steps
    plan = None if config.no_aug else draw(run.policy, batch.ids, config.seed, run.epoch)
    targets, smoothing = batch.targets, config.smoothing
    with beside.step(batch):
        images = model_input(plan, batch.inputs, run.policy, precision.input_dtype, run.kornia, seed ^ _KORNIA)
        if run.policy.mixes:  # soft targets, smoothed already
            images, targets = mix(plan, images, targets, run.outputs, smoothing, batch.weight)
            smoothing = 0.0
    beside.keep(batch, images, targets)
    seed_generators(seed, run.ranks.device)
    with sync or nullcontext():
        with precision.autocast(), _enough_for_norms(run):
            logits = run.parallel(images)
        loss = losses(logits, targets, smoothing, config.bce_loss)  # [B]
        total = (loss * batch.weight).sum() / nominal
        run.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
    run.note_loss(total.detach())
    run.meter.add(logits.detach(), loss.detach(), targets, batch.weight)


@contextmanager
def _enough_for_norms(run: Run) -> Iterator[None]:
    """A batch norm that sees one value per channel, which has no variance, is an error of the batch's size."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UsageError(
            f"--batch-size {run.batch_size}: a batch norm of {run.config.arch} sees a single value per channel, which "
            "has no variance; give at least 2, or a larger --img-size"
        ) from error


def whole_step(run: Run, batch: Batch, beside: Beside, step: int) -> None:
    """Gradients of one batch, and the optimiser's step: a step of training without its bookkeeping, on one process."""
    forward_backward(run, batch, beside, seed_of(run.config.seed, step, 0, run.ranks.rank))
    if run.config.clip_grad is not None:
        parameters = [p for p in run.trained.parameters() if p.requires_grad]
        torch.nn.utils.clip_grad_norm_(parameters, run.config.clip_grad)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad(set_to_none=True)


def seed_generators(seed: int, device: torch.device) -> None:
    """What dropout draws from. `torch.manual_seed` notes a stack for every device that was never used, at each call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def seed_of(seed: int, step: int, micro: int, rank: int) -> int:
    """Seeds torch's generators for one forward pass, so that resuming needs no generator's state."""
    return (seed * 1_000_003 + step * 4099 + micro * 67 + rank * 7919) & 0x7FFFFFFFFFFFFFFF


def passes(run: Run) -> list[Callable[[], None]]:
    """A pass on blank inputs for every shape that a run will see: training's sizes, then validation's.

    Texts come in many lengths: after a long and a short batch the compiled model takes any.
    """

    def blank(size: int) -> torch.Tensor:
        device = run.ranks.device
        if run.embedding is not None:
            return torch.zeros((run.batch_size, *run.embedding), dtype=run.precision.input_dtype, device=device)
        if run.model.text is not None:
            return torch.zeros((run.batch_size, size), dtype=torch.int32, device=device)
        shape = (run.batch_size, size, size, 3)
        levels = torch.zeros(shape, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        return model_input(None, levels, run.policy, run.precision.input_dtype)

    def training(size: int) -> None:
        with run.precision.autocast():
            logits = run.parallel(blank(size))
        logits.float().sum().backward()

    def evaluation(size: int) -> None:
        run.trained.eval()
        with torch.inference_mode(), run.precision.autocast():
            run.trained(blank(size))

    sizes, validated = [run.preprocessing.train_size], run.preprocessing.val_size
    if run.model.text is not None and run.embedding is None:
        validated = run.model.text.tokenizer.length
        sizes = [validated, MULTIPLE]
    if run.progressive is not None:
        sizes = run.progressive.sizes(run.epochs)
    found = [partial(training, size) for size in sizes]
    if run.val_loader is not None and run.parallel is run.trained:  # a wrapper is compiled, not what is in it
        found.append(partial(evaluation, validated))
    return found  # type: ignore[return-value]
