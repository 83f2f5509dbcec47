"""What a process of a search makes of a trial: a record, whatever happens."""

import math
import os
import signal

import pytest

from fastimg.errors import UserError
from fastimg.loaders import DataError, ShardError
from fastimg.loaders.errors import UnavailableError
from fastimg.search.messages import TrialJob
from fastimg.search.worker import _Ending, _limit_memory, best_of, run_trial
from fastimg.train.loop import Result


def job(tmp_path, **settings):
    places = {"data": "D", "output": str(tmp_path / "runs"), "name": "0003", "resume": "auto"}
    return TrialJob(number=3, stage="trials", parameters={"lr": 0.1}, settings={"lr": 0.1, **settings, **places})


def trained(*losses, signal_=0):
    """A training whose validations have these losses; accuracy is what is left of 1."""

    def train(config, watch):
        (config.output / config.name).mkdir(parents=True)
        assert config.resume is None  # there was nothing to resume
        done = 0
        for done, loss in enumerate(losses, 1):
            if watch(done, {"loss": loss, "top1": 1 - loss}):
                break
        return Result(run=config.output / config.name, signal=signal_, best=None, epochs=done)

    return train


def failing(error):
    def train(config, watch):
        watch(1, {"loss": 0.5, "top1": 0.5})
        raise error

    return train


def test_a_trial_that_ends_well(tmp_path):
    reports = []
    record = run_trial(job(tmp_path), "top1", lambda report: bool(reports.append(report)), trained(0.5, 0.2, 0.3))
    assert (record.state, record.reason, record.number, record.epochs) == ("complete", None, 3, 3)
    assert record.values == (0.8,)
    assert record.metrics == {"loss": 0.2, "top1": 0.8}
    assert record.reported == {1: 0.5, 2: 0.8, 3: 0.7}
    assert str(record.run) == "runs/0003"
    assert record.settings == {"lr": 0.1, "data": "D"}
    assert [(report.number, report.epoch, report.value) for report in reports] == [
        (3, 1, 0.5),
        (3, 2, 0.8),
        (3, 3, 0.7),
    ]


def test_damaged_lines_of_a_run_that_goes_on_are_named(tmp_path, capsys):
    run = tmp_path / "runs/0003"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    (run / "metrics.jsonl").write_text('{"kind": "val", "step": 1, "epoch": 1, "loss": 0.5, "top1": 0.9}\n{"kind\n')
    ended = Result(run=run, signal=0, best=None, epochs=1)
    record = run_trial(job(tmp_path), "top1", lambda _: False, lambda config, watch: ended)
    assert f"{run}/metrics.jsonl: 1 damaged line is left out (line 2: not JSON)" in capsys.readouterr().err
    assert record.values == (0.9,)


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (failing(UserError("the loss became nan in step 4; lower --lr")), "the loss became nan in step 4; lower --lr"),
        (failing(DataError("a shard\nis damaged")), "a shard is damaged"),
        (failing(MemoryError()), "out of memory"),
        (failing(RuntimeError("CUDA error: out of memory")), "out of memory"),
        (trained(0.5, signal_=signal.SIGTERM), "the time was over after 1 epoch"),
        (trained(math.nan, math.nan), "no validation had a finite top1"),
        (trained(), "no validation had a finite top1"),
    ],
)
def test_a_trial_that_does_not(tmp_path, train, reason):
    record = run_trial(job(tmp_path), "top1", lambda _: False, train)
    assert (record.state, record.reason) == ("pruned", reason)


@pytest.mark.parametrize("error", [ShardError("D/a.tar: cut short"), UnavailableError("s3://b/D: tried 9 times")])
def test_data_that_no_trial_could_read_is_no_reason(tmp_path, error):
    with pytest.raises(type(error), match=str(error)):
        run_trial(job(tmp_path), "top1", lambda _: False, failing(error))


def test_a_fault_of_ours_is_a_reason_and_its_traceback_is_printed(tmp_path, capsys):
    record = run_trial(job(tmp_path), "top1", lambda _: False, failing(ZeroDivisionError("by nought")))
    assert record.reason == "internal error: ZeroDivisionError: by nought"
    assert "Traceback" in capsys.readouterr().err


def test_settings_that_train_refuses_are_a_reason(tmp_path):
    record = run_trial(job(tmp_path, epochs="many"), "top1", lambda _: False, trained(0.5))
    assert record.state == "pruned"
    assert "epochs: expected a whole number" in record.reason


def test_a_trial_that_is_not_promising_is_ended_and_keeps_its_value(tmp_path):
    record = run_trial(job(tmp_path), "top1", lambda report: report.epoch == 2, trained(0.5, 0.4, 0.1))
    assert (record.state, record.reason) == ("pruned", "not promising after 2 epochs")
    assert record.values == (0.6,)


def test_a_signal_leaves_a_trial_that_is_being_prepared(tmp_path):
    ending = _Ending()

    def train(config, watch):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    before = signal.signal(signal.SIGTERM, ending)
    try:
        record = run_trial(job(tmp_path), "top1", lambda _: False, train, ending)
        assert (record.state, record.reason) == ("pruned", "the time was over before its first step")
        os.kill(os.getpid(), signal.SIGTERM)  # between trials it has no effect
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_best_validation_is_the_one_whose_checkpoint_is_kept():
    validations = {
        1: {"loss": 0.5, "top1": 0.8},
        2: {"loss": 0.4, "top1": 0.8},
        3: {"loss": 0.1, "top1": 0.7},
        4: {"loss": math.nan, "top1": math.nan},
    }
    assert best_of(validations, "top1") == validations[2]
    assert best_of(validations, "loss") == validations[3]
    assert best_of({}, "top1") is None


@pytest.mark.parametrize(("there", "limits"), [(True, [(0.5, 0)]), (False, [])])
def test_a_share_of_a_gpu_is_one_of_its_memory(monkeypatch, there, limits):
    calls = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", lambda *share: calls.append(share))
    _limit_memory(0.5)
    assert calls == limits
