"""The leaderboard: which model is the best, and what its row says; how fast a checkpoint predicts."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fastimg.search import leaderboard
from fastimg.search.leaderboard import (
    KeptModels,
    Leaderboard,
    contenders,
    differences,
    firsts,
    model_of,
    ordered,
    print_board,
    reasons,
)
from fastimg.search.places.folder import FREED
from fastimg.search.records import TrialRecord
from fastimg.search.speed import prediction_speed


def trial(number, value, run=None, loss=1.0, reason=None, **settings):
    return TrialRecord(
        number=number,
        stage="trials",
        state="pruned" if reason else "complete",
        reason=reason,
        settings=settings,
        values=() if value is None else (value,),
        metrics={"loss": loss},
        seconds=10.0,
        epochs=number,
        run=Path("runs") / f"{number if run is None else run:04d}",
    )


def test_trials_of_one_run_are_one_model():
    (row,) = contenders([trial(1, 0.9, lr=1), trial(2, 0.8, run=1, lr=1)], "top1")
    assert (row.run, row.value, row.seconds, row.epochs) == ("runs/0001", 0.9, 20.0, 2)


def test_of_equal_models_the_faster_comes_first_then_the_lower_loss():
    rows = contenders([trial(1, 0.9, loss=2), trial(2, 0.9, loss=1), trial(3, 0.9, loss=3), trial(4, 0.95)], "top1")
    speeds = {1: 10.0, 2: 10.0, 3: 20.0, 4: 5.0}
    rows = [dataclasses.replace(row, images_per_second=speeds[row.trial]) for row in rows]
    assert [row.trial for row in ordered(rows, "top1")] == [4, 3, 2, 1]
    assert [row.trial for row in ordered(rows, "loss")][-1] == 4


def test_a_trial_without_a_value_is_a_reason_and_no_model():
    records = [trial(1, None, reason="out of memory"), trial(2, 0.5), trial(3, None, reason="out of memory")]
    assert [row.trial for row in contenders(records, "top1")] == [2]
    assert reasons(records) == {"out of memory": 2}


def test_rows_say_what_differs_and_at_most_ten_are_shown():
    rows = contenders([trial(n, n / 100, lr=n, smoothing=0.1, data="/d", name=str(n)) for n in range(1, 13)], "top1")
    assert differences(rows[:2]) == [{"lr": 1}, {"lr": 2}]
    text = io.StringIO()
    board = Leaderboard(metric="top1", rows=ordered(rows, "top1"))
    print_board(board, Console(file=text, width=200))
    assert "runs/0012" in text.getvalue() and "runs/0003" in text.getvalue() and "runs/0002" not in text.getvalue()
    assert [row["rank"] for row in board.as_json()["trials"]] == list(range(1, 13))


def test_pruned_trials_are_marked_and_come_last_and_what_all_share_is_said_once():
    pruned = trial(3, 0.99, reason="not promising", arch="net", lr=0.3, smoothing=0.1)
    cut = trial(2, 0.6, reason="the time was over", arch="net", lr=0.2, smoothing=0.1)
    last = dataclasses.replace(trial(1, 0.5, arch="net", lr=0.1, smoothing=0.1), parameters={"lr": 0.1, "aa": "none"})
    rows = ordered(contenders([pruned, cut, last], "top1"), "top1")
    assert [(row.trial, row.ended) for row in rows] == [(2, "out of time"), (1, ""), (3, "pruned")]
    board = Leaderboard(metric="top1", rows=rows)
    shared, header, *lines = printed(board, 200)
    assert shared.startswith("all ") and "arch net" in shared and "stage trials" in shared
    assert header.split() == ["#", "top1", "trained", "ended", "lr", "aa", "run"]
    assert ["pruned" in line.split() for line in lines] == [False, False, True]
    assert lines[1].split()[-3:] == ["0.1", "none", "runs/0001"]  # also what the flag is without a value
    assert "<th>lr</th><th>aa</th>" in board._repr_html_()


def test_a_narrow_terminal_has_the_parameters_in_one_column_and_cuts_no_number():
    names = ("weight_decay", "smoothing", "layer_decay", "drop_path")
    rows = contenders([trial(n, n / 10, **dict.fromkeys(names, n / 7)) for n in (2, 1)], "top1")
    header, first, second, *_ = printed(Leaderboard(metric="top1", rows=rows), 60, terminal=True)[1:]
    assert header.split() == ["#", "top1", "trained", "parameters", "run"]
    assert first.split() == ["1", "20.00%", "0:10", "drop_path=0.286", "runs/0002"]
    assert second.split() == ["layer_decay=0.286"]


def printed(board, width, terminal=False):
    text = io.StringIO()
    print_board(board, Console(file=text, width=width, force_terminal=terminal, color_system=None))
    return text.getvalue().splitlines()


def test_a_run_is_described_by_its_checkpoint_and_measured_on_its_data(trained):
    model = model_of(trained.run)
    assert (model["arch"], model["size"]) == ("test_resnet", 32)
    assert 1 < model["megabytes"] < 3
    ticks = iter(range(1000))
    speed = prediction_speed(trained.run, trained.images, "val", "cpu", seconds=0.0, clock=lambda: float(next(ticks)))
    assert 0 < speed <= 12


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three runs with checkpoints of 1,000 bytes, each of a model of its own size."""
    for number in (1, 2, 3):
        run = tmp_path / "runs" / f"{number:04d}"
        saved = run / "checkpoints" / "00000010"
        saved.mkdir(parents=True)
        (saved / "model.safetensors").write_bytes(bytes(1000))
        (run / "best").symlink_to(saved)
        (run / "last").symlink_to(saved)
        (run / "metrics.jsonl").write_text("{}\n")
    monkeypatch.setattr(leaderboard, "model_of", _sized)
    return tmp_path


def _sized(run):
    return {"arch": "a", "size": int(run.name), "megabytes": 0.001} if (run / "best").exists() else None


TRIALS = [trial(1, 0.7), trial(2, 0.9), trial(3, 0.8)]


def left(folder):
    return sorted(run.name for run in (folder / "runs").iterdir() if (run / "best").exists())


def test_models_whose_checkpoints_were_deleted_keep_their_rows(folder):
    models = KeptModels(folder)
    before = models.rows(TRIALS, "top1")
    models.free(TRIALS, {"runs/0002"}, {("a", 3): 70.0})
    assert left(folder) == ["0002"]
    assert (folder / "runs" / "0001" / "metrics.jsonl").exists() and not (folder / "runs/0001/checkpoints").exists()
    assert models.told().startswith("the checkpoints of 2 other models, 0.0 MB")
    again = KeptModels(folder)
    rows = again.rows(TRIALS, "top1")
    assert [row.trial for row in rows] == [2, 3, 1] and again.told() == ""
    assert [(row.freed, row.images_per_second) for row in rows] == [(False, None), (True, 70.0), (True, None)]
    assert [dataclasses.replace(row, freed=False, images_per_second=None) for row in rows] == before


def test_what_a_kill_left_of_deleted_checkpoints_is_deleted_at_the_next_start(folder):
    (folder / FREED).write_text(
        json.dumps({"run": "runs/0001", "model": _sized(folder / "runs/0001")}) + '\n{"run": "r'
    )
    models = KeptModels(folder)
    assert left(folder) == ["0002", "0003"] and models.bytes == 1000
    assert "runs/0001" not in models and "runs/0002" in models


def test_a_run_that_is_trained_again_has_checkpoints(folder):
    models = KeptModels(folder)
    models.free(TRIALS, {"runs/0002", "runs/0003"})
    models.again("runs/0001")
    saved = folder / "runs/0001/checkpoints/00000010"
    saved.mkdir(parents=True)
    (folder / "runs/0001/best").symlink_to(saved)
    again = KeptModels(folder)
    assert "runs/0001" in again and left(folder) == ["0001", "0002", "0003"]


def test_a_trial_that_the_clock_ended_keeps_its_checkpoints(folder):
    KeptModels(folder).free([trial(1, 0.7, reason="the time was over after 1 epoch"), *TRIALS[1:]], {"runs/0002"})
    assert left(folder) == ["0001", "0002"]


def test_the_best_of_each_kind_are_those_whose_speed_is_measured():
    rows = contenders([trial(n, n / 10, arch="ab"[n % 2]) for n in range(1, 7)], "top1")
    rows = ordered(rows, "top1")
    assert [row.trial for row in firsts(rows)] == [6, 5]
    assert [row.trial for row in firsts(rows, 1)] == [6]


def test_of_equal_models_one_with_checkpoints_wins():
    rows = contenders([trial(1, 0.9, loss=1), trial(2, 0.9, loss=2)], "top1")
    rows = [dataclasses.replace(row, freed=row.trial == 1) for row in rows]
    assert [row.trial for row in ordered(rows, "top1")] == [2, 1]


def test_of_a_text_encoders_folder_the_end_of_its_path_is_shown():
    rows = contenders(
        [trial(1, 0.9, arch="hf:/data/encoders/mini/model"), trial(2, 0.8, arch="hf:some/encoder")], "top1"
    )
    rows[0] = dataclasses.replace(rows[0], images_per_second=40.0)
    text = "\n".join(printed(Leaderboard(metric="top1", rows=rows), 200))
    assert " hf:mini/model " in text and " hf:some/encoder " in text
    assert "texts/s" in text
