"""Everything before the first step: data, model, the effective configuration, the run directory, the loaders."""

import math
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.data import augmentation, kornia_pass, provenance
from fastimg.data.datasets import Part, center_crop, display_name, train_crop, worker_count
from fastimg.embeddings import eligibility as caching
from fastimg.embeddings.cache import Keeper
from fastimg.embeddings.encoder import Head, cache_root
from fastimg.errors import UsageError, printable
from fastimg.loaders import DataError, ImageDecoder, ImageError
from fastimg.loaders.containers.arrays import ArrayDecoder
from fastimg.loaders.crop import Crop
from fastimg.loaders.jpeg.decoding.tiled import will_compile
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.blocks import repeated
from fastimg.models.compilation import Compilation, compile_modules
from fastimg.models.ema import DECAY, Ema
from fastimg.models.precision import Precision
from fastimg.models.precision import choose as choose_precision
from fastimg.models.ranks import Ranks, check_strategy, wrap
from fastimg.models.registry import Model, Preprocessing
from fastimg.models.sync_norm import share_statistics
from fastimg.models.text_encoder import short_name
from fastimg.train.checkpoints.format import trained_before
from fastimg.train.checkpoints.saving import restore
from fastimg.train.choices.batch_size import find_batch_size
from fastimg.train.choices.stated_weights import adopted
from fastimg.train.reporting.report import print_effective
from fastimg.wording import plural

from .checkpoints import changed_data
from .checkpoints import run_directory as rundir
from .choices import machine_profile as machine
from .choices import refusals
from .choices import resolution as effective
from .opening import build_model, check_classes, check_content, open_data, open_loader
from .optimisers import build_optimizer
from .parts import Parts, embedded, tokenised
from .run import Run


def prepare(config: Train, ranks: Ranks, console: Console, stack: ExitStack) -> Run | None:
    """A run that is ready to step; None for a dry run. What it opens is closed by `stack`.

    Raises UsageError, UserError and DataError before anything is written.
    """
    console = console if ranks.first else Console(quiet=True)
    config, stated, origin = adopted(config)
    if origin:
        console.print(f"weights     {printable(origin)}", soft_wrap=True, highlight=False, markup=False)
    refusals.check(config)
    refusals.check_device(config, ranks.device.type)
    config, profile = machine.applied(config, ranks)
    if profile:
        console.print(f"profile     {profile}", soft_wrap=True, highlight=False, markup=False)
    precision = choose_precision(ranks.device, config.amp, config.amp_dtype)
    check_strategy(config.strategy, ranks, precision.dtype, config.sync_bn)
    set_backends(config, ranks)
    part, val_part, data = open_data(config, ranks, console, stack)
    check_content(config, data, part)
    base = f"{display_name(data)}-{short_name(intent.architecture(config))}"
    directory, resuming = rundir.choose(config.output, base, config.name, config.resume, rundir.named_by_file(config))
    directory = Path(ranks.broadcast(str(directory)))
    if resuming:
        changed_data.check(directory, data, part.dataset)
    elif config.name is not None and directory != (named := config.output / config.name):
        console.print(
            f"{named}, which {config.config} names, is there already: this run is {directory}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    check_classes(data, part)
    model, preprocessing = build_model(config, ranks, part.dataset.classes, stated)
    trained_on = _provenance(config, data, part, val_part) if ranks.first and not config.dry_run else ()
    root = cache_root(data, config.cache_dir)
    keeper = Keeper(root, ranks, worker_count(config.workers, ranks), console)
    if model.text is not None and not config.dry_run:
        part, val_part = tokenised(model.text, keeper, part, val_part, stack)
    searched = config.batch_size == "auto"
    if resuming:
        config = _batch_of_before(config, directory, ranks, console)

    choice, why = caching.choose(config, model, preprocessing)
    config = replace(config, cache_embeddings=choice)
    words = f"not kept, the encoder runs in every epoch: {why}" if why else None
    parts = Parts(part, val_part, part if config.evaluate_training_set else None, words=words)
    if effective.views(config) and config.dry_run:
        parts = replace(parts, words="made once, by the frozen encoder (not in a dry run)")
    elif effective.views(config):
        parts = embedded(config, model, preprocessing, precision, keeper, parts, stack)

    def resolved(batch_size: int) -> Train:
        chosen = replace(config, batch_size=batch_size)
        return effective.resolve(chosen, data, model, preprocessing, val_part, ranks, searched, len(part))

    def trial(batch_size: int) -> Run:
        alone = replace(resolved(batch_size), strategy="auto", compile=None, val_fraction=0.0)
        only = replace(parts, val=None, evaluated=None)
        return assemble(alone, ranks, directory, model, preprocessing, precision, only, wrapping=False)

    if config.batch_size == "auto":
        tuned = machine.batch_size(config, preprocessing.train_size, len(part), ranks)
        if tuned is not None:
            console.print(tuned[1], soft_wrap=True, highlight=False, markup=False)
        found = find_batch_size(trial, len(part), config.ghost_bn, ranks, console) if tuned is None else tuned[0]
        config = replace(config, batch_size=found)
    assert config.batch_size != "auto"
    final = resolved(config.batch_size)
    run = assemble(final, ranks, directory, model, preprocessing, precision, parts)
    for loader in run.loaders:
        stack.callback(loader.close)
    if parts.embedding is not None and ranks.device.type == "cpu" and _is_small(run):
        torch.set_num_threads(1)  # two would spend their time on waiting for each other
    print_effective(console, run, part, val_part, effective.rate_words(config, model, run.true_batch, searched))
    if note := augmentation.order_note(config):
        console.print(note, style="yellow", soft_wrap=True, highlight=False, markup=False)
    if config.verbose:
        _print_slots(run, console)
    if config.dry_run:
        return None
    _compile_decoder(run, part, console)
    run.trained_on = trained_on
    last = rundir.last_checkpoint(directory, final, run.global_batch) if resuming else None
    if last is not None:
        restore(run, *last)
        console.print(
            f"resuming {directory} after step {run.step} of {run.steps}", soft_wrap=True, highlight=False, markup=False
        )
    elif config.resume is not None:
        console.print(
            f"--resume: nothing to go on from yet in {config.output}; starting",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    ranks.barrier()  # all have read the directory
    if ranks.first:
        if not resuming:
            stack.callback(rundir.withdraw, directory, rundir.begin(directory, final))
        run.log = rundir.Log(directory, run.step)
        if parts.embedding is not None:
            run.log.add("cache", step=run.step, made=parts.made, seconds=round(parts.seconds, 3))
    return run


def _provenance(config: Train, data: Path, part: Part, val_part: Part | None) -> tuple[provenance.TrainedOn, ...]:
    """What the run's checkpoints are trained on: the run's own data, and that of the weights that it starts from."""
    own = provenance.record(data, part, val_part, config.train_split, config.seed)
    return (own, *trained_before(config.weights))


_SMALL = 2**25  # multiplications of a forward pass: about a millisecond of one core


def _is_small(run: Run) -> bool:
    """Whether a step of the classifier is over before threads have met."""
    weights = sum(parameter.numel() for parameter in run.trained.parameters())
    return weights * run.batch_size < _SMALL


def set_backends(config: Train, ranks: Ranks) -> None:
    """Torch's switches for a run."""
    if ranks.device.type == "cuda":
        torch.backends.cudnn.benchmark = not config.deterministic
        torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(config.deterministic)


def assemble(
    config: Train,
    ranks: Ranks,
    directory: Path,
    model: Model,
    preprocessing: Preprocessing,
    precision: Precision,
    parts: Parts,
    wrapping: bool = True,
) -> Run:
    """Put the pieces of a resolved configuration together on the device; without `wrapping`, for this process alone."""
    assert config.lr != "auto" and config.weight_decay is not None
    module = model.module
    if config.sync_bn and wrapping and not share_statistics(module, ranks):
        raise UsageError(f"--sync-bn has no effect: {config.arch} has no batch norm; leave it out")
    kornia = None
    if config.kornia:
        kornia = kornia_pass.build(config.kornia, preprocessing.train_size, ranks.device)
    module = module.to(ranks.device)
    if config.channels_last and model.convolutional:
        module = module.to(memory_format=torch.channels_last)
    model = replace(model, module=module)
    trained = module if parts.embedding is None else Head(module, model.classifier[0])
    part, dtype = parts.train, np.dtype({"fp16": "f2", "fp32": "f4"}[config.cache_dtype or "fp16"])
    arrays = None if parts.embedding is None else ArrayDecoder(parts.embedding, dtype)
    if config.no_aug:
        crop: Crop = center_crop(preprocessing)
    else:
        crop = train_crop(preprocessing, config.scale, config.ratio)
    loader = open_loader(config, ranks, part, crop, config.order, "samples", model, arrays, effective.scales(config))
    val_loader, train_eval_loader = (
        None
        if each is None
        else open_loader(config, ranks, each, center_crop(preprocessing), "sequential", "zeros", model, arrays)
        for each in (parts.val, parts.evaluated)
    )
    parallel = wrapped(trained, config, ranks, precision) if wrapping else trained
    optimizer = build_optimizer(
        trained,
        config.opt,
        config.lr,
        config.weight_decay,
        config.momentum,
        impl=config.opt_impl,
        norm_weight_decay=config.norm_weight_decay or 0.0,
        layer_decay=config.layer_decay,
        frozen_too=config.freeze_epochs is not None,
    )
    steps_per_epoch = math.ceil(len(loader) / config.grad_accum_steps)
    schedule = effective.schedule(config, steps_per_epoch, ranks, len(part))
    run = Run(
        config=config,
        ranks=ranks,
        directory=directory,
        model=model,
        trained=trained,
        parallel=parallel,
        classes=part.dataset.classes,
        class_counts=changed_data.class_counts(part.dataset),
        preprocessing=preprocessing,
        policy=augmentation.policy_of(config, preprocessing.mean, preprocessing.std),
        kornia=kornia,
        precision=precision,
        optimizer=optimizer,
        scaler=precision.scaler(),
        schedule=schedule,
        loader=loader,
        val_loader=val_loader,
        train_eval_loader=train_eval_loader,
        steps_per_epoch=steps_per_epoch,
        steps=schedule.steps,
        embedding=parts.embedding,
        cached=parts.words,
        ema=Ema(trained, config.model_ema_decay or DECAY) if config.model_ema else None,
        compilation=compiled(parallel, config),
    )
    if config.progressive is not None:
        run.progressive = intent.progressive(config, run.epochs)
    return run


def wrapped(module: nn.Module, config: Train, ranks: Ranks, precision: Precision) -> nn.Module:
    """The model as several ranks call it."""
    blocks = repeated(module) if config.strategy == "fsdp" else []
    return wrap(module, ranks, config.strategy, blocks=blocks, dtype=precision.dtype)


def compiled(parallel: nn.Module, config: Train) -> Compilation | None:
    """Let calls of the model be compiled; where it is sharded, of each block."""
    if config.compile is None:
        return None
    return compile_modules(repeated(parallel) if config.strategy == "fsdp" else [parallel], config.compile)


def _batch_of_before(config: Train, directory: Path, ranks: Ranks, console: Console) -> Train:
    """The batch that a run had which goes on, over the ranks that there are now."""
    batch = rundir.batch_of_before(directory, config, ranks.world_size)
    if batch != (config.batch_size, config.grad_accum_steps):
        console.print(
            f"--resume: {plural(batch[0], 'image')} x {batch[1]} accumulated on each of "
            f"{plural(ranks.world_size, 'rank')}, as many in a "
            "step as before",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    return replace(config, batch_size=batch[0], grad_accum_steps=batch[1])


def _compile_decoder(run: Run, part: Part, console: Console) -> None:
    """Where nobody has used the decoder of tiled JPEGs on this machine, compile it now, and say how long that took."""
    if run.config.loader != "native" or run.embedding is not None or run.model.text is not None:
        return
    first = 0 if part.indices is None else int(part.indices[0])
    decoder, scratch = ImageDecoder(center_crop(run.preprocessing)), Scratch()
    with run.ranks.first_goes_first(), suppress(DataError, ImageError):  # the loader tells of it in its turn
        data = part.dataset.read(first, scratch)
        if will_compile(data):
            console.print("compiling the decoder of tiled JPEGs, for the first time on this machine")
            began = time.perf_counter()
            row = {field.name: np.empty(field.shape, field.dtype) for field in decoder.fields}
            decoder.fill(data, (), row, scratch)
            console.print(
                f"compiled    the decoder of tiled JPEGs in {time.perf_counter() - began:.1f} s", highlight=False
            )


def _print_slots(run: Run, console: Console) -> None:
    each, loaders = run.loader.slot_bytes, 1 if run.val_loader is None else 2
    words = f"loader: {run.loader.describe()}; a batch is {plural(each, 'byte')} on the host"
    if run.config.loader == "native":
        slots = run.loader.config.prefetch
        pinned = " pinned" if run.ranks.device.type == "cuda" else ""
        words = (
            f"loader: {plural(run.loader.workers, 'thread')}, {plural(slots, 'slot')} of {plural(each, 'byte')}, "
            f"{slots * each / 2**20:.1f} MiB{pinned}; scratch per thread follows the largest image"
        )
    console.print(f"{words}; {plural(loaders, 'such loader')}", soft_wrap=True, highlight=False)
