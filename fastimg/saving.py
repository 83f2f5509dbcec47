"""How a run is saved and restored."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from . import checkpoint
from .errors import UserError
from .metrics import Score
from .models import read_weights
from .parallel import agree_on_buffers
from .run import Best, Run


def save(run: Run, best: bool = False) -> None:
    """Write a checkpoint of this step, by rank 0, with what going on needs; all ranks call it."""
    agree_on_buffers(run.model.module, run.ranks)
    sums = run.ranks.sum(run.meter.sums.clone())
    if run.ranks.first:
        card = checkpoint.Card(
            arch=run.model.arch,
            kwargs=run.model.kwargs,
            classes=run.classes,
            num_classes=run.outputs,
            preprocessing=run.preprocessing,
            step=run.step,
            epoch=run.epoch,
            metrics=asdict(run.best.score) if run.best and best else {},
        )
        training = {
            "step": run.step,
            "epoch": run.epoch,
            "global_batch": run.global_batch,
            "loader": run.loader.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
            "meter": sums.cpu(),
            "best": asdict(run.best) if run.best else None,
            "stale": run.stale,
            "seconds": run.seconds,
        }
        try:
            saved = checkpoint.save(run.directory, card, run.model.module, training)
            checkpoint.point(run.directory, "last", saved)
            if best:
                checkpoint.point(run.directory, "best", saved)
            checkpoint.prune(run.directory, run.config.checkpoint_hist)
        except (OSError, RuntimeError, SafetensorError) as error:  # a full disk, as each library says it
            raise UserError(
                f"{run.directory}: the checkpoint of step {run.step} could not be written ({error}); make room, then "
                "go on from the one before it with --resume auto"
            ) from error
    run.ranks.barrier()


def restore(run: Run, saved: Path, training: dict[str, Any]) -> None:
    """Stand where the checkpoint stood. Raises DataError where the data is not the same."""
    tensors, _ = read_weights(saved / checkpoint.MODEL)
    run.model.module.load_state_dict(tensors)
    run.optimizer.load_state_dict(training["optimizer"])
    run.scaler.load_state_dict(training["scaler"])
    run.step, run.epoch = training["step"], training["epoch"]
    run.stale, run.seconds = training["stale"], training["seconds"]
    if training["best"] is not None:
        run.best = Best(Score(**training["best"]["score"]), training["best"]["epoch"])
    if run.ranks.first:  # the sums over all ranks go on in one of them
        run.meter.sums.copy_(training["meter"])
    run.loader.load_state_dict(training["loader"])
