"""The flags of a command, their descriptions, and what to suggest for a flag that a command does not have."""

import ast
import difflib
import inspect
import itertools
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from fastimg.errors import UsageError, nearest

from .flag_types import command_flags, flag_names

# Names that timm, torchvision's references, Ultralytics, Hugging Face's Trainer and Lightning give to our flags.
_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "lr": ("learning-rate", "lr0", "base-lr", "max-lr", "initial-lr", "peak-lr", "blr"),
    "min-lr": ("lr-min", "lrf", "final-lr", "eta-min"),
    "lr-base-size": ("lr-base-batch-size",),
    "layer-decay": ("llrd", "lr-decay-layer", "layer-wise-lr-decay", "layerwise-decay"),
    "batch-size": (
        *("bs", "batch", "batchsize", "train-batch-size", "per-device-train-batch-size", "validation-batch-size"),
        *("per-device-eval-batch-size", "eval-batch-size", "micro-batch-size"),
    ),
    "grad-accum-steps": (
        *("gradient-accumulation-steps", "accumulate-grad-batches", "grad-accum", "accumulate", "accum-iter"),
        *("accumulation-steps", "gradient-accumulation"),
    ),
    "img-size": (
        *("image-size", "input-size", "imsize", "img", "size", "resolution", "image-resolution", "imgsize"),
        *("img-height", "image-width"),
    ),
    "train-crop-size": ("train-size", "train-resolution", "crop-size"),
    "val-crop-size": ("val-size", "test-size", "eval-crop-size", "test-input-size"),
    "val-resize-size": ("resize-size", "resize", "val-resize"),
    "workers": ("dataloader-num-workers", "nworkers", "nw", "n-workers", "num-threads", "threads"),
    "prefetch": ("prefetch-factor", "dataloader-prefetch-factor"),
    "epochs": ("max-epochs", "num-epochs", "num-train-epochs", "n-epochs", "epoch", "ep"),
    "duration": ("max-steps", "max-duration", "total-steps", "num-steps", "iterations", "max-iters"),
    "opt": ("optimizer", "optim", "optimiser"),
    "sched": ("scheduler", "lr-scheduler", "lr-scheduler-type", "schedule", "lr-schedule"),
    "warmup": ("warmup-steps", "lr-warmup-steps", "warmup-iters", "warmup-prefix"),
    "warmup-epochs": ("lr-warmup-epochs", "num-warmup-epochs"),
    "warmup-lr": ("lr-warmup-init", "warmup-init-lr", "warmup-start-lr", "lr-warmup-start"),
    "warmup-fraction": ("warmup-ratio", "warmup-proportion", "warmup-pct"),
    "decay-epochs": ("lr-step-size", "step-size", "decay-milestones"),
    "decay-rate": ("lr-gamma", "gamma"),
    "clip-grad": (
        *("max-grad-norm", "gradient-clip-val", "clip-grad-norm", "grad-clip", "gradient-clipping", "clip"),
        *("clip-norm", "grad-clip-norm"),
    ),
    "weight-decay": ("l2", "weightdecay", "decoupled-weight-decay"),
    "norm-weight-decay": ("bias-weight-decay",),
    "smoothing": ("label-smoothing-factor", "label-smooth"),
    "arch": ("model-name", "model-name-or-path", "backbone", "network", "net", "architecture", "encoder"),
    "model-kwargs": ("model-args", "model-config"),
    "pretrained": ("use-pretrained", "pretrain", "load-pretrained"),
    "weights": (
        *("initial-checkpoint", "checkpoint", "ckpt", "pretrained-path", "finetune", "load", "init-weights"),
        *("load-from", "pretrained-weights"),
    ),
    "resume": ("resume-from-checkpoint", "resume-from", "ckpt-path", "auto-resume"),
    "num-classes": ("nc", "num-labels", "nb-classes", "n-classes"),
    "drop-path": ("drop-path-rate", "stochastic-depth", "stochastic-depth-prob"),
    "freeze": ("freeze-backbone", "freeze-layers", "freeze-encoder", "linear-probe"),
    "grad-checkpointing": ("gradient-checkpointing", "activation-checkpointing", "use-checkpoint"),
    "compile": ("torchcompile", "torch-compile", "use-compile"),
    "amp-dtype": ("fp16", "bf16", "half", "precision", "mixed-precision", "dtype"),
    "amp": ("use-amp", "native-amp", "apex-amp"),
    "model-ema": ("ema", "use-ema", "ema-model"),
    "model-ema-decay": ("ema-decay",),
    "grad-compression": (
        *("ddp-comm-hook", "comm-hook", "gradient-compression", "bf16-compress-hook", "fp16-compress-hook"),
        "bf16-compress",
    ),
    "numa-binding": ("numa-bind", "numa", "numa-affinity", "cpu-affinity"),
    "sync-bn": ("sync-batchnorm", "syncbn", "sync-batch-norm"),
    "aa": ("auto-augment", "autoaugment", "augmix", "augment", "aug"),
    "hue": ("hsv-h", "hue-jitter", "random-hue"),
    "grayscale-prob": ("grayscale", "random-grayscale", "gray", "grey"),
    "gaussian-blur-prob": ("gaussian-blur", "blur", "blur-prob"),
    "solarize-prob": ("solarize", "random-solarize", "solarization"),
    "reprob": ("random-erase", "random-erasing", "erasing", "random-erase-prob", "re-prob"),
    "mixup": ("mixup-alpha", "mixup-a"),
    "cutmix": ("cutmix-alpha",),
    "hflip": ("fliplr", "hflip-prob", "horizontal-flip", "flip"),
    "vflip": ("flipud", "vflip-prob", "vertical-flip"),
    "rotate": ("degrees", "rotation"),
    "no-aug": ("no-augmentation", "no-augment"),
    "tta": ("test-time-augmentation", "augment-test"),
    "output": ("output-dir", "outdir", "out-dir", "save-dir", "project", "default-root-dir", "log-dir", "results-dir"),
    "name": ("run-name", "exp-name", "experiment", "experiment-name"),
    "device": ("gpu", "gpus", "gpu-id", "accelerator", "cuda"),
    "seed": ("random-seed", "manual-seed", "random-state"),
    "deterministic": ("use-deterministic-algorithms", "full-determinism"),
    "strategy": ("fsdp", "ddp", "distributed-backend"),
    "log-interval": ("log-every-n-steps", "logging-steps", "print-freq", "log-freq", "log-every"),
    "save-interval": ("save-steps", "save-freq", "save-period", "save-every", "checkpoint-interval"),
    "val-interval": ("check-val-every-n-epoch", "eval-steps", "eval-freq", "eval-interval", "val-every", "val-freq"),
    "checkpoint-hist": ("save-total-limit", "save-top-k", "keep-checkpoints", "max-checkpoints"),
    "patience": ("early-stopping-patience", "early-stopping", "early-stop"),
    "val-fraction": (
        "validation-split",
        "val-split-ratio",
        "val-ratio",
        "validation-fraction",
        "val-percent",
        "split-ratio",
    ),
    "val-split": ("validation-set", "eval-split", "test-split"),
    "loader": ("dataloader", "loader-backend"),
    "topk": ("top-k", "k"),
    "max-size": ("resize-to", "max-side", "longest-side"),
    "overwrite": ("force", "exist-ok", "overwrite-output-dir"),
    "json": ("as-json", "format-json"),
}
# Names that they give to what is written in another way here, by what to write; a part in backticks needs no flag.
_INSTEAD: Mapping[str, tuple[str, ...]] = {
    "--workers": ("num-workers",),  # which `train` has for the ranks on a Ray cluster
    "--log wandb": ("wandb", "use-wandb", "log-wandb", "wandb-project"),
    "--log tensorboard": ("tensorboard", "use-tensorboard", "tb", "log-tb"),
    "--log mlflow": ("mlflow", "use-mlflow"),
    "--aa trivial": (
        "trivialaugment",
        "trivial-augment",
        "trivialaugmentwide",
        "trivial-augment-wide",
        "ta-wide",
        "ta",
    ),
    "--aa rand-m9-mstd0.5": ("randaugment", "rand-augment", "ra-magnitude", "randaug"),
    "--resident, which keeps decoded images in memory": ("cache", "cache-images", "cache-ram", "in-memory"),
    "--model-kwargs drop_rate=VALUE": ("dropout", "drop", "drop-rate", "dropout-rate"),
    "--val-fraction 0.9, say, which trains on a tenth of data without a validation split": (
        "fraction",
        "data-fraction",
        "train-fraction",
        "subset",
    ),
    "`fastimg eval RUN DATA`": ("test-only", "eval-only", "evaluate", "evaluate-only", "validate", "do-eval"),
}
_DATA = ("data", "data-dir", "data-path", "dataset", "dataset-dir", "root", "train-dir", "source", "input", "data-root")
_NEAR = 0.7  # how alike a flag and a typing error of it are, at least


def flags_of(kind: type[Any]) -> frozenset[str]:
    """Every flag of a command's dataclass, as it is typed."""
    return flag_names(command_flags(kind)) | {"--help", "-h", "--help-all"}


def check(command: str, kind: type[Any], arguments: Sequence[str], others: Mapping[str, type[Any]]) -> None:
    """Refuse a flag, or a choice of a flag, that the command does not have.

    Raises UsageError with what was probably meant.
    """
    known = flags_of(kind)
    choices = {name: flag.choices for flag in command_flags(kind) if flag.choices for name in flag.understood}
    for argument, following in itertools.pairwise([*arguments, ""]):
        if argument == "--":
            return
        name, equals, value = argument.partition("=")
        word = name.replace("_", "-")
        if word in choices:
            _check_choice(word, value if equals else following, choices[word])
        if word in known or not _is_flag(word) or _has_its_value(word, known):
            continue
        raise UsageError(f"{command} has no flag {argument.partition('=')[0]}{_hint(word, command, known, others)}")


def _check_choice(flag: str, value: str, choices: Sequence[str]) -> None:
    if value and value not in choices and not value.startswith("-"):
        raise UsageError(f"{flag} {value}: give one of {', '.join(choices)}{nearest(value, choices)}")


def _is_flag(word: str) -> bool:
    """Whether an argument is meant as a flag: neither a negative number nor a short flag with its value, as -b64."""
    if word.startswith("--"):
        return True
    return word.startswith("-") and len(word) > 1 and word[1:].replace("-", "").isalpha()


def _has_its_value(word: str, known: Collection[str]) -> bool:
    """Whether it is a short flag with its value, as -oruns, and not a flag of another tool, as -bs."""
    name = word.lstrip("-")
    return not word.startswith("--") and word[:2] in known and name not in _MEANS and f"--{name}" not in known


def suggestion(name: str, known: Collection[str]) -> str | None:
    """The one of `known` names, without dashes in front, that `name` probably means; None where none is near."""
    meant = _MEANS.get(name)
    if meant in known:
        return meant
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=_NEAR)
    return near[0] if near else None


def assigned(word: str, kind: type[Any]) -> str | None:
    """The flag that imgsz=64 or amp=False means, as it is written here; None for other words."""
    name, equals, value = word.partition("=")
    by_name = {name.lstrip("-"): flag for flag in command_flags(kind) for name in flag.understood}
    meant = suggestion(name.replace("_", "-").lower(), by_name) if equals else None
    if meant is None:
        return None
    off = value.lower() == "false"
    if by_name[meant].negatable and off:
        return f"--no-{by_name[meant].names[0][2:]}"
    if by_name[meant].switch:
        return None if off else f"--{meant}"
    return f"--{meant}" if value.lower() == "true" else f"--{meant} {value}"


_MEANS: Mapping[str, str] = MappingProxyType({theirs: ours for ours, all_ in _ELSEWHERE.items() for theirs in all_})


def _hint(word: str, command: str, known: frozenset[str], others: Mapping[str, type[Any]]) -> str:
    name = word.lstrip("-").lower()
    names = {flag.lstrip("-") for flag in known if flag.startswith("--")}
    instead = next((what for what, theirs in _INSTEAD.items() if name in theirs), None)
    if instead is not None and _is_taken(instead, command, known):
        return f"; write {instead}"
    if (meant := suggestion(name, names)) is not None:
        return f"; did you mean --{meant}?"
    if name in _DATA:
        return f"; give the data without a flag: `fastimg {command} DATA`"
    if command == "search" and f"--{name}" in flags_of(others["train"]):
        return f", which belongs to train: what all trials share is behind `--`, as in `fastimg search DATA -- {word}`"
    elsewhere = [other for other, kind in others.items() if f"--{name}" in flags_of(kind)]
    if elsewhere:
        return f", which belongs to {' and '.join(elsewhere)}; `fastimg {command} --help` lists the flags of {command}"
    return f"; `fastimg {command} --help` lists its flags"


def _is_taken(instead: str, command: str, known: Collection[str]) -> bool:
    """Whether a command takes what is to be written: a flag that it has, or in place of `train` another command."""
    return command == "train" if instead.startswith("`") else instead.split()[0].rstrip(",") in known


def descriptions(kind: type[Any]) -> dict[str, str]:
    """The text below each field of a command's dataclass, as one line."""
    found = {}
    for base in reversed(kind.__mro__[:-1]):
        body = cast(ast.ClassDef, ast.parse(inspect.getsource(base)).body[0]).body
        for field, below in itertools.pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
