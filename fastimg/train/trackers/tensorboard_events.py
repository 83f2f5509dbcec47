"""TensorBoard: event files in RUN/tensorboard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from fastimg.loaders.opening import open_image

from .protocol import TrackedRun

FOLDER = "tensorboard"


class TensorboardEvents:
    """Records after the step that is resumed from are purged: they come again."""

    def __init__(self, run: TrackedRun) -> None:
        resumed = run.key is not None
        writer: Any = SummaryWriter
        self._writer = writer(str(run.directory / FOLDER), purge_step=run.step + 1 if resumed else None)
        if not resumed:
            rows = [*run.config.items(), *run.checkpoints.items()]
            table = "\n".join(f"| {name} | {value} |" for name, value in rows)
            self._writer.add_text("config", f"| setting | value |\n|---|---|\n{table}", 0)

    @property
    def key(self) -> str:
        """See `Tracker`."""
        return FOLDER

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, name: str, file: Path) -> None:
        """See `Tracker`."""
        with open_image(file) as image:
            self._writer.add_image(name, np.asarray(image.convert("RGB")), 0, dataformats="HWC")

    def close(self) -> None:
        """See `Tracker`."""
        self._writer.close()
