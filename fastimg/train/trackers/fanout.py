"""The trackers of a run: opened, told of everything, and dropped with a warning where one fails."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastimg.config.commands import Train
from fastimg.config.intent import trackers
from fastimg.errors import UsageError, UserError, reason_of
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.extras import install

from .protocol import TrackedRun, Tracker

KEYS = "trackers.json"  # in the run's directory: what each tracker calls this run
_MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
_POSITION = ("epoch", "step")  # in a record: where it belongs, and not what was measured

Records = Sequence[Mapping[str, float | str | Sequence[float]]]


def check(config: Train) -> None:
    """Raises UsageError for a tracker that is not installed."""
    for name in trackers(config):
        if find_spec(_MODULES[name]) is None:
            raise UsageError(f"--log {name}: it is not installed; `{install(name)}`, or leave it out")


def opened(name: str, run: TrackedRun) -> Tracker:
    """A tracker of this run. Imports its library, and may raise whatever that raises."""
    if name == "tensorboard":
        from .tensorboard_events import TensorboardEvents

        return TensorboardEvents(run)
    if name == "wandb":
        from .wandb_run import WandbRun

        return WandbRun(run)
    from .mlflow_run import MlflowRun

    return MlflowRun(run)


def _settings(config: Train) -> dict[str, Any]:
    """The settings that are made, as plain values."""
    import msgspec  # not above: a machine that only measures may lack it

    settings = msgspec.to_builtins(dataclasses.replace(config, log=()), enc_hook=str)
    return {name: value for name, value in settings.items() if value not in (None, [], ())}


class Trackers:
    """All trackers of a run, which get what metrics.jsonl gets. One that fails is dropped with one warning."""

    def __init__(self, config: Train, directory: Path, step: int, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._open: dict[str, Tracker] = {}
        keys = _keys(directory)
        self.new = [name for name in trackers(config) if name not in keys]  # they have not seen this run before
        for name in trackers(config):
            run = TrackedRun(directory=directory, config=_settings(config), step=step, key=keys.get(name))
            try:
                self._open[name] = opened(name, run)
                keys[name] = self._open[name].key
            except Exception as error:  # noqa: BLE001 - other people's code, which must not end a run
                self._drop(name, error)
        if self._open:
            replace_file(directory / KEYS, json.dumps(keys).encode())

    def records(self, kind: str, records: Records) -> None:
        """Records of one kind, as metrics.jsonl has them: each number under KIND/NAME."""
        for record in records:
            values = {
                f"{kind}/{name}": float(value)
                for name, value in record.items()
                if name not in _POSITION and isinstance(value, int | float)
            }
            step = int(record["step"])  # type: ignore[arg-type]  # a number in every record
            self._each(lambda tracker, step=step, values=values: tracker.scalars(step, values))  # type: ignore[misc]

    def picture(self, file: Path, names: Sequence[str] | None = None) -> None:
        """A picture, for all trackers or for those of `names`."""
        self._each(lambda tracker: tracker.picture(file.stem, file), names)

    def close(self) -> None:
        """Close all of them."""
        self._each(lambda tracker: tracker.close())
        self._open.clear()

    def _each(self, call: Callable[[Tracker], None], names: Sequence[str] | None = None) -> None:
        for name, tracker in list(self._open.items()):
            if names is not None and name not in names:
                continue
            try:
                call(tracker)
            except Exception as error:  # noqa: BLE001 - other people's code, which must not end a run
                self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self._open.pop(name, None)
        self._warn(f"--log {name}: {reason_of(error)}; the run goes on without it, metrics.jsonl has everything")


def _keys(directory: Path) -> dict[str, str]:
    try:
        return dict(json.loads((directory / KEYS).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{directory / KEYS}: cannot be read ({reason_of(error)}); delete it") from error
