"""How long training takes here: the trainer's own setup, steps, validation and checkpoint, on a few samples."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from fastimg.bench.rig import Rig, step_seconds
from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.data.datasets import DatasetPart
from fastimg.errors import UserError
from fastimg.models.freezing import train_mode
from fastimg.models.ranks import Ranks
from fastimg.system.measurement import synchronise
from fastimg.system.memory import ran_out, release
from fastimg.train.assembly import assemble
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.checkpoints.saving import save
from fastimg.train.choices.batch_size import batches
from fastimg.train.metrics import evaluate
from fastimg.train.opening import check_content
from fastimg.train.run import Run
from fastimg.train.setup import Opened, begin, build, check
from fastimg.train.step import optimiser_step
from fastimg.train.tasks.selection import choose

from .sampled import sampled

Clock = Callable[[], float]

SECONDS = 2.0  # of training steps, or STEPS of them; the median counts
STEPS = 8
_LONGEST = 8.0  # seconds, after which two steps are enough
_BATCHES = 8  # in an epoch: at its start a loader has nothing ready yet
_ENCODED = 64  # samples that a frozen encoder sees, at least, and two batches
_VALIDATED = 32
_SLOW = 0.05  # seconds of a sample in a step: reading it is little beside that
_FIRST_BATCH = 16  # samples of a step on a CPU: the time of long steps grows as they do
_LONG = 3.0  # seconds: a step that is shorter is measured with the batch that trains


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of the parts of a run.

    start: until the first step, without what runs once per sample. encode: of a sample, for a frozen encoder that sees
    each once. sample: of a training sample in an epoch. val: of a validation sample. save: of a checkpoint.
    batch: the samples of a step, fewer than asked for where memory ran out (`shrunk`). waits: the share of a step that
    is spent on reading and decoding; 0 where that is not measured, since it is little.
    """

    start: float
    encode: float
    sample: float
    val: float
    save: float
    batch: int
    shrunk: bool = False
    waits: float = 0.0

    def epoch(self, train: int, val: int) -> float:
        """Seconds of an epoch with its validation and checkpoint."""
        return train * self.sample + val * self.val + self.save

    def before(self, train: int, val: int) -> float:
        """Seconds before the first epoch."""
        return self.start + self.encode * (train + val)

    def run(self, train: int, val: int, epochs: float) -> float:
        """Seconds of a run."""
        return self.before(train, val) + epochs * self.epoch(train, val)


def timed(
    config: Train,
    path: Path,
    train: DatasetPart,
    val: DatasetPart | None,
    ranks: Ranks,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Measure a configuration. A batch that does not fit into memory is halved until it does.

    Raises UsageError, UserError and DataError as `train` does.
    """
    batch = intent.batch(config, ranks.device.type)
    assert isinstance(batch, int)
    asked = batch
    threads = torch.get_num_threads()
    while True:
        try:
            first = batch
            if ranks.device.type == "cpu" and not intent.head_alone(config):
                first = min(batch, _FIRST_BATCH)
            found = _measured_in_a_folder(replace(config, batch_size=first), path, train, val, ranks, clock)
            if first < batch and batch * found.sample <= _LONG:
                again = _measured_in_a_folder(replace(config, batch_size=batch), path, train, val, ranks, clock)
                found = replace(again, start=max(found.start, again.start))  # the first one starts as a run does
            return replace(found, batch=batch, shrunk=batch < asked)
        except Exception as error:
            if not ran_out(error):
                raise
            if batch == 1:
                why = "not even a batch of one sample fits into memory; give another --arch"
                raise UserError(f"{config.arch}: {why}") from error
            batch //= 2
        finally:
            torch.set_num_threads(threads)
        release(ranks.device)


def _measured_in_a_folder(
    config: Train, path: Path, train: DatasetPart, val: DatasetPart | None, ranks: Ranks, clock: Clock
) -> Timing:
    with tempfile.TemporaryDirectory(prefix="fastimg-suggest-") as folder:
        return _measure(config, path, train, val, ranks, Path(folder), clock)


def _measure(
    config: Train,
    path: Path,
    train: DatasetPart,
    val: DatasetPart | None,
    ranks: Ranks,
    folder: Path,
    clock: Clock,
) -> Timing:
    assert isinstance(config.batch_size, int)
    frozen = intent.head_alone(config)
    batch = config.batch_size
    kept = folder if frozen or intent.reads_text(config) else None  # elsewhere --cache-dir has no effect
    config = replace(config, data=path, output=folder, cache_dir=kept)
    count = max(_ENCODED, 2 * batch) if kept else _BATCHES * batch
    quiet = Console(quiet=True)
    with ExitStack() as stack:
        began = clock()
        checked = check(config, ranks, quiet)
        part = replace(train, dataset=sampled(train, count), indices=None)
        val_part = None if val is None else replace(val, dataset=sampled(val, _VALIDATED), indices=None)
        check_content(checked.config, path, part)
        opened = Opened(
            checked=checked,
            path=path,
            part=part,
            val_part=val_part,
            targets=choose(checked.config, path, part, val_part),
            directory=folder / "run",
            resuming=False,
        )
        built = build(opened, ranks, quiet, stack)
        run = assemble(built.blueprint, ranks)
        for loader in run.setup.data.loaders:
            stack.callback(loader.close)
        begin(run, opened, built.blueprint.parts, quiet, stack)
        started = clock() - began
        parts = built.blueprint.parts
        rig = Rig(run)
        train_mode(run.setup.trained)
        step = _step(run, clock)
        reads_little = kept is not None or step > _SLOW * batch
        waits = 0.0 if reads_little else max(0.0, 1 - step_seconds(rig) / step)
        return Timing(
            start=started - parts.seconds,
            encode=parts.seconds / max(1, parts.made),
            sample=step / batch,
            val=_validation(run, clock),
            save=_saving(run, clock),
            batch=batch,
            waits=waits,
        )


def _step(run: Run, clock: Clock) -> float:
    """Seconds of an optimiser step with its data: the median, since the first steps compile and allocate."""
    setup = run.setup
    source = batches(setup.data.loader)
    stream = AugmentStream(setup.ranks.device, setup.config.augment_stream)
    took: list[float] = []
    first = clock()
    try:
        while len(took) < 2 or not _enough(len(took), clock() - first):
            began = clock()
            optimiser_step(run, source, setup.config.grad_accum_steps, stream)
            synchronise(setup.ranks.device)
            took.append(clock() - began)
    finally:
        source.close()  # type: ignore[attr-defined]  # a generator; closing it ends the iteration over the loader
    return max(median(took[1:]), 1e-7)


def _enough(steps: int, seconds: float) -> bool:
    return seconds >= _LONGEST or (seconds >= SECONDS and steps > STEPS)


def _validation(run: Run, clock: Clock) -> float:
    """Seconds of a validation sample."""
    setup = run.setup
    loader = setup.data.val_loader
    if loader is None:
        return 0.0
    began = clock()
    score = evaluate(
        setup.trained, loader, setup.data.val_targets, setup.tasks, setup.input.policy, setup.precision, setup.ranks
    )
    synchronise(setup.ranks.device)
    train_mode(setup.trained)
    return (clock() - began) / max(1, score.samples)


def _saving(run: Run, clock: Clock) -> float:
    """Seconds of a checkpoint that is the best so far."""
    began = clock()
    with run.progress.writer:
        save(run, best=True, may_wait=False)
    return clock() - began
