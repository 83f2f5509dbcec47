"""How a run is saved and restored."""

import contextlib
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from fastimg.errors import UserError
from fastimg.loaders import DataError
from fastimg.models.ranks import agree_on_buffers
from fastimg.models.registry import read_weights
from fastimg.train.patience import Standing
from fastimg.train.run import Held, Run

from . import changed_data
from . import format as checkpoint

PAUSE = 10.0  # seconds between checkpoints that may wait


def save(run: Run, best: bool = False, may_wait: bool = False) -> None:
    """Write a checkpoint of this step, with what going on needs; all ranks call it.

    Rank 0 writes it, and with --strategy fsdp each rank its shards. On embeddings an epoch takes less time than a
    checkpoint: one that `may_wait` is held, soon after another, until the next is written.
    """
    averages = run.ema.tensors if run.ema else None
    agree_on_buffers(run.model.module, run.ranks, averages)
    sums = run.ranks.sum(run.meter.sums.clone())
    sharded = run.config.strategy == "fsdp"
    card = checkpoint.Card(
        arch=run.model.arch,
        kwargs=run.model.kwargs,
        classes=run.classes,
        class_counts=run.class_counts,
        num_classes=run.outputs,
        preprocessing=run.preprocessing,
        step=run.step,
        epoch=run.epoch,
        metrics=run.best.score.as_dict(len(run.classes)) if run.best and best else {},
        blurpool=run.config.blurpool,
        head=run.model.head,
        head_hidden=run.model.head_hidden,
        text=run.model.text.settings if run.model.text else None,
        trained_on=run.trained_on,
    )
    files = run.model.text.tokenizer.files() if run.model.text else None
    training = {
        "step": run.step,
        "epoch": run.epoch,
        "global_batch": run.global_batch,
        "loader": run.loader.state_dict(),
        "scaler": run.scaler.state_dict(),
        "meter": sums.cpu(),
        **run.standing.state_dict(),
        "seconds": run.seconds,
    }
    try:
        saved = None
        if sharded:
            saved = checkpoint.save_sharded(
                run.directory, card, run.model.module, run.optimizer, training, run.ranks, averages, files
            )
        elif run.ranks.first:
            training["optimizer"] = run.optimizer.state_dict()
            held = Held(card, run.model.module.state_dict(), training, averages, files)
            if may_wait and run.embedding is not None and time.monotonic() - run.saved_at < PAUSE:
                held = held.copied(run.trained.state_dict())
                run.held = {**run.held, "last": held} | ({"best": held} if best else {})
            else:
                run.held = {**run.held, "last": held} | ({"best": held} if best else {})
                _write_held(run)
        if saved is not None and run.ranks.first:
            _point(run, saved, ["last", "best"] if best else ["last"])
    except (OSError, RuntimeError, SafetensorError, CheckpointException) as error:  # a full disk, as each library says
        reason = checkpoint.first_reason(error)
        raise UserError(
            f"{run.directory}: the checkpoint of step {run.step} could not be written ({reason}); make room, then go "
            "on from the one before it with --resume auto"
        ) from error
    run.ranks.barrier()


def write_held(run: Run) -> None:
    """Write what was held, before a run ends by an error."""
    with contextlib.suppress(OSError, RuntimeError, SafetensorError):
        _write_held(run)


def _write_held(run: Run) -> None:
    for held in sorted({id(one): one for one in run.held.values()}.values(), key=lambda one: one.card.step):
        saved = checkpoint.save(run.directory, held.card, held.weights, held.training, held.averages, held.files)
        _point(run, saved, [name for name, one in run.held.items() if one is held])
    run.held, run.saved_at = {}, time.monotonic()


def _point(run: Run, saved: Path, links: list[str]) -> None:
    for link in links:
        checkpoint.point(run.directory, link, saved)
    checkpoint.prune(run.directory, run.config.checkpoint_hist)


def restore(run: Run, saved: Path, training: dict[str, Any]) -> None:
    """Stand where the checkpoint stood; all ranks call it. Raises UserError where the data is not the same."""
    averages = run.ema.tensors if run.ema else None
    if run.config.strategy == "fsdp":
        checkpoint.load_sharded(saved, training, run.model.module, run.optimizer, run.ranks, averages)
    else:
        tensors, _ = read_weights(saved / checkpoint.MODEL)
        for name, average in (averages or {}).items():
            average.copy_(tensors.get(name, average))  # a buffer that is not saved stays as it was built
        run.model.module.load_state_dict(training.get("weights", tensors))
        run.optimizer.load_state_dict(training["optimizer"])
    run.scaler.load_state_dict(training["scaler"])
    run.step, run.epoch = training["step"], training["epoch"]
    run.standing, run.seconds = Standing.from_state(training), training["seconds"]
    if run.ranks.first:  # the sums over all ranks go on in one of them
        run.meter.sums.copy_(training["meter"])
    try:
        run.loader.load_state_dict(training["loader"])
    except DataError as error:
        assert run.config.data is not None
        cause = (
            "files were replaced or renamed, it was converted again, or other samples are held out for validation, "
            "though there are as many of each class"
        )
        raise changed_data.not_the_same(run.directory, run.config.data, cause) from error
