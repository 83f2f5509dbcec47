"""Which validation is the best, and when a run stops early."""

import dataclasses
import json
import math
import os

import pytest
import torch
from safetensors.torch import load_file

from fastimg.train import loop as train
from fastimg.train import step as training_step
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints import writer
from fastimg.train.patience import Standing, is_better
from fastimg.train.tasks.score import Score


def score(top1, loss, balanced=0.5):
    return Score(loss=loss, top1=top1, top5=1.0, samples=100, balanced_accuracy=balanced, missed=(1,))


@pytest.fixture
def validated(monkeypatch):
    """`validated([(top1, loss, balanced), ...])`: the output for validations one after the other."""

    def script(scores):
        left = [score(*values) for values in scores]
        monkeypatch.setattr(train, "evaluate", lambda *_: left.pop(0))
        monkeypatch.setattr(os, "fsync", lambda _: None)  # the slow part on a busy disk

    return script


@pytest.fixture
def run_of(trained, fast, tmp_path, cli):
    """`run_of("--patience", 2, ...)`: a training, and its validation records."""

    def call(*flags, name="run"):
        ran = cli("train", trained.images, *fast, "-b", "24", "--no-aug", "-o", tmp_path, "--name", name, *flags)
        return ran, [record for record in rundir.read_log(tmp_path / name) if record["kind"] == "val"]

    return call


NAN = math.nan


@pytest.mark.parametrize(
    ("one", "other", "metric", "better"),
    [
        (score(0.98, 0.08), score(0.98, 0.12), "top1", True),
        (score(0.98, 0.12), score(0.98, 0.08), "top1", False),
        (score(0.98, 0.12), score(0.98, 0.12), "top1", False),
        (score(0.99, 0.90), score(0.98, 0.12), "top1", True),
        (score(0.97, 0.01), score(0.98, 0.12), "top1", False),
        (score(0.98, NAN), score(0.98, 0.12), "top1", False),
        (score(0.98, 0.12), score(0.98, NAN), "top1", True),
        (score(0.98, NAN), score(0.98, NAN), "top1", False),
        (score(0.99, NAN), score(0.98, 0.12), "top1", True),
        (score(0.10, 0.08), score(0.98, 0.12), "loss", True),
        (score(0.98, NAN), score(0.98, 0.12), "loss", False),
        (score(0.98, 0.12), score(0.98, NAN), "loss", True),
        (score(0.10, 0.90, 0.6), score(0.98, 0.12, 0.5), "balanced_accuracy", True),
        (score(0.98, 0.08, 0.5), score(0.98, 0.12, 0.5), "balanced_accuracy", True),
        (score(0.98, 0.08, 0.4), score(0.98, 0.12, 0.5), "balanced_accuracy", False),
    ],
)
def test_which_is_better(one, other, metric, better):
    assert is_better(one, other, metric) is better


def stale(metric, *values):
    standing, found = Standing(), []
    for epoch, each in enumerate(values, start=1):
        standing = standing.after(score(*each), epoch, metric)
        found.append(standing.stale)
    return found


def test_patience_watches_the_loss_while_accuracy_stands_still():
    values = [(0.98, 0.3), (0.97, 0.2), (0.97, 0.1), (0.97, 0.2), (0.97, 0.1)]
    assert stale("loss", *values) == [0, 0, 0, 1, 2]
    assert stale("top1", *values) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("metric", ["loss", "top1", "balanced_accuracy"])
def test_a_new_best_checkpoint_is_always_better(metric):
    assert stale(metric, (0.5, 0.1, 0.5), (0.6, 0.9, 0.4), (0.6, 0.8, 0.4), (0.6, 0.8, 0.4)) == [0, 0, 0, 1]


def test_validations_that_do_not_count_do_not_use_patience():
    standing = Standing().after(score(0.5, 0.1), 1, "loss", counts=False)
    standing = standing.after(score(0.4, 0.2), 2, "loss", counts=False)
    assert standing.stale == 0 and standing.after(score(0.4, 0.2), 3, "loss").stale == 1


def test_it_survives_a_checkpoint(tmp_path):
    standing = Standing().after(score(0.9, 0.1), 1, "loss").after(score(0.8, 0.05), 2, "loss")
    standing = standing.after(score(0.8, 0.06), 3, "loss")
    torch.save(standing.state_dict(), tmp_path / "t.pt")
    assert Standing.from_state(torch.load(tmp_path / "t.pt", weights_only=True)) == standing
    assert (standing.best.epoch, standing.watched.epoch, standing.stale) == (1, 2, 1)


def test_a_checkpoint_from_before_losses_were_compared():
    before = {"best": {"score": {"loss": 0.2, "top1": 0.5, "top5": 1.0, "samples": 9}, "epoch": 3}, "stale": 1}
    standing = Standing.from_state(before)
    assert standing.best == standing.watched and standing.best.epoch == 3 and standing.stale == 1
    assert standing.after(score(0.5, 0.1), 4, "balanced_accuracy").best.epoch == 4
    assert Standing.from_state({"best": None, "stale": 0}) == Standing()


def test_ties_go_to_the_lower_loss(validated, run_of, tmp_path):
    """As with one cat among fifty dogs: every epoch has the same accuracy."""
    validated([(0.98, 0.1275), (0.98, 0.0832), (0.98, NAN)])
    ran, _ = run_of("--epochs", "3")
    assert ran.code == 0, ran.err
    assert (tmp_path / "run/best").resolve().name == f"{int((tmp_path / 'run/last').resolve().name) * 2 // 3:08d}"
    assert "in epoch 2 (100 images)" in ran.out and "loss 0.0832" in ran.out
    assert [line.endswith("(best)") for line in ran.out.splitlines() if "validation loss" in line] == [1, 1, 0]


def test_balanced_accuracy_and_classes_without_recall_are_printed(validated, run_of):
    validated([(0.98, 0.1, 0.5)])
    ran, records = run_of()
    assert "top1 98.00%  balanced 50.00%" in ran.out and "balanced accuracy 50.00%, loss 0.1000" in ran.out
    assert "1 class has a recall of 0: green" in ran.out
    assert records[0]["balanced_accuracy"] == 0.5 and records[0]["zero_recall_classes"] == 1


LOSSES = [(0.9, 0.4), (0.8, 0.3), (0.8, 0.2), (0.8, 0.25), (0.8, 0.2), (0.8, 0.1)]


@pytest.mark.parametrize(
    ("flags", "epochs", "rule", "words"),
    [
        (
            (),
            5,
            "lower validation loss",
            "epochs: lowest validation loss 0.2000 in epoch 3, best checkpoint (top-1 90.00%) in epoch 1",
        ),
        (("--patience-metric", "loss"), 5, "lower validation loss", "lowest validation loss 0.2000 in epoch 3"),
        (
            ("--patience-metric", "top1"),
            3,
            "higher top-1 accuracy",
            "no better for 2 epochs: highest top-1 accuracy 90.00% in epoch 1",
        ),
        (
            ("--patience-metric", "balanced_accuracy"),
            5,
            "higher balanced accuracy",
            "no better for 2 epochs: highest balanced accuracy 50.00% in epoch 3, best checkpoint",
        ),
    ],
)
def test_a_run_that_stops_says_why(flags, epochs, rule, words, validated, run_of):
    validated(LOSSES)
    ran, records = run_of("--epochs", "6", "--patience", "2", *flags)
    assert ran.code == 0 and len(records) == epochs, ran.err
    assert f"stops after 2 validations without a {rule} or a new best checkpoint" in ran.out
    lines = [line for line in ran.out.splitlines() if "stopped" in line]
    assert len(lines) == 2 and all(words in line for line in lines)  # when it stops, and in the summary
    assert lines[0].startswith("stopped: no better for 2 epochs")


def test_epochs_are_counted_where_not_all_are_validated(validated, run_of):
    validated([(0.9, 0.1), (0.8, 0.2), (0.8, 0.2)])
    ran, records = run_of("--epochs", "9", "--val-interval", "3", "--patience", "1")
    assert [record["epoch"] for record in records] == [3, 6] and "stopped: no better for 3 epochs" in ran.out


def test_the_last_epoch_is_not_an_early_stop(validated, run_of):
    validated([(0.9, 0.1), (0.8, 0.2)])
    ran, records = run_of("--epochs", "2", "--patience", "1")
    assert len(records) == 2 and "stopped" not in ran.out


@pytest.mark.parametrize(
    ("flags", "words", "last"),
    [
        (("--freeze", "1", "--freeze-epochs", "3"), "counted once everything trains", 4),
        (("--progressive", "32:64", "--progressive-epochs", "2:3"), "counted once crops have their full size", 4),
    ],
)
def test_patience_waits_for_scheduled_changes(flags, words, last, validated, trained, tmp_path, fast, cli):
    validated([(0.9, 0.1)] + [(0.8, 0.2)] * 5)
    images = ("--img-size", "64") if "--progressive" not in flags else ()
    bare = [flag for flag in fast if flag not in ("--img-size", "32")] + list(images)
    ran = cli(
        "train",
        trained.images,
        *bare,
        "-b",
        "24",
        "-o",
        tmp_path,
        "--name",
        "r",
        *flags,
        "--epochs",
        "6",
        "--patience",
        "1",
    )
    assert ran.code == 0, ran.err
    assert words in ran.out
    assert [r["epoch"] for r in rundir.read_log(tmp_path / "r") if r["kind"] == "val"] == list(range(1, last + 1))


def test_the_training_split_does_not_count(validated, run_of):
    validated([(0.9, 0.1), (0.5, 0.9), (0.8, 0.2), (0.9, 0.01), (0.8, 0.2), (0.9, 0.001)])  # in turn
    ran, records = run_of("--epochs", "9", "--patience", "2", "--evaluate-training-set")
    assert len(records) == 3 and "lowest validation loss 0.1000 in epoch 1" in ran.out


class Killed(BaseException):
    """Simulates kill -9."""


def test_a_resumed_run_stops_at_the_same_epoch(validated, run_of, tmp_path, monkeypatch):
    """Killed after one validation, and again after a second one that is not better."""
    monkeypatch.setattr(writer, "PAUSE", 0.0)  # every epoch is saved
    flags = ("--epochs", "6", "--patience", "2", "--resume", "auto")
    validated(LOSSES)
    whole, records = run_of(*flags, name="whole")
    for begun, killed in ((0, 1), (1, 4)):
        validated(LOSSES[begun:])
        with monkeypatch.context() as patched:
            patched.setattr(training_step, "average_gradients", lambda run, *args, at=killed: kill_at(run, at))
            with pytest.raises(Killed):
                run_of(*flags, name="parts")
    validated(LOSSES[4:])
    resumed, again = run_of(*flags, name="parts")
    assert resumed.code == 0, resumed.err
    assert again == records and len(records) == 5
    validated([])
    once_more, _ = run_of(*flags, name="parts")  # a stopped run does not continue
    said = [
        next(line for line in r.out.splitlines() if line.startswith("stopped")) for r in (whole, resumed, once_more)
    ]
    assert said[0].replace(f"--resume {tmp_path}/whole ", f"--resume {tmp_path}/parts ") == said[1] == said[2]
    saved = torch.load(tmp_path / "parts/last/training.pt", weights_only=True)
    assert (saved["best"]["epoch"], saved["watched"]["epoch"], saved["stale"]) == (1, 3, 2)


def kill_at(run, epoch):
    if run.progress.epoch == epoch:
        raise Killed
    return 0


def test_a_run_that_stopped_goes_on_with_more_patience_as_if_it_had_never_stopped(validated, run_of, tmp_path):
    flags = ("--epochs", "6", "--lr", "1e-3", "--patience")
    validated(LOSSES)
    _, records = run_of(*flags, "6", name="whole")
    validated(LOSSES)
    stopped, before = run_of(*flags, "2", name="parts")
    assert " with a --patience above 2 goes on from here" in stopped.out
    validated(LOSSES[len(before) :])
    resumed, again = run_of(*flags, "6", "--resume", tmp_path / "parts", name="parts")
    assert "--resume: from here on --patience 2 -> 6" in resumed.out
    assert (len(before), len(records)) == (5, 6) and again == records
    weights, others = (load_file(tmp_path / name / "last/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert "patience: 6\n" in (tmp_path / "parts/config.yaml").read_text()


def test_a_run_that_stopped_is_not_made_longer_without_more_patience(validated, run_of, tmp_path):
    validated(LOSSES)
    run_of("--epochs", "6", "--patience", "2")
    before = (tmp_path / "run/config.yaml").read_text()
    refused, _ = run_of("--resume", tmp_path / "run", "--epochs", "8")
    assert refused.code == 2 and (tmp_path / "run/config.yaml").read_text() == before
    assert "was ended by --patience 2, not by its length: its last 2 validations brought no improvement" in refused.err
    assert "8 steps instead of 6 alone would end it again at once; give a --patience above 2, too" in refused.err
    validated([*LOSSES[5:], (0.8, 0.09), (0.8, 0.08)])
    longer, records = run_of("--resume", tmp_path / "run", "--epochs", "8", "--patience", "3")
    assert longer.code == 0 and [record["epoch"] for record in records] == [*range(1, 9)]


def test_resuming_a_run_from_before_the_flag(validated, run_of, tmp_path):
    flags = ("--epochs", "2", "--patience", "2")
    validated(LOSSES)
    assert run_of(*flags)[0].code == 0
    file = tmp_path / "run/config.yaml"
    assert "patience_metric: loss\n" in file.read_text()
    file.write_text(file.read_text().replace("patience_metric: loss\n", ""))
    assert run_of(*flags, "--resume", "auto")[0].code == 0
    ran, _ = run_of(*flags, "--resume", "auto", "--patience-metric", "top1")
    assert ran.code == 2 and "--patience-metric was loss and is top1" in ran.err


def test_scores_are_json():
    """A checkpoint's card and metrics.jsonl contain them."""
    assert json.loads(json.dumps(score(0.5, 0.1).as_dict(3)))["balanced_accuracy"] == 0.5
    assert dataclasses.asdict(score(0.5, 0.1))["missed"] == (1,)
