"""Saves a run, and restores it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastimg.config import intent
from fastimg.errors import UsageError
from fastimg.loaders import DataError
from fastimg.models.ema import Ema
from fastimg.models.ranks import agreed_buffers, laid_out, take_buffers
from fastimg.models.registry import Pair, read_weights
from fastimg.train.patience import Standing
from fastimg.train.run import Run, Setup

from . import changed_data
from . import format as checkpoint
from .writer import Snapshot, is_unwritten, unwritten


def save_epoch(run: Run, best: bool) -> None:
    """Save the end of an epoch that others follow, if a checkpoint is due (`Pace.after_epoch`); all ranks call it.

    Before that, an epoch that is `best` is copied to host memory and written with the next checkpoint, and any other is
    left out: an interruption then repeats a few seconds. With --checkpoint-hist 2 or more every epoch is saved.
    """
    setup = run.setup
    progress = run.progress
    due = setup.config.checkpoint_hist > 1
    due = due or setup.ranks.broadcast("1" if progress.pace.after_epoch(progress.step) else "") == "1"
    validated = best and setup.data.val_loader is not None
    if due or validated:
        save(run, best=best, may_wait=not due or setup.data.embedding is not None)
    else:
        progress.pace.left_out = True


def save(run: Run, best: bool = False, may_wait: bool = False) -> None:
    """Save this step, with everything that resuming needs; all ranks call it. Nothing of the run changes by it.

    Rank 0 copies it to host memory and leaves the rest to a thread, once the checkpoint before is written. One that
    `may_wait` stays in memory until it is due and the disk is free, or is replaced by the next. With --strategy fsdp
    each rank writes its shards, and all wait until they are written: torch's own asynchronous saving would let a thread
    communicate beside the training, and needs a process group of its own for it.
    """
    setup = run.setup
    progress = run.progress
    ranks = setup.ranks
    module = setup.model.module
    averages = setup.optimisation.ema.tensors if setup.optimisation.ema else None
    written = True
    if not may_wait:
        progress.writer.settle()
    card = _card(run, best)
    training = _training_state(run)
    reader = setup.model.pair.reader if setup.model.pair else setup.model.text
    files = reader.tokenizer.files() if reader else None
    links = ["last", "best"] if best else ["last"]
    try:
        with agreed_buffers(module, ranks, averages) as each:
            if each:
                training["each_rank"] = each
            if setup.config.strategy == "fsdp":
                from .sharded import save_sharded

                optimizer = setup.optimisation.optimizer
                training = _on_host(training)
                beside = setup.tasks.parameters
                saved = save_sharded(setup.directory, card, module, optimizer, training, ranks, averages, files, beside)
                if ranks.first:
                    for link in links:
                        checkpoint.point(setup.directory, link, saved)
                    checkpoint.prune(setup.directory, setup.config.checkpoint_hist)
                    progress.writer.saved()
            elif ranks.first:
                written = progress.writer.put(_snapshot(run, card, training, averages, files), links, may_wait)
    except Exception as error:
        if not is_unwritten(error):
            raise
        raise unwritten(setup.directory, progress.step, error) from error
    if setup.config.strategy == "fsdp":
        ranks.barrier()
    progress.pace.left_out = False
    if written:
        progress.pace.saved()


def _snapshot(
    run: Run,
    card: checkpoint.Card,
    training: dict[str, Any],
    averages: dict[str, torch.Tensor] | None,
    files: dict[str, bytes] | None,
) -> Snapshot:
    """A copy in host memory, on its way there on a GPU. What is trained on embeddings leaves the encoder as it is.

    Of the encoder the run keeps one copy in host memory.
    """
    setup = run.setup
    module = setup.model.module
    state = setup.optimisation.optimizer.state_dict()
    weights = module.state_dict()
    learning = setup.trained.state_dict() if setup.data.embedding is not None else weights
    averaged = []  # those that only an optimiser's step changes; a schedule-free optimiser's were made just now
    if averages is not None and isinstance(setup.optimisation.ema, Ema):
        averaged = [averages[name] for name, _ in setup.trained.named_parameters()]
    beside = [*module.parameters(), *setup.tasks.parameters]
    moments = [value for values in state["state"].values() for value in values.values()]
    addresses = {tensor.data_ptr() for tensor in (*beside, *averaged, *moments) if isinstance(tensor, torch.Tensor)}
    still = _frozen_sides(setup)
    moving = {name: value for name, value in weights.items() if name in learning and not name.startswith(still)}
    frozen = run.progress.writer.still({name: value for name, value in weights.items() if name not in moving})
    room = run.progress.writer.room()
    copied = room.take(
        {"weights": moving, "averages": averages, "training": training, "optimizer": state}, beside=addresses
    )
    return Snapshot(
        card=card,
        weights={name: copied["weights"][name] if name in moving else frozen[name] for name in weights},
        training={**copied["training"], "optimizer": copied["optimizer"]},
        averages=copied["averages"],
        files=files,
        room=room,
    )


def _frozen_sides(setup: Setup) -> tuple[str, ...]:
    """How the names of what never changes begin: of encoders of images and texts that are frozen all the time."""
    if setup.model.pair is None:
        return ()
    config = setup.config
    return ("image.",) * intent.sees_frozen(config) + ("text.",) * intent.reads_frozen(config)


def _on_host(training: dict[str, Any]) -> dict[str, Any]:
    each = training.get("each_rank", {})
    on_host = {kind: {name: rows.cpu() for name, rows in group.items()} for kind, group in each.items()}
    averaged = {name: tensor.cpu() for name, tensor in training.get("lookahead", {}).items()}
    beside = {"each_rank": on_host} if each else {}
    return {**training, "meter": training["meter"].cpu(), **beside, **({"lookahead": averaged} if averaged else {})}


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
        metrics=setup.tasks.record(run.best.score) if run.best and best else {},
        blurpool=setup.config.blurpool,
        head=model.head,
        head_hidden=model.head_hidden,
        text=model.text.settings if model.text else None,
        pair=_pair_card(model.pair) if model.pair else None,
        trained_on=data.trained_on,
        precision=setup.precision.name,
        targets=setup.tasks.stated(progress.thresholds),
    )


def _pair_card(pair: Pair) -> dict[str, Any]:
    """What rebuilds the second encoder of a model of images and texts."""
    return {"arch": pair.text.arch, "combiner": pair.combiner, "text": pair.reader.settings}


def _training_state(run: Run) -> dict[str, Any]:
    """What resuming needs besides the weights and the optimiser's state. All ranks call it."""
    setup = run.setup
    progress = run.progress
    sums = setup.ranks.sum(progress.meter.sums.clone())
    variances = setup.tasks.log_variances
    beside: dict[str, Any] = {} if variances is None else {"log_variances": variances.detach()}
    if progress.thresholds:
        beside["thresholds"] = progress.thresholds
    lookahead = setup.optimisation.lookahead
    if lookahead is not None and lookahead.averages:
        beside["lookahead"] = dict(lookahead.averages)
    return {
        "step": progress.step,
        "epoch": progress.epoch,
        "global_batch": setup.global_batch,
        "loader": setup.data.loader.state_dict(),
        "scaler": setup.optimisation.scaler.state_dict(),
        "meter": sums,
        **progress.standing.state_dict(),
        "seconds": run.accounting.seconds,
        **beside,
    }


def restore(run: Run, saved: Path, training: dict[str, Any]) -> None:
    """Continue from a checkpoint; all ranks call it. Raises UserError if the data has changed since."""
    setup = run.setup
    progress = run.progress
    module = setup.model.module
    optimizer = setup.optimisation.optimizer
    averages = setup.optimisation.ema.tensors if setup.optimisation.ema else None
    if "shards" in training:
        from .sharded import load_sharded

        apart = setup.config.strategy == "fsdp"
        load_sharded(saved, training, module, optimizer, setup.ranks, averages, setup.tasks.parameters, apart=apart)
    else:
        load_whole(saved, training, module, optimizer, averages)
    take_buffers(training.get("each_rank", {}), module, setup.ranks, averages)
    if training["scaler"]:  # empty of a run without one, as on a device with bf16
        setup.optimisation.scaler.load_state_dict(training["scaler"])
    if setup.optimisation.lookahead is not None:
        setup.optimisation.lookahead.restore(training.get("lookahead", {}))
    progress.step = training["step"]
    progress.epoch = training["epoch"]
    progress.standing = Standing.from_state(training)
    progress.thresholds = training.get("thresholds", {})
    if setup.tasks.log_variances is not None:
        with torch.no_grad():
            setup.tasks.log_variances.copy_(training["log_variances"])
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
    except ValueError as error:  # all flags are the same
        raise UsageError(
            f"--resume: {setup.directory} was trained with other numbers in --sampler {setup.config.sampler}; restore "
            "the file, or start a new run"
        ) from error


def load_whole(
    saved: Path,
    training: dict[str, Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Mapping[str, torch.Tensor] | None,
) -> None:
    """Weights, averages and the optimiser's state from a checkpoint of whole tensors; a sharded model takes its shards.

    Which kernels the optimiser runs is this process's choice, not the checkpoint's.
    """
    tensors, _ = read_weights(saved / checkpoint.MODEL)
    for name, average in (averages or {}).items():
        if name in tensors:  # a buffer that is not saved stays as it was built
            average.copy_(laid_out(tensors[name], average))
    own = module.state_dict()
    weights = training.get("weights", tensors)
    module.load_state_dict({name: laid_out(value, own.get(name, value)) for name, value in weights.items()})
    stated = training["optimizer"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = {
        place: {
            key: laid_out(value, parameters[place]) if key != "step" and isinstance(value, torch.Tensor) else value
            for key, value in values.items()
        }
        for place, values in stated["state"].items()
    }
    kernels = [{key: group[key] for key in ("fused", "foreach") if key in group} for group in optimizer.param_groups]
    groups = [group | own for group, own in zip(stated["param_groups"], kernels, strict=True)]
    fresh = optimizer.state_dict()["state"]  # of fused SGD zeros, also for what did not learn yet
    optimizer.load_state_dict({**stated, "state": fresh | states, "param_groups": groups})
