"""Everything before the first step: check -> open -> build -> assemble -> announce -> begin.

Each step returns a frozen value that the next one takes. Until `begin`, nothing is written into the run's directory.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from rich.console import Console

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.config.training import HUB_PREFIX
from fastimg.data import augmentation, class_balance, provenance
from fastimg.data.datasets import DatasetPart, display_name, worker_count
from fastimg.data.decoder_compilation import compile_decoders
from fastimg.data.derived import cache_root
from fastimg.embeddings import eligibility as caching
from fastimg.embeddings.cache import Keeper
from fastimg.errors import UsageError, UserError, printable, reason_of
from fastimg.loaders import DataError
from fastimg.loaders.remote.origins import named_by_origins
from fastimg.loaders.remote.stores import shown, url_of
from fastimg.models.precision import Precision, set_backends
from fastimg.models.precision import choose as choose_precision
from fastimg.models.ranks import Ranks, check_strategy
from fastimg.models.registry import Model
from fastimg.models.text_encoder import short_name
from fastimg.system.memory import pinned
from fastimg.system.terminal import say
from fastimg.train.checkpoints.format import trained_before
from fastimg.train.checkpoints.saving import restore
from fastimg.train.choices.batch_size import find_batch_size
from fastimg.train.choices.learning_rate import RangeTest, find_learning_rate, record
from fastimg.train.choices.resumption import with_batch, with_rate, without_exchange
from fastimg.train.choices.stated_weights import Stated, adopted
from fastimg.train.reporting.report import effective_rows, print_effective
from fastimg.train.reporting.timeline import Timeline
from fastimg.wording import plural

from . import pairs, patience
from .assembly import Blueprint, OpenBlueprint, assemble
from .checkpoints import changed_data
from .checkpoints import run_directory as rundir
from .checkpoints.run_places import chosen_by_first, folder_of_runs, resuming
from .checkpoints.stored_models import names_models, versions, with_local_models
from .choices import changed_settings, extension, refusals, step_rates
from .choices import machine_profile as machine
from .choices import resolution as effective
from .normalisation import normalised
from .opening import build_model, check_content, open_data, whiten, with_channels
from .parts import Parts, counted, embedded, labelled, resident, tokenised, with_text_embeddings
from .run import Run
from .tasks.selection import ChosenTargets
from .tasks.selection import choose as choose_targets
from .trackers.fanout import Trackers
from .wrapping import changing_graph


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A configuration that is possible on this machine, before anything is opened."""

    config: Train
    stated: Stated  # by the weights that training starts from
    precision: Precision  # by what the device has; measured rates may choose another one


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The data, and the directory of the run."""

    checked: Checked
    path: Path
    part: DatasetPart
    val_part: DatasetPart | None
    targets: ChosenTargets
    directory: Path
    resuming: bool


@dataclass(frozen=True, kw_only=True)
class Built:
    """The model and what it will read, with every choice made."""

    blueprint: Blueprint
    requested: Train  # as it was before open choices were resolved
    searched: bool  # for a batch size
    range_test: RangeTest | None  # that found the learning rate
    batch_left_out: bool  # it is the default of the device
    told: Mapping[str, str]  # the rows of the configuration that are printed already
    part: DatasetPart  # images, texts or tokens; `blueprint.parts` may hold their embeddings
    val_part: DatasetPart | None


def prepare(config: Train, ranks: Ranks, console: Console, stack: ExitStack) -> Run | None:
    """A run that is ready for its first step; None for a dry run. `stack` closes what is opened.

    Raises UsageError, UserError and DataError before anything is written.
    """
    console = console if ranks.first else Console(quiet=True)
    checked = check(config, ranks, console)
    opened = open_inputs(checked, ranks, console, stack)
    built = build(opened, ranks, console, stack)
    run = assemble(built.blueprint, ranks)
    for loader in run.setup.data.loaders:
        stack.callback(loader.close)
    announce(run, built, console)
    if config.dry_run:
        return None
    begin(run, opened, built.blueprint.parts, console, stack)
    if built.range_test is not None:
        record(run, built.range_test)
    return run


def check(config: Train, ranks: Ranks, console: Console) -> Checked:
    """Complete `config` from its weights and the machine's profile, and refuse what cannot work or has no effect."""
    config = _with_models(config, ranks, console)
    config, stated, origin = adopted(config)
    if origin:
        say(console, f"weights     {printable(named_by_origins(origin))}")
    refusals.check(replace(config, batch_size=intent.batch(config, ranks.device.type)))
    refusals.check_device(config, ranks.device.type)
    config, profile = machine.applied(config, ranks)
    if profile:
        say(console, f"profile     {profile}")
    config = without_exchange(config, ranks, console)
    precision = choose_precision(ranks.device, config.amp, config.amp_dtype)
    check_strategy(config.strategy, ranks, precision.dtype, config.sync_bn, config.grad_compression)
    return Checked(config=config, stated=stated, precision=precision)


def _with_models(config: Train, ranks: Ranks, console: Console) -> Train:
    """`config` with the models that it names by URLs on this machine. Raises UserError and DataError."""
    if not names_models(config):
        return config
    with ranks.first_goes_first():  # its console says what is fetched
        named = with_local_models(config, partial(say, console))
    if len(set(ranks.gather(versions(named)))) > 1:
        raise UserError(
            "--weights, --teacher: a run in the object store was replaced while the ranks fetched it; start again"
        )
    return named


def open_inputs(checked: Checked, ranks: Ranks, console: Console, stack: ExitStack) -> Opened:
    """Open the data, and choose the run's directory: a new one, or that of the run to resume."""
    config = checked.config
    set_backends(ranks.device, config.deterministic)
    part, val_part, path = open_data(config, ranks, console, stack)
    check_content(config, path, part)
    named = path if config.data is None or url_of(config.data) is None else config.data
    base = f"{display_name(named)}-{short_name(intent.architecture(config))}"
    output = folder_of_runs(config, ranks, partial(say, console))
    rundir.refuse_another_place(config)
    directory, resuming = rundir.choose(output, base, config.name, config.resume, rundir.named_by_file(config))
    directory = chosen_by_first(directory, output, config, ranks)
    targets = choose_targets(config, path, part, val_part)
    if not targets.tasks.class_tasks:  # what a recipe gives has no effect
        config = replace(config, smoothing=Train().smoothing)
    patience.check(config, targets.tasks)
    if resuming:
        changed_data.check(directory, path, targets)
    elif config.name is not None and directory != (named := output / config.name):
        assert config.config is not None
        say(console, f"{named}, which {shown(config.config)} names, already exists: this run is {directory}")
    _mention_rare_classes(config, targets, console)
    return Opened(
        checked=replace(checked, config=config),
        path=path,
        part=part,
        val_part=val_part,
        targets=targets,
        directory=directory,
        resuming=resuming,
    )


def _mention_rare_classes(config: Train, targets: ChosenTargets, console: Console) -> None:
    """Mention rare classes where nothing is done about them."""
    if config.class_weights is not None or config.sampler is not None or config.logit_adjust:
        return
    for task in targets.tasks.class_tasks:
        if remark := class_balance.rarest(task.target.classes, np.array(task.counts, np.float64)):
            say(console, remark if targets.tasks.single else f"{task.target.name}: {remark}", style="yellow")


def build(opened: Opened, ranks: Ranks, console: Console, stack: ExitStack) -> Built:
    """Build the model; make tokens, embeddings and a teacher's logits, and search for a batch size, where needed."""
    config = opened.checked.config
    part = opened.part
    val_part = opened.val_part
    config, dtype = with_channels(config, opened.path, part, val_part)
    stated = opened.checked.stated
    model, preprocessing = build_model(config, ranks, opened.targets.tasks.output_names, stated, dtype)
    resumed = opened.directory if opened.resuming else None
    preprocessing = normalised(config, stated, model, preprocessing, ranks, part, resumed, console)
    precision = _precision(opened, model, ranks)
    trained_on = _provenance(config, opened) if ranks.first and not config.dry_run else ()
    keeper = Keeper(cache_root(opened.path, config.cache_dir), ranks, worker_count(config.workers, ranks), console)
    if model.text is not None and not config.dry_run:
        part, val_part = tokenised(model.text, keeper, part, val_part, stack)
    if model.pair is not None:
        part = pairs.with_texts(model, keeper, part, opened.path, stack, config.dry_run)
        val_part = val_part and pairs.with_texts(model, keeper, val_part, opened.path, stack, config.dry_run)
    own = model.pair.image if model.pair else model  # what sees the images, or reads the texts
    config, left_out = with_batch(with_rate(config, resumed, console), resumed, ranks, console)
    choice, why_not = caching.choose(config, own, preprocessing)
    config = replace(config, cache_embeddings=choice)
    words = f"not cached, the encoder runs in every epoch: {why_not}" if why_not else None
    parts = Parts(part, val_part, part if config.evaluate_training_set else None, words=words)
    draft = OpenBlueprint(
        config=config,
        data=opened.path,
        directory=opened.directory,
        model=model,
        preprocessing=preprocessing,
        precision=precision,
        part=part,
        val_part=val_part,
        parts=parts,
        targets=opened.targets,
        trained_on=trained_on,
        ranks=ranks,
    )
    told = {} if config.dry_run else _tell_before_work(draft, left_out, console)
    if effective.views(config) and config.dry_run:
        parts = counted(config, own, preprocessing, precision, keeper, parts)
    elif effective.views(config):
        parts = embedded(config, own, preprocessing, precision, keeper, parts, stack)
    if effective.keeps_texts(config) and not config.dry_run:
        parts = with_text_embeddings(config, model, precision, keeper, parts, stack)
    parts = labelled(config, opened.targets.tasks, preprocessing, precision, keeper, parts, stack)
    if config.resident:
        if effective.views(config):
            raise UsageError(
                "--resident has no effect on cached embeddings; leave it out, or add --cache-embeddings off"
            )
        parts = resident(config, preprocessing, ranks, parts, console)
    if config.weights is None and not config.dry_run:  # a run that is resumed may have no checkpoint yet
        whiten(config, model, preprocessing, ranks, parts.train, console)

    draft = replace(draft, parts=parts)
    batch_size = _batch_size(draft, console)
    test = None
    if config.lr == "find" and not config.dry_run:
        test = find_learning_rate(partial(draft.together, batch_size), console)
    return Built(
        blueprint=draft.blueprint(batch_size, test.lr if test else None),
        requested=replace(config, batch_size=batch_size),
        searched=config.batch_size == "auto",
        range_test=test,
        batch_left_out=left_out,
        told=told,
        part=part,
        val_part=val_part,
    )


def _batch_size(draft: OpenBlueprint, console: Console) -> int:
    """The batch that was given, or for `auto` the profile's, or what a search finds."""
    config = draft.config
    assert config.batch_size is not None
    if config.batch_size != "auto":
        return config.batch_size
    samples = len(draft.part)
    tuned = machine.batch_size(config, draft.preprocessing.train_size, samples, draft.ranks)
    if tuned is not None:
        say(console, tuned[1])
        return tuned[0]
    return find_batch_size(config, draft.alone, samples, draft.ranks, console)


_STAND_IN_BATCH = 256  # for what is printed before a batch size is searched for; what depends on it is printed later


def _tell_before_work(draft: OpenBlueprint, left_out: bool, console: Console) -> Mapping[str, str]:
    """Print the configuration, as far as it is known, before an encoder or a teacher runs or something is searched for.

    Returns the rows that are printed; empty where nothing takes long. They are those of a run on the images themselves,
    which is assembled for this, and never steps.
    """
    config = draft.config
    searched = config.batch_size == "auto"
    works = effective.views(config) or effective.keeps_texts(config) or config.cache_teacher is not None
    if not (works or searched or config.lr == "find"):
        return {}
    later = {"compile", "teacher", "embeddings", "loader"}
    later |= {"batch", "schedule", "optimiser", "progressive"} if searched else set()
    later |= {"optimiser"} if config.lr == "find" else set()
    batch = _STAND_IN_BATCH if searched else config.batch_size
    assert isinstance(batch, int)
    whole = draft.blueprint(batch, effective.STAND_IN if config.lr == "find" else None)
    plain = replace(
        whole.config, teacher=None, cache_teacher=None, lookahead=None, model_ema=False, compile=None, strategy="auto"
    )
    run = assemble(replace(whole, config=plain), draft.ranks, alone=True)  # nothing is wrapped
    run = replace(run, setup=replace(run.setup, config=whole.config, ranks=draft.ranks))
    rate = _rate(run, replace(config, batch_size=batch), searched, None)
    rows = effective_rows(run, draft.part, draft.val_part, rate, batch_left_out=left_out)
    rows = {name: value for name, value in rows.items() if name not in later}
    print_effective(console, rows)
    for loader in run.setup.data.loaders:
        loader.close()
    return rows


def _rate(run: Run, requested: Train, searched: bool, range_test: RangeTest | None) -> str:
    """The learning rate, and where it is from."""
    if range_test is None and requested.lr == "find":  # in a dry run
        return "measured when the run begins"
    words = effective.rate_words(requested, run.setup.model, run.setup.true_batch, searched)
    words = words if range_test is None else "found by --lr find"
    return f"{run.setup.config.lr:g}{f' ({words})' if words else ''}"


def announce(run: Run, built: Built, console: Console) -> None:
    """Print the effective configuration, or what is not printed of it already. A dry run ends here."""
    requested = built.requested
    rate = _rate(run, requested, built.searched, built.range_test)
    rows = effective_rows(run, built.part, built.val_part, rate, batch_left_out=built.batch_left_out)
    print_effective(console, {name: value for name, value in rows.items() if built.told.get(name) != value})
    if note := augmentation.order_note(requested):
        say(console, note, style="yellow")
    if note := _few_for_random_weights(run):
        say(console, note, style="yellow")
    if requested.verbose:
        _print_slots(run, console)
        _print_wrapper(run, console)


_FEW = 20_000  # samples: with fewer, published weights usually decide how good a model becomes
_PHOTOGRAPHS = 64  # pixels: weights are published for photographs, not for smaller pictures


def _few_for_random_weights(run: Run) -> str:
    """What to say where training begins from random weights on photographs that are few for that; else nothing."""
    setup = run.setup
    config, arch = setup.config, intent.architecture(setup.config)
    small = setup.input.preprocessing.train_size < _PHOTOGRAPHS
    if intent.tuned(config) or config.resume is not None or small or setup.data.samples >= _FEW:
        return ""
    timms = timm.is_model(arch) and timm.is_model_pretrained(arch)
    remedy = "--pretrained" if timms or arch.startswith((HUB_PREFIX, "torchvision/")) else "--weights FILE"
    images = plural(setup.data.samples, "image", "is")
    return f"{images} few to learn from random weights; {remedy} starts from trained ones, usually far more accurate"


def begin(run: Run, opened: Opened, parts: Parts, console: Console, stack: ExitStack) -> None:
    """Go on from the last checkpoint, if there is one to resume; write the run's directory and open its log."""
    setup = run.setup
    directory = opened.directory
    config = setup.config
    if parts.embedding is not None and setup.ranks.device.type == "cpu" and _is_small(run):
        torch.set_num_threads(1)  # more threads would mostly wait for each other
    _compile_decoder(run, console)
    note: str | None = None
    changed = changed_settings.check(directory, config, setup.ranks.world_size) if opened.resuming else None
    last = rundir.last_checkpoint(directory, setup.global_batch) if opened.resuming else None
    if last is not None:
        note = extension.extended(setup, last[1])
        restore(run, *last)
        say(console, f"resuming {directory} after step {run.progress.step} of {setup.steps}")
        if note is not None:
            say(console, note, style="yellow")
    elif opened.resuming:
        say(console, f"--resume: {directory} has no checkpoint yet, and starts from its beginning")
    elif opened.checked.config.resume is not None:
        say(console, f"--resume: {config.output} has nothing to resume yet; starting a new run")
    if changed is not None:
        say(console, changed, style="yellow")
    setup.ranks.barrier()  # all ranks have read the directory
    if setup.ranks.first:
        if opened.resuming:
            changed_settings.keep(directory, config)
        if not opened.resuming:
            again = resuming(config, directory, setup.ranks.world_size)
            stack.push(_withdrawing(directory, rundir.begin(directory, config), again, console))
        _open_trackers(run, console, stack)
        if config.trace is not None:
            run.accounting.timeline = Timeline(directory / rundir.TRACE, config.trace, setup.ranks.device)
        following = run.accounting.trackers
        warn = partial(say, console, style="yellow")
        log = rundir.Log(directory, run.progress.step, following.records if following else None, warn)
        run.accounting.log = log
        if parts.embedding is not None:
            log.add("cache", step=run.progress.step, made=parts.made, seconds=round(parts.seconds, 3))
        if (taught := parts.taught) is not None:
            seconds = round(taught.seconds, 3)
            log.add("cache", step=run.progress.step, made=taught.made, seconds=seconds, bytes=taught.nbytes)


def _withdrawing(directory: Path, made: list[Path], again: str, console: Console) -> Callable[..., None]:
    """What deletes a new run without a checkpoint when it ends. One that is terminated stays: `again` resumes it."""

    def ended(kind: type[BaseException] | None, *_: object) -> None:
        trained = (directory / "last").exists()
        if kind is SystemExit and not trained:
            say(console, f"no checkpoint yet: {again} starts it from its beginning")
            return
        rundir.withdraw(directory, made)
        if kind is KeyboardInterrupt and not trained:
            say(console, f"interrupted before the first checkpoint: {directory} is deleted")

    return ended


def _open_trackers(run: Run, console: Console, stack: ExitStack) -> None:
    """Let the trackers of --log follow the run; those that see it for the first time get pictures."""
    setup = run.setup
    if not intent.trackers(setup.config):
        return

    def warn(words: str) -> None:
        say(console, words, style="yellow")

    following = Trackers(setup.config, setup.directory, run.progress.step, warn)
    stack.callback(following.close)
    run.accounting.trackers = following
    if following.new:
        from .trackers.pictures import draw

        try:
            for file in draw(run):
                following.picture(file, following.new)
        except (DataError, OSError) as error:
            warn(f"--log: no pictures of samples ({reason_of(error)})")


def _precision(opened: Opened, model: Model, ranks: Ranks) -> Precision:
    """The type of mixed precision: on a GPU by measured rates. A run that is resumed keeps its own."""
    rule = opened.checked.precision
    if rule.device_type != "cuda":
        return rule
    scaled = rundir.scaled_before(opened.directory) if opened.resuming else None
    if scaled is False and rule.dtype is torch.float16:  # only on a GPU without bf16: --amp-dtype stays the run's own
        return replace(rule, reason=f"{rule.reason}, which the run began without: its scale starts anew")
    gpu = ranks.broadcast(machine.device_name(ranks.device))  # ranks on several kinds of GPU choose alike
    return step_rates.precision(rule, opened.checked.config, model, gpu, scaled)


def _provenance(config: Train, opened: Opened) -> tuple[provenance.TrainedOn, ...]:
    """What the run's checkpoints are trained on: the run's own data, and that of the weights that it starts from."""
    own = provenance.record(opened.path, opened.part, opened.val_part, config.train_split, config.seed)
    return (own, *trained_before(config.weights))


_SMALL = 2**25  # multiplications of a forward pass: about a millisecond on one core


def _is_small(run: Run) -> bool:
    """Whether a step of the classifier takes less time than synchronising threads."""
    weights = sum(parameter.numel() for parameter in run.setup.trained.parameters() if parameter.requires_grad)
    return weights * run.setup.batch_size < _SMALL


def _compile_decoder(run: Run, console: Console) -> None:
    """Compile the decoder of JPEGs now if this machine has not compiled it yet, and say how long it took."""
    setup = run.setup
    data = run.setup.data
    if (
        setup.config.loader != "native"
        or setup.config.resident
        or data.embedding is not None
        or setup.model.text is not None
        or setup.input.preprocessing.is_deep
    ):
        return
    crops = setup.steps * setup.nominal_batch
    with setup.ranks.first_goes_first():
        if not compile_decoders(data.loader.dataset, data.loader.indices, partial(say, console), crops):
            why = f"{plural(crops, 'crop')} would not make up for compiling fastimg's decoder first"
            say(console, f"decoder      libjpeg-turbo, with the same pixels: {why}")


def _print_wrapper(run: Run, console: Console) -> None:
    """How DistributedDataParallel was told to work."""
    config = run.setup.config
    if run.setup.ranks.world_size == 1 or config.strategy == "fsdp":
        return
    reason = changing_graph(config)
    graph = f"its graph may change ({reason})" if reason else "its graph is static"
    say(console, f"ddp: {graph}; gradients are exchanged as {config.grad_compression or 'float32'}")


def _print_slots(run: Run, console: Console) -> None:
    setup = run.setup
    loader = run.setup.data.loader
    nbytes = loader.slot_bytes
    loaders = 1 if setup.data.val_loader is None else 2
    words = f"loader: {loader.describe()}; a batch takes {plural(nbytes, 'byte')} on the host"
    if setup.config.loader == "native" and not setup.config.resident:
        slots = loader.slots
        taken = f"{slots * nbytes / 2**20:.1f} MiB"
        if setup.ranks.device.type == "cuda":
            taken = f"{slots * pinned(nbytes) / 2**20:.1f} MiB pinned, in powers of two"
        words = (
            f"loader: {plural(loader.workers, 'thread')}, {plural(slots, 'slot')} of {plural(nbytes, 'byte')}, "
            f"{taken}; scratch memory per thread depends on the largest image"
        )
    say(console, f"{words}; {plural(loaders, 'such loader')}")
