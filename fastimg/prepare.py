"""Everything before the first step: data, model, the effective configuration, the run directory, the loaders."""

import math
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from torch import nn

from . import augmentation, effective, kornia_pass, rundir
from .autobatch import find_batch_size
from .blocks import repeated
from .compilation import Compilation, compile_modules
from .config import Train
from .data import (
    Part,
    build_loader,
    center_crop,
    check_readable,
    chosen_backend,
    display_name,
    find_dataset,
    is_plain_folder,
    open_parts,
    train_crop,
    worker_count,
)
from .ema import DECAY, Ema
from .errors import UsageError, printable
from .ghost import ghost_norms
from .loaders import BatchSource, DataError, LoaderConfig
from .loaders.crop import Crop
from .loaders.epochs import Padding
from .loaders.order import WINDOW, Order
from .loaders.scratch import Scratch
from .loaders.tiled import will_compile
from .models import Model, Preprocessing, build, check_input, freeze, parse_kwargs
from .optim import build_optimizer
from .parallel import Ranks, check_strategy, wrap
from .precision import Precision
from .precision import choose as choose_precision
from .remat import checkpoint_blocks
from .report import print_effective
from .run import Run
from .saving import restore


def prepare(config: Train, ranks: Ranks, console: Console, stack: ExitStack) -> Run | None:
    """A run that is ready to step; None for a dry run. What it opens is closed by `stack`.

    Raises UsageError, UserError and DataError before anything is written.
    """
    console = console if ranks.first else Console(quiet=True)
    effective.check(config)
    effective.check_device(config, ranks.device.type)
    precision = choose_precision(ranks.device, config.amp, config.amp_dtype)
    check_strategy(config.strategy, ranks, precision.dtype, config.sync_bn)
    _set_backends(config, ranks)
    part, val_part, data = _open_data(config, ranks, console, stack)
    model, preprocessing = _build_model(config, ranks, part.dataset.classes)
    base = f"{display_name(data)}-{config.arch.replace('/', '-')}"
    directory, resuming = rundir.choose(config.output, base, config.name, config.resume)
    directory = Path(ranks.broadcast(str(directory)))
    searched = config.batch_size == "auto"
    if resuming:
        config = _batch_of_before(config, directory, ranks, console)

    def resolved(batch_size: int) -> Train:
        chosen = replace(config, batch_size=batch_size)
        return effective.resolve(chosen, data, model, preprocessing, val_part, ranks, searched)

    def trial(batch_size: int) -> Run:
        alone = replace(resolved(batch_size), strategy="auto", compile=None, val_fraction=0.0)
        return _assemble(alone, ranks, directory, model, preprocessing, precision, part, None, wrapping=False)

    if config.batch_size == "auto":
        config = replace(config, batch_size=find_batch_size(trial, len(part), config.ghost_bn, ranks, console))
    assert config.batch_size != "auto"
    final = resolved(config.batch_size)
    run = _assemble(final, ranks, directory, model, preprocessing, precision, part, val_part)
    for loader in run.loaders:
        stack.callback(loader.close)
    print_effective(console, run, part, val_part, effective.rate_words(config, model, run.global_batch, searched))
    if note := augmentation.order_note(config):
        console.print(note, style="yellow", soft_wrap=True, highlight=False, markup=False)
    if config.verbose:
        _print_slots(run, console)
    if config.dry_run:
        return None
    _tell_of_compilation(run, part, console)
    found = rundir.last_checkpoint(directory, final, run.global_batch) if resuming else None
    if found is not None:
        restore(run, *found)
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
    return run


def _set_backends(config: Train, ranks: Ranks) -> None:
    if ranks.device.type == "cuda":
        torch.backends.cudnn.benchmark = not config.deterministic
        torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(config.deterministic)


def _open_data(config: Train, ranks: Ranks, console: Console, stack: ExitStack) -> tuple[Part, Part | None, Path]:
    with ranks.first_goes_first():  # it may write the digits, or an index, for all
        data, note = (config.data, "") if config.data else find_dataset()
        part, val_part = open_parts(data, config.train_split, config.val_split, config.val_fraction, config.seed)
    for opened in (part, val_part):
        if opened is not None:
            stack.callback(opened.dataset.close)
            for remark in opened.dataset.notes:
                console.print(printable(remark), style="yellow", soft_wrap=True, highlight=False, markup=False)
    if config.order == "quasi-random" and is_plain_folder(data):
        raise UsageError(
            f"--order quasi-random: {data} is a plain folder, whose files do not lie together; leave it out, or train "
            f"on the shards that `fastimg convert {data} DST` makes"
        )
    check_readable(chosen_backend(config.loader), data, part.dataset)
    if note:
        console.print(note, style="bold yellow", soft_wrap=True, highlight=False, markup=False)
    elif is_plain_folder(data):
        console.print(
            f"{data} is a plain folder: {len(part.dataset)} files are opened one by one; `fastimg convert {data} DST` "
            "checks every image once and stores them in a few large files that disks read fast",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    return part, val_part, data.resolve()


def _build_model(config: Train, ranks: Ranks, classes: tuple[str, ...]) -> tuple[Model, Preprocessing]:
    num_classes = config.num_classes or len(classes)
    if num_classes < len(classes):
        raise UsageError(f"--num-classes {num_classes}: the dataset has {len(classes)} classes; give that many or more")
    kwargs = parse_kwargs(config.model_kwargs)
    if config.drop_path is not None:
        kwargs["drop_path_rate"] = config.drop_path
    torch.manual_seed(config.seed)
    with ranks.first_goes_first():  # it may download weights for all
        model = build(
            config.arch,
            num_classes,
            pretrained=config.pretrained,
            weights=config.weights,
            kwargs=kwargs,
            img_size=config.train_crop_size or config.img_size,
            classes=classes,
            blurpool=config.blurpool,
            head_init=config.head_init or "zeros",
        )
    preprocessing = effective.preprocessing(config, model.preprocessing)
    check_input(model, preprocessing.train_size, num_classes, "--progressive" if config.progressive else "--img-size")
    if preprocessing.val_size != preprocessing.train_size:
        check_input(model, preprocessing.val_size, num_classes, "--val-crop-size")
    if config.progressive is not None:
        for size in effective.progressive(config).possible:
            check_input(model, size, num_classes, "--progressive")
    if config.freeze is not None:
        freeze(model, config.freeze)
    if config.ghost_bn is not None and not ghost_norms(model.module, config.ghost_bn):
        raise UsageError(f"--ghost-bn has no effect: {config.arch} has no batch norm; leave it out")
    if config.grad_checkpointing and not checkpoint_blocks(model.module):
        raise UsageError(f"--grad-checkpointing has no effect: {config.arch} has no repeated blocks; leave it out")
    return model, preprocessing


def _assemble(
    config: Train,
    ranks: Ranks,
    directory: Path,
    model: Model,
    preprocessing: Preprocessing,
    precision: Precision,
    part: Part,
    val_part: Part | None,
    wrapping: bool = True,
) -> Run:
    """Put the pieces of a resolved configuration together on the device; without `wrapping`, for this process alone."""
    assert config.lr != "auto" and config.weight_decay is not None
    module = model.module
    if config.sync_bn:
        if ranks.world_size == 1 or ranks.device.type != "cuda":
            raise UsageError("--sync-bn has no effect on one process, and needs GPUs on several; leave it out")
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    kornia = None
    if config.kornia:
        kornia = kornia_pass.build(config.kornia, preprocessing.train_size, ranks.device)
    module = module.to(ranks.device)
    if config.channels_last and model.convolutional:
        module = module.to(memory_format=torch.channels_last)
    model = replace(model, module=module)
    if config.no_aug:
        crop: Crop = center_crop(preprocessing)
    else:
        crop = train_crop(preprocessing, config.scale, config.ratio)
    loader = _loader(config, ranks, part, crop, config.order, "samples", effective.scales(config))
    evaluated = [val_part, part if config.evaluate_training_set else None]
    val_loader, train_eval_loader = (
        None if each is None else _loader(config, ranks, each, center_crop(preprocessing), "sequential", "zeros")
        for each in evaluated
    )
    parallel = wrapped(module, config, ranks, precision) if wrapping else module
    optimizer = build_optimizer(
        module,
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
    schedule = effective.schedule(config, steps_per_epoch, ranks)
    run = Run(
        config=config,
        ranks=ranks,
        directory=directory,
        model=model,
        parallel=parallel,
        classes=part.dataset.classes,
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
        ema=Ema(module, config.model_ema_decay or DECAY) if config.model_ema else None,
        compilation=compiled(parallel, config),
    )
    if config.progressive is not None:
        run.progressive = effective.progressive(config, run.epochs)
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
            f"--resume: {batch[0]} images x {batch[1]} accumulated on each of {ranks.world_size} ranks, as many in a "
            "step as before",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    return replace(config, batch_size=batch[0], grad_accum_steps=batch[1])


def _loader(
    config: Train, ranks: Ranks, part: Part, crop: Crop, order: Order, padding: Padding, scaling: bool = False
) -> BatchSource:
    assert config.batch_size != "auto"
    settings = LoaderConfig(
        batch_size=config.batch_size,
        order=order,
        window=config.order_window or WINDOW,
        padding=padding,
        seed=config.seed,
        workers=worker_count(config.workers, ranks),
        prefetch=config.prefetch or LoaderConfig.prefetch,
        on_error=config.on_error or "skip",
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    backend = chosen_backend(config.loader)
    decode: Literal["cpu", "gpu"] = "gpu" if config.decode == "gpu" else "cpu"
    return build_loader(part, crop, settings, config.max_pixels, ranks.device, backend, decode, scaling)


def _tell_of_compilation(run: Run, part: Part, console: Console) -> None:
    if run.config.loader != "native":
        return
    first = 0 if part.indices is None else int(part.indices[0])
    with suppress(DataError):  # the loader tells of it in its turn
        if will_compile(part.dataset.read(first, Scratch())):
            console.print("the decoder of tiled JPEGs is compiled, once on this machine: about 10 seconds")


def _print_slots(run: Run, console: Console) -> None:
    each, loaders = run.loader.slot_bytes, 1 if run.val_loader is None else 2
    words = f"loader: {run.loader.describe()}; a batch is {each:,} bytes on the host"
    if run.config.loader == "native":
        slots = run.loader.config.prefetch
        pinned = " pinned" if run.ranks.device.type == "cuda" else ""
        words = (
            f"loader: {run.loader.workers} threads, {slots} slots of {each:,} bytes, "
            f"{slots * each / 2**20:.1f} MiB{pinned}; scratch per thread follows the largest image"
        )
    console.print(f"{words}; {loaders} such loaders", soft_wrap=True, highlight=False)
