"""The effective configuration of a run, which is printed before its first step."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.config.intent import SCHEDULE_FREE
from fastimg.config.values.durations import interval, parse
from fastimg.data.augmentation import sentence
from fastimg.data.datasets import DatasetPart
from fastimg.errors import printable
from fastimg.loaders.containers.arrays import ArrayDataset
from fastimg.loaders.order import BLOCK
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.stores import url_of
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Pair, TextSide
from fastimg.system.terminal import print_rows
from fastimg.train.checkpoints.writer import PAUSE
from fastimg.train.choices.batch_size import SHARE
from fastimg.train.graphs import why_not
from fastimg.train.optimisers.construction import implementation
from fastimg.train.patience import rule
from fastimg.train.run import Run, Setup
from fastimg.wording import agreeing, plural

_NAMES = len("checkpoints")  # columns


def print_effective(console: Console, rows: Mapping[str, str]) -> None:
    """Print rows of the effective configuration."""
    print_rows(console, rows.items(), width=_NAMES)


def effective_rows(
    run: Run,
    part: DatasetPart,
    val_part: DatasetPart | None,
    rate: str,
    *,
    batch_left_out: bool = False,
) -> dict[str, str]:
    """The effective configuration, with every choice made. `rate`: the learning rate, and where it is from."""
    setup = run.setup
    config = setup.config
    ranks = setup.ranks
    model = setup.model
    data = config.data or Path()
    resize = f"; resize {config.val_resize_size}, centre crop {config.val_crop_size}, {config.interpolation}"
    total = sum(p.numel() for p in model.module.parameters())
    trained = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    origin = (
        f"weights {shown(config.weights)}" if config.weights else "published weights" if config.pretrained else "random"
    )
    reading = f"{_channels(config)}mean {_triple(config.mean)}, std {_triple(config.std)}; "
    if model.text is not None:
        resize = ""
        origin = origin if config.weights else "its own weights"
        reading = ""
    layout = "channels-last" if config.channels_last and model.convolutional else "contiguous"
    layout += " activations, contiguous weights" if layout == "channels-last" and config.strategy == "fsdp" else ""
    words = sentence(config, setup.input.preprocessing.train_size) if model.text is None else _texts(part, model.text)
    learning = f"({trained:,} trained)"
    validation = "none"
    if val_part is not None:
        validation = f"{plural(len(val_part), setup.unit[:-1])} ({val_part.origin}){resize}"
    rows: dict[str, str | None] = {
        "data": f"{shown(data)}: {plural(len(part), setup.unit[:-1])}, {printable(setup.tasks.schema())}",
        "validation": validation,
        "model": f"{config.arch}, {total / 1e6:.1f} M parameters {learning}, from {origin}" + _changed(config, model),
        "weights": "; ".join(model.fitted) or None,
        "texts": _beside(model.pair) if model.pair else None,
        "frozen": _frozen(config),
        "embeddings": setup.data.embedding_note,
        "input": f"{reading}{words}",
        "progressive": _progressive(setup),
        "loss": printable(setup.tasks.describe()) + _of_validation(config, setup, val_part),
        "teacher": setup.distillation.words if setup.distillation is not None else None,
        "optimiser": _optimiser(config, implementation(setup.optimisation.optimizer), rate),
        "schedule": _schedule(setup),
        "patience": _patience(setup),
        "batch": _batch(setup, batch_left_out),
        "memory": "activations within blocks are recomputed, not stored" if config.grad_checkpointing else None,
        "average": _average(config),
        "evaluation": _evaluation(config, val_part is not None),
        "compile": f"{config.compile}, before the first step" if config.compile else None,
        "CUDA graphs": _graphs(setup),
        "order": _order(config, part),
        "loader": setup.data.loader.describe(),
        "device": f"{_devices(ranks)}, {setup.precision.reason}, {layout}, seed {config.seed}",
        "cores": ranks.binding.words or None,
        "checkpoints": _checkpoints(config),
        "run": shown(setup.directory),
    }
    return {name: value for name, value in rows.items() if value is not None}


def _graphs(setup: Setup) -> str | None:
    """Whether steps are recorded; nothing on a CPU."""
    if setup.ranks.device.type != "cuda":
        return None
    reason = why_not(setup)
    return f"none: {reason}" if reason else "whole steps, recorded in the fourth and fifth"


def _of_validation(config: Train, setup: Setup, val_part: DatasetPart | None) -> str:
    """That validation's loss has nothing of what makes training's larger, where there is such a thing."""
    smoothed = config.smoothing and setup.tasks.class_tasks
    more = smoothed or config.mixup or config.cutmix or config.class_weights or config.logit_adjust
    return "; validation's is plain" if more and val_part is not None else ""


def _texts(part: DatasetPart, text: TextSide) -> str:
    """How texts are tokenised."""
    lengths = part.dataset.lengths if isinstance(part.dataset, ArrayDataset) else None
    words = f"tokens, up to {text.tokenizer.length} a text"
    if lengths is None:
        return words
    own = lengths if part.indices is None else lengths[part.indices]
    cut = int((own >= text.tokenizer.length).sum())
    return (
        f"{words}, {own.mean():.0f} on average; {cut:,} of {plural(len(own), 'text')} {agreeing(cut, 'is')} "
        "truncated or exactly that long"
    )


def shown(path: Path) -> str:
    """A path as people would type it: relative if it is below the current directory; a URL as it was given."""
    if (url := url_of(path)) is not None:
        return url
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _channels(config: Train) -> str:
    """How gray images, bands and images of 16 bits are seen; RGB of 8 bits is not mentioned."""
    if config.image_field is not None:
        return f"{plural(config.in_chans or 0, 'band')} of the field {config.image_field!r}; "
    if config.depth == 16:
        return f"{plural(config.in_chans or 0, 'channel')} of 16 bits; "
    if config.in_chans != 1:
        return ""
    return "1 channel (gray); " if config.no_aug else "1 channel (gray), augmented as three equal ones; "


def _triple(values: tuple[float, ...] | None) -> str:
    return " ".join(f"{value:.4g}" for value in values or ())


def _changed(config: Train, model: Model) -> str:
    """How the model's layers were changed."""
    changes = [
        f"mlp head of {config.head_hidden}" if config.head == "mlp" else "",
        _classifier(config, model),
        f"drop path {config.drop_path:g}" if config.drop_path else "",
        f"ghost batch norm over {config.ghost_bn}" if config.ghost_bn else "",
        "BlurPool" if config.blurpool else "",
    ]
    return "".join(f", {change}" for change in changes if change)


def _classifier(config: Train, model: Model) -> str:
    """How the classifier of a trained model is initialised."""
    if config.head_init is not None:
        kept = f" but for {plural(model.kept_rows, 'row')}" if model.kept_rows else ""
        return f"{config.head_init} head{kept}"
    return "its classifier kept" if config.weights or config.pretrained else ""


def _beside(pair: Pair) -> str:
    how = {"concat": "side by side with those of images", "gated": "by a gate for each feature"}[pair.combiner]
    length = plural(pair.reader.tokenizer.length, "token")
    return f"{pair.text.arch} with its own weights, up to {length}; its features join {how}"


def _frozen(config: Train) -> str | None:
    if config.freeze is None:
        return None
    if config.text_arch is not None:
        sides = {"backbone": "both encoders", "image": "the encoder of images", "text": "the encoder of texts"}
        what = sides[config.freeze]
        return f"{what}, for {plural(config.freeze_epochs, 'epoch')}" if config.freeze_epochs else what
    blocks = "the first block" if config.freeze == "1" else f"the first {config.freeze} blocks"
    what = "all but the classifier" if config.freeze == "backbone" else blocks
    return f"{what}, for {plural(config.freeze_epochs, 'epoch')}" if config.freeze_epochs else what


def _progressive(setup: Setup) -> str | None:
    progressive = setup.input.progressive
    if progressive is None:
        return None
    sizes = ", ".join(str(size) for size in progressive.sizes(setup.epochs))
    return f"crops of {sizes} pixels, growing from epoch {progressive.start} to {progressive.end}"


def _optimiser(config: Train, implementation: str, rate: str) -> str:
    norms = f" ({config.norm_weight_decay:g} on norms and biases)" if config.norm_weight_decay else ""
    words = [f"{config.opt} ({implementation})", f"lr {rate}"]
    words += [f"layer decay {config.layer_decay:g}"] if config.layer_decay is not None else []
    words += [f"weight decay {config.weight_decay:g}{norms}"]
    words += [f"norms at {config.norm_lr_scale:g}x the rate"] if config.norm_lr_scale not in (None, 1.0) else []
    words += [f"betas {' '.join(f'{beta:g}' for beta in config.opt_betas)}"] if config.opt_betas else []
    words += [f"eps {config.opt_eps:g}"] if config.opt_eps is not None else []
    words += config.opt_kwargs
    words += [f"momentum {config.momentum:g}"] if config.momentum is not None else []
    words += [f"gradients clipped at {config.clip_grad:g}"] if config.clip_grad is not None else []
    words += [f"lookahead every {plural(config.lookahead, 'step')}"] if config.lookahead is not None else []
    return ", ".join(words)


def _schedule(setup: Setup) -> str:
    config = setup.config
    schedule = setup.optimisation.schedule
    fall = {
        "cosine": f"cosine to {config.min_lr or 0:g}",
        "linear": f"linear to {config.min_lr or 0:g}",
        "step": f"times {config.decay_rate} every {_span(config.decay)}",
        "constant": "constant",
    }[config.sched or "constant"]
    rise = f" from {schedule.warmup_lr:g}" if schedule.warmup_lr and schedule.warmup_steps else ""
    whole = plural(setup.epochs, "epoch") if config.duration is None else _span(config.duration)
    return (
        f"{whole} ({plural(schedule.steps, 'step')}), {fall}, warmup {_span(config.warmup)} "
        f"({plural(schedule.warmup_steps, 'step')}){rise}"
    )


def _patience(setup: Setup) -> str | None:
    config = setup.config
    if config.patience is None:
        return None
    changes = ["everything trains"] if config.freeze_epochs is not None else []
    changes += ["crops have their full size"] if setup.input.progressive is not None else []
    counted = f", counted once {' and '.join(changes)}" if changes else ""
    return rule(config.patience, setup.patience_metric) + counted


def _span(text: str | None) -> str:
    return "" if text is None else str(parse(text, ""))


def _average(config: Train) -> str | None:
    if config.opt in SCHEDULE_FREE:
        return f"{config.opt}'s own average of the weights: validated and saved"
    if not config.model_ema:
        return None
    every = f", updated every {plural(config.model_ema_steps, 'step')}" if config.model_ema_steps > 1 else ""
    return f"moving average of the weights, decay {config.model_ema_decay:g}{every}: validated and saved"


def _checkpoints(config: Train) -> str:
    """When they are written, and whether training waits."""
    after = "after each epoch" if config.checkpoint_hist > 1 else f"after epochs, {PAUSE:g} seconds or more apart,"
    every = f"{after} and every {interval(config.save_interval, '--save-interval')}"
    return f"{every}; training waits for them" if config.strategy == "fsdp" else f"{every}, while training continues"


def _evaluation(config: Train, validated: bool) -> str | None:
    words = []
    if config.tta and (validated or config.evaluate_training_set):
        shifted = ", and the same shifted by a pixel two ways" if config.tta == "mirror-shift" else ""
        words.append(f"each image and its mirror image{shifted}")
    words += ["the training split too"] if config.evaluate_training_set else []
    return ", ".join(words) or None


def _batch(setup: Setup, left_out: bool) -> str:
    factors = {"accumulated": setup.config.grad_accum_steps, "ranks": setup.ranks.world_size}
    total = setup.global_batch
    true = setup.true_batch
    text = "".join(f" x {count} {name}" for name, count in factors.items() if count > 1)
    words = f"{setup.batch_size}{text} = {total}" if text else str(total)
    if left_out and setup.ranks.device.type == "cuda":
        words += f" (--batch-size left out: {setup.batch_size} on a GPU)"
        if total > SHARE * setup.data.samples:
            words += f", over {SHARE:.0%} of the {setup.unit}: smaller batches give more steps"
    if true < total:
        words += f", more than the {true:,} {setup.unit} there are: each step takes all of them, as a batch of {true:,}"
    return words


def _order(config: Train, part: DatasetPart) -> str:
    order = intent.order(config)
    if config.sampler is not None:
        first = next(target.target.name for target in part.dataset.targets if target.target.kind == "class")
        by = f" by {printable(first)}" if len(part.dataset.targets) > 1 else ""
        return f"{order}, drawn with repetition ({config.sampler}{by})"
    if config.order_window is None:
        return order
    all_of_it = ", twice the data or more: as good as random" if config.order_window >= 2 * len(part) else ""
    files = fetched_files(part.dataset)
    blocks = f"blocks of {BLOCK} images" if files is None else f"whole {files.unit}s"
    return f"{order}: {blocks} within a window of {config.order_window}{all_of_it}"


def _devices(ranks: Ranks) -> str:
    return f"{ranks.world_size} x {ranks.device.type} ({ranks.backend})" if ranks.backend else str(ranks.device)
