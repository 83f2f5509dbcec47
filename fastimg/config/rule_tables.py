"""The rules between the flags of each command: the tables that `rules` reads, in the order in which faults are named.

A new flag of `train` is a field in `training`, and a row here if its values are limited or other settings exclude it,
need it or leave it without effect.
"""

import math
from collections.abc import Callable
from typing import Any

from fastimg.augment.named import can_be_gray, parse
from fastimg.errors import nearest
from fastimg.loaders.backends.settings import IGNORED_SETTINGS, RGB_ONLY
from fastimg.loaders.remote.shard_cache import parse_size
from fastimg.loaders.remote.stores import url_of
from fastimg.wording import plural

from . import augmentation
from .augmentation import FIELDS, JITTER, ON_A_LIST, VALUES
from .commands import Eval, Predict
from .intent import (
    EPOCHS,
    head_alone,
    loss_kind,
    order,
    plain,
    progressive,
    reads_frozen,
    reads_text,
    sees_frozen,
    trackers,
    tuned,
)
from .rules import Check, Device, Excludes, Idle, Needs, Range, Replaces, Rule
from .searching import Search
from .training import COMPILE_MODES, CUDA_GRAPH_MODES, HF_PREFIX, SCHEDULE_FREE, TRACKERS, Train
from .values import durations, folds, trial_resources

# Fields of Train that are about pixels, beside those of augmentation.
IMAGE_FIELDS = (
    *("decode", "dct_scaling", "max_pixels", "img_size", "train_crop_size", "val_crop_size", "val_resize_size"),
    *(
        "crop_pct",
        "interpolation",
        "in_chans",
        "image_field",
        "depth",
        "mean",
        "std",
        "progressive",
        "progressive_epochs",
        "tta",
        "blurpool",
        "drop_path",
    ),
    "resident",
)


# Augmentation that looks levels up in tables of 8 bits, or needs statistics of them.
CHANGES_LEVELS = ("aa", *JITTER, "hue", "grayscale_prob", "gaussian_blur_prob", "solarize_prob")

_SECRETS = ("secret", "token", "password", "access_key", "account_key", "sas")  # in names of options


def _at_least(least: float) -> Callable[[Any], bool]:
    return lambda value: bool(least <= value < math.inf)


def _is_above_zero(value: float) -> bool:
    return 0 < value < math.inf


def _is_share(value: float) -> bool:
    return 0 <= value <= 1


def _is_share_above_zero(value: float) -> bool:
    return 0 < value <= 1


def _is_share_below_one(value: float) -> bool:
    return 0 <= value < 1


def _is_size(pixels: int) -> bool:
    return 1 <= pixels <= 16384


def _are_views(text: str) -> bool:
    return text == "off" or (text.isascii() and text.isdigit() and int(text) >= 1)


def _is_pos_weight(text: str) -> bool:
    try:
        return text == "balanced" or _is_above_zero(float(text))
    except ValueError:
        return False


def _gray(config: Train) -> str | None:
    """What does not go with images of one channel."""
    if config.in_chans != 1 or _sees_deep(config):
        return None
    if config.loader in RGB_ONLY or config.resident:
        where = "--resident keeps" if config.resident else f"--loader {config.loader} makes"
        return f"{where} only RGB images; leave it out"
    if config.decode == "gpu":
        return "--decode gpu makes only RGB images; leave it out"
    chosen = augmentation.effective(config, plain(config))
    for name in ("saturation", "hue", "grayscale_prob"):
        if chosen[name]:
            said = f"--{name.replace('_', '-')}"
            said = (
                "--color-jitter with a third number above 0" if config.color_jitter and name == "saturation" else said
            )
            return f"{said} changes colours, which gray images do not have; leave it out"
    if chosen["kornia"]:
        return "Kornia's augmentations take RGB images; leave them out"
    policy = chosen["aa"]
    if policy == "trivial":
        return "--aa trivial has the operation Color, and gray images have no colours; use --aa trivial-gray"
    if policy not in (None, "trivial-gray") and (coloured := parse(policy).colours):
        remedy = f"use --aa {policy}-gray" if can_be_gray(policy) else "use --aa trivial-gray or rand-m9-gray"
        return f"--aa {policy} has the operation {coloured[0]}, and gray images have no colours; {remedy}"
    return None


def _sees_deep(config: Any) -> bool:
    """Whether the model sees bands, or images of 16 bits."""
    return getattr(config, "image_field", None) is not None or getattr(config, "depth", None) == 16


def _deep(what: str, given: Callable[[Train], bool], field: str) -> Check:
    """What does not go with images of 16 bits (`field` depth), or with bands (image_field): `what` they are."""

    def check(config: Train) -> str | None:
        if not given(config):
            return None
        if config.loader not in ("auto", "native") or config.resident or config.decode == "gpu":
            flag = "--resident" if config.resident else "--decode gpu" if config.decode == "gpu" else ""
            return f"{what} are read by fastimg's own loader alone; leave {flag or f'--loader {config.loader}'} out"
        chosen = augmentation.effective(config, plain(config))
        for name in CHANGES_LEVELS:
            if chosen[name]:
                said = f"--{name.replace('_', '-')}" + (f" {chosen['aa']}" if name == "aa" else "")
                said = "--color-jitter" if config.color_jitter and name in JITTER else said
                return f"{said} changes levels of 8 bits, and {what} have others; leave it out"
        return "Kornia's augmentations take RGB images of 8 bits; leave them out" if chosen["kornia"] else None

    return Check(field, check)


def _bands_alone(config: Train) -> str | None:
    """What reads images beside, or in place of, the field."""
    if config.image_field is None:
        return None
    if config.depth is not None:
        return f"its values have the type that they are stored in; leave --depth {config.depth} out"
    if config.text_arch is not None:
        return "--text-arch reads texts beside images, not beside arrays; leave one of them out"
    if config.teacher is not None:
        return "--teacher sees images; leave one of them out"
    return None


def _channel_count(config: Train) -> str | None:
    if config.in_chans is None or config.image_field is not None or config.in_chans in (1, 3):
        return None
    return "give 1 for gray or 3 for RGB; of other bands name their field with --image-field"


def _means(config: Train) -> str | None:
    values = config.mean
    if values is None or all(map(math.isfinite if config.image_field is not None else _is_share, values)):
        return None
    return "give finite numbers" if config.image_field is not None else "give shares of white, from 0 to 1"


def _deviations(config: Train) -> str | None:
    values = config.std
    if values is None or all(map(_is_above_zero if config.image_field is not None else _is_share_above_zero, values)):
        return None
    return "give numbers above 0" if config.image_field is not None else "give shares of white, above 0 and up to 1"


def _loads_with(backend: str) -> Callable[[Any], bool]:
    if backend == "resident":
        return lambda config: bool(getattr(config, "resident", False))
    return lambda config: bool(config.loader == backend)


def _is_unmirrored(config: Any) -> bool:
    return not augmentation.effective(config, config.no_aug)["hflip"]


def _mixes(name: str) -> Callable[[Any], bool]:
    return lambda config: bool(augmentation.effective(config, plain(config))[name])


def _only_head(config: Train) -> bool:
    """Whether only a classifier without batch norms trains."""
    return head_alone(config) and config.head == "linear"


def _weighs_alike(config: Train) -> bool:
    return config.sampler == "balanced" and config.class_weights in ("balanced", "effective")


def _unvalidated(config: Train) -> bool:
    return config.val_fraction == 0


def _without_steps(config: Train) -> bool:
    return config.sched != "step"


def _teaches(config: Train) -> str | None:
    if config.teacher is None:
        return None
    if loss_kind(config) in ("bce", "asymmetric"):
        return "compares softmax probabilities, which --bce-loss and --loss asymmetric have none of; leave one out"
    if head_alone(config) and config.cache_embeddings != "off":
        return "needs images, and --freeze backbone trains on kept embeddings; add --cache-embeddings off"
    return None


def _keeps_teacher(config: Train) -> bool:
    return config.cache_teacher is not None


def _kept_teacher(config: Train) -> str | None:
    """Why a teacher's outputs cannot be kept: the student must see the same images again."""
    if config.cache_teacher is None:
        return None
    operations = augmentation.effective(config, plain(config))
    if operations["mixup"] or operations["cutmix"]:
        return "images that --mixup or --cutmix mixes differ in every epoch; leave one out"
    if operations["kornia"]:
        return "Kornia's augmentation depends on the whole batch; leave one out"
    if config.progressive is not None:
        return "--progressive changes the images from epoch to epoch; leave one out"
    if config.sampler is not None:
        return "--sampler shows an image several times in an epoch, with other crops each time; leave one out"
    if config.loader not in ("auto", "native", "torch"):
        return f"--loader {config.loader} makes crops that cannot be made again; leave it out"
    if plain(config) and config.cache_teacher > 1:
        return "without augmentation all views are the same; give 1"
    return None


def _schedule_free(config: Train) -> bool:
    return config.opt in SCHEDULE_FREE


def _decays(config: Train) -> str | None:
    if not _schedule_free(config) or config.sched in (None, "constant"):
        return None
    return f"--opt {config.opt} needs no schedule, and is not made for one; leave it out"


def _late_average(config: Train) -> str | None:
    if config.freeze_epochs is None or not _schedule_free(config):
        return None
    return f"--opt {config.opt} averages weights from the first step on, and these would come later; choose another"


def _caches(config: Train) -> bool:
    several = _keeps(config) or reads_text(config) or _pairs(config) or _keeps_teacher(config)
    return several or _is_elsewhere(config)


def _is_elsewhere(config: Any) -> bool:
    """Whether the data is in an object store."""
    if isinstance(config, Predict):
        return any(url_of(source) is not None for source in config.sources)
    data = config.dataset if isinstance(config, Eval) else getattr(config, "data", None)
    return data is not None and url_of(data) is not None


def _loader_elsewhere(config: Any) -> str | None:
    if not _is_elsewhere(config) or config.loader in ("auto", "native", "synthetic"):
        return None
    return "reads only data on this machine, and DATA is a URL; leave it out"


def _loaders_elsewhere(config: Any) -> str | None:
    if not _is_elsewhere(config) or config.loaders in (None, "none"):
        return None
    return "loaders are compared on data of this machine, and DATA is a URL; leave it out"


def _cache_limit(config: Any) -> str | None:
    if config.cache_limit is None:
        return None
    try:
        parse_size(config.cache_limit)
        return None
    except ValueError:
        return "give bytes, or a number with KB, MB, GB or TB, as in 200GB"


def _storage_option(config: Any) -> str | None:
    for option in config.storage_option:
        name, equals, _ = option.partition("=")
        if not name or not equals:
            return f"{option} is not NAME=VALUE, as in region=eu-west-1"
        if any(word in name for word in _SECRETS):
            return f"{name} is written down with the run; give it in the environment, as in AWS_SECRET_ACCESS_KEY"
    return None


def _order_window(config: Train) -> str | None:
    if config.order_window is None:
        return None
    from fastimg.loaders.order import BLOCK  # not above: it imports NumPy

    return None if config.order_window >= BLOCK else f"give a block's {BLOCK} or more"


def _ghost_batch(config: Train) -> str | None:
    if config.ghost_bn is None or config.batch_size in (None, "auto") or config.batch_size % config.ghost_bn == 0:
        return None
    return f"does not divide the batch of {config.batch_size}; choose a divisor, or another --batch-size"


def _one_ghost(config: Train) -> bool:
    return config.ghost_bn is not None and config.ghost_bn == config.batch_size


def _batch_search(config: Train) -> str | None:
    if config.batch_size != "auto" or config.strategy != "fsdp":
        return None
    return "is found by one process for itself, and --strategy fsdp shares the model; give a number"


def _finds_rate(config: Train) -> bool:
    return config.lr == "find"


def _rate_search(config: Train) -> str | None:
    if not _finds_rate(config):
        return None
    if config.strategy == "fsdp":
        return "takes steps that are undone, and --strategy fsdp shares the weights; give a number, or auto"
    if config.freeze_epochs is not None:
        return "measures with what is frozen at first, and --freeze-epochs ends that; give a number, or auto"
    return None


def _cuda_graphs(config: Train) -> str | None:
    """What does not go with memory that a graph writes to again whenever it is replayed."""
    if config.compile not in CUDA_GRAPH_MODES:
        return None
    remedy = "use --compile max-autotune-no-cudagraphs"
    if config.grad_accum_steps > 1:  # pytorch issue 169545
        return (
            "replays CUDA graphs, whose memory holds the gradients: each of the batches that --grad-accum-steps "
            f"{config.grad_accum_steps} adds up would overwrite those before it; {remedy}"
        )
    if config.strategy == "fsdp":  # pytorch issue 127225
        return f"replays CUDA graphs, which read weights at fixed addresses, and --strategy fsdp moves them; {remedy}"
    return None


def _views(config: Train) -> str | None:
    if not plain(config) or config.cache_embeddings in (None, "1", "off"):
        return None
    return "without augmentation all views are the same; ask for some, with --hflip 0.5 say, or leave the number out"


def _frozen_epochs(config: Train) -> str | None:
    epochs = config.epochs or EPOCHS
    if config.freeze_epochs is None or config.freeze_epochs < epochs:
        return None
    return f"the run has {plural(epochs, 'epoch')}, so nothing would be unfrozen; give fewer, or leave it out"


def _text_loader(config: Train) -> str | None:
    if not reads_text(config) or config.loader in ("auto", "native"):
        return None
    return "reads images; texts are read by fastimg's own, leave it out"


def _text_arch(config: Train) -> str | None:
    if config.text_arch is None:
        return None
    if not config.text_arch.startswith(HF_PREFIX):
        return "reads no texts; give a text encoder of Hugging Face, as hf:NAME or hf:FOLDER"
    if reads_text(config):
        return f"--arch {config.arch} reads texts, too; give a model of images as --arch, or leave --text-arch out"
    return None


def _pairs(config: Train) -> bool:
    """Whether the model reads the texts beside images."""
    return config.text_arch is not None


def _keeps(config: Train) -> bool:
    """Whether an encoder never trains, so that its embeddings may be kept."""
    return head_alone(config) or (_pairs(config) and (sees_frozen(config) or reads_frozen(config)))


def _not_of_pairs(name: str, why: str, given: Callable[[Train], bool]) -> Check:
    """A flag that does not go with --text-arch."""

    def check(config: Train) -> str | None:
        return f"{why}; leave it out, or --text-arch" if _pairs(config) and given(config) else None

    return Check(name, check)


def _duration(field: str, whole: bool = False) -> Callable[[Any], None]:
    """Reads a span of training, which raises UsageError for what is not one."""

    def read(config: Any) -> None:
        text = getattr(config, field)
        if text is not None:
            durations.parse(text, f"--{field}", whole)

    return read


def _trackers(config: Train) -> str | None:
    unknown = [name for name in trackers(config) if name not in TRACKERS]
    return f"give {', '.join(TRACKERS)}{nearest(unknown[0], TRACKERS)}" if unknown else None


def _fold(config: Any) -> None:
    if config.fold is not None:
        folds.parse(config.fold)


def _max_time(config: Any) -> None:
    if config.max_time is not None:
        durations.limit(config.max_time, "--max-time")


def _save_interval(config: Any) -> None:
    durations.interval(config.save_interval, "--save-interval")


def _list(config: Any) -> None:
    if config.augmentation not in (None, False):
        augmentation.listed(config.augmentation)


def _growing_crops(config: Train) -> None:
    if config.progressive is not None:
        progressive(config)


AUGMENTATION: tuple[Rule, ...] = (
    *(Excludes(name, "no_aug") for name in FIELDS),
    *(Excludes(name, "color_jitter") for name in JITTER),
    Excludes("crop_padding", "scale"),
    Excludes("crop_padding", "ratio"),
    *(Range(name, allows, words) for name, (allows, words) in VALUES.items()),
    Check("aa", augmentation.check_policy),
    Check("augmentation", _list),
    Check("in_chans", _gray),
    _deep("images of 16 bits", lambda config: config.depth == 16, "depth"),
    _deep("bands", lambda config: config.image_field is not None, "image_field"),
    Check("image_field", _bands_alone),
    Idle("alternating_flip", _is_unmirrored, "with --hflip 0"),
    Replaces("augmentation", ON_A_LIST),  # flags beside a list change its entries
)

# What each backend does without. The loader's settings are called as the flags are.
LOADER: tuple[Rule, ...] = tuple(
    Idle(setting, _loads_with(backend), "with --resident" if backend == "resident" else f"with --loader {backend}")
    for backend, settings in IGNORED_SETTINGS.items()
    for setting in settings
)

_TEXT: tuple[Rule, ...] = (
    *(
        Idle(name, reads_text, lambda config: f"on texts (--arch {config.arch})", "leave it out")
        for name in (*IMAGE_FIELDS, *FIELDS)
    ),
    Check("loader", _text_loader),
    Idle("pretrained", reads_text, lambda config: f"with {config.arch}, which comes with its weights", "leave it out"),
)

ELSEWHERE: tuple[Rule, ...] = (  # data in an object store
    Needs("cache_limit", _is_elsewhere, "a URL as DATA"),
    Needs("storage_option", _is_elsewhere, "a URL as DATA"),
    Check("cache_limit", _cache_limit),
    Check("storage_option", _storage_option),
)
_LOADER_ELSEWHERE = Check("loader", _loader_elsewhere)
_CACHE_ELSEWHERE = Needs("cache_dir", _is_elsewhere, "a URL as DATA")
FROM_STORE: tuple[Rule, ...] = (_CACHE_ELSEWHERE, *ELSEWHERE)  # of commands that keep nothing else in a cache

_EFFECTS: tuple[Rule, ...] = (
    Excludes("epochs", "duration"),
    Excludes("warmup", "warmup_epochs"),
    Excludes("warmup", "warmup_fraction"),
    Excludes("warmup_epochs", "warmup_fraction"),
    Excludes("decay", "decay_epochs"),
    Excludes("crop_pct", "val_resize_size"),
    Excludes("train_crop_size", "progressive"),
    Excludes("crop_padding", "progressive"),
    Idle("crop_padding", lambda c: c.decode == "gpu", "with --decode gpu"),
    Idle("resident", lambda c: c.loader not in ("auto", "native"), lambda c: f"with --loader {c.loader}"),
    Needs("freeze_epochs", lambda c: c.freeze is not None, "--freeze"),
    Needs("progressive_epochs", lambda c: c.progressive is not None, "--progressive"),
    Needs("model_ema_decay", lambda c: c.model_ema, "--model-ema"),
    Needs("model_ema_steps", lambda c: c.model_ema, "--model-ema"),
    Needs("head_init", tuned, "--pretrained or --weights"),
    Needs("head_hidden", lambda c: c.head == "mlp", "--head mlp"),
    Needs("cache_embeddings", _keeps, "--freeze backbone all the time"),
    Needs("cache_dtype", lambda c: _keeps(c) or _keeps_teacher(c), "--freeze backbone all the time"),
    Needs("cache_dir", _caches, "--freeze backbone"),
    *ELSEWHERE,
    _LOADER_ELSEWHERE,
    Needs("combiner", _pairs, "--text-arch"),
    Needs("patience_metric", lambda c: c.patience is not None, "--patience"),
    Idle("patience_metric", lambda c: c.metric is not None, "with --metric, which --patience watches then"),
    Idle("metric", _unvalidated, "with --val-fraction 0"),
    Needs("max_length", lambda c: reads_text(c) or _pairs(c), "a text encoder (--arch hf:NAME)"),
    Idle("sampler", lambda c: order(c) != "random", lambda c: f"with --order {order(c)}, which takes each image once"),
    Idle("class_weights", _weighs_alike, "with --sampler balanced, after which all classes weigh the same"),
    Idle("logit_adjust", lambda c: c.sampler == "balanced", "with --sampler balanced, after which priors are equal"),
    Excludes("fold", "val_fraction"),
    Excludes("fold", "val_split"),
    Needs("group", lambda c: c.fold is not None, "--fold"),
    Needs("stratify", lambda c: c.fold is not None, "--fold"),
    Excludes("loss", "bce_loss"),
    Needs("focal_gamma", lambda c: c.loss == "focal", "--loss focal"),
    Idle("logit_adjust", lambda c: loss_kind(c) == "bce", "with binary cross-entropy, which has no softmax"),
    Idle("momentum", lambda c: c.opt == "adamw", lambda c: f"with --opt {c.opt}"),
    Needs("teacher_weights", lambda c: c.teacher is not None, "--teacher"),
    Needs("kd_temperature", lambda c: c.teacher is not None, "--teacher"),
    Needs("kd_weight", lambda c: c.teacher is not None, "--teacher"),
    Needs("cache_teacher", lambda c: c.teacher is not None, "--teacher"),
    Idle("teacher", reads_text, lambda c: f"on texts (--arch {c.arch})", "leave it out"),
    Check("teacher", _teaches),
    Idle("opt_eps", lambda c: c.opt == "sgd", lambda c: f"with --opt {c.opt}"),
    Idle("opt_betas", lambda c: c.opt == "sgd", lambda c: f"with --opt {c.opt}"),
    Idle("lookahead", _schedule_free, lambda c: f"with --opt {c.opt}, which averages weights itself"),
    Idle("model_ema", _schedule_free, lambda c: f"with --opt {c.opt}, which averages weights itself"),
    Idle("min_lr", _schedule_free, lambda c: f"with --opt {c.opt}, whose rate stays constant"),
    Check("sched", _decays),
    Check("freeze_epochs", _late_average),
    Idle("decay_epochs", _without_steps, "with any --sched but step"),
    Idle("decay", _without_steps, "with any --sched but step"),
    Idle("decay_rate", _without_steps, "with any --sched but step"),
    Idle("min_lr", lambda c: c.sched in ("step", "constant"), lambda c: f"with --sched {c.sched}"),
    Idle("order_window", lambda c: order(c) != "quasi-random", lambda c: f"with --order {order(c)}"),
    Idle("dct_scaling", lambda c: c.decode == "gpu", "with --decode gpu"),
    Idle("dct_scaling", lambda c: c.no_aug, "with --no-aug"),
    Idle("dct_scaling", lambda c: c.image_field is not None, "with --image-field"),
    Idle("dct_scaling", lambda c: c.depth == 16, "with --depth 16"),
    Excludes("pretrained", "weights"),
    Idle("lr_base_size", lambda c: c.lr == "auto", "with --lr auto"),
    Idle("lr_base_size", _finds_rate, "with --lr find, which measures with the run's own batch"),
    Idle("lr_scale", _finds_rate, "with --lr find, which measures with the run's own batch"),
    Idle("lr_base_size", lambda c: c.lr_scale == "none", "with --lr-scale none"),
    Idle("layer_decay", head_alone, "with --freeze backbone"),
    Idle("ghost_bn", _one_ghost, lambda c: f"with --batch-size {c.batch_size}"),
    Idle("ghost_bn", lambda c: c.sync_bn, "with --sync-bn"),
    Idle("ghost_bn", _only_head, "with --freeze backbone and --head linear"),
    Idle("sync_bn", _only_head, "with --freeze backbone"),
    Idle("grad_compression", lambda c: c.strategy == "fsdp", "with --strategy fsdp, which reduces in float32"),
    Idle("cache_dtype", lambda c: c.cache_embeddings == "off" and not _keeps_teacher(c), "with --cache-embeddings off"),
    Idle("grad_checkpointing", head_alone, "with --freeze backbone"),
    Idle("progressive", plain, lambda c: f"with {'--no-aug' if c.no_aug else 'no augmentation'}"),
    Idle("tta", lambda c: _unvalidated(c) and not c.evaluate_training_set, "with --val-fraction 0"),
    Idle("patience", _unvalidated, "with --val-fraction 0"),
    Idle("val_interval", _unvalidated, "with --val-fraction 0"),
    Idle(
        "img_size",
        lambda c: c.train_crop_size is not None and c.val_crop_size is not None,
        "with --train-crop-size and --val-crop-size",
    ),
    Idle("mixup", lambda c: c.batch_size == 1, "with --batch-size 1", given=_mixes("mixup")),
    Idle("cutmix", lambda c: c.batch_size == 1, "with --batch-size 1", given=_mixes("cutmix")),
    Idle("amp_dtype", lambda c: not c.amp, "with --no-amp"),
    Idle("profile", lambda c: c.loader not in ("auto", "native"), lambda c: f"with --loader {c.loader}"),
    Idle("profile", lambda c: c.resident, "with --resident"),
    Idle("norm_lr_scale", _only_head, "with --freeze backbone"),
)

CUDA_GRAPHS: tuple[Rule, ...] = (Check("compile", _cuda_graphs),)

_VALUES: tuple[Rule, ...] = (
    Range("batch_size", lambda size: size == "auto" or size >= 1, "1 or more, or auto"),
    Range("grad_accum_steps", _at_least(1), "1 or more"),
    Range("epochs", _at_least(1), "1 or more"),
    Range("freeze_epochs", _at_least(1), "1 or more"),
    Range("ghost_bn", _at_least(2), "2 or more"),
    Range("head_hidden", _at_least(1), "1 or more"),
    Range("max_length", _at_least(4), "4 or more"),
    Range("cache_teacher", _at_least(1), "1 or more"),
    Range("cache_embeddings", _are_views, "a number of views, 1 or more, or off"),
    Range("lr_base_size", _at_least(1), "1 or more"),
    Range("layer_decay", _is_share_above_zero, "a share above 0 and up to 1"),
    Range("norm_weight_decay", _at_least(0), "0 or more"),
    Range("norm_lr_scale", _is_above_zero, "a number above 0"),
    Range("lookahead", _at_least(2), "2 or more"),
    Range("model_ema_decay", _is_share_below_one, "a share from 0 up to, not including, 1"),
    Range("model_ema_steps", _at_least(1), "1 or more"),
    Range("compile", lambda mode: mode in COMPILE_MODES, f"one of {', '.join(COMPILE_MODES)}"),
    *CUDA_GRAPHS,
    Range("seed", _at_least(0), "0 or more"),
    Range("prefetch", _at_least(2), "2 or more"),
    Check("order_window", _order_window),
    Range("max_pixels", _at_least(1), "1 or more"),
    Check("log", _trackers),
    Range("log_interval", _at_least(1), "1 or more"),
    Check("save_interval", _save_interval),
    Range("val_interval", _at_least(1), "1 or more"),
    Range("checkpoint_hist", _at_least(0), "0 or more"),
    Range("patience", _at_least(1), "1 or more"),
    Range("lr", lambda rate: rate in ("auto", "find") or _is_above_zero(rate), "a number above 0, auto or find"),
    Check("lr", _rate_search),
    Range("kd_temperature", _is_above_zero, "a number above 0"),
    Range("kd_weight", _is_share_above_zero, "a share above 0 and up to 1"),
    Range("opt_eps", _at_least(0), "0 or more"),
    Range("opt_betas", lambda betas: all(map(_is_share_below_one, betas)), "numbers from 0 up to, not including, 1"),
    Range("weight_decay", lambda decay: decay >= 0, "0 or more"),
    Range("momentum", _is_share_below_one, "a number from 0 up to, not including, 1"),
    Range("clip_grad", lambda norm: norm > 0, "a number above 0"),
    Range("val_fraction", _is_share_below_one, "a share from 0 up to, not including, 1"),
    Range("bce_pos_weight", _is_pos_weight, "a number above 0, or balanced"),
    Range("focal_gamma", _at_least(0), "0 or more"),
    Range("logit_adjust", _at_least(0), "0 or more"),
    Range("smoothing", _is_share_below_one, "a share from 0 up to, not including, 1"),
    Range("crop_pct", _is_share_above_zero, "a share above 0 and up to 1"),
    Range("warmup_epochs", lambda epochs: epochs >= 0, "0 or more"),
    Range("warmup_fraction", _is_share, "a share from 0 to 1"),
    Range("min_lr", lambda rate: rate >= 0, "0 or more"),
    Range("decay_epochs", lambda epochs: epochs > 0, "a number above 0"),
    Range("decay_rate", _is_share_above_zero, "a number above 0 and up to 1"),
    Range("drop_path", _is_share_below_one, "a rate from 0 up to, not including, 1"),
    Range("in_chans", _at_least(1), "1 for gray or 3 for RGB; of other bands name their field with --image-field"),
    Check("in_chans", _channel_count),
    Range("depth", lambda bits: bits in (8, 16), "8, or 16 for images of 16 bits"),
    Check("mean", _means),
    Check("std", _deviations),
    *(
        Range(name, _is_size, "a size from 1 to 16384 pixels")
        for name in ("img_size", "train_crop_size", "val_crop_size", "val_resize_size")
    ),
    Check("ghost_bn", _ghost_batch),
    Check("batch_size", _batch_search),
    Check("cache_embeddings", _views),
    Check("cache_teacher", _kept_teacher),
    Check("fold", _fold),
    Check("max_time", _max_time),
    Check("warmup", _duration("warmup")),
    Check("decay", _duration("decay")),
    Check("duration", _duration("duration", whole=True)),
    Check("freeze_epochs", _frozen_epochs),
    Check("progressive", _growing_crops),
)

_OF_OPTIMISERS = (
    *("lr", "lr_scale", "lr_base_size", "weight_decay", "norm_lr_scale"),
    *("opt_kwargs", "opt_eps", "opt_betas", "opt_impl"),
)

# What a setting above a file or a recipe replaces in it, though both could be given together.
_PRECEDENCE: tuple[Rule, ...] = (
    Replaces("img_size", ("train_crop_size", "val_crop_size", "val_resize_size", "progressive", "progressive_epochs")),
    # A recipe's arguments are for its model, its rate for its optimiser and batch, its ramp for its epochs.
    Replaces("arch", ("model_kwargs", "norm_lr_scale"), in_recipes=True),
    Replaces("opt", _OF_OPTIMISERS, in_recipes=True),
    Replaces("lr", ("lr_scale", "lr_base_size"), in_recipes=True),
    Replaces("duration", ("progressive_epochs",), in_recipes=True),
)

_ONE_INPUT = "is for models of one input"
_PAIRS: tuple[Rule, ...] = (
    Check("text_arch", _text_arch),
    _not_of_pairs("mixup", "mixes images, and texts cannot be mixed", _mixes("mixup")),
    _not_of_pairs("cutmix", "mixes images, and texts cannot be mixed", _mixes("cutmix")),
    _not_of_pairs("compile", _ONE_INPUT, lambda config: config.compile is not None),
    _not_of_pairs("strategy", _ONE_INPUT, lambda config: config.strategy == "fsdp"),
    _not_of_pairs("layer_decay", _ONE_INPUT, lambda config: config.layer_decay is not None),
    _not_of_pairs("cache_teacher", "keeps what a teacher says of images alone", _keeps_teacher),
    _not_of_pairs("grad_checkpointing", _ONE_INPUT, lambda config: config.grad_checkpointing),
)


def _on_ray(config: Any) -> bool:
    return bool(config.backend == "ray")


def _cluster_address(config: Any) -> str | None:
    if config.address is None or "://" not in config.address:
        return None
    return "start this command on a machine of the cluster, and give auto or HOST:PORT"


def _cluster_device(config: Any) -> str | None:
    if not _on_ray(config) or config.device in ("auto", "cpu", "cuda"):
        return None
    return "Ray chooses the GPU; give auto, cpu or cuda"


# Of every command with --backend and --address.
CLUSTER: tuple[Rule, ...] = (Needs("address", _on_ray, "--backend ray"), Check("address", _cluster_address))


def _worker_resources(config: Train) -> str | None:
    if config.resources_per_worker is not None:
        trial_resources.parse(config.resources_per_worker, "--resources-per-worker", "rank")
    return None


def _elastic(config: Train) -> str | None:
    if config.elastic is not None:
        trial_resources.parse_range(config.elastic)
    return None


_WORKERS: tuple[Rule, ...] = (
    *CLUSTER,
    *(Needs(name, _on_ray, "--backend ray") for name in ("resources_per_worker", "elastic", "max_failures")),
    Needs("num_workers", _on_ray, "--backend ray, where it is the number of ranks (threads are --workers)"),
    Excludes("num_workers", "elastic"),
    Range("num_workers", _at_least(1), "1 or more"),
    Range("max_failures", _at_least(0), "0 or more"),
    Check("resources_per_worker", _worker_resources),
    Check("elastic", _elastic),
    Check("device", _cluster_device),
)

TRAIN: tuple[Rule, ...] = (*AUGMENTATION, *_TEXT, *_PAIRS, *LOADER, *_EFFECTS, *_VALUES, *_PRECEDENCE, *_WORKERS)

TRAIN_DEVICE = (
    Device(
        "compile",
        lambda mode: mode == "reduce-overhead",
        "it uses CUDA graphs and has no effect on {device}; use --compile default",
    ),
    Device("augment_stream", lambda stream: stream != "auto", "has no effect on {device}; leave it out"),
    Device(
        "numa_binding",
        lambda where: where != "auto",
        "has no effect on {device}, where ranks are not bound; leave it out",
    ),
    Device(
        "decode",
        lambda where: where == "gpu",
        "the run is on {device}; start it on a CUDA device, or leave --decode out",
    ),
)

_READING = (Range("batch_size", _at_least(1), "1 or more"), Range("max_pixels", _at_least(1), "1 or more"))

EVAL: tuple[Rule, ...] = (
    *FROM_STORE,
    _LOADER_ELSEWHERE,
    *_READING,
    *LOADER,
)

PREDICT: tuple[Rule, ...] = (
    Range("topk", _at_least(1), "1 or more"),
    Range("threshold", _is_share, "a probability from 0 to 1"),
    *FROM_STORE,
    *_READING,
)

EMBED: tuple[Rule, ...] = (
    *ELSEWHERE,
    *_READING,
    *CLUSTER,
    Check("device", _cluster_device),
    Idle("img_size", reads_text, "on texts", "leave it out"),
    Idle("max_length", lambda c: not reads_text(c), "on images", "leave it out"),
    Idle("pretrained", reads_text, lambda c: f"with {c.arch}, which comes with its weights", "leave it out"),
    Excludes("pretrained", "weights"),
    Range("knn", _at_least(1), "1 or more"),
    Range("img_size", _at_least(1), "1 or more"),
)

INSPECT: tuple[Rule, ...] = (
    *FROM_STORE,
    Range("samples", lambda count: 1 <= count <= 400, "1 to 400"),
    Range("max_pixels", _at_least(1), "1 or more"),
    Range("seed", _at_least(0), "0 or more"),
    Range("img_size", _is_size, "a size from 1 to 16384 pixels"),
)

VERIFY: tuple[Rule, ...] = (*FROM_STORE, Range("max_pixels", _at_least(1), "1 or more"))

SUGGEST: tuple[Rule, ...] = FROM_STORE

BENCH: tuple[Rule, ...] = (
    *FROM_STORE,
    _LOADER_ELSEWHERE,
    Check("loaders", _loaders_elsewhere),
    Excludes("quick", "full"),
    Needs("no_advice", lambda c: bool(c.full), "--full, which alone tries what would be faster"),
    *AUGMENTATION,
    *LOADER,
    *(Range(name, _at_least(1), "1 or more") for name in ("batch_size", "img_size", "repeats", "images")),
)


def _parts_a_gpu(config: Search) -> bool:
    amounts = trial_resources.parse(config.resources_per_trial or "cpu=1")
    return amounts.get("GPU", 1) < 1


SEARCH: tuple[Rule, ...] = (
    *CLUSTER,
    *(Needs(name, _on_ray, "--backend ray") for name in ("resources_per_trial", "limit_gpu_memory")),
    Check("device", _cluster_device),
    Needs("limit_gpu_memory", _parts_a_gpu, "a part of a GPU, as in --resources-per-trial gpu=0.5"),
    Range("trials", _at_least(1), "1 or more"),
    Range("jobs", _at_least(1), "1 or more"),
    Range("seed", _at_least(0), "0 or more"),
)
