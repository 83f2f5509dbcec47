"""Progress lines that are printed one line late, as on a GPU: the same lines and records, each for its own step."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fastimg.system.progress import Display
from fastimg.train import step as training_step
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.metrics import OnTheWay
from fastimg.train.reporting import lines

TIMING = ("per_second", "seconds", "share")


def records(run: Path) -> list[dict[str, Any]]:
    """The records without times."""
    return [{k: v for k, v in r.items() if not k.endswith(TIMING)} for r in rundir.read_log(run)]


@pytest.fixture
def train(trained: Any, fast: tuple[str, ...], cli: Any, tmp_path: Path) -> Callable[..., Any]:
    """`train(name, *flags)`: 12 steps in two epochs, with a line after every second one."""

    def call(name: str, *flags: str) -> Any:
        settings = (*fast, "-b", "4", "--epochs", "2", "--log-interval", "2", "-o", tmp_path, "--name", name)
        return cli("train", trained.shards, *settings, *flags)

    return call


def test_the_same_lines_and_records_a_line_later(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int]] = []
    show, now = Display.show, [0]
    average = training_step.average_gradients

    def counting(run: Any, *rest: Any) -> int:
        now[0] = run.progress.step + 1  # the current step
        return average(run, *rest)

    monkeypatch.setattr(training_step, "average_gradients", counting)
    monkeypatch.setattr(
        Display, "show", lambda self, line: (shown.append((6 * line.epoch + line.step, now[0])), show(self, line))[1]
    )
    assert train("once", "--save-interval", "5").code == 0
    assert shown == [(step, step) for step in (2, 4, 6, 8, 10, 12)]
    shown.clear()
    monkeypatch.setattr(lines, "behind", lambda device: True)
    assert train("later", "--save-interval", "5").code == 0
    # A save reads pending results; at the end of an epoch none are pending.
    assert shown == [(2, 4), (4, 5), (6, 6), (8, 10), (10, 10), (12, 12)]
    assert records(tmp_path / "once") == records(tmp_path / "later")


def test_no_step_trains_while_the_line_says_what_was_before_it(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of an epoch neither."""
    said: list[str] = []
    told = {"note": Display.note, "advance": Display.advance}
    average = training_step.average_gradients
    monkeypatch.setattr(Display, "note", lambda self, text: (said.append(text), told["note"](self, text))[1])
    monkeypatch.setattr(
        Display, "advance", lambda self, *at: (said.append(f"{at[0]}, {at[1]}"), told["advance"](self, *at))[1]
    )
    monkeypatch.setattr(
        training_step, "average_gradients", lambda run, *rest: (said.append("trains"), average(run, *rest))[1]
    )
    assert train("once").code == 0
    before = [said[place - 1] for place, what in enumerate(said) if what == "trains"]
    assert "saving" in said and before == [f"{epoch}, {step}" for epoch in range(2) for step in range(6)]


def test_a_signal_and_a_resumed_run(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train("whole").code == 0
    monkeypatch.setattr(lines, "behind", lambda device: True)
    average = training_step.average_gradients

    def interrupting(run: Any, *rest: Any) -> int:
        if run.progress.step == 8:
            monkeypatch.setattr(training_step, "average_gradients", average)
            os.kill(os.getpid(), signal.SIGTERM)
        return average(run, *rest)

    monkeypatch.setattr(training_step, "average_gradients", interrupting)
    assert train("halves").code == 143
    assert train("halves", "--resume", "auto").code == 0
    assert records(tmp_path / "whole") == records(tmp_path / "halves")
    one, two = (load_file(tmp_path / name / "last/model.safetensors") for name in ("whole", "halves"))
    assert all(one[name].equal(two[name]) for name in one)


@pytest.mark.parametrize("interval", ["1", "3"])
def test_a_run_whose_divergence_is_pending_is_not_saved(
    interval: str, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "behind", lambda device: True)
    backward = training_step.forward_backward

    def poisoned(run: Any, batch: Any, *rest: Any) -> None:
        if run.progress.step == 2:
            batch.images.fill_(float("nan"))
        backward(run, batch, *rest)

    monkeypatch.setattr(training_step, "forward_backward", poisoned)
    ran = train("nan", "--save-interval", interval, "--no-model-ema")
    assert ran.code == 1 and "the loss became nan in step 3 " in ran.err, ran.err
    for path in (tmp_path / "nan/checkpoints").glob("[0-9]*"):
        assert checkpoint.read_card(path / "model.safetensors").step < 3


def test_a_checkpoint_that_is_not_finite_is_not_called_good(train: Any, tmp_path: Path) -> None:
    """As where the last step before it made the weights infinite, and the next loss is the first to show it."""
    assert train("run", "--epochs", "1").code == 0
    weights = tmp_path / "run/last/model.safetensors"
    with safe_open(weights, framework="pt") as file:
        stated = file.metadata()
    tensors = load_file(weights)
    next(tensor for tensor in tensors.values() if tensor.is_floating_point()).fill_(float("nan"))
    save_file(tensors, weights, stated)
    ran = train("run", "--resume", "auto")
    assert ran.code == 1 and f"the weights in {tmp_path}/run/last are not finite, either" in ran.err, ran.err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pending_results_do_not_wait_for_later_work() -> None:
    device = torch.device("cuda")
    sums = torch.arange(4.0, device=device)
    OnTheWay(sums).read()  # allocates
    torch.cuda._sleep(20_000_000)
    early = OnTheWay(sums + 1)
    torch.cuda._sleep(2_000_000_000)  # about a second
    ended = torch.cuda.Event()
    ended.record()
    assert early.read() == [1, 2, 3, 4]
    assert not ended.query()
    torch.cuda.synchronize()
