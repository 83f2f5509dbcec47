"""Timelines of --trace: they hold the steps that were asked for, of all threads, and change nothing in a run."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.profiler import profile

from fastimg.loaders.runtime.times import named
from fastimg.train import step as training_step
from fastimg.train.reporting.timeline import Timeline

PARTS = ("wait for a batch", "augment", "forward and backward", "update")


@pytest.fixture
def train(trained: Any, fast: tuple[str, ...], cli: Any, tmp_path: Path) -> Callable[..., Any]:
    """`train(name, *flags)`: 24 steps in two epochs; what the run said."""

    def call(name: str, *flags: str, code: int = 0) -> Any:
        settings = (*fast, "-b", "2", "--epochs", "2", "--no-aug", "-o", tmp_path, "--name", name)
        ran = cli("train", trained.images, *settings, *flags)
        assert ran.code == code, ran.err
        return ran

    return call


def events(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))["traceEvents"]
    return found


def named_parts(run: Path) -> Counter[str]:
    found = (event["name"] for event in events(run) if event.get("ph") == "X")
    return Counter(name.removeprefix("fastimg: ") for name in found if name.startswith("fastimg: "))


def test_the_steps_that_were_asked_for_on_every_thread(train: Any, tmp_path: Path) -> None:
    ran = train("traced", "--trace", "3")  # the last of an epoch, its validation, and the first of the next
    assert "trace.json.gz: 3 steps after the first 10" in " ".join(ran.out.split())
    parts = named_parts(tmp_path / "traced")
    assert {name: parts[name] for name in PARTS} == dict.fromkeys(PARTS, 3) | {"wait for a batch": 3 + 6}
    steps = [event["name"] for event in events(tmp_path / "traced") if event.get("name", "").startswith("ProfilerStep")]
    assert sorted(steps) == ["ProfilerStep#10", "ProfilerStep#11", "ProfilerStep#12"]  # counted from 0
    threads = {
        name: {event["tid"] for event in events(tmp_path / "traced") if event.get("name") == f"fastimg: {name}"}
        for name in ("fill rows", "update")
    }
    assert threads["fill rows"] and not threads["fill rows"] & threads["update"]
    assert sorted(path.name for path in (tmp_path / "traced").glob(".*")) == []


def test_a_run_trains_as_without(train: Any, tmp_path: Path) -> None:
    train("traced", "--trace", "2")
    train("plain")
    traced, plain = (load_file(tmp_path / name / "last/model.safetensors") for name in ("traced", "plain"))
    assert traced.keys() == plain.keys() and all(torch.equal(traced[name], plain[name]) for name in plain)
    assert not (tmp_path / "plain/trace.json.gz").exists()


def test_a_run_that_is_stopped_leaves_what_was_recorded(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    average = training_step.average_gradients

    def stopped(run: Any, *rest: Any) -> int:
        if run.progress.step == 13:
            os.kill(os.getpid(), 15)
        return average(run, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(training_step, "average_gradients", stopped)
        train("run", "--trace", code=143)
    assert named_parts(tmp_path / "run")["update"] == 5  # it stops after the next step
    ran = train("run", "--trace", "--resume", "auto")  # of the steps of this process
    assert "none: recording begins after 10 steps, and the run had 9" in " ".join(ran.out.split())


def test_a_file_that_cannot_be_written_does_not_end_the_run(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile, "export_chrome_trace", full)
    ran = train("run", "--trace", "2")
    assert "trace.json.gz: not written (No space left on device)" in " ".join(ran.out.split())
    assert not list((tmp_path / "run").glob("*trace*"))


def test_an_error_in_a_step_ends_the_recording(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="in the step"),
        Timeline(tmp_path / "t.json.gz", 5, torch.device("cpu")) as t,
    ):
        for _ in range(12):
            with named("update"):
                t.step()
        raise RuntimeError("in the step")
    assert "2 steps after" in t.words
    t.step()  # of no effect
    assert "2 steps after" in t.words


def test_names_cost_nothing_without_a_profiler() -> None:
    assert named("update") is named("augment")


def test_no_steps_are_refused(cli: Any, trained: Any) -> None:
    ran = cli("train", trained.images, "--trace", "0")
    assert ran.code == 2 and "--trace 0: give 1 or more steps" in ran.err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_timeline_holds_kernels(train: Any, tmp_path: Path) -> None:
    train("traced", "--trace", "3", "--device", "cuda")
    kinds = Counter(event.get("cat") for event in events(tmp_path / "traced"))
    assert kinds["kernel"] > 3 and kinds["gpu_memcpy"] >= 3
