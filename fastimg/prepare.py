"""Everything before the first step: data, model, the effective configuration, the run directory, the loaders."""

import math
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from torch import nn

from . import augmentation, caching, effective, kornia_pass, rundir
from .autobatch import find_batch_size
from .blocks import repeated
from .cached import BATCH, Encoding, Keeper, array_loader, pixels_of, views
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
from .embedding import Head, cache_root
from .errors import UsageError, printable
from .ghost import ghost_norms
from .loaders import BatchSource, DataError, LoaderConfig
from .loaders.arrays import ArrayDataset, ArrayDecoder, TokenDecoder
from .loaders.crop import Crop
from .loaders.epochs import Padding
from .loaders.order import WINDOW, Order
from .loaders.scratch import Scratch
from .loaders.tiled import will_compile
from .models import Model, Preprocessing, TextSide, build, check_input, freeze, parse_kwargs
from .optim import build_optimizer
from .parallel import Ranks, check_strategy, wrap
from .precision import Precision
from .precision import choose as choose_precision
from .remat import checkpoint_blocks
from .report import print_effective, shown
from .run import Run
from .saving import restore
from .textmodel import PREFIX, short_name
from .tokenizer import TextDecoder


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
    _check_content(config, data, part)
    model, preprocessing = _build_model(config, ranks, part.dataset.classes)
    root = cache_root(data, config.cache_dir)
    keeper = Keeper(root, ranks, worker_count(config.workers, ranks), console)
    if model.text is not None and not config.dry_run:
        part, val_part = _tokenised(model.text, keeper, part, val_part, stack)
    base = f"{display_name(data)}-{short_name(config.arch)}"
    directory, resuming = rundir.choose(config.output, base, config.name, config.resume)
    directory = Path(ranks.broadcast(str(directory)))
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
        parts = _embedded(config, model, preprocessing, precision, keeper, parts, stack)

    def resolved(batch_size: int) -> Train:
        chosen = replace(config, batch_size=batch_size)
        return effective.resolve(chosen, data, model, preprocessing, val_part, ranks, searched)

    def trial(batch_size: int) -> Run:
        alone = replace(resolved(batch_size), strategy="auto", compile=None, val_fraction=0.0)
        only = replace(parts, val=None, evaluated=None)
        return _assemble(alone, ranks, directory, model, preprocessing, precision, only, wrapping=False)

    if config.batch_size == "auto":
        config = replace(config, batch_size=find_batch_size(trial, len(part), config.ghost_bn, ranks, console))
    assert config.batch_size != "auto"
    final = resolved(config.batch_size)
    run = _assemble(final, ranks, directory, model, preprocessing, precision, parts)
    for loader in run.loaders:
        stack.callback(loader.close)
    if parts.embedding is not None and ranks.device.type == "cpu" and _is_small(run):
        torch.set_num_threads(1)  # two would spend their time on waiting for each other
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
        if parts.embedding is not None:
            run.log.add("cache", step=run.step, made=parts.made, seconds=round(parts.seconds, 3))
    return run


_SMALL = 2**25  # multiplications of a forward pass: about a millisecond of one core


@dataclass(frozen=True)
class Parts:
    """What a run reads; `embedding` is the shape where that is embeddings, of which `words` tell."""

    train: Part
    val: Part | None
    evaluated: Part | None  # the training split, cut like validation's
    embedding: tuple[int, ...] | None = None
    words: str | None = None
    made: int = 0  # embeddings, just now
    seconds: float = 0.0  # that it took to have them all


def _check_content(config: Train, data: Path, part: Part) -> None:
    """Raises UsageError where the model does not read such data."""
    texts, reader = part.dataset.content == "text", config.arch.startswith(PREFIX)
    if texts and not reader:
        raise UsageError(
            f"--arch {config.arch}: reads images, and {data} holds texts; give one of Hugging Face's text encoders, "
            "such as --arch hf:FOLDER"
        )
    if reader and not texts:
        raise UsageError(f"--arch {config.arch}: reads texts, and {data} holds images; give a model of timm's, say")


def _tokenised(
    text: TextSide, keeper: Keeper, part: Part, val_part: Part | None, stack: ExitStack
) -> tuple[Part, Part | None]:
    """The parts as tokens, which are made where they are not kept yet."""

    def one(each: Part) -> Part:
        dataset = keeper.tokens(each.dataset, text.tokenizer)
        stack.callback(dataset.close)
        return replace(each, dataset=dataset)

    return one(part), None if val_part is None else one(val_part)


def _embedded(
    config: Train,
    model: Model,
    preprocessing: Preprocessing,
    precision: Precision,
    keeper: Keeper,
    parts: Parts,
    stack: ExitStack,
) -> Parts:
    """The parts as embeddings, which are made where they are not kept yet: the encoder runs once."""
    ranks = keeper.ranks
    model.module.to(ranks.device)
    if config.channels_last and model.convolutional:
        model.module.to(memory_format=torch.channels_last)
    alone = replace(
        config,
        batch_size=BATCH[ranks.device.type],
        workers=config.workers if config.workers != "auto" else str(ranks.cpus),
    )
    policy = augmentation.policy_of(config, preprocessing.mean, preprocessing.std)
    folders: dict[Path, int] = {}
    scales = effective.scales(config)

    def one(each: Part, view: int | None) -> ArrayDataset:
        crop = center_crop(preprocessing) if view is None else train_crop(preprocessing, config.scale, config.ratio)

        def open_(some: Part) -> BatchSource:
            return _loader(alone, None, some, crop, "sequential", "zeros", model, scaling=view is not None and scales)

        reads = pixels_of(crop, preprocessing, chosen_backend(config.loader), config.decode, config.max_pixels)
        reads["scaled"] = scales and view is not None
        encoding = Encoding(
            model=model,
            ranks=ranks,
            precision=precision,
            policy=policy,
            dtype={"fp16": "float16", "fp32": "float32"}[config.cache_dtype or "fp16"],
            reads=reads,
            open_=open_,
            view=view,
            seed=config.seed,
        )
        dataset, folder, made = keeper.embeddings(each, encoding)
        folders[folder] = folders.get(folder, 0) + made
        stack.callback(dataset.close)
        return dataset

    count, began = effective.views(config), time.perf_counter()
    augmented = not effective.plain(config)
    train = replace(parts.train, dataset=views([one(parts.train, v if augmented else None) for v in range(count)]))
    val = None if parts.val is None else replace(parts.val, dataset=one(parts.val, None))
    evaluated = None if parts.evaluated is None else replace(parts.evaluated, dataset=one(parts.evaluated, None))
    shape = caching.shape(model, preprocessing)
    seen = f"{count} augmented views of each" if augmented else "each sample once"
    made, where = sum(folders.values()), ", ".join(shown(folder) for folder in folders)
    words = f"{' x '.join(map(str, shape))} {config.cache_dtype or 'fp16'}, {seen}: {made:,} made now, kept in {where}"
    return Parts(train, val, evaluated, shape, words, made, time.perf_counter() - began)


def _is_small(run: Run) -> bool:
    """Whether a step of the classifier is over before threads have met."""
    weights = sum(parameter.numel() for parameter in run.trained.parameters())
    return weights * run.batch_size < _SMALL


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
            head=config.head,
            head_hidden=config.head_hidden or 0,
            max_length=config.max_length,
        )
    preprocessing = _sizes(config, model, num_classes) if model.text is None else model.preprocessing
    if config.freeze is not None:
        freeze(model, config.freeze)
    if config.ghost_bn is not None and not ghost_norms(model.module, config.ghost_bn):
        raise UsageError(f"--ghost-bn has no effect: {config.arch} has no batch norm; leave it out")
    if config.grad_checkpointing and not checkpoint_blocks(model.module):
        raise UsageError(f"--grad-checkpointing has no effect: {config.arch} has no repeated blocks; leave it out")
    return model, preprocessing


def _sizes(config: Train, model: Model, num_classes: int) -> Preprocessing:
    """The preprocessing of images, for which the model was tried at every size."""
    preprocessing = effective.preprocessing(config, model.preprocessing)
    check_input(model, preprocessing.train_size, num_classes, "--progressive" if config.progressive else "--img-size")
    if preprocessing.val_size != preprocessing.train_size:
        check_input(model, preprocessing.val_size, num_classes, "--val-crop-size")
    if config.progressive is not None:
        for size in effective.progressive(config).possible:
            check_input(model, size, num_classes, "--progressive")
    return preprocessing


def _assemble(
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
    trained = module if parts.embedding is None else Head(module, model.classifier[0])
    part, dtype = parts.train, np.dtype({"fp16": "f2", "fp32": "f4"}[config.cache_dtype or "fp16"])
    arrays = None if parts.embedding is None else ArrayDecoder(parts.embedding, dtype)
    if config.no_aug:
        crop: Crop = center_crop(preprocessing)
    else:
        crop = train_crop(preprocessing, config.scale, config.ratio)
    loader = _loader(config, ranks, part, crop, config.order, "samples", model, arrays, effective.scales(config))
    val_loader, train_eval_loader = (
        None
        if each is None
        else _loader(config, ranks, each, center_crop(preprocessing), "sequential", "zeros", model, arrays)
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
    schedule = effective.schedule(config, steps_per_epoch, ranks)
    run = Run(
        config=config,
        ranks=ranks,
        directory=directory,
        model=model,
        trained=trained,
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
        embedding=parts.embedding,
        cached=parts.words,
        ema=Ema(trained, config.model_ema_decay or DECAY) if config.model_ema else None,
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
    config: Train,
    ranks: Ranks | None,
    part: Part,
    crop: Crop,
    order: Order,
    padding: Padding,
    model: Model,
    arrays: ArrayDecoder | None = None,
    scaling: bool = False,
) -> BatchSource:
    """The loader of a part: of embeddings where there are `arrays`; without `ranks`, of all of it."""
    assert config.batch_size != "auto"
    tokenised = isinstance(part.dataset, ArrayDataset) and arrays is None  # not in a dry run, which keeps nothing
    settings = LoaderConfig(
        batch_size=config.batch_size,
        order="length" if tokenised and order == "sequential" and ranks is not None else order,
        window=config.order_window or WINDOW,
        together=config.batch_size * config.grad_accum_steps * (ranks.world_size if ranks else 1),
        padding=padding,
        seed=config.seed,
        workers=worker_count(config.workers, ranks) if ranks else int(config.workers),
        prefetch=config.prefetch or LoaderConfig.prefetch,
        on_error=config.on_error or "skip",
        rank=ranks.rank if ranks else 0,
        world_size=ranks.world_size if ranks else 1,
    )
    device = next(model.module.parameters()).device
    if arrays is not None:
        return array_loader(part, arrays, settings, device)
    if model.text is not None:
        tokens = TokenDecoder(model.text.tokenizer.length) if tokenised else TextDecoder(model.text.tokenizer)
        return array_loader(part, tokens, settings, device)
    backend = chosen_backend(config.loader)
    decode: Literal["cpu", "gpu"] = "gpu" if config.decode == "gpu" else "cpu"
    return build_loader(part, crop, settings, config.max_pixels, device, backend, decode, scaling)


def _tell_of_compilation(run: Run, part: Part, console: Console) -> None:
    if run.config.loader != "native" or run.embedding is not None or run.model.text is not None:
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
