"""Another loader's run on a CPU tries the native one after its first epoch: the weights stay, the verdict says so."""

import json
import re
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from fastimg.loaders import DataError, Loader
from fastimg.loaders.backends import torch_loader
from fastimg.train import trial
from fastimg.train.reporting import accounting, waiting
from fastimg.train.reporting.accounting import TrainingTime

RUN = ("--arch", "test_resnet", "--img-size", "32", "--no-amp", "--val-fraction", "0", "--epochs", "2", "-b", "6")
TORCH = ("--loader", "torch", "--workers", "1", "--log-interval", "1")


@pytest.fixture
def eager(monkeypatch, one_thread):
    """Runs of a second are long enough."""
    monkeypatch.setattr(accounting, "SETTLED", 0.0)
    monkeypatch.setattr(trial, "COST", 1e9)
    monkeypatch.setattr(trial, "SECONDS", 0.3)


def train(cli, folder, output, *more):
    ran = cli("train", folder, *RUN, *more, "--output", output, "--name", "run")
    assert ran.code == 0, ran.err
    return ran.out


def test_a_loader_whose_work_is_no_waiting_is_found(cli, image_folder, tmp_path, monkeypatch, eager):
    """As on a machine whose cores it takes: training is slow with it, and no counter tells."""
    monkeypatch.setattr(accounting.TrainingTime, "wait_share", 0.0)
    rate = trial.native_rate
    monkeypatch.setattr(trial, "native_rate", lambda run: 3.0 * run.account.steady.speed if rate(run) else 0.0)
    out = train(cli, image_folder, tmp_path, *TORCH)
    said = [line for line in out.splitlines() if "decode-bound: " in line]
    assert len(said) == 2 and "verdict" in said[1]  # after the first epoch, and in the summary
    assert "0% of the time was spent waiting for the torch loader, which takes cores from computing besides" in said[0]
    assert all("try --loader native (tried: 3.0x, " in line and "estimate" not in line for line in said)
    first = next(n for n, line in enumerate(out.splitlines()) if line == said[0])
    assert "epoch 1/2" in out.splitlines()[first - 1] and "epoch 2/2" in out.splitlines()[first + 1]


def test_a_loader_that_is_waited_for(cli, image_folder, tmp_path, monkeypatch, eager, slower):
    monkeypatch.setattr(torch_loader, "_image", slower(torch_loader._image, 0.2))
    out = train(cli, image_folder, tmp_path, *TORCH, "--epochs", "1")
    said = re.search(r"; try --loader native \(tried: ([\d.]+)x, ", out)
    assert said is not None and float(said[1]) > 1.5  # six images take 1.2 s there


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--grad-accum-steps", "2", "--model-ema", "--clip-grad", "1"),
        ("--progressive", "32:64", "--freeze", "backbone", "--freeze-epochs", "1", "--aa", "trivial"),
    ],
)
def test_a_trial_leaves_no_trace(cli, image_folder, tmp_path, monkeypatch, eager, more):
    if "--progressive" in more:
        more = (*more, "--img-size", "64", "--epochs", "4", "--progressive-epochs", "0:2")
    tried = []
    rate = trial.native_rate

    def slow(run):
        tried.append(rate(run))
        time.sleep(2)
        return tried[-1]

    monkeypatch.setattr(trial, "native_rate", slow)
    train(cli, image_folder, tmp_path / "with", *TORCH, *more)
    assert len(tried) == 1 and tried[0] > 0
    monkeypatch.setattr(trial, "COST", 0.0)
    train(cli, image_folder, tmp_path / "without", *TORCH, *more)
    assert len(tried) == 1
    kept, other = (load_file(tmp_path / name / "run/last/model.safetensors") for name in ("with", "without"))
    assert kept.keys() == other.keys() and all(torch.equal(kept[name], other[name]) for name in kept)
    states = [torch.load(tmp_path / name / "run/last/training.pt", weights_only=True) for name in ("with", "without")]
    assert states[0]["step"] == states[1]["step"]
    for index, moments in states[0]["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(states[1]["optimizer"]["state"][index][name]))
    records = [json.loads(line) for line in (tmp_path / "with/run/metrics.jsonl").read_text().splitlines()]
    seconds = [record["train_seconds"] for record in records if record["kind"] == "epoch"]
    windows = [record["seconds"] for record in records if record["kind"] == "train"]
    assert sum(seconds) == pytest.approx(sum(windows), abs=1)  # the trial is no time of training


@pytest.mark.parametrize(
    ("error", "words"), [(DataError("no such thing"), "no such thing"), (MemoryError(), "memory ran out")]
)
def test_a_trial_that_fails_is_no_end(cli, image_folder, tmp_path, monkeypatch, eager, error, words, slower):
    def refuse(self):
        raise error
        yield

    monkeypatch.setattr(Loader, "__iter__", refuse)
    monkeypatch.setattr(torch_loader, "_image", slower(torch_loader._image, 0.1))
    out = train(cli, image_folder, tmp_path, *TORCH)
    assert f"--loader native could not be tried: {words}" in out
    assert "the torch loader" in out and "(tried" not in out


@pytest.mark.parametrize(
    "flags",
    [
        ("--loader", "native"),
        ("--loader", "synthetic"),
        ("--loader", "torch", "--freeze", "backbone"),  # it reads embeddings
    ],
)
def test_nothing_is_tried_where_there_is_nothing_to_try(cli, image_folder, tmp_path, monkeypatch, eager, flags):
    monkeypatch.setattr(trial, "native_rate", lambda run: pytest.fail("tried"))
    train(cli, image_folder, tmp_path, *flags)


def test_a_trial_is_a_small_part_of_the_run(monkeypatch):
    """4 s and 5 steps of 0.64 s are 7.2 s: at most 4 % of the run."""
    run = SimpleNamespace(
        batch_size=64,
        config=SimpleNamespace(grad_accum_steps=1),
        loader=SimpleNamespace(config=SimpleNamespace(prefetch=3)),
        trained=torch.nn.Linear(10, 10),
        steps=0,
    )
    steady = TrainingTime(seconds=10.0, samples=1000)
    monkeypatch.setattr(trial, "available", lambda: 2**30)
    for run.steps, worth in ((275, False), (285, True)):
        assert trial.worth_it(run, steady) == worth
    monkeypatch.setattr(trial, "available", lambda: 4 * 4 * 110)
    assert not trial.worth_it(run, steady)


def test_before_the_trial_nothing_is_said(monkeypatch):
    said: list[str] = []
    account = SimpleNamespace(evidence=lambda: TrainingTime(9.0, 9, 9.0), skip=lambda: None)
    run = SimpleNamespace(account=account, told=False, asked=False)
    monkeypatch.setattr(waiting, "_judged", lambda run, window: SimpleNamespace(text="slow"))
    for possible, run.asked, count in ((True, False, 0), (True, True, 1), (False, False, 1)):
        run.told = False
        monkeypatch.setattr(trial, "possible", lambda run, possible=possible: possible)
        waiting.tell(run, SimpleNamespace(say=said.append))
        assert len(said) == count and run.told == bool(count)
        said.clear()
