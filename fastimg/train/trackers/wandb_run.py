"""Weights & Biases: a run of the project that WANDB_PROJECT names, else fastimg; offline with WANDB_MODE=offline."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from .protocol import TrackedRun

_STEP = "optimiser_step"  # the axis of all curves: wandb's own step may not go back, as it does after a kill


class WandbRun:
    """A resumed run goes on in the same run of wandb. What came after its last checkpoint is there twice."""

    def __init__(self, run: TrackedRun) -> None:
        self._wandb: Any = wandb
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fastimg"),
            name=run.directory.name,
            dir=str(run.directory),
            id=run.key,
            resume=None if run.key is None else "allow",
            config={**run.config, "checkpoints": run.checkpoints},
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    @property
    def key(self) -> str:
        """See `Tracker`."""
        return str(self._run.id)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log({**values, _STEP: step})

    def picture(self, name: str, file: Path) -> None:
        """See `Tracker`."""
        self._run.log({name: self._wandb.Image(str(file))})

    def close(self) -> None:
        """See `Tracker`."""
        self._run.finish()
