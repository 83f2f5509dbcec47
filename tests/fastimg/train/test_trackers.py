"""Trackers: they get what metrics.jsonl gets, and one that fails is dropped with one warning."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastimg.config.commands import Train
from fastimg.errors import UsageError
from fastimg.loaders.extras import install
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.choices import refusals
from fastimg.train.trackers import fanout


class Recorder:
    """A tracker that remembers what it was told; it fails at the call that it is told to fail at."""

    def __init__(self, run: Any, fails: str = "") -> None:
        self.run = run
        self.fails = fails
        self.key = run.key or "key"
        self.values: list[tuple[int, dict[str, float]]] = []
        self.pictures: list[str] = []
        self.closed = 0

    def scalars(self, step: int, values: dict[str, float]) -> None:
        if self.fails == "scalars":
            raise RuntimeError("no connection")
        self.values.append((step, values))

    def picture(self, name: str, file: Path) -> None:
        assert file.stat().st_size > 0
        self.pictures.append(name)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Recorder]]:
    """Recorders instead of the libraries, by name; mlflow's fails, and wandb's does not even open."""
    made: dict[str, Recorder] = {}

    def opened(name: str, run: Any) -> Recorder:
        if name == "wandb":
            raise OSError("no key")
        made[name] = Recorder(run, "scalars" if name == "mlflow" else "")
        return made[name]

    monkeypatch.setattr(fanout, "opened", opened)
    monkeypatch.setattr(fanout, "find_spec", lambda name: name)
    yield made


def test_a_run_is_told_and_goes_on_without_those_that_fail(
    trained: Any, cli: Callable[..., Any], tmp_path: Path, recorders: dict[str, Recorder], fast: tuple[str, ...]
) -> None:
    logs = ("--log", "tensorboard,wandb", "--log", "mlflow", "--output", tmp_path, "--name", "run")
    ran = cli("train", trained.images, *fast, *logs)
    assert ran.code == 0, ran.err
    said = ran.out + ran.err
    assert said.count("--log wandb: no key; the run goes on without it") == 1
    assert said.count("--log mlflow: no connection; the run goes on without it") == 1
    run = tmp_path / "run"
    told = recorders["tensorboard"]
    records = [
        (r["step"], {f"{r['kind']}/{k}": v for k, v in r.items() if k not in ("kind", "step", "epoch")})
        for r in rundir.read_log(run)
    ]
    assert told.values == records
    assert told.pictures == ["samples", "augmented"]
    assert told.closed == 1
    assert told.run.config["arch"] == "test_resnet"
    assert told.run.checkpoints["best"] == str((run / "best").resolve())
    assert json.loads((run / "trackers.json").read_text()) == {"tensorboard": "key", "mlflow": "key"}

    ran = cli("train", trained.images, "--resume", run, "--epochs", "2", "--log", "tensorboard")
    assert ran.code == 0, ran.err
    again = recorders["tensorboard"]
    assert (again.run.key, again.run.step, again.pictures) == ("key", records[-1][0], [])
    assert min(step for step, _ in again.values) == records[-1][0] + 1
    shutil.rmtree(run)


def test_what_cannot_be_logged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--log tensorbord: give tensorboard, wandb, mlflow; did you mean tensorboard"):
        refusals.check(Train(log=("tensorbord",)))
    monkeypatch.setattr(fanout, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"--log mlflow: it is not installed; `{re.escape(install('mlflow'))}`"):
        refusals.check(Train(log=("mlflow",)))
