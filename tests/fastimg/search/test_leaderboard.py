"""The leaderboard: which model is the best, and what its row says; how fast a checkpoint predicts."""

import dataclasses
import io
from pathlib import Path

from rich.console import Console

from fastimg.search.leaderboard import Leaderboard, contenders, described, differences, ordered, print_board, reasons
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


def test_a_run_is_described_by_its_checkpoint_and_measured_on_its_data(trained):
    (bare,) = contenders([trial(1, 0.9)], "top1")
    row = described(dataclasses.replace(bare, run=trained.run.name), trained.run.parent)
    assert (row.arch, row.size) == ("test_resnet", 32)
    assert 1 < row.megabytes < 3
    ticks = iter(range(1000))
    speed = prediction_speed(trained.run, trained.images, "val", "cpu", seconds=0.0, clock=lambda: float(next(ticks)))
    assert 0 < speed <= 12
