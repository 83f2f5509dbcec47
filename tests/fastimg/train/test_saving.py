"""Runs that save in the background: when they save, kills during a slow write, full disks, and several ranks."""

import errno
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file

from fastimg import cli
from fastimg.config.commands import Train
from fastimg.config.values.durations import Interval, interval
from fastimg.config.yaml_file import dump, load
from fastimg.errors import UsageError
from fastimg.train import loop
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints import saving
from fastimg.train.checkpoints import writer as writing
from fastimg.train.checkpoints.host_copy import HostCopy
from fastimg.train.checkpoints.writer import Pace
from fastimg.train.loop import train
from fastimg.train.run import Run


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    flags = ["--arch", "test_resnet", "--img-size", "32", "-b", "4", "--epochs", "2", "--no-amp", "--workers", "1"]
    extra = ["--log-interval", "1", "--save-interval", "1", "--model-ema", "--model-ema-steps", "2"]
    return ["train", str(data), *flags, *extra, "--output", str(output), "--name", "run", *more]


def outcome(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[Any]]:
    training = torch.load(run / "last/training.pt", weights_only=True)
    losses = [(r["kind"], r["step"], r["loss"]) for r in rundir.read_log(run) if "loss" in r]
    return load_file(run / "last/model.safetensors"), training, losses


def assert_same(one: Path, two: Path) -> None:
    (averages, training, losses), (averages2, training2, losses2) = outcome(one), outcome(two)
    assert losses == losses2
    assert averages.keys() == averages2.keys()
    for name, tensor in averages.items():
        assert tensor.equal(averages2[name]), name
        assert training["weights"][name].equal(training2["weights"][name]), name
    for index, state in training["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.as_tensor(value).equal(torch.as_tensor(training2["optimizer"]["state"][index][key])), key


def test_weights_change_only_after_their_copy(
    trained: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def telling(holder: Any, name: str) -> None:
        inner = getattr(holder, name)

        def told(*arguments: Any, **options: Any) -> Any:
            said.append(name)
            return inner(*arguments, **options)

        monkeypatch.setattr(holder, name, told)

    telling(HostCopy, "take")
    telling(HostCopy, "hold")
    telling(torch.optim.AdamW, "step")
    assert cli(*arguments(trained.images, tmp_path), "--save-interval", "2", "--epochs", "1").code == 0
    assert said == ["step", "step", "take", "hold", "step", "step", "take", "hold", "step", "step", "take"]


# --- when


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("200", Interval(steps=200), "200 steps"),
        ("1", Interval(steps=1), "1 step"),
        ("90s", Interval(seconds=90.0), "1.5 minutes"),
        ("10m", Interval(seconds=600.0), "10 minutes"),
        (" 10 MIN ", Interval(seconds=600.0), "10 minutes"),
        ("1.5h", Interval(seconds=5400.0), "1.5 hours"),
        (".5s", Interval(seconds=0.5), "0.5 seconds"),
    ],
)
def test_intervals(text: str, expected: Interval, words: str) -> None:
    assert interval(text, "--x") == expected and str(expected) == words


@pytest.mark.parametrize("text", ["", "0", "0m", "-5", "1.5", "10ep", "m", "ten", "1e9", "10mm"])
def test_invalid_intervals(text: str) -> None:
    with pytest.raises(UsageError, match=r"--x .*: give a number of steps, 1 or more, or a time, as 90s, 10m or 1.5h"):
        interval(text, "--x")


def test_intervals_in_older_files_are_steps(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("save_interval: 200\n")
    assert load(file, Train).save_interval == "200"
    for given in ("200", "10m"):
        file.write_text(dump(Train(save_interval=given)))
        assert load(file, Train).save_interval == given


def test_saving_by_steps_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(writing.time, "monotonic", lambda: now[0])
    steps, clock = Pace(Interval(steps=3)), Pace(Interval(seconds=60.0))
    now[0] += 59
    assert [steps.at(step) for step in range(1, 7)] == [False, False, True] * 2 and not steps.overdue()
    assert not clock.overdue() and not any(clock.at(step) for step in range(9))
    now[0] += 1
    assert clock.overdue() and not steps.overdue()
    clock.saved()
    assert not clock.overdue()


def test_a_run_saves_by_time_and_reports_it(trained: Any, cli: Any, tmp_path: Path) -> None:
    ran = cli(*arguments(trained.images, tmp_path), "--save-interval", "0.000001s", "--checkpoint-hist", "99")
    assert ran.code == 0, ran.err
    assert "after each epoch and every 1e-06 seconds, while training continues" in ran.out
    made = {int(path.name) for path in (tmp_path / "run/checkpoints").iterdir()}
    assert made == set(range(1, 13))  # each of 6 steps in two epochs
    ran = cli(
        *arguments(trained.images, tmp_path), "--save-interval", "10m", "--name", "rare", "--checkpoint-hist", "99"
    )
    assert {int(path.name) for path in (tmp_path / "rare/checkpoints").iterdir()} == {6, 12}
    assert ran.code == 0 and "every 10 minutes, while training continues" in ran.out


# --- kills


SLOW = """
import os, signal, sys, threading, time
from fastimg import cli
from fastimg.train.checkpoints import format as checkpoint

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one thread computes, as in the tests
place, count = sys.argv[1], int(sys.argv[2])
done = []

def slowly(name, holder):
    function = getattr(holder, name)
    def slow(*arguments, **options):
        if threading.current_thread() is not threading.main_thread():
            done.append(1)
            if place == name and len([1 for _ in done]) >= count:
                time.sleep(0.3)  # training goes on meanwhile
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.05)
        return function(*arguments, **options)
    setattr(holder, name, slow)

slowly(place, {"save_file": checkpoint, "fsync": checkpoint.os, "sync_folder": checkpoint, "point": checkpoint,
               "prune": checkpoint}[place])
sys.exit(cli.run(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def whole(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("whole")
    assert cli.run(arguments(trained.images, output)) == 0
    return output / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("place", "count"), [("save_file", 3), ("fsync", 8), ("point", 5), ("prune", 7)])
def test_kill_9_while_a_slow_thread_writes_and_resume_gives_the_same_bits(
    place: str, count: int, whole: Path, trained: Any, python: str, tmp_path: Path
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    flags = arguments(trained.images, tmp_path / "halves")
    done = subprocess.run([python, str(script), place, str(count), *flags], capture_output=True, timeout=300)
    run = tmp_path / "halves/run"
    assert done.returncode == -9, done.stderr.decode()
    for link in ("last", "best"):  # the checkpoints they point to are complete
        if (run / link).is_symlink():
            assert checkpoint.read_card(run / link / "model.safetensors").step > 0
            checkpoint.load_training((run / link).resolve())
    assert (run / "last").is_symlink()
    steps = [record["step"] for record in rundir.train_records(run)]
    assert max(steps) > checkpoint.load_training((run / "last").resolve())["step"]  # training had continued
    assert cli.run([*flags, "--resume", "auto"]) == 0
    assert_same(whole, run)
    assert not list((run / "checkpoints").glob(".*"))


def test_a_full_disk_ends_a_run_with_one_sentence(
    trained: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next checkpoint, or at the end; the previous one stays, and the run resumes from it."""
    write, calls = checkpoint.save_file, []

    def full(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) in (3, 13):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments, **options)

    monkeypatch.setattr(checkpoint, "save_file", full)
    flags = arguments(trained.images, tmp_path)
    ran = cli(*flags)
    assert ran.code == 1 and len(ran.err.strip().splitlines()) == 1
    assert "the checkpoint of step 3 could not be written: no space left on the disk; free some" in ran.err
    assert checkpoint.load_training((tmp_path / "run/last").resolve())["step"] == 2
    ran = cli(*flags, "--resume", "auto")  # its tenth step is the last one
    assert ran.code == 1 and "checkpoint of step 12 could not be written: no space" in ran.err
    assert checkpoint.load_training((tmp_path / "run/last").resolve())["step"] == 11
    assert cli(*flags, "--resume", "auto").code == 0
    assert checkpoint.load_training((tmp_path / "run/last").resolve())["step"] == 12


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on the disk; free some space"),
        (
            SafetensorError("File too large (os error 27)"),
            "larger than this process may write (4,096 bytes)",
        ),
        (RuntimeError("PytorchStreamWriter failed writing file data/3"), "larger than this process may write (4,096"),
    ],
    ids=["disk", "limit", "torch"],
)
def test_the_first_checkpoint_that_does_not_fit(
    trained: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """There is no previous one to continue from, and nothing is left of the run."""

    def full(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(checkpoint, "save_file", full)
    monkeypatch.setattr("fastimg.loaders.errors.resource.getrlimit", lambda _: (4096, 4096))
    flags = arguments(trained.images, tmp_path)
    ran = cli(*flags)
    assert ran.code == 1 and f"the checkpoint of step 1 could not be written: {reason}" in ran.err
    assert ran.err.strip().endswith("then start again: no checkpoint was saved before")
    assert "continue from" not in ran.err and not (tmp_path / "run").exists()
    monkeypatch.undo()
    assert cli(*flags).code == 0


def test_a_run_that_diverges_is_not_saved(trained: Any, cli: Any, tmp_path: Path) -> None:
    ran = cli(*arguments(trained.images, tmp_path), "--lr", "1e30", "--warmup", "0ep", "--opt", "sgd")
    assert ran.code == 1 and "the loss became" in ran.err
    for path in (tmp_path / "run/checkpoints").glob("[0-9]*"):
        assert all(torch.isfinite(value).all() for value in load_file(path / "model.safetensors").values())


def test_a_run_that_diverges_names_the_checkpoint_that_was_still_in_memory(
    trained: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch of a run of seconds waits there."""

    def then_diverges(run: Run, best: bool) -> None:
        saving.save_epoch(run, best)
        with torch.no_grad():
            next(run.setup.trained.parameters()).fill_(torch.nan)

    monkeypatch.setattr(loop, "save_epoch", then_diverges)
    ran = cli(*arguments(trained.images, tmp_path, *RARELY))
    last = tmp_path / "run/last"
    assert ran.code == 1 and f"the last good checkpoint is {last}" in " ".join(ran.err.split())
    assert saved_steps(tmp_path / "run") == {6} and last.resolve() == (tmp_path / "run/best").resolve()


def test_a_disk_that_fills_up_with_records_is_one_sentence(
    trained: Any, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = rundir.json.dumps, []

    def full(record: Any, *rest: Any, **options: Any) -> str:
        if isinstance(record, dict) and record.get("step") == 5:
            calls.append(record)
            raise OSError(errno.ENOSPC, "No space left on device")
        return add(record, *rest, **options)

    monkeypatch.setattr(rundir.json, "dumps", full)
    ran = cli(*arguments(trained.images, tmp_path))
    monkeypatch.undo()
    assert ran.code == 1 and calls and len(ran.err.strip().splitlines()) == 1, ran.err
    assert "metrics.jsonl: cannot be written: no space left on the disk; free some space, then " in ran.err
    assert cli(*arguments(trained.images, tmp_path), "--resume", "auto").code == 0


def test_a_run_that_ends_before_its_first_validation_names_no_best_checkpoint(
    trained: Any, tmp_path: Path, cli: Any
) -> None:
    ran = cli(*arguments(trained.images, tmp_path), "--max-time", "0.001s")
    assert ran.code == 0 and "last checkpoint" in ran.out and "best checkpoint" not in ran.out
    assert not (tmp_path / "run/best").exists()
    ran = cli(*arguments(trained.images, tmp_path), "--resume", "auto")
    assert ran.code == 0 and "best checkpoint" in ran.out and (tmp_path / "run/best").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("more", "step"), [((), 3), (("--freeze", "2", "--freeze-epochs", "1"), 9)])
def test_two_ranks_agree_on_when_and_go_on_exactly(
    more: tuple[str, ...], step: int, trained: Any, two_ranks: Any, tmp_path: Path
) -> None:
    """By rank 0's clock, with batch norms whose statistics differ between ranks: saving has no effect on training.

    Nor has stopping after --freeze-epochs, where the model is wrapped anew once the checkpoint has been read.
    """
    flags = (*arguments(trained.images, tmp_path), "--checkpoint-hist", "99", "-b", "2", *more)
    often, never = ("--save-interval", "0.000001s"), ("--save-interval", "1h")
    two_ranks((*flags, *often, "--name", "often"), (*flags, *never, "--name", "never"))
    made = {int(path.name) for path in (tmp_path / "often/checkpoints").iterdir()}
    assert made == set(range(1, 13))
    assert {int(path.name) for path in (tmp_path / "never/checkpoints").iterdir()} == {6, 12}
    assert_same(tmp_path / "often", tmp_path / "never")
    # Resume in the middle of an epoch, as if the run had been killed there.
    checkpoint.point(tmp_path / "often", "last", tmp_path / f"often/checkpoints/{step:08}")
    each = torch.load(tmp_path / "often/last/training.pt", weights_only=True)["each_rank"]
    assert any(not rows[0].equal(rows[1]) for rows in each["buffers"].values())
    two_ranks((*flags, *never, "--name", "often", "--resume", "auto"))
    assert_same(tmp_path / "often", tmp_path / "never")


def test_a_run_stopped_at_the_end_of_an_epoch_after_the_freeze_validates_what_trains(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks agree on the statistics of norms that train; the resumed process has none of the epoch's steps left."""
    from fastimg.train import loop
    from fastimg.train import step as module

    average, agree = module.average_gradients, loop.agree_on_buffers
    flags = arguments(trained.images, tmp_path, "--freeze", "2", "--freeze-epochs", "1")
    learned: list[bool] = []

    def hooked(run: Any, *rest: Any) -> int:
        if run.progress.step == 11:
            os.kill(os.getpid(), 15)
        return average(run, *rest)

    def noted(model: Any, ranks: Any) -> None:
        learned.append(all(parameter.requires_grad for parameter in model.parameters()))
        agree(model, ranks)

    with monkeypatch.context() as patch:
        patch.setattr(module, "average_gradients", hooked)
        assert cli.run(flags) == 143
    training = checkpoint.load_training((tmp_path / "run/last").resolve())
    assert (training["step"], training["epoch"]) == (12, 1)
    monkeypatch.setattr(loop, "agree_on_buffers", noted)
    assert cli.run([*flags, "--resume", "auto"]) == 0
    assert learned and all(learned)
    assert "all parameters train from here on" in capsys.readouterr().out


def test_a_signal_waits_for_the_writer(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint reported as saved is on disk when the process ends, and no write is pending."""
    from fastimg.train import step as module

    average, write = module.average_gradients, checkpoint.save

    def hooked(run: Any, *rest: Any) -> int:
        if run.progress.step == 2:
            os.kill(os.getpid(), 15)
        return average(run, *rest)

    def slow(*arguments: Any, **options: Any) -> Path:
        time.sleep(0.3)
        return write(*arguments, **options)

    monkeypatch.setattr(module, "average_gradients", hooked)
    monkeypatch.setattr(checkpoint, "save", slow)
    assert cli.run(arguments(trained.images, tmp_path, "--save-interval", "1h")) == 143
    saved = checkpoint.load_training((tmp_path / "run/last").resolve())["step"]
    assert saved in (3, 4)
    assert not [thread for thread in threading.enumerate() if thread.name == "fastimg-checkpoint"]


# --- runs of seconds


RARELY = ("--save-interval", "10m")


def saved_steps(run: Path) -> set[int]:
    return {int(path.name) for path in (run / "checkpoints").iterdir()}


def test_a_run_of_seconds_writes_one_checkpoint(trained: Any, cli: Any, tmp_path: Path) -> None:
    """And the best one, if that is another, with the weights of its own epoch."""
    four = arguments(trained.images, tmp_path, *RARELY, "--epochs", "4")
    ran = cli(*four)
    assert ran.code == 0 and "after epochs, 10 seconds or more apart, and every 10 minutes" in ran.out
    every = cli(
        *arguments(trained.images, tmp_path, *RARELY), "--epochs", "4", "--checkpoint-hist", "9", "--name", "every"
    )
    assert every.code == 0 and "after each epoch and every 10 minutes" in every.out
    run, other = tmp_path / "run", tmp_path / "every"
    links = {link: (run / link).resolve().name for link in ("last", "best")}
    assert links == {link: (other / link).resolve().name for link in links}
    assert saved_steps(run) == {int(name) for name in links.values()} < saved_steps(other) == {6, 12, 18, 24}
    for link in links:
        assert_same_weights(run / link, other / link)


def assert_same_weights(one: Path, two: Path) -> None:
    left, right = (load_file(path / "model.safetensors") for path in (one, two))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_epochs_are_saved_once_the_last_checkpoint_is_old(
    trained: Any, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that advances four seconds an epoch: after the third, and the last."""
    due = Pace.after_epoch
    asked: list[int] = []

    def later(pace: Pace, step: int) -> bool:
        asked.append(step)
        pace._since -= 4.0
        return due(pace, step)

    monkeypatch.setattr(Pace, "after_epoch", later)
    ran = cli(*arguments(trained.images, tmp_path, *RARELY), "--epochs", "5", "--val-interval", "5")
    assert ran.code == 0, ran.err
    assert asked == [6, 12, 18, 24] and saved_steps(tmp_path / "run") == {18, 30}


def test_when_the_end_of_an_epoch_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(writing.time, "monotonic", lambda: now[0])
    rare, often, steps = Pace(Interval(seconds=600.0)), Pace(Interval(seconds=2.0)), Pace(Interval(steps=12))
    now[0] += 2.0
    assert [pace.after_epoch(6) for pace in (rare, often, steps)] == [False, True, False]
    assert steps.after_epoch(12)
    now[0] += 8.0
    assert rare.after_epoch(6) and steps.after_epoch(6)
    rare.saved()
    assert not rare.after_epoch(6)


def test_a_watch_that_ends_a_run_of_seconds_ends_it_with_a_checkpoint(trained: Any, tmp_path: Path) -> None:
    config = Train(
        data=trained.images,
        arch="test_resnet",
        img_size=32,
        batch_size=4,
        epochs=9,
        amp=False,
        workers="1",
        val_interval=1,
        output=tmp_path,
        name="run",
    )
    train(config, Console(quiet=True), signals=False, watch=lambda epochs, values: epochs == 3)
    assert (tmp_path / "run/last").resolve().name == "00000018"
