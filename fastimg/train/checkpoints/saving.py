"""Saves a run, and restores it."""

import contextlib
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fastimg.errors import UserError, reason_of
from fastimg.loaders import DataError
from fastimg.models.ranks import agree_on_buffers
from fastimg.models.registry import read_weights
from fastimg.train.patience import Standing
from fastimg.train.run import PendingCheckpoint, Run

from . import changed_data
from . import format as checkpoint

PAUSE = 10.0  # seconds between checkpoints that may wait


def save(run: Run, best: bool = False, may_wait: bool = False) -> None:
    """Write a checkpoint of this step, with everything that resuming needs; all ranks call it.

    Rank 0 writes it; with --strategy fsdp each rank writes its shards. On embeddings an epoch takes less time than a
    checkpoint: one that `may_wait` and comes soon after another stays in memory until the next is written.
    """
    setup = run.setup
    progress = run.progress
    ranks = setup.ranks
    optimizer = setup.optimisation.optimizer
    averages = setup.optimisation.ema.tensors if setup.optimisation.ema else None
    agree_on_buffers(setup.model.module, ranks, averages)
    card = _card(run, best)
    training = _training_state(run)
    files = setup.model.text.tokenizer.files() if setup.model.text else None
    links = ["last", "best"] if best else ["last"]
    try:
        if setup.config.strategy == "fsdp":
            from .sharded import save_sharded

            saved = save_sharded(setup.directory, card, setup.model.module, optimizer, training, ranks, averages, files)
            if ranks.first:
                _point(run, saved, links)
        elif ranks.first:
            training["optimizer"] = optimizer.state_dict()
            weights = setup.model.module.state_dict()
            pending = PendingCheckpoint(card=card, weights=weights, training=training, averages=averages, files=files)
            soon = time.monotonic() - progress.saved_at < PAUSE
            waits = may_wait and setup.data.embedding is not None and soon
            if waits:
                pending = pending.copied(setup.trained.state_dict())
            progress.pending |= dict.fromkeys(links, pending)
            if not waits:
                _write_pending(run)
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk, as each library says
        reason = reason_of(error)
        raise UserError(
            f"{setup.directory}: the checkpoint of step {progress.step} could not be written ({reason}); make room, "
            "then continue from the previous one with --resume auto"
        ) from error
    ranks.barrier()


def _card(run: Run, best: bool) -> checkpoint.Card:
    """What the weights file states about itself."""
    setup = run.setup
    progress = run.progress
    data = setup.data
    model = setup.model
    return checkpoint.Card(
        arch=model.arch,
        kwargs=model.kwargs,
        classes=data.classes,
        class_counts=data.class_counts,
        num_classes=setup.outputs,
        preprocessing=setup.input.preprocessing,
        step=progress.step,
        epoch=progress.epoch,
        metrics=run.best.score.as_dict(len(data.classes)) if run.best and best else {},
        blurpool=setup.config.blurpool,
        head=model.head,
        head_hidden=model.head_hidden,
        text=model.text.settings if model.text else None,
        trained_on=data.trained_on,
    )


def _training_state(run: Run) -> dict[str, Any]:
    """What resuming needs besides the weights and the optimiser's state. All ranks call it."""
    setup = run.setup
    progress = run.progress
    sums = setup.ranks.sum(progress.meter.sums.clone())
    return {
        "step": progress.step,
        "epoch": progress.epoch,
        "global_batch": setup.global_batch,
        "loader": setup.data.loader.state_dict(),
        "scaler": setup.optimisation.scaler.state_dict(),
        "meter": sums.cpu(),
        **progress.standing.state_dict(),
        "seconds": run.accounting.seconds,
    }


def write_pending(run: Run) -> None:
    """Write the checkpoints that wait, before a run ends with an error."""
    with contextlib.suppress(OSError, RuntimeError, SafetensorError):
        _write_pending(run)


def _write_pending(run: Run) -> None:
    progress = run.progress
    directory = run.setup.directory
    by_step = {pending.card.step: pending for pending in progress.pending.values()}
    for step, pending in sorted(by_step.items()):
        saved = checkpoint.save(
            directory, pending.card, pending.weights, pending.training, pending.averages, pending.files
        )
        _point(run, saved, [link for link, other in progress.pending.items() if other.card.step == step])
    progress.pending = {}
    progress.saved_at = time.monotonic()


def _point(run: Run, saved: Path, links: list[str]) -> None:
    for link in links:
        checkpoint.point(run.setup.directory, link, saved)
    checkpoint.prune(run.setup.directory, run.setup.config.checkpoint_hist)


def restore(run: Run, saved: Path, training: dict[str, Any]) -> None:
    """Continue from a checkpoint; all ranks call it. Raises UserError if the data has changed since."""
    setup = run.setup
    progress = run.progress
    module = setup.model.module
    optimizer = setup.optimisation.optimizer
    averages = setup.optimisation.ema.tensors if setup.optimisation.ema else None
    if setup.config.strategy == "fsdp":
        from .sharded import load_sharded

        load_sharded(saved, training, module, optimizer, setup.ranks, averages)
    else:
        tensors, _ = read_weights(saved / checkpoint.MODEL)
        for name, average in (averages or {}).items():
            average.copy_(tensors.get(name, average))  # a buffer that is not saved stays as it was built
        module.load_state_dict(training.get("weights", tensors))
        optimizer.load_state_dict(training["optimizer"])
    setup.optimisation.scaler.load_state_dict(training["scaler"])
    progress.step = training["step"]
    progress.epoch = training["epoch"]
    progress.standing = Standing.from_state(training)
    run.accounting.seconds = training["seconds"]
    if setup.ranks.first:  # the saved sums are over all ranks: one of them continues with them
        progress.meter.sums.copy_(training["meter"])
    try:
        setup.data.loader.load_state_dict(training["loader"])
    except DataError as error:
        assert setup.config.data is not None
        cause = (
            "files were replaced or renamed, it was converted again, or other samples are held out for validation, "
            "though there are as many of each class"
        )
        raise changed_data.not_the_same(setup.directory, setup.config.data, cause) from error
