"""The sections of `--help`, and the flags that people need first.

Every flag of a command that is listed here stands in one section; a test holds that.
"""

from collections.abc import Mapping

Sections = Mapping[str, tuple[str, ...]]  # title -> fields

_CROPS = ("scale", "ratio", "crop_padding", "hflip", "alternating_flip", "vflip", "rotate")
_AUGMENTATION = (
    *(*_CROPS, "aa", "brightness", "contrast", "saturation", "color_jitter", "hue", "grayscale_prob"),
    *("gaussian_blur_prob", "solarize_prob", "reprob", "mixup", "cutmix", "no_aug"),
)
STORE = ("cache_dir", "cache_limit", "storage_option")
SECTIONS: Mapping[str, Sections] = {
    "train": {
        "model": (
            *("arch", "text_arch", "combiner"),
            *("pretrained", "weights", "num_classes", "freeze", "freeze_epochs", "head", "head_hidden"),
            *("head_init", "cache_embeddings", "cache_dtype", "cache_dir", "drop_path", "ghost_bn", "in_chans"),
            *("image_field", "depth"),
            "blurpool",
            "model_kwargs",
        ),
        "data": (
            *("classes", "train_split", "val_split", "val_fraction", "fold", "group", "stratify", "order"),
            *("order_window", "loader", "resident", "cache_limit", "storage_option"),
            *("workers", "profile", "prefetch", "decode", "augment_stream", "dct_scaling", "on_error", "max_pixels"),
            "max_length",
        ),
        "image size": (
            *("img_size", "train_crop_size", "val_crop_size", "val_resize_size", "crop_pct", "interpolation", "mean"),
            *("std", "progressive", "progressive_epochs"),
        ),
        "augmentation": _AUGMENTATION,
        "batch": ("batch_size", "grad_accum_steps", "grad_checkpointing"),
        "optimiser": (
            *("opt", "opt_kwargs", "opt_eps", "opt_betas", "opt_impl"),
            *("lr", "lr_scale", "lr_base_size", "layer_decay", "momentum", "weight_decay"),
            *("norm_weight_decay", "norm_lr_scale", "lookahead", "clip_grad", "model_ema", "model_ema_decay"),
            "model_ema_steps",
        ),
        "loss and rare classes": (
            *("smoothing", "loss", "bce_loss", "focal_gamma", "class_weights", "logit_adjust", "sampler"),
        ),
        "targets": ("targets", "target_weights", "bce_pos_weight", "metric"),
        "distillation": ("teacher", "teacher_weights", "kd_temperature", "kd_weight", "cache_teacher"),
        "schedule": (
            *("epochs", "duration", "max_time", "sched", "warmup", "warmup_epochs", "warmup_fraction"),
            *("warmup_lr", "min_lr"),
            *("decay", "decay_epochs", "decay_rate"),
        ),
        "precision and devices": (
            *("amp", "amp_dtype", "channels_last", "compile", "cuda_graphs", "device", "strategy", "sync_bn"),
            *("grad_compression", "numa_binding"),
        ),
        "on a Ray cluster": (
            *("backend", "address", "num_workers", "resources_per_worker", "elastic", "max_failures"),
        ),
        "run": (
            *("output", "name", "resume", "recipe", "config", "seed", "deterministic", "val_interval", "tta"),
            *("evaluate_training_set", "patience", "patience_metric", "save_interval", "checkpoint_hist"),
            *("log", "log_interval", "trace", "dry_run", "verbose"),
        ),
    },
    "convert": {
        "source": (
            *(
                "classes",
                "key_dots",
                "image_member",
                "label_member",
                "split_column",
                "label_column",
                "target",
                "label_delimiter",
                "field",
                "images",
                "masks",
            ),
            *("image_field", "path_column", "text_column", "no_header", "delimiter"),
            *("labels_are_classes", "val_fraction", "shuffle", "no_shuffle", "seed"),
        ),
        "destination": (*("format", "shard_size", "append", "merge", "resume", "overwrite", "delete_first", *STORE),),
        "images": (
            *("tile", "max_size", "quality", "jpeg", "recompress"),
            *("raw_fraction", "raw_below", "originals", "compare", "max_pixels"),
        ),
        "run": ("workers", "on_error", "json"),
        "on a Ray cluster": ("backend", "address"),
    },
    "inspect": {
        "data": ("split", "classes", "headers_only", "max_pixels", "workers", *STORE),
        "pictures": ("no_pictures", "samples", "draw_fields", "img_size", "config", "output", "overwrite", "seed"),
        "augmentation": _AUGMENTATION,
        "output": ("json",),
    },
    "search": {
        "what to search": ("param", "arch", "weights", "metric", "objective", "config"),
        "how": ("trials", "max_time", "algorithm", "pruner", "seed", "device", "jobs"),
        "on a Ray cluster": ("backend", "address", "resources_per_trial", "limit_gpu_memory"),
        "output": ("output", "keep", "storage", "json"),
    },
    "bench": {
        "what to measure": (
            *("quick", "full", "arch", "stages", "loaders", "workers_curve", "tune", "no_advice", "images", "repeats"),
            "batch_size",
            "img_size",
        ),
        "data": ("split", "loader", "workers", "decode", "seed", "scratch", *STORE),
        "augmentation": _AUGMENTATION,
        "precision and devices": ("amp", "channels_last", "device"),
        "output": ("output", "overwrite", "json"),
    },
}
# What `--help` shows of a long command; `--help-all` shows the rest.
FIRST: Mapping[str, frozenset[str]] = {
    "train": frozenset(
        (
            *("arch", "pretrained", "weights", "freeze", "val_fraction", "workers", "img_size", "aa", "mixup"),
            *("cutmix", "batch_size", "opt", "lr", "weight_decay", "epochs", "compile", "device", "output", "resume"),
            *("recipe", "config", "dry_run", "name", "hflip", "log", "patience"),
        )
    ),
    "convert": frozenset(
        (
            *("val_fraction", "label_column", "target", "field", "path_column", "format", "append", "max_size", "tile"),
            *("resume", "overwrite", "workers", "on_error", "json"),
        )
    ),
    "inspect": frozenset(("split", "no_pictures", "samples", "config", "output", "workers", "json", "aa")),
    "search": frozenset(
        (
            "param",
            "arch",
            "weights",
            "metric",
            "objective",
            "trials",
            "max_time",
            "algorithm",
            "device",
            "output",
            "json",
        )
    ),
    "bench": frozenset(
        (
            *(
                "quick",
                "full",
                "arch",
                "stages",
                "loaders",
                "workers_curve",
                "tune",
                "batch_size",
                "img_size",
                "loader",
            ),
            *("workers", "device", "output", "json"),
        )
    ),
}
EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "convert": (
        ("fastimg convert photos/ shards/", "a folder with one subfolder per class"),
        ("fastimg convert labels.csv shards/ --val-fraction 0.1", "a manifest; a tenth is held out for validation"),
    ),
    "train": (
        ("fastimg train shards/ --arch resnet50 --pretrained --epochs 5", "fine-tune"),
        ("fastimg train shards/ --weights FILE --freeze backbone", "train only the classifier, in seconds"),
        ("torchrun --nproc-per-node 8 -m fastimg train shards/", "one process per GPU"),
        ("fastimg train shards/ --arch resnet50 --resume auto", "continue after an interruption"),
    ),
    "search": (
        ("fastimg search shards/ --max-time 20m", "the best model that is found in twenty minutes"),
        ("fastimg search shards/ -p lr=log:1e-4:1e-1 aa=none,trivial --trials 20", "values of flags"),
    ),
    "eval": (("fastimg eval runs/NAME shards/", "the best checkpoint of a run"),),
    "predict": (("fastimg predict runs/NAME photos/ --csv classes.csv", "classify every image below a folder"),),
    "inspect": (("fastimg inspect shards/", "counts, duplicates, and pictures of samples and augmentation"),),
    "embed": (("fastimg embed shards/ OUT --arch resnet50 --pretrained", "embeddings of every image"),),
    "export": (("fastimg export runs/NAME --output model.onnx --check", "ONNX, compared with `predict`"),),
    "push": (("fastimg push runs/NAME hub://USER/NAME --dry-run", "what would be uploaded"),),
    "bench": (("fastimg bench shards/", "what limits training here, and what to change"),),
}
