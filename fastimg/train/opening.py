"""Opens what a run starts with: its data, its model, and the loader of a split."""

import json
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, cast

import torch
from rich.console import Console

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.config.flag_types import parse_workers
from fastimg.config.values import folds
from fastimg.config.values.folds import Fold
from fastimg.data import class_balance
from fastimg.data.datasets import (
    DatasetPart,
    build_loader,
    center_crop,
    check_readable,
    chosen_backend,
    open_parts,
    refuse_few_pixels,
    train_crop,
    worker_count,
)
from fastimg.data.digits import is_embedded
from fastimg.data.elsewhere import as_given, description_of, local_folder
from fastimg.embeddings.cache import array_loader
from fastimg.embeddings.text_rows import PairedLoader
from fastimg.errors import UsageError, UserError
from fastimg.loaders import BatchSource, LoaderConfig
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.containers.arrays import ArrayDataset
from fastimg.loaders.containers.bands import bands_of
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.containers.description import previewed_field, read_description
from fastimg.loaders.crop import CenterCrop, CropRule
from fastimg.loaders.decoders.arrays import ArrayDecoder, TokenDecoder
from fastimg.loaders.epochs.config import Padding
from fastimg.loaders.jpeg.decoding.region import Scaling
from fastimg.loaders.order import BLOCK, WINDOW, Order, Sampling
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.models.freezing import freeze
from fastimg.models.ghost_norm import ghost_norms
from fastimg.models.input_size import check_input
from fastimg.models.networks import airnet
from fastimg.models.ranks import Ranks
from fastimg.models.recompute import checkpoint_blocks
from fastimg.models.registry import OWN_PREFIX, Model, PixelType, Preprocessing, build, check_kwargs, parse_kwargs
from fastimg.models.tokenizer import TextDecoder
from fastimg.system.terminal import say
from fastimg.train.choices.stated_weights import Stated
from fastimg.wording import plural, with_flags

from . import pairs
from .choices import resolution as effective

WHITENED = 5000  # training images that a whitening layer is made from


def open_data(
    config: Train, ranks: Ranks, console: Console, stack: ExitStack
) -> tuple[DatasetPart, DatasetPart | None, Path]:
    """The training split, the validation split, and the dataset's absolute path. `stack` closes them."""
    with ranks.first_goes_first():  # rank 0 may write an index for all
        tell = partial(say, console)
        assert config.data is not None  # `with_data` has seen to it
        data = local_folder(config.data, config, tell)
        if (mirror := mirror_at(data)) is not None:
            tell(mirror.about())
        files_alone = is_plain_folder(data)
        part, val_part = open_parts(
            data, config.train_split, config.val_split, config.val_fraction, config.seed, config.classes, fold(config)
        )
    check_same(data, ranks)
    if intent.reads_text(config):  # of images and texts, a model of texts reads the texts
        part, val_part = pairs.texts_alone(part, data), None if val_part is None else pairs.texts_alone(val_part, data)
    elif config.text_arch is None and (words := pairs.blank_words(part, data)):
        say(console, words, style="yellow")
    opened = [part.dataset] if val_part is None else [part.dataset, val_part.dataset]
    for dataset in opened:
        stack.callback(dataset.close)
    for remark in dict.fromkeys(remark for dataset in opened for remark in dataset.notes):
        say(console, with_flags(remark), style="yellow")
    if intent.order(config) == "quasi-random" and files_alone and mirror is None:
        raise UsageError(
            f"--order quasi-random: {data} is a plain folder, whose files are not stored together; leave it out, or "
            f"train on the shards that `fastimg convert {data} DST` makes"
        )
    check_readable(chosen_backend(config.loader), data, part.dataset)
    described = (data / "dataset.json").exists() and config.image_field is None and not intent.reads_text(config)
    if described and (field := previewed_field(read_description(data))) is not None:
        say(
            console,
            f"{data}: the images are 8-bit previews of the arrays in the field {field!r}, and the model learns from "
            f"these previews; to train on the arrays, add --image-field {field}",
            style="bold yellow",
        )
    if files_alone and not is_embedded(data):
        how = "opened one by one" if mirror is None else "fetched one by one, unless in the cache"
        say(
            console,
            f"{as_given(data)} is a plain folder: {plural(len(part.dataset), 'file', 'is')} {how}; `fastimg "
            f"convert {as_given(data)} DST` "
            "checks every image once and stores them in a few large files that disks read fast",
        )
    return part, val_part, data.resolve()


def check_same(data: Path, ranks: Ranks) -> None:
    """Raises UserError on all ranks where they have opened different data, as copies, or while it was written anew."""
    found = ranks.gather(description_of(data))
    others = [rank for rank, each in enumerate(found) if each != found[0]]
    if others:
        raise UserError(
            f"{as_given(data)}: {plural(len(others), 'rank')} of {ranks.world_size} (the first is rank {others[0]}) "
            "opened another dataset.json than rank 0: it was written anew meanwhile, or the copies of the machines "
            "differ; start again, with the same data everywhere"
        )


def fold(config: Train) -> Fold | None:
    """The fold that is held out, if one is."""
    return None if config.fold is None else folds.parse(config.fold, config.group, config.stratify)


def check_content(config: Train, data: Path, part: DatasetPart) -> None:
    """Raises UsageError if the model cannot read this kind of data."""
    texts = part.dataset.content == "text"
    arch = intent.architecture(config)
    reader = intent.reads_text(config)
    if config.text_arch is not None and captions_of(data, part.dataset) is None:
        raise UsageError(
            f"--text-arch {config.text_arch}: {data} has no texts beside its images; make it with `fastimg convert "
            "MANIFEST DST --text-column NAME`, or leave --text-arch out"
        )
    if texts and not reader:
        raise UsageError(
            f"--arch {arch}: reads images, and {data} holds texts; give one of Hugging Face's text encoders, "
            "such as --arch hf:FOLDER"
        )
    if reader and not texts:
        raise UsageError(f"--arch {arch}: reads texts, and {data} holds images; give a timm model")


def with_channels(
    config: Train, data: Path, part: DatasetPart, val_part: DatasetPart | None
) -> tuple[Train, PixelType]:
    """`config` with the bands of --image-field as its channels, and the type of the pixels that the model sees.

    Raises UsageError and DataError for a field that a model cannot read, or of other bands than --in-chans.
    """
    if config.image_field is None:
        return config, "uint16" if config.depth == 16 else "uint8"
    schema = bands_of(part.dataset, config.image_field)
    count = schema.shape[0]
    if config.in_chans not in (None, count):
        raise UsageError(
            f"--in-chans {config.in_chans}: the field {config.image_field!r} of {data} has {plural(count, 'band')}; "
            "leave it out"
        )
    other = None if val_part is None else bands_of(val_part.dataset, config.image_field)
    if other is not None and (other.shape[0], other.dtype) != (count, schema.dtype):
        raise UsageError(
            f"--image-field {config.image_field}: has {plural(count, 'band')} of {schema.dtype} for training and "
            f"{other.shape[0]} of {other.dtype} for validation; convert the data again"
        )
    return replace(config, in_chans=count), cast(PixelType, schema.dtype)


def build_model(
    config: Train,
    ranks: Ranks,
    classes: tuple[str, ...],
    stated: Stated | None = None,
    dtype: PixelType = "uint8",
) -> tuple[Model, Preprocessing]:
    """The model and the preprocessing of its images; `classes` name its outputs, `stated` comes from its weights.

    Its pixels are of `dtype`, as `with_channels` says.
    Raises UsageError and UserError.
    """
    stated = stated or Stated()
    arch = intent.architecture(config)
    num_classes = config.num_classes or len(classes)
    if num_classes < len(classes):
        raise UsageError(
            f"--num-classes {num_classes}: the dataset has {plural(len(classes), 'class')}; give that many or more"
        )
    kwargs = parse_kwargs(config.model_kwargs)
    size = config.train_crop_size or config.img_size
    check_kwargs(kwargs, size, size_flag(config))
    if config.drop_path is not None:
        kwargs["drop_path_rate"] = config.drop_path
    if "in_chans" in kwargs:
        raise UsageError(
            f"--model-kwargs in_chans={kwargs['in_chans']}: there is a flag for it; use --in-chans instead"
        )
    if config.in_chans not in (None, 3):
        kwargs["in_chans"] = config.in_chans
    if dtype != "uint8" and arch.startswith(OWN_PREFIX):
        raise UsageError(f"--arch {arch}: reads images of 8 bits; choose one of timm's models")
    torch.manual_seed(config.seed)
    alone = config.text_arch is None
    with ranks.first_goes_first():  # rank 0 may download weights for all
        model = build(
            arch,
            num_classes,
            pretrained=config.pretrained,
            weights=None if stated.pair else config.weights,
            kwargs=kwargs,
            img_size=size or stated.image_size(),
            size_flag=size_flag(config),
            classes=classes,
            blurpool=config.blurpool,
            head_init=config.head_init or "zeros",
            head=config.head if alone else "linear",
            head_hidden=(config.head_hidden or 0) if alone else 0,
            max_length=config.max_length,
            text=stated.text,
        )
        reader = None if alone else pairs.text_side(config, stated)
    model = replace(model, preprocessing=replace(model.preprocessing, field=config.image_field, dtype=dtype))
    preprocessing = _sizes(config, model, num_classes) if model.text is None else model.preprocessing
    if reader is not None:
        model = pairs.joined(config, model, reader, num_classes, classes, stated)
    if config.head_init is not None and model.new_head is None and config.resume is None:
        raise UsageError(
            f"--head-init {config.head_init} has no effect: the weights come with a classifier for these classes, "
            "which is kept; leave it out"
        )
    if config.freeze is not None:
        freeze(model, config.freeze)
    if config.ghost_bn is not None and not ghost_norms(model.module, config.ghost_bn):
        raise UsageError(f"--ghost-bn has no effect: {arch} has no batch norm; leave it out")
    if config.grad_checkpointing and not checkpoint_blocks(model.module):
        raise UsageError(f"--grad-checkpointing has no effect: {arch} has no repeated blocks; leave it out")
    return model, preprocessing


def whiten(
    config: Train, model: Model, preprocessing: Preprocessing, ranks: Ranks, part: DatasetPart, console: Console
) -> None:
    """Set the first layer of a model that whitens patches, from up to WHITENED training crops of the first epoch.

    Rank 0 reads them for all. A checkpoint has the layer's weights as it has any others.
    """
    network = model.module
    if not isinstance(network, airnet.AirNet):
        return
    crop: CropRule = center_crop(preprocessing) if intent.plain(config) else train_crop(preprocessing, config)
    count = min(WHITENED, len(part))
    text = ""
    if ranks.first:
        alone = replace(config, batch_size=min(250, count), workers=str(parse_workers(config.workers, ranks.cpus)))
        loader = open_loader(alone, None, part, crop, "random", "zeros", model)
        with closing(loader):
            read = 0
            moments = None
            for batch in loader:
                good = batch.inputs[batch.weight > 0][: count - read]
                seen = airnet.patch_moments(good)
                moments = seen if moments is None else moments + seen
                read += len(good)
                if read >= count:
                    break
        if read:
            assert moments is not None
            filters = airnet.whitening_filters(moments, preprocessing.mean, preprocessing.std)
            text = json.dumps(filters.tolist())
            say(console, f"whitening   the first layer, from patches of {plural(read, 'training image')}")
    text = ranks.broadcast(text)
    if text:  # otherwise no image can be read, which training will report
        network.whiten(torch.tensor(json.loads(text)))


def _sampling(sampler: str, part: DatasetPart) -> Sampling:
    """How often each sample is drawn: by the data's first class target."""
    if not part.dataset.classes:
        raise UsageError(f"--sampler {sampler} has no effect: no target of the data is a class; leave it out")
    labels = part.dataset.labels if part.indices is None else part.dataset.labels[part.indices]
    return Sampling(class_balance.sampling(sampler, part.dataset.classes, labels))


def size_flag(config: Train, crop: CropRule | None = None) -> str:
    """The flag that sets the size of training images, or of what has this `crop`."""
    if isinstance(crop, CenterCrop) and config.val_resize_size is not None:
        return "--val-resize-size"
    if isinstance(crop, CenterCrop) and config.val_crop_size is not None:
        return "--val-crop-size"
    if config.progressive is not None:
        return "--progressive"
    return "--train-crop-size" if config.train_crop_size is not None else "--img-size"


def _sizes(config: Train, model: Model, num_classes: int) -> Preprocessing:
    """The preprocessing of images. Runs the model once at every size that the run will use."""
    preprocessing = effective.preprocessing(config, model.preprocessing)
    check_input(model, preprocessing.train_size, num_classes, size_flag(config))
    if preprocessing.val_size != preprocessing.train_size:
        check_input(model, preprocessing.val_size, num_classes, "--val-crop-size")
    if config.progressive is not None:
        for size in intent.progressive(config).possible:
            check_input(model, size, num_classes, "--progressive")
    return preprocessing


def open_loader(
    config: Train,
    ranks: Ranks | None,
    part: DatasetPart,
    crop: CropRule,
    order: Order,
    padding: Padding,
    model: Model,
    arrays: ArrayDecoder | None = None,
    scaling: Scaling = False,
    sampler: str | None = None,
) -> BatchSource:
    """The loader of a split. With `arrays` it reads embeddings; without `ranks` this process reads all of it."""
    assert isinstance(config.batch_size, int)
    tokenised = isinstance(part.dataset, ArrayDataset) and arrays is None  # a dry run writes no tokens
    settings = LoaderConfig(
        batch_size=config.batch_size,
        order="length" if tokenised and order == "sequential" and ranks is not None else order,
        block=BLOCK if fetched_files(part.dataset) is None else "shard",
        window=config.order_window or WINDOW,
        sampling=None if sampler is None else _sampling(sampler, part),
        together=config.batch_size * config.grad_accum_steps * (ranks.world_size if ranks else 1),
        padding=padding,
        seed=config.seed,
        crop_epochs=config.cache_teacher,
        workers=worker_count(config.workers, ranks) if ranks else int(config.workers),
        prefetch=config.prefetch,
        on_error=config.on_error or "skip",
        rank=ranks.rank if ranks else 0,
        world_size=ranks.world_size if ranks else 1,
    )
    device = next(model.module.parameters()).device
    if part.texts is not None:
        alone = replace(part, texts=None)
        images = open_loader(config, ranks, alone, crop, order, padding, model, arrays, scaling, sampler)
        return PairedLoader(images, part.texts, device)
    if arrays is not None:
        return array_loader(part, arrays, settings, device)
    if model.text is not None:
        tokens = TokenDecoder(model.text.tokenizer.length) if tokenised else TextDecoder(model.text.tokenizer)
        return array_loader(part, tokens, settings, device)
    backend = chosen_backend(config.loader)
    decode: Literal["cpu", "gpu"] = "gpu" if config.decode == "gpu" else "cpu"
    if part.held is None:
        refuse_few_pixels(config.max_pixels, crop, size_flag(config, crop))
    return build_loader(part, crop, settings, config.max_pixels, device, backend, decode, scaling, model.preprocessing)
