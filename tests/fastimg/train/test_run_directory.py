"""A run's directory: its name, checks on resuming, and its log."""

import json
import os
from pathlib import Path

import pytest
import torch

from fastimg.config.commands import Train
from fastimg.errors import UsageError, UserError
from fastimg.train.checkpoints.run_directory import (
    Log,
    batch_of_before,
    begin,
    choose,
    last_checkpoint,
    read_log,
    withdraw,
)
from fastimg.train.checkpoints.run_places import resuming


def test_the_command_that_goes_on_names_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs/my run"
    assert resuming(Train(), run, 1) == "`fastimg train --resume 'runs/my run'`"
    assert resuming(Train(), run, 2) == "the same command with --resume 'runs/my run'"
    stored = Train(output=Path("s3://b/runs"), name="my", storage_option=("region=x",))
    assert resuming(stored, run.with_name("my"), 1) == (
        "`fastimg train --resume s3://b/runs/my` with the same --storage-option"
    )


def made(output, *names):
    for at, name in enumerate(names):
        begin(output / name, Train())
        os.utime(output / name / "config.yaml", (1000 + at, 1000 + at))


@pytest.mark.parametrize("base", ["data-net", "[x]data-net", "a*b-net", "x-2"])
def test_numbers(base, tmp_path):
    assert choose(tmp_path, base, None, None) == (tmp_path / base, False)
    made(tmp_path, base)
    assert choose(tmp_path, base, None, None) == (tmp_path / f"{base}-2", False)
    made(tmp_path, f"{base}-9", f"{base}-other", f"{base}other")
    (tmp_path / f"{base}-50").mkdir()  # no run
    assert choose(tmp_path, base, None, None) == (tmp_path / f"{base}-10", False)


def test_an_output_that_does_not_exist_yet(tmp_path):
    assert choose(tmp_path / "no", "b", None, "auto") == (tmp_path / "no" / "b", False)


def test_names(tmp_path):
    assert choose(tmp_path, "b", "mine", None) == (tmp_path / "mine", False)
    made(tmp_path, "mine")
    with pytest.raises(UsageError, match="mine: a run of that name already exists; use --resume auto"):
        choose(tmp_path, "b", "mine", None)
    assert choose(tmp_path, "b", "mine", "auto") == (tmp_path / "mine", True)
    assert choose(tmp_path, "b", "other", "auto") == (tmp_path / "other", False)


def test_a_name_from_a_file_is_followed_by_numbers(tmp_path):
    assert choose(tmp_path, "b", "mine", None, True) == (tmp_path / "mine", False)
    assert choose(tmp_path, "b", "mine", "auto", True) == (tmp_path / "mine", False)
    made(tmp_path, "mine-7")
    assert choose(tmp_path, "b", "mine", None, True) == (tmp_path / "mine", False)
    made(tmp_path, "mine", "b")
    assert choose(tmp_path, "b", "mine", None, True) == (tmp_path / "mine-8", False)
    made(tmp_path, "mine", "mine-8")
    assert choose(tmp_path, "b", "mine", "auto", True) == (tmp_path / "mine-8", True)


def test_auto_is_the_newest_of_the_same_base(tmp_path):
    made(tmp_path, "b-2", "b", "b-3", "c")
    os.utime(tmp_path / "b" / "config.yaml", (5000, 5000))
    assert choose(tmp_path, "b", None, "auto") == (tmp_path / "b", True)
    assert choose(tmp_path, "b", None, str(tmp_path / "c")) == (tmp_path / "c", True)


def test_resuming_a_folder_that_is_not_a_run(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        choose(tmp_path, "b", None, str(tmp_path / "no"))


def test_withdraw_removes_created_files(tmp_path):
    run = tmp_path / "a" / "b" / "run"
    folders = begin(run, Train())
    Log(run, 0).add("train", step=1)
    assert folders == [run, run.parent, run.parent.parent]
    withdraw(run, folders)
    assert not list(tmp_path.iterdir())


def test_withdraw_keeps_foreign_files(tmp_path):
    (tmp_path / "runs" / "run").mkdir(parents=True)
    (tmp_path / "runs" / "run" / "notes.txt").touch()
    withdraw(tmp_path / "runs" / "run", begin(tmp_path / "runs" / "run", Train()))
    assert [path.name for path in (tmp_path / "runs").rglob("*")] == ["run", "notes.txt"]


def test_withdraw_keeps_a_run_with_a_checkpoint(tmp_path):
    folders = begin(tmp_path / "run", Train())
    (tmp_path / "run" / "last").mkdir()
    withdraw(tmp_path / "run", folders)
    assert (tmp_path / "run" / "config.yaml").exists()


def test_a_run_that_was_killed_before_its_first_checkpoint(tmp_path):
    begin(tmp_path / "run", Train(epochs=3))
    assert last_checkpoint(tmp_path / "run", 64) is None


def saved(run, batch_size, accumulate, ranks):
    """A run with one checkpoint."""
    begin(run, Train(batch_size=batch_size, grad_accum_steps=accumulate))
    (run / "last").mkdir()
    torch.save({"global_batch": batch_size * accumulate * ranks}, run / "last" / "training.pt")


@pytest.mark.parametrize(
    ("before", "ranks", "asked", "found"),
    [
        ((64, 1, 4), 2, (64, 1), (64, 2)),  # two of four are left
        ((64, 1, 2), 4, (64, 1), (32, 1)),  # two more were added
        ((64, 1, 2), 1, (48, 1), (32, 4)),  # three parts do not divide 128
        ((6, 1, 2), 3, (6, 1), (4, 1)),
        ((7, 1, 1), 1, (7, 1), (7, 1)),
        ((7, 1, 2), 1, (5, 1), (2, 7)),  # 14 = 2 x 7
        ((64, 1, 2), 4, (16, 2), (16, 2)),  # the requested number fits
        ((64, 1, 2), 2, (32, 1), (32, 1)),  # not caused by the ranks: `last_checkpoint` refuses it
        ((64, 1, 2), 4, ("auto", 1), (32, 1)),
    ],
)
def test_other_ranks_keep_the_images_of_a_step(before, ranks, asked, found, tmp_path):
    saved(tmp_path / "run", *before)
    config = Train(batch_size=asked[0], grad_accum_steps=asked[1])
    assert batch_of_before(tmp_path / "run", config, ranks) == found


def test_ranks_that_cannot_share_a_step(tmp_path):
    saved(tmp_path / "run", 4, 1, 2)
    with pytest.raises(UsageError, match=r"with 8 images .* 3 ranks cannot share evenly; start 2 or 4 of them"):
        batch_of_before(tmp_path / "run", Train(batch_size=4), 3)
    with pytest.raises(UsageError, match="start 8 of them"):
        batch_of_before(tmp_path / "run", Train(batch_size=4), 9)


def test_a_run_without_a_checkpoint_uses_the_requested_settings(tmp_path):
    begin(tmp_path / "run", Train(batch_size=64))
    assert batch_of_before(tmp_path / "run", Train(batch_size=3), 5) == (3, 1)
    assert batch_of_before(tmp_path / "run", Train(batch_size="auto"), 5) == (64, 1)


def test_log(tmp_path):
    log = Log(tmp_path, 0)
    log.add("epoch", step=1, epoch=1)
    log.add("val", step=2, epoch=1, loss=0.25)
    expected = [{"kind": "epoch", "step": 1, "epoch": 1}, {"kind": "val", "step": 2, "epoch": 1, "loss": 0.25}]
    assert read_log(tmp_path) == expected
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # killed during a write
    assert read_log(tmp_path) == expected
    Log(tmp_path, 2).add("cache", step=3)
    assert [record["step"] for record in read_log(tmp_path)] == [1, 2, 3]


TRAIN = {"kind": "train", "step": 1, "epoch": 1, "loss": 0.5, "lr": 0.1, "images_per_second": 9.0}
VAL = {"kind": "val", "step": 2, "epoch": 1, "loss": 0.5, "top1": 0.5}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"kind": "train", "st', "not JSON"),
        ("\udcff\udcfe", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("17", "no record"),
        ('{"step": 2}', "no kind"),
        ('{"kind": ["val"], "step": 2}', "no kind"),
        ('{"kind": "epoch", "epoch": 1}', "no step"),
        (json.dumps({**VAL, "step": None}), "'step' is no count"),
        (json.dumps({**VAL, "step": -2}), "'step' is no count"),
        (json.dumps({**VAL, "epoch": 0}), "'epoch' is no count"),
        (json.dumps({**VAL, "epoch": 1.5}), "'epoch' is no count"),
        (json.dumps({**VAL, "loss": "0.5"}), "'loss' is no number"),
        (json.dumps({**VAL, "top1": None}), "'top1' is no number"),
        (json.dumps({**VAL, "top1": 10**400}), "'top1' is no number"),
        ('{"kind": "val", "step": 2, "epoch": 1, "loss": -1e999}', "'loss' is no number"),
        (json.dumps({**TRAIN, "seconds": 3.0}), "no wait_share"),
        (json.dumps({name: value for name, value in TRAIN.items() if name != "lr"}), "no lr"),
        (json.dumps({name: value for name, value in TRAIN.items() if name != "images_per_second"}), "no images_per"),
    ],
)
def test_a_damaged_line_is_named_and_the_others_are_used(line, why, tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [json.dumps(TRAIN), line, json.dumps(VAL), '{"kind": "unknown", "step": 2, "note": "kept"}']
    file.write_bytes("".join(f"{each}\n" for each in lines).encode(errors="surrogateescape"))
    said = []
    kept = read_log(tmp_path, said.append)
    assert kept == [TRAIN, VAL, {"kind": "unknown", "step": 2, "note": "kept"}]
    assert len(said) == 1 and said[0].startswith(f"{file}: 1 damaged line is left out (line 2: {why}")
    Log(tmp_path, 9, warn=said.append).add("epoch", step=3, epoch=1)
    assert len(said) == 2 and read_log(tmp_path, said.append)[:3] == kept and len(said) == 2


def test_many_damaged_lines_are_counted(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("x\n" * 9)
    said = []
    assert read_log(tmp_path, said.append) == []
    assert "9 damaged lines are left out (line 1: not JSON; line 2: not JSON; line 3: not JSON and 6 more)" in said[0]


def test_a_log_that_is_a_folder_is_a_sentence(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl: Is a directory; see to it"):
        Log(tmp_path, 0)


def test_records_after_the_checkpoint_are_truncated(tmp_path):
    log = Log(tmp_path, 0)
    for step in (1, 2, 3):
        log.add("cache", step=step)
    Log(tmp_path, 2)
    assert [record["step"] for record in read_log(tmp_path)] == [1, 2]


def test_no_log(tmp_path):
    assert read_log(tmp_path) == []
