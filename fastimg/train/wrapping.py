"""The model as it is called: wrapped for several ranks, compiled, and both again when --freeze ends; and what is
compiled for its input before the first step."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from fastimg.augment import backends
from fastimg.config.commands import Train
from fastimg.config.intent import reads_text
from fastimg.data.model_input import model_input
from fastimg.loaders import Batch
from fastimg.loaders.decoders.arrays import MULTIPLE
from fastimg.models.blocks import repeated
from fastimg.models.compilation import Compilation, ahead, compile_modules
from fastimg.models.freezing import fixed, train_mode
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks, wrap
from fastimg.models.registry import Preprocessing

from .run import Run, learning
from .step import augment


def wrapped(module: nn.Module, config: Train, ranks: Ranks, precision: Precision, *, agreed: bool = False) -> nn.Module:
    """The model as several ranks call it; `agreed` if they have the same weights already."""
    blocks = repeated(module) if config.strategy == "fsdp" else []
    return wrap(
        module,
        ranks,
        config.strategy,
        blocks=blocks,
        dtype=precision.dtype,
        static_graph=not changing_graph(config),
        compression=config.grad_compression,
        agreed=agreed,
    )


def changing_graph(config: Train) -> str:
    """Why DistributedDataParallel must not take the graph to be the same in every step; empty where it may.

    With `no_sync`, which accumulation needs, torch's static graph fails an assertion (pytorch issue 143580); compiling
    cuts the graph at DistributedDataParallel's buckets, which does not go with it (issue 109261).
    """
    if config.freeze is not None:
        return f"--freeze {config.freeze}"
    if config.grad_accum_steps > 1:
        return f"--grad-accum-steps {config.grad_accum_steps}"
    return f"--compile {config.compile}" if config.compile is not None else ""


def compiled(parallel: nn.Module, config: Train) -> Compilation | None:
    """Let calls of the model be compiled, or of each of its blocks if it is sharded."""
    if config.compile is None:
        return None
    modules = repeated(parallel) if config.strategy == "fsdp" else [parallel]
    return compile_modules(modules, config.compile, any_length=reads_text(config))


def compile_ahead(run: Run, say: Callable[[str], None]) -> None:
    """Compile for every input shape of the run, before the first step."""
    compilation = run.progress.compilation
    if compilation is not None:
        say("compiling the model for every input size of the run")
        train_mode(run.setup.trained)
        ahead(compilation, run.setup.trained, passes(run))
        say(f"compiled    {compilation.describe()}")


_WARM = 64  # images: among so many, a policy draws whatever it has kernels for
_LONG = 1.0  # seconds; what takes less is not worth a line


def warm_augmentation(run: Run, say: Callable[[str], None]) -> None:
    """Augment a blank batch of every size of the run, by a drawn plan, so that no step waits for a compiler.

    Triton compiles its kernels for each size and type. On a CPU code is compiled for each type alone.
    """
    setup = run.setup
    if setup.data.embedding is not None or setup.model.text is not None:
        return
    device = setup.ranks.device
    preprocessing = setup.input.preprocessing
    sizes = [preprocessing.train_size]
    if setup.input.progressive is not None:
        sizes = setup.input.progressive.sizes(setup.epochs)
    if backends.backend_of(device) == "cpu":
        sizes = sizes[:1]
    began = time.perf_counter()
    for size in sizes:
        augment(run, _blank(size, preprocessing, device, len(setup.data.loader.dataset)), seed=0)
    if setup.data.val_loader is not None:
        levels = _blank(preprocessing.val_size, preprocessing, device, 1).inputs
        model_input(None, levels, setup.input.policy, setup.precision.input_dtype)
    seconds = time.perf_counter() - began
    if seconds >= _LONG:
        *others, last = map(str, sizes)
        words = f"{', '.join(others)} and {last}" if others else last
        say(f"compiled    augmentation for images of {words} pixels in {seconds:.1f} s: {backends.named(device)}")


def _blank(size: int, preprocessing: Preprocessing, device: torch.device, samples: int) -> Batch:
    """A blank batch, with ids of a dataset that has so many samples."""
    return Batch(
        inputs=preprocessing.blank(_WARM, size, device),
        targets=torch.zeros(_WARM, dtype=torch.int64, device=device),
        ids=torch.arange(_WARM) % samples,
        weight=torch.ones(_WARM, device=device),
        samples=_WARM,
    )


def unfreeze(run: Run, say: Callable[[str], None]) -> None:
    """Make all parameters trainable in the first epoch after --freeze-epochs."""
    setup = run.setup
    progress = run.progress
    config = setup.config
    module = setup.model.module
    never = fixed(module)
    parameters = [parameter for name, parameter in module.named_parameters() if name not in never]
    if config.freeze_epochs is None or setup.frozen(progress.epoch) or all(p.requires_grad for p in parameters):
        return
    for parameter in parameters:
        parameter.requires_grad_(True)
    progress.parameters = learning(setup.trained)
    progress.work.forget()
    say(f"epoch {progress.epoch + 1}/{setup.epochs}  --freeze {config.freeze} ends: all parameters train from here on")
    if config.strategy == "ddp":  # it has to know which parameters have gradients
        progress.parallel = wrapped(module, config, setup.ranks, setup.precision, agreed=True)
    if progress.compilation is not None:
        progress.compilation = compiled(progress.parallel, config)
        compile_ahead(run, say)


def passes(run: Run) -> list[Callable[[], None]]:
    """A pass on blank inputs for every shape that the run will see: training's sizes, then validation's.

    Texts come in many lengths: after one long and one short batch, the compiled model takes any length.
    """
    setup = run.setup
    preprocessing = setup.input.preprocessing
    text = setup.model.text
    embedding = setup.data.embedding
    device = setup.ranks.device
    dtype = setup.precision.input_dtype

    def given(size: int) -> torch.Tensor:
        """A batch as a loader gives it: an ordinary tensor, in validation too."""
        if embedding is not None:
            return torch.zeros((setup.batch_size, *embedding), dtype=dtype, device=device)
        if text is not None:  # the first columns of a slot, as batches are: a graph is for strides, too
            rows = torch.zeros((setup.batch_size, text.tokenizer.length), dtype=torch.int32, device=device)
            return rows[:, :size]
        return preprocessing.blank(setup.batch_size, size, device)

    def prepared(batch: torch.Tensor) -> torch.Tensor:
        return batch if embedding or text else model_input(None, batch, setup.input.policy, dtype)

    def training(size: int) -> None:
        with setup.precision.autocast():
            logits = run.progress.parallel(prepared(given(size)))
        logits.float().sum().backward()

    def evaluation(size: int) -> None:
        setup.trained.eval()
        batch = given(size)
        with torch.inference_mode(), setup.precision.autocast():
            setup.trained(prepared(batch))

    sizes, val_sizes = [preprocessing.train_size], [preprocessing.val_size]
    if text is not None and embedding is None:  # of the full length, a batch is contiguous
        sizes = val_sizes = [text.tokenizer.length, MULTIPLE]
    if setup.input.progressive is not None:
        sizes = setup.input.progressive.sizes(setup.epochs)
    calls: list[Callable[[], None]] = [partial(training, size) for size in sizes]
    # A wrapper is compiled, not the model inside it, which is what validation calls.
    if setup.data.val_loader is not None and run.progress.parallel is setup.trained:
        calls += [partial(evaluation, size) for size in val_sizes]
    return calls
