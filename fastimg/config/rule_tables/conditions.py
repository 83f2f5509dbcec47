"""What the rules of `train` ask: conditions under which a flag counts, and checks of several flags together."""

from collections.abc import Callable
from typing import Any

from fastimg.config import augmentation
from fastimg.config.intent import (
    epochs,
    head_alone,
    loss_kind,
    named_run,
    plain,
    progressive,
    reads_frozen,
    reads_text,
    sees_frozen,
    trackers,
)
from fastimg.config.rules import Check
from fastimg.config.training import CUDA_GRAPH_MODES, HF_PREFIX, SCHEDULE_FREE, TRACKERS, Train
from fastimg.config.values import durations, folds
from fastimg.errors import nearest
from fastimg.wording import plural

from .elsewhere import uses_store


def loads_with(backend: str) -> Callable[[Any], bool]:
    if backend == "resident":
        return lambda config: bool(getattr(config, "resident", False))
    return lambda config: bool(config.loader == backend)


def is_unmirrored(config: Any) -> bool:
    return not augmentation.effective(config, config.no_aug)["hflip"]


def mixes(name: str) -> Callable[[Any], bool]:
    return lambda config: bool(augmentation.effective(config, plain(config))[name])


def only_head(config: Train) -> bool:
    """Whether only a classifier without batch norms trains."""
    return head_alone(config) and config.head == "linear"


def weighs_alike(config: Train) -> bool:
    return config.sampler == "balanced" and config.class_weights in ("balanced", "effective")


def unvalidated(config: Train) -> bool:
    return config.val_fraction == 0


def unevaluated(config: Train) -> bool:
    """Whether no split is evaluated, not even the one that trains."""
    return unvalidated(config) and not config.evaluate_training_set


def without_steps(config: Train) -> bool:
    return config.sched != "step"


def without_warmup(config: Train) -> bool:
    span = config.warmup is not None and durations.parse(config.warmup, "--warmup").value == 0
    return span or config.warmup_epochs == 0 or config.warmup_fraction == 0


def check_teaches(config: Train) -> str | None:
    if config.teacher is None:
        return None
    if loss_kind(config) in ("bce", "asymmetric"):
        return "compares softmax probabilities, which --bce-loss and --loss asymmetric have none of; leave one out"
    if sees_frozen(config) and config.cache_embeddings != "off":
        return f"needs images, and --freeze {config.freeze} trains on kept embeddings; add --cache-embeddings off"
    return None


def keeps_teacher(config: Train) -> bool:
    return config.cache_teacher is not None


def check_kept_teacher(config: Train) -> str | None:
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


def schedule_free(config: Train) -> bool:
    return config.opt in SCHEDULE_FREE


def decays_in_vain(config: Train) -> bool:
    return schedule_free(config) and config.sched not in (None, "constant")


def check_late_average(config: Train) -> str | None:
    if config.freeze_epochs is None or not schedule_free(config):
        return None
    return f"--opt {config.opt} averages weights from the first step on, and these would come later; choose another"


def caches(config: Train) -> bool:
    several = keeps(config) or reads_text(config) or pairs(config) or keeps_teacher(config)
    return several or uses_store(config)


def check_order_window(config: Train) -> str | None:
    if config.order_window is None:
        return None
    from fastimg.loaders.order import BLOCK  # not above: it imports NumPy

    return None if config.order_window >= BLOCK else f"give a block's {BLOCK} or more"


def check_ghost_batch(config: Train) -> str | None:
    if config.ghost_bn is None or config.batch_size in (None, "auto") or config.batch_size % config.ghost_bn == 0:
        return None
    return f"does not divide the batch of {config.batch_size}; choose a divisor, or another --batch-size"


def one_ghost(config: Train) -> bool:
    return config.ghost_bn is not None and config.ghost_bn == config.batch_size


def check_batch_search(config: Train) -> str | None:
    if config.batch_size != "auto" or config.strategy != "fsdp":
        return None
    return "is found by one process for itself, and --strategy fsdp shares the model; give a number"


def finds_rate(config: Train) -> bool:
    return config.lr == "find"


def scales_rate(config: Train) -> bool:
    """Whether a rate follows the batch: one that is given does so where it is asked to, or the batch is not known."""
    return isinstance(config.lr, str) or config.lr_scale is not None or config.batch_size == "auto"


def check_rate_search(config: Train) -> str | None:
    if not finds_rate(config):
        return None
    if config.strategy == "fsdp":
        return "takes steps that are undone, and --strategy fsdp shares the weights; give a number, or auto"
    if config.freeze_epochs is not None:
        return "measures with what is frozen at first, and --freeze-epochs ends that; give a number, or auto"
    return None


def check_cuda_graphs(config: Train) -> str | None:
    """What does not go with memory that a graph writes to again whenever it is replayed."""
    if config.compile not in CUDA_GRAPH_MODES:
        return None
    remedy = "use --compile max-autotune-no-cudagraphs"
    if config.grad_accum_steps > 1:  # pytorch issue 169545
        return (
            "replays CUDA graphs, whose memory holds the gradients: each of the batches that --grad-accum-steps "
            f"{config.grad_accum_steps} adds up would overwrite those before it; {remedy}"
        )
    if reads_text(config) and not (head_alone(config) and config.cache_embeddings != "off"):
        return f"records a CUDA graph for each length that a batch of texts has; {remedy}"
    if config.strategy == "fsdp":  # pytorch issue 127225
        return f"replays CUDA graphs, which read weights at fixed addresses, and --strategy fsdp moves them; {remedy}"
    return None


def check_views(config: Train) -> str | None:
    if not plain(config) or config.cache_embeddings in (None, "1", "off"):
        return None
    return "without augmentation all views are the same; ask for some, with --hflip 0.5 say, or leave the number out"


def check_frozen_weights(config: Train) -> str | None:
    if config.freeze is None or not frozen_at_random(config):
        return None
    return "random weights would stay as they are; add --pretrained or --weights, or leave --freeze out"


def frozen_at_random(config: Train) -> bool:
    """Whether what is frozen has never been trained. Encoders of texts come with their weights, as a run does."""
    if config.pretrained or config.weights is not None or named_run(config.resume) is not None:
        return False
    return config.freeze != "text" if pairs(config) else not reads_text(config)


def check_frozen_epochs(config: Train, known: int | None = None) -> str | None:
    """Why --freeze-epochs never ends: in the epochs that are `known`, else in those that were asked for."""
    total = epochs(config) if known is None else known
    if config.freeze_epochs is None or total is None or config.freeze_epochs < total:
        return None
    return f"the run has {plural(total, 'epoch')}, so nothing would be unfrozen; give fewer, or leave it out"


def check_text_loader(config: Train) -> str | None:
    if not reads_text(config) or config.loader in ("auto", "native"):
        return None
    return "reads images; texts are read by fastimg's own, leave it out"


def check_text_arch(config: Train) -> str | None:
    if config.text_arch is None:
        return None
    if not config.text_arch.startswith(HF_PREFIX):
        return "reads no texts; give a text encoder of Hugging Face, as hf:NAME or hf:FOLDER"
    if reads_text(config):
        return f"--arch {config.arch} reads texts, too; give a model of images as --arch, or leave --text-arch out"
    return None


def pairs(config: Train) -> bool:
    """Whether the model reads the texts beside images."""
    return config.text_arch is not None


def keeps(config: Train) -> bool:
    """Whether an encoder never trains, so that its embeddings may be kept."""
    return head_alone(config) or (pairs(config) and (sees_frozen(config) or reads_frozen(config)))


def not_of_pairs(name: str, why: str, given: Callable[[Train], bool]) -> Check:
    """A flag that does not go with --text-arch."""

    def check(config: Train) -> str | None:
        return f"{why}; leave it out, or --text-arch" if pairs(config) and given(config) else None

    return Check(name, check)


def span_reader(field: str, whole: bool = False) -> Callable[[Any], None]:
    """Reads a span of training, which raises UsageError for what is not one."""

    def read(config: Any) -> None:
        text = getattr(config, field)
        if text is not None:
            durations.parse(text, f"--{field}", whole)

    return read


def check_trackers(config: Train) -> str | None:
    unknown = [name for name in trackers(config) if name not in TRACKERS]
    return f"give {', '.join(TRACKERS)}{nearest(unknown[0], TRACKERS)}" if unknown else None


def check_fold(config: Any) -> None:
    if config.fold is not None:
        folds.parse(config.fold)


def check_max_time(config: Any) -> None:
    if config.max_time is not None:
        durations.limit(config.max_time, "--max-time")


def check_save_interval(config: Any) -> None:
    durations.interval(config.save_interval, "--save-interval")


def check_augmentation_list(config: Any) -> None:
    if config.augmentation not in (None, False):
        augmentation.listed(config.augmentation)


def check_growing_crops(config: Train) -> None:
    if config.progressive is not None:
        progressive(config)
