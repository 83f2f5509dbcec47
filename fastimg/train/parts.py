"""What a run reads: the samples themselves, tokens of texts, or embeddings from a frozen encoder."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from fastimg.config import intent
from fastimg.config.augmentation import effective as augmenting
from fastimg.config.commands import Train
from fastimg.config.flag_types import parse_workers
from fastimg.data import augmentation
from fastimg.data.datasets import DatasetPart, center_crop, chosen_backend, refuse_few_pixels, train_crop
from fastimg.embeddings import eligibility as caching
from fastimg.embeddings.cache import Encoding, Keeper, pixels_of, views
from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.loaders.backends.resident import ResidentImages
from fastimg.loaders.containers.arrays import ArrayDataset
from fastimg.loaders.crop import CropRule, RandomResizedCrop
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing, TextSide
from fastimg.system import memory
from fastimg.system.terminal import say
from fastimg.train.reporting.report import shown
from fastimg.wording import plural

from . import pairs
from .choices import resolution as effective
from .distillation.kept_logits import KeptLogits, Labelling
from .distillation.teacher import load
from .opening import open_loader, size_flag
from .tasks.joint import Tasks


@dataclass(frozen=True)
class Parts:
    """What a run reads. With embeddings, `embedding` is their shape; `words` describes them for people."""

    train: DatasetPart
    val: DatasetPart | None
    evaluated: DatasetPart | None  # the training split, cropped like validation
    embedding: tuple[int, ...] | None = None
    words: str | None = None
    made: int = 0  # embeddings that were computed now, not found in the cache
    seconds: float = 0.0  # for computing and opening all embeddings
    taught: KeptLogits | None = None  # what the teacher says of the training split
    missing: int | None = None  # embeddings that are not in the cache; known after a dry run


def tokenised(
    text: TextSide, keeper: Keeper, part: DatasetPart, val_part: DatasetPart | None, stack: ExitStack
) -> tuple[DatasetPart, DatasetPart | None]:
    """Both splits as tokens, which are computed if the cache does not have them."""

    def tokens(texts: DatasetPart) -> DatasetPart:
        dataset = keeper.tokens(texts.dataset, text.tokenizer)
        stack.callback(dataset.close)
        return replace(texts, dataset=dataset)

    return tokens(part), None if val_part is None else tokens(val_part)


def with_text_embeddings(
    config: Train, model: Model, precision: Precision, keeper: Keeper, parts: Parts, stack: ExitStack
) -> Parts:
    """All splits with embeddings of the texts beside their images, which are computed if the cache lacks them."""
    folders: dict[Path, int] = {}

    def kept(part: DatasetPart | None) -> DatasetPart | None:
        if part is None:
            return None
        read, folder, made = pairs.text_embeddings(config, model, precision, keeper, part, stack)
        folders[folder] = folders.get(folder, 0) + made
        return read

    began = time.perf_counter()
    train = kept(parts.train)
    assert train is not None and model.pair is not None
    parts = replace(parts, train=train, val=kept(parts.val), evaluated=kept(parts.evaluated))
    made = sum(folders.values())
    kind = config.cache_dtype or "fp16"
    words = f"of texts {model.pair.text_width} {kind}: {made:,} made now, kept in {', '.join(map(shown, folders))}"
    words = f"{parts.words}; {words}" if parts.words else words
    return replace(parts, words=words, made=parts.made + made, seconds=parts.seconds + time.perf_counter() - began)


RESIDENT_SHARE = 0.5  # of the free memory, that --resident may take
DECODING_SHARE = 0.8  # of the host's, that a split may take on its way to a GPU


def resident(config: Train, preprocessing: Preprocessing, ranks: Ranks, parts: Parts, console: Console) -> Parts:
    """All splits with their images on the device; in a dry run they are only measured.

    Raises UserError if they take more than RESIDENT_SHARE of the memory that is free.
    """
    evaluated: CropRule = center_crop(preprocessing)
    crop = evaluated if intent.plain(config) else train_crop(preprocessing, config)

    def kept(part: DatasetPart | None, crop: CropRule) -> DatasetPart | None:
        if part is None:
            return None
        if not isinstance(crop, RandomResizedCrop):  # for which images are kept as they are
            refuse_few_pixels(config.max_pixels, crop, size_flag(config, crop))
        workers = parse_workers(config.workers, ranks.cpus)  # nothing trains meanwhile
        settings = {} if config.max_pixels is None else {"max_pixels": config.max_pixels}
        images = ResidentImages(
            part.dataset,
            crop,
            ranks.device,
            part.indices,
            workers=workers,
            on_error=config.on_error or "skip",
            **settings,
        )
        return replace(part, held=images)

    train = kept(parts.train, crop)
    assert train is not None
    parts = replace(parts, train=train, val=kept(parts.val, evaluated), evaluated=kept(parts.evaluated, evaluated))
    held = [part.held for part in (parts.train, parts.val, parts.evaluated) if part is not None and part.held]
    _check_room([images.nbytes for images in held], len(train), ranks)
    if not config.dry_run:
        for images in held:
            images.load()
        failed = sum(len(images.unreadable) for images in held)
        count = plural(sum(map(len, held)) - failed, "image")
        others = f"; {failed:,} could not be decoded" if failed else ""
        say(console, f"resident    {count} read and decoded in {sum(images.seconds for images in held):.1f} s{others}")
    return parts


def _check_room(nbytes: list[int], samples: int, ranks: Ranks) -> None:
    """Refuse images that are too large: all together where they are kept, and the largest split where it is decoded.

    All processes of a host decode there, at the same time.
    """
    here = ranks.local_world_size
    rooms = [("the host", sum(nbytes) * here, memory.available(), RESIDENT_SHARE)]
    if ranks.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(ranks.device)
        decoding = ("the host, where they are decoded,", max(nbytes) * here, memory.available(), DECODING_SHARE)
        rooms = [(str(ranks.device), sum(nbytes), free, RESIDENT_SHARE), decoding]
    short = [(where, needed, free, share) for where, needed, free, share in rooms if needed > share * free]
    if ranks.sum(torch.tensor([float(bool(short))], device=ranks.device)).item():  # all ranks stop together
        where, needed, free, share = (short or rooms)[0]
        raise UserError(
            f"--resident: the images take {needed:,} bytes ({plural(samples, 'training image')}), and {where} has "
            f"{free:,} free, of which they may take {share:.0%}; leave --resident out, or make the images "
            "smaller with `fastimg convert --max-size`"
        )


def embedded(
    config: Train,
    model: Model,
    preprocessing: Preprocessing,
    precision: Precision,
    keeper: Keeper,
    parts: Parts,
    stack: ExitStack,
) -> Parts:
    """All splits as embeddings, which are computed if the cache does not have them: the encoder runs once."""
    model.module.to(keeper.ranks.device)
    if config.channels_last and model.convolutional:
        model.module.to(memory_format=torch.channels_last)
    folders: dict[Path, int] = {}

    def encoded(part: DatasetPart, view: int | None) -> ArrayDataset:
        encoding = _encoding(config, model, preprocessing, precision, keeper.ranks, view)
        dataset, folder, made = keeper.arrays(part, encoding)
        folders[folder] = folders.get(folder, 0) + made
        stack.callback(dataset.close)
        return dataset

    began = time.perf_counter()
    count = effective.views(config)
    train = replace(parts.train, dataset=views([encoded(parts.train, number) for number in _views(config)]))
    val = None if parts.val is None else replace(parts.val, dataset=encoded(parts.val, None))
    evaluated = None if parts.evaluated is None else replace(parts.evaluated, dataset=encoded(parts.evaluated, None))
    shape = caching.shape(model, preprocessing)
    seen = "each sample once" if intent.plain(config) else f"{plural(count, 'augmented view')} of each"
    made = sum(folders.values())
    where = ", ".join(shown(folder) for folder in folders)
    words = f"{' x '.join(map(str, shape))} {config.cache_dtype or 'fp16'}, {seen}: {made:,} made now, kept in {where}"
    return Parts(train, val, evaluated, shape, words, made, time.perf_counter() - began)


def counted(
    config: Train, model: Model, preprocessing: Preprocessing, precision: Precision, keeper: Keeper, parts: Parts
) -> Parts:
    """All splits as they are, with the number of embeddings that `embedded` would have to compute: for a dry run."""
    seen = [(parts.train, view) for view in _views(config)]
    seen += [(part, None) for part in (parts.val, parts.evaluated) if part is not None]
    missing = total = 0
    for part, view in seen:
        encoding = _encoding(config, model, preprocessing, precision, keeper.ranks, view)
        missing += keeper.missing(part, encoding)
        total += len(part)
    words = f"{total - missing:,} of {total:,} are kept; " if missing < total else ""
    others = "the others are " if missing < total else ""
    left = f"{others}computed once by the frozen encoder (not in a dry run)" if missing else "none has to be computed"
    return replace(parts, words=f"{words}{left}", missing=missing)


def _views(config: Train) -> Sequence[int | None]:
    """The views of the training split that are embedded: numbers where they are augmented."""
    count = effective.views(config)
    return [None] * count if intent.plain(config) else range(count)


def _encoding(
    config: Train,
    model: Model,
    preprocessing: Preprocessing,
    precision: Precision,
    ranks: Ranks,
    view: int | None,
) -> Encoding:
    """How embeddings of a view are computed, and what they depend on."""
    crop = center_crop(preprocessing) if view is None else train_crop(preprocessing, config)
    scaling = False if view is None else effective.scales(config)
    alone = _before_training(config, ranks)

    def open_(missing: DatasetPart) -> BatchSource:
        images = replace(missing, texts=None)
        return open_loader(alone, None, images, crop, "sequential", "zeros", model, scaling=scaling)

    reads = pixels_of(crop, preprocessing, chosen_backend(config.loader), config.decode, config.max_pixels)
    reads["scaled"] = scaling
    return Encoding(
        model=model,
        ranks=ranks,
        precision=precision,
        policy=augmentation.policy_of(config, preprocessing.mean, preprocessing.std),
        dtype={"fp16": "float16", "fp32": "float32"}[config.cache_dtype or "fp16"],
        reads=reads,
        open_=open_,
        view=view,
        seed=config.seed,
    )


def labelled(
    config: Train,
    tasks: Tasks,
    preprocessing: Preprocessing,
    precision: Precision,
    keeper: Keeper,
    parts: Parts,
    stack: ExitStack,
) -> Parts:
    """With what the teacher says of the views of --cache-teacher, computed if the cache lacks it; not in a dry run."""
    began = time.perf_counter()
    count = config.cache_teacher
    if count is None or config.dry_run:
        return parts
    plain = intent.plain(config)
    config = replace(config, **augmenting(config, plain))
    teacher = load(config, tasks, preprocessing, precision, keeper.ranks)
    assert teacher is not None
    dtype = {"fp16": "float16", "fp32": "float32"}[config.cache_dtype or "fp32"]
    crop: CropRule = center_crop(preprocessing) if plain else train_crop(preprocessing, config)
    reads = pixels_of(crop, preprocessing, chosen_backend(config.loader), config.decode, config.max_pixels)
    reads["scaled"] = scales = effective.scales(config)
    alone = _before_training(config, keeper.ranks)
    if isinstance(config.batch_size, int):  # the bits of matrix products depend on the number of rows
        alone = replace(alone, batch_size=config.batch_size)

    def open_(missing: DatasetPart) -> BatchSource:
        return open_loader(alone, None, missing, crop, "sequential", "zeros", teacher.model, scaling=scales)

    kept = []
    made = 0
    for view in range(count):
        labelling = Labelling(
            teacher=teacher,
            policy=augmentation.policy_of(config, preprocessing.mean, preprocessing.std),
            dtype=dtype,
            reads=reads,
            open_=open_,
            view=None if plain else view,
            seed=config.seed,
        )
        dataset, folder, new = keeper.arrays(parts.train, labelling)
        stack.callback(dataset.close)
        kept.append(dataset)
        made += new
    taught = KeptLogits(
        views=kept,
        classes=len(tasks.classes),
        dtype=dtype,
        about=teacher.words,
        where=shown(folder),
        made=made,
        seconds=time.perf_counter() - began,
    )
    return replace(parts, taught=taught)


def _before_training(config: Train, ranks: Ranks) -> Train:
    """How a pass over the data reads it while nothing trains: batches of one size, so that it is made alike."""
    return replace(
        config,
        batch_size=intent.BATCH[ranks.device.type],
        workers=config.workers if config.workers != "auto" else str(ranks.cpus),
    )
