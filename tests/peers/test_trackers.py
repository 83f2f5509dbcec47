"""TensorBoard, Weights & Biases and MLflow themselves, offline: a run, and the same run gone on with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastimg import cli
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.trackers.fanout import opened
from fastimg.train.trackers.protocol import TrackedRun


@pytest.fixture
def followed(tmp_path: Path) -> Callable[[str], Any]:
    """`followed(name)`: a tracker's key, after a run of four steps that was killed, and resumed after step 2."""

    def follow(name: str) -> Any:
        first = opened(name, TrackedRun(directory=tmp_path, config={"arch": "x", "mean": [0.5]}, step=0, key=None))
        for step in (1, 2, 3):
            first.scalars(step, {"step/loss": float(step)})
        first.picture("samples", picture(tmp_path))
        first.close()
        again = opened(name, TrackedRun(directory=tmp_path, config={"arch": "x"}, step=2, key=first.key))
        assert again.key == first.key
        for step in (3, 4):
            again.scalars(step, {"step/loss": step + 0.5})
        again.close()
        return first.key

    return follow


def picture(folder: Path) -> Path:
    from PIL import Image

    file = folder / "samples.png"
    Image.new("RGB", (8, 8), "red").save(file)
    return file


def test_tensorboard(followed: Callable[[str], Any], tmp_path: Path) -> None:
    folder = followed("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / folder))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("step/loss")] == [(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5)]
    assert events.Tags()["images"] == ["samples"]
    assert b"| arch | x |" in events.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_wandb(followed: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    key = followed("wandb")
    assert sorted(path.name.rpartition("-")[2] for path in (tmp_path / "wandb").glob("offline-run-*")) == [key, key]
    files = list((tmp_path / "wandb").rglob("*.wandb"))
    assert files and all(path.stat().st_size > 0 for path in files)


def test_mlflow(followed: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    key = followed("mlflow")
    from mlflow import MlflowClient

    client = MlflowClient()
    history = client.get_metric_history(key, "step/loss")
    assert sorted((m.step, m.value) for m in history) == [(1, 1.0), (2, 2.0), (3, 3.0), (3, 3.5), (4, 4.5)]
    stored = client.get_run(key)
    assert (stored.data.params["arch"], stored.info.status) == ("x", "FINISHED")
    assert stored.data.tags["best"] == str(tmp_path / "best")
    assert [file.path for file in client.list_artifacts(key)] == ["samples.png"]


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)  # without data: on the embedded digits
    monkeypatch.setattr("fastimg.train.reporting.summary.plot_curves", lambda *_: None)
    flags = ("--arch", "test_resnet", "--img-size", "32", "--duration", "2ba", "--no-amp", "--name", "run")
    assert cli.run(["train", *flags, "--log", "tensorboard"]) == 0
    assert "goes on without it" not in "".join(capsys.readouterr())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "runs/run/tensorboard"))
    events.Reload()
    (val,) = [record for record in rundir.read_log(tmp_path / "runs/run") if record["kind"] == "val"]
    assert events.Scalars("val/top1")[0].value == pytest.approx(val["top1"])
    assert set(events.Tags()["images"]) == {"samples", "augmented"}
