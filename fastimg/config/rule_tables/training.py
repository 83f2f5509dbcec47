"""The rules of `train`."""

from fastimg.config import augmentation
from fastimg.config.augmentation import FIELDS, JITTER, ON_A_LIST, VALUES
from fastimg.config.intent import head_alone, loss_kind, order, plain, reads_text, tuned
from fastimg.config.rules import Check, Device, Excludes, Idle, Needs, Range, Replaces, Rule
from fastimg.config.training import COMPILE_MODES
from fastimg.loaders.backends.settings import IGNORED_SETTINGS

from .channels import (
    IMAGE_FIELDS,
    check_bands_alone,
    check_channel_count,
    check_deviations,
    check_gray,
    check_means,
    deep_check,
)
from .clusters import WORKERS
from .conditions import (
    caches,
    check_augmentation_list,
    check_batch_search,
    check_cuda_graphs,
    check_fold,
    check_frozen_epochs,
    check_frozen_weights,
    check_ghost_batch,
    check_growing_crops,
    check_kept_teacher,
    check_late_average,
    check_max_time,
    check_order_window,
    check_rate_search,
    check_save_interval,
    check_teaches,
    check_text_arch,
    check_text_loader,
    check_trackers,
    check_views,
    decays_in_vain,
    finds_rate,
    is_unmirrored,
    keeps,
    keeps_teacher,
    loads_with,
    mixes,
    not_of_pairs,
    one_ghost,
    only_head,
    pairs,
    scales_rate,
    schedule_free,
    span_reader,
    unevaluated,
    unvalidated,
    weighs_alike,
    without_steps,
    without_warmup,
)
from .elsewhere import ELSEWHERE, LOADER_ELSEWHERE, check_cluster_and_store, check_output
from .ranges import (
    DEVICE,
    are_views,
    at_least,
    is_above_zero,
    is_pos_weight,
    is_share,
    is_share_above_zero,
    is_share_below_one,
    is_size,
)

AUGMENTATION: tuple[Rule, ...] = (
    *(Excludes(name, "no_aug") for name in FIELDS),
    *(Excludes(name, "color_jitter") for name in JITTER),
    Excludes("crop_padding", "scale"),
    Excludes("crop_padding", "ratio"),
    *(Range(name, allows, words) for name, (allows, words) in VALUES.items()),
    Check("aa", augmentation.check_policy),
    Check("augmentation", check_augmentation_list),
    Check("in_chans", check_gray),
    deep_check("images of 16 bits", lambda config: config.depth == 16, "depth"),
    deep_check("bands", lambda config: config.image_field is not None, "image_field"),
    Check("image_field", check_bands_alone),
    Idle("alternating_flip", is_unmirrored, "with --hflip 0"),
    Replaces("augmentation", ON_A_LIST),  # flags beside a list change its entries
)

# What each backend does without. The loader's settings are called as the flags are.
LOADER: tuple[Rule, ...] = tuple(
    Idle(setting, loads_with(backend), "with --resident" if backend == "resident" else f"with --loader {backend}")
    for backend, settings in IGNORED_SETTINGS.items()
    for setting in settings
)

_TEXT: tuple[Rule, ...] = (
    *(
        Idle(name, reads_text, lambda config: f"on texts (--arch {config.arch})", "leave it out")
        for name in (*IMAGE_FIELDS, *FIELDS)
    ),
    Check("loader", check_text_loader),
    Idle("pretrained", reads_text, lambda config: f"with {config.arch}, which comes with its weights", "leave it out"),
)

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
    Needs("cache_embeddings", keeps, "--freeze backbone all the time"),
    Needs("cache_dtype", lambda c: keeps(c) or keeps_teacher(c), "--freeze backbone all the time"),
    Needs("cache_dir", caches, "--freeze backbone"),
    *ELSEWHERE,
    Check("output", check_output),
    Check("backend", check_cluster_and_store),
    LOADER_ELSEWHERE,
    Needs("combiner", pairs, "--text-arch"),
    Needs("patience_metric", lambda c: c.patience is not None, "--patience"),
    Idle("patience_metric", lambda c: c.metric is not None, "with --metric, which --patience watches then"),
    Idle("metric", unvalidated, "with --val-fraction 0"),
    Needs("max_length", lambda c: reads_text(c) or pairs(c), "a text encoder (--arch hf:NAME)"),
    Idle("sampler", lambda c: order(c) != "random", lambda c: f"with --order {order(c)}, which takes each image once"),
    Idle("class_weights", weighs_alike, "with --sampler balanced, after which all classes weigh the same"),
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
    Check("teacher", check_teaches),
    Idle("opt_eps", lambda c: c.opt == "sgd", lambda c: f"with --opt {c.opt}"),
    Idle("opt_betas", lambda c: c.opt == "sgd", lambda c: f"with --opt {c.opt}"),
    Idle("lookahead", schedule_free, lambda c: f"with --opt {c.opt}, which averages weights itself"),
    Idle("model_ema", schedule_free, lambda c: f"with --opt {c.opt}, which averages weights itself"),
    Idle("min_lr", schedule_free, lambda c: f"with --opt {c.opt}, whose rate stays constant"),
    Idle("sched", decays_in_vain, lambda c: f"with --opt {c.opt}, which needs no schedule and is not made for one"),
    Check("freeze_epochs", check_late_average),
    Idle("decay_epochs", without_steps, "with any --sched but step"),
    Idle("decay", without_steps, "with any --sched but step"),
    Idle("decay_rate", without_steps, "with any --sched but step"),
    Idle("min_lr", lambda c: c.sched in ("step", "constant"), lambda c: f"with --sched {c.sched}"),
    Idle("warmup_lr", without_warmup, "without warmup"),
    Idle("order_window", lambda c: order(c) != "quasi-random", lambda c: f"with --order {order(c)}"),
    Idle("dct_scaling", lambda c: c.decode == "gpu", "with --decode gpu"),
    Idle("dct_scaling", lambda c: c.no_aug, "with --no-aug"),
    Idle("dct_scaling", lambda c: c.image_field is not None, "with --image-field"),
    Idle("dct_scaling", lambda c: c.depth == 16, "with --depth 16"),
    Excludes("pretrained", "weights"),
    Idle("lr_base_size", lambda c: c.lr == "auto", "with --lr auto"),
    Idle("lr_base_size", finds_rate, "with --lr find, which measures with the run's own batch"),
    Idle("lr_scale", finds_rate, "with --lr find, which measures with the run's own batch"),
    Idle("lr_base_size", lambda c: c.lr_scale == "none", "with --lr-scale none"),
    Needs("lr_base_size", scales_rate, "--lr-scale"),
    Idle("layer_decay", head_alone, "with --freeze backbone"),
    Idle("ghost_bn", one_ghost, lambda c: f"with --batch-size {c.batch_size}"),
    Idle("ghost_bn", lambda c: c.sync_bn, "with --sync-bn"),
    Idle("ghost_bn", only_head, "with --freeze backbone and --head linear"),
    Idle("sync_bn", only_head, "with --freeze backbone"),
    Idle("grad_compression", lambda c: c.strategy == "fsdp", "with --strategy fsdp, which reduces in float32"),
    Idle("cache_dtype", lambda c: c.cache_embeddings == "off" and not keeps_teacher(c), "with --cache-embeddings off"),
    Idle("grad_checkpointing", head_alone, "with --freeze backbone"),
    Idle("progressive", plain, lambda c: f"with {'--no-aug' if c.no_aug else 'no augmentation'}"),
    Idle("tta", unevaluated, "with --val-fraction 0"),
    Idle("patience", unvalidated, "with --val-fraction 0"),
    Idle("val_interval", unevaluated, "with --val-fraction 0"),
    Idle(
        "img_size",
        lambda c: c.train_crop_size is not None and c.val_crop_size is not None,
        "with --train-crop-size and --val-crop-size",
    ),
    Idle("mixup", lambda c: c.batch_size == 1, "with --batch-size 1", given=mixes("mixup")),
    Idle("cutmix", lambda c: c.batch_size == 1, "with --batch-size 1", given=mixes("cutmix")),
    Idle("amp_dtype", lambda c: not c.amp, "with --no-amp"),
    Idle("profile", lambda c: c.loader not in ("auto", "native"), lambda c: f"with --loader {c.loader}"),
    Idle("profile", lambda c: c.resident, "with --resident"),
    Idle("norm_lr_scale", only_head, "with --freeze backbone"),
)

OF_A_STEP: tuple[Rule, ...] = (  # what the batch of a rank decides, which other ranks change in a run that is resumed
    Check("compile", check_cuda_graphs),
    Check("ghost_bn", check_ghost_batch),
)

_VALUES: tuple[Rule, ...] = (
    Range("num_classes", at_least(1), "1 or more"),
    Range("batch_size", lambda size: size == "auto" or size >= 1, "1 or more, or auto"),
    Range("grad_accum_steps", at_least(1), "1 or more"),
    Range("epochs", at_least(1), "1 or more"),
    Range("freeze_epochs", at_least(1), "1 or more"),
    Range("ghost_bn", at_least(2), "2 or more"),
    Range("head_hidden", at_least(1), "1 or more"),
    Range("max_length", at_least(4), "4 or more"),
    Range("cache_teacher", at_least(1), "1 or more"),
    Range("cache_embeddings", are_views, "a number of views, 1 or more, or off"),
    Range("lr_base_size", at_least(1), "1 or more"),
    Range("layer_decay", is_share_above_zero, "a share above 0 and up to 1"),
    Range("norm_weight_decay", at_least(0), "0 or more"),
    Range("norm_lr_scale", is_above_zero, "a number above 0"),
    Range("lookahead", at_least(2), "2 or more"),
    Range("model_ema_decay", is_share_below_one, "a share from 0 up to, not including, 1"),
    Range("model_ema_steps", at_least(1), "1 or more"),
    Range("compile", lambda mode: mode in COMPILE_MODES, f"one of {', '.join(COMPILE_MODES)}"),
    *OF_A_STEP,
    Range("seed", at_least(0), "0 or more"),
    Range("prefetch", at_least(2), "2 or more"),
    Check("order_window", check_order_window),
    Range("max_pixels", at_least(1), "1 or more"),
    Check("log", check_trackers),
    Range("log_interval", at_least(1), "1 or more"),
    Range("trace", at_least(1), "1 or more steps"),
    Check("save_interval", check_save_interval),
    Range("val_interval", at_least(1), "1 or more"),
    Range("checkpoint_hist", at_least(0), "0 or more"),
    Range("patience", at_least(1), "1 or more"),
    Range("lr", lambda rate: rate in ("auto", "find") or is_above_zero(rate), "a number above 0, auto or find"),
    Check("lr", check_rate_search),
    Range("kd_temperature", is_above_zero, "a number above 0"),
    Range("kd_weight", is_share_above_zero, "a share above 0 and up to 1"),
    Range("opt_eps", at_least(0), "0 or more"),
    Range("opt_betas", lambda betas: all(map(is_share_below_one, betas)), "numbers from 0 up to, not including, 1"),
    Range("weight_decay", lambda decay: decay >= 0, "0 or more"),
    Range("momentum", is_share_below_one, "a number from 0 up to, not including, 1"),
    Range("clip_grad", lambda norm: norm > 0, "a number above 0"),
    Range("val_fraction", is_share_below_one, "a share from 0 up to, not including, 1"),
    Range("bce_pos_weight", is_pos_weight, "a number above 0, or balanced"),
    Range("focal_gamma", at_least(0), "0 or more"),
    Range("logit_adjust", at_least(0), "0 or more"),
    Range("smoothing", is_share_below_one, "a share from 0 up to, not including, 1"),
    Range("crop_pct", is_share_above_zero, "a share above 0 and up to 1"),
    Range("warmup_epochs", lambda epochs: epochs >= 0, "0 or more"),
    Range("warmup_fraction", is_share, "a share from 0 to 1"),
    Range("warmup_lr", lambda rate: rate >= 0, "0 or more"),
    Range("min_lr", lambda rate: rate >= 0, "0 or more"),
    Range("decay_epochs", lambda epochs: epochs > 0, "a number above 0"),
    Range("decay_rate", is_share_above_zero, "a number above 0 and up to 1"),
    Range("drop_path", is_share_below_one, "a rate from 0 up to, not including, 1"),
    Range("in_chans", at_least(1), "1 for gray or 3 for RGB; of other bands name their field with --image-field"),
    Check("in_chans", check_channel_count),
    Range("depth", lambda bits: bits in (8, 16), "8, or 16 for images of 16 bits"),
    Check("mean", check_means),
    Check("std", check_deviations),
    *(
        Range(name, is_size, "a size from 1 to 16384 pixels")
        for name in ("img_size", "train_crop_size", "val_crop_size", "val_resize_size")
    ),
    Check("batch_size", check_batch_search),
    Check("cache_embeddings", check_views),
    Check("cache_teacher", check_kept_teacher),
    Check("fold", check_fold),
    Check("max_time", check_max_time),
    Check("warmup", span_reader("warmup")),
    Check("decay", span_reader("decay")),
    Check("duration", span_reader("duration", whole=True)),
    Check("freeze_epochs", check_frozen_epochs),
    Check("progressive", check_growing_crops),
    Check("freeze", check_frozen_weights),
)

_OF_OPTIMISERS = (
    *("lr", "lr_scale", "lr_base_size", "warmup_lr", "min_lr", "weight_decay", "norm_weight_decay", "norm_lr_scale"),
    *("momentum", "opt_kwargs", "opt_eps", "opt_betas", "opt_impl"),
)

# What a setting above a file or a recipe replaces in it, though both could be given together.
_PRECEDENCE: tuple[Rule, ...] = (
    Replaces("img_size", ("train_crop_size", "val_crop_size", "val_resize_size", "progressive", "progressive_epochs")),
    # A recipe's arguments are for its model, its rate for its optimiser and batch, its ramp for its epochs.
    Replaces("arch", ("model_kwargs", "norm_lr_scale"), in_recipes=True),
    Replaces("opt", _OF_OPTIMISERS, in_recipes=True),
    Replaces("lr", ("lr_scale", "lr_base_size", "warmup_lr", "min_lr"), in_recipes=True),
    Replaces("duration", ("progressive_epochs",), in_recipes=True),
)

_ONE_INPUT = "is for models of one input"

_PAIRS: tuple[Rule, ...] = (
    Check("text_arch", check_text_arch),
    not_of_pairs("mixup", "mixes images, and texts cannot be mixed", mixes("mixup")),
    not_of_pairs("cutmix", "mixes images, and texts cannot be mixed", mixes("cutmix")),
    not_of_pairs("compile", _ONE_INPUT, lambda config: config.compile is not None),
    not_of_pairs("strategy", _ONE_INPUT, lambda config: config.strategy == "fsdp"),
    not_of_pairs("layer_decay", _ONE_INPUT, lambda config: config.layer_decay is not None),
    not_of_pairs("cache_teacher", "keeps what a teacher says of images alone", keeps_teacher),
    not_of_pairs("grad_checkpointing", _ONE_INPUT, lambda config: config.grad_checkpointing),
)

TRAIN: tuple[Rule, ...] = (DEVICE, *AUGMENTATION, *_TEXT, *_PAIRS, *LOADER, *_EFFECTS, *_VALUES, *_PRECEDENCE, *WORKERS)

TRAIN_DEVICE = (
    Device(
        "compile",
        lambda mode: mode == "reduce-overhead",
        "it uses CUDA graphs and has no effect on {device}; use --compile default",
    ),
    Device("cuda_graphs", lambda graphs: graphs != "auto", "has no effect on {device}; leave it out"),
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
