"""Resuming equals an uninterrupted run: the same weights, bit for bit, and the same records."""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from fastimg import cli
from fastimg.config.commands import Convert, Train
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError, UserError
from fastimg.train import loop
from fastimg.train import step as training_step
from fastimg.train.checkpoints import changed_data
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.choices.extension import extended
from fastimg.train.choices.resolution import schedule

SHARES = ("wait_share", "copy_share", "compute_share", "loader_busy_share", "loader_read_share")
TIMING = ("images_per_second", "seconds", *SHARES, "train_seconds", "val_seconds", "save_seconds")


@pytest.fixture(scope="module")
def shards(write_images: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("resume")
    images = write_images(root / "images")
    convert(Convert(src=images, dst=root / "shards", val_fraction=0.0), Console(quiet=True))
    return root / "shards"


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run. Do not change it: copy it."""
    output = tmp_path_factory.mktemp("whole")
    assert cli.run(arguments(shards, output)) == 0
    return output / "run"


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    flags = ["--arch", "test_resnet", "--img-size", "32", "-b", "4", "--epochs", "3", "--val-fraction", "0.2"]
    extra = ["--model-kwargs", "drop_rate=0.2", "--log-interval", "1", "--save-interval", "2", "--workers", "2"]
    return ["train", str(data), *flags, *extra, "--output", str(output), "--name", "run", *more]


def outcome(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Weights, optimiser and records at the end of a run, without times."""
    training = torch.load(run / "last/training.pt", weights_only=True)
    records = [{k: v for k, v in r.items() if k not in TIMING} for r in rundir.read_log(run)]
    return load_file(run / "last/model.safetensors"), training["optimizer"], records


def assert_same(a: Path, b: Path) -> None:
    (weights, optimizer, records), (weights2, optimizer2, records2) = outcome(a), outcome(b)
    assert weights.keys() == weights2.keys()
    for name in weights:
        assert torch.equal(weights[name], weights2[name]), name
    for index, state in optimizer["state"].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(optimizer2["state"][index][key])), (index, key)
    assert records == records2


class Killed(BaseException):
    """Simulates kill -9: none of the program's own code runs after it except `finally`."""


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Run something during optimiser step `step`, before the weights change."""
    average = training_step.average_gradients

    def hooked(run: Any, *args: Any) -> int:
        if run.progress.step == step:
            monkeypatch.setattr(training_step, "average_gradients", average)
            action()
        return average(run, *args)

    monkeypatch.setattr(training_step, "average_gradients", hooked)


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("step", [1, 7, 8, 13])
def test_a_kill_anywhere_and_resume_gives_the_same_bits(
    shards: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    at_step(monkeypatch, step, kill)
    with pytest.raises(Killed):
        cli.run(arguments(shards, tmp_path / "halves"))
    assert cli.run(arguments(shards, tmp_path / "halves", "--resume", "auto")) == 0
    assert_same(whole, tmp_path / "halves/run")


def test_a_schedule_free_run_goes_on_and_saves_its_average(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--opt", "schedule_free_adamw", "--lr", "1e-3", "--epochs", "1")
    assert cli.run(arguments(shards, tmp_path / "whole", *flags)) == 0
    at_step(monkeypatch, 5, kill)
    with pytest.raises(Killed):
        cli.run(arguments(shards, tmp_path / "halves", *flags))
    assert cli.run(arguments(shards, tmp_path / "halves", *flags, "--resume", "auto")) == 0
    assert_same(tmp_path / "whole/run", tmp_path / "halves/run")
    training = torch.load(tmp_path / "whole/run/last/training.pt", weights_only=True)
    weights = load_file(tmp_path / "whole/run/last/model.safetensors")
    state = training["optimizer"]["state"][0]["z"]
    name = next(name for name, value in weights.items() if value.shape == state.shape and value.ndim > 1)
    own = training["weights"][name]
    torch.testing.assert_close(weights[name], state + (own - state) / 0.9)
    assert not torch.equal(weights[name], own)


def test_the_end_of_the_time_saves_and_resume_gives_the_same_bits(
    shards: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    clock = iter(range(100))
    with monkeypatch.context() as patched:
        patched.setattr("fastimg.system.signals.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
        assert cli.run(arguments(shards, tmp_path / "halves", "--max-time", "5s")) == 0
    assert "--max-time 5s is over after step 3 of" in capsys.readouterr().out
    assert cli.run(arguments(shards, tmp_path / "halves", "--resume", "auto")) == 0
    assert_same(whole, tmp_path / "halves/run")


def test_a_longer_run_with_the_same_rates_is_that_run(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--sched", "constant", "--warmup", "2ba", "--val-fraction", "0")
    assert cli.run(arguments(shards, tmp_path / "long", *flags, "--epochs", "2")) == 0
    assert cli.run(arguments(shards, tmp_path / "short", *flags, "--epochs", "1")) == 0
    run = tmp_path / "short/run"
    capsys.readouterr()
    assert cli.run(["train", str(shards), "--resume", str(run), "--epochs", "2"]) == 0
    assert (
        "the same rates so far, so the weights are those of a run that begins with"
        in capsys.readouterr().out.replace("\n", " ")
    )
    assert_same(tmp_path / "long/run", run)
    assert "epochs: 2\n" in (run / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("epochs", "more", "words"),
    [
        (4, {}, "resumed with 40 steps instead of 20: the steps so far had the rates of the old length"),
        (4, {"lookahead": 3}, "--lookahead and --progressive go by the new length"),
        (4, {"sched": "constant", "warmup": "5ba"}, "the same rates so far"),
        (4, {"sched": "constant", "warmup": "0.1dur"}, "1 -> 1"),
        (2, {}, None),
        (1, {}, "has done 20 steps, and this would be a run of 10; give more"),
    ],
)
def test_what_a_longer_run_does_with_its_rates(
    tmp_path: Path, epochs: int, more: dict[str, Any], words: str | None
) -> None:
    config = Train(**{"lr": 1.0, "sched": "cosine", "warmup": "2ba", "batch_size": 5, "epochs": 2, **more})
    rundir.begin(tmp_path / "run", config)
    config = replace(config, epochs=epochs)
    ranks = SimpleNamespace(world_size=1)
    optimisation = SimpleNamespace(steps_per_epoch=10, schedule=schedule(config, 10, ranks, 50))
    data = SimpleNamespace(samples=50)
    setup: Any = SimpleNamespace(
        config=config, directory=tmp_path / "run", ranks=ranks, optimisation=optimisation, data=data
    )
    state = {"step": 20, "epoch": 2, "stale": 0}
    if epochs == 1:
        with pytest.raises(UsageError, match=words):
            extended(setup, state)
    elif words is None:
        assert extended(setup, {**state, "step": 19}) is None
        assert extended(setup, state) == "nothing is left to train; a higher --epochs makes the run longer"
        assert extended(setup, {**state, "epoch": 3}) == "nothing is left to train"  # it ended within an epoch
    else:
        assert words in (extended(setup, state) or "")
        with pytest.raises(UsageError, match="ended within an epoch, after step 19"):
            extended(setup, {**state, "step": 19})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [4, 7])  # 7: the last step of an epoch
def test_a_signal_saves_and_resume_gives_the_same_bits(
    shards: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
    step: int,
) -> None:
    """By the command that is printed, which goes on with this run also if there is a newer one."""
    monkeypatch.setenv("COLUMNS", "400")
    at_step(monkeypatch, step, lambda: os.kill(os.getpid(), number))
    assert cli.run(arguments(shards, tmp_path / "halves")) == code
    saved = torch.load(tmp_path / "halves/run/last/training.pt", weights_only=True)
    assert saved["step"] in (step + 1, step + 2)  # at the end of this step, or of the next if the signal came late
    shutil.copytree(tmp_path / "halves/run", tmp_path / "halves/newer", symlinks=True, copy_function=shutil.copyfile)
    (command,) = re.findall("`fastimg (train --resume .*)` goes on from there", capsys.readouterr().out)
    assert cli.run(shlex.split(command)) == 0
    assert_same(whole, tmp_path / "halves/run")


EVERYTHING = [
    *("--aa", "trivial", "--vflip", "0.5", "--rotate", "15", "--color-jitter", "0.4", "0.4", "0.4"),
    *("--reprob", "0.3", "--mixup", "0.2", "--cutmix", "1", "--grad-accum-steps", "2", "-b", "3"),
]
KORNIAS = "kornia: [{RandomGaussianBlur: {kernel_size: [3, 3], sigma: [0.1, 2.0], p: 0.5}}, {RandomInvert: {p: 0.3}}]"


@pytest.mark.parametrize("step", [3, 6])
def test_a_kill_with_all_augmentations(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(KORNIAS if importlib.util.find_spec("kornia") else "")
    more = [*EVERYTHING, "--config", str(file), "--epochs", "2", "--save-interval", "1"]
    assert cli.run([*arguments(shards, tmp_path / "whole"), *more]) == 0
    at_step(monkeypatch, step, kill)
    with pytest.raises(Killed):
        cli.run([*arguments(shards, tmp_path / "halves"), *more])
    assert cli.run([*arguments(shards, tmp_path / "halves", "--resume"), *more, "-j", "1"]) == 0
    assert_same(tmp_path / "whole/run", tmp_path / "halves/run")
    assert cli.run([*arguments(shards, tmp_path / "halves", "--resume"), *more, "--rotate", "20"]) == 2


def test_a_run_stays_where_it_is(shards: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    for flags in (("--name", "other"), ("--output", str(tmp_path / "elsewhere"))):
        assert cli.run(["train", str(shards), "--resume", str(run), *flags]) == 2
        assert f"{flags[0]} {flags[1]} has no effect with --resume {run}, which goes on" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_from_before_warmup_lr_is_resumed(shards: Path, whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    lines = (run / "config.yaml").read_text().splitlines(keepends=True)
    assert "warmup_lr: 0.0\n" in lines
    (run / "config.yaml").write_text("".join(line for line in lines if not line.startswith("warmup_lr")))
    assert cli.run(["train", str(shards), "--resume", str(run)]) == 0


@pytest.mark.parametrize("order", [("--order", "quasi-random", "--order-window", "32"), ("--order", "sequential")])
def test_every_order_resumes(
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    order: tuple[str, ...],
) -> None:
    assert cli.run([*arguments(shards, tmp_path / "whole"), *order, "--no-aug"]) == 0
    at_step(monkeypatch, 10, kill)
    with pytest.raises(Killed):
        cli.run([*arguments(shards, tmp_path / "halves"), *order, "--no-aug"])
    assert cli.run([*arguments(shards, tmp_path / "halves", "--resume", "auto"), *order, "--no-aug", "-j", "1"]) == 0
    assert_same(tmp_path / "whole/run", tmp_path / "halves/run")
    capsys.readouterr()
    assert cli.run([*arguments(shards, tmp_path / "halves", "--resume", "auto"), "--no-aug"]) == 2
    assert f"order was {order[1]} and is random" in capsys.readouterr().err


def test_orders_differ_and_the_run_prints_its_order(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said, losses = {}, {}
    for name, flags in {
        "random": (),
        "quasi": ("--order", "quasi-random", "--order-window", "40"),
        "sequential": ("--order", "sequential"),
    }.items():
        assert cli.run([*arguments(shards, tmp_path / name), "--no-aug", "--epochs", "1", *flags]) == 0
        said[name] = next(line.split()[1:] for line in capsys.readouterr().out.splitlines() if "order " in line[:8])
        losses[name] = [record.get("loss") for record in outcome(tmp_path / name / "run")[2]]
    assert said["random"] == ["random"] and said["sequential"] == ["sequential"]
    assert " ".join(said["quasi"]) == "quasi-random: blocks of 32 images within a window of 40"
    assert losses["random"] == losses["quasi"] != losses["sequential"]  # one block is shuffled like the whole data
    read = torch.load(tmp_path / "quasi/run/last/training.pt", weights_only=True)["loader"]["order"]
    assert read == "quasi-random, blocks of 32, window 40"


def test_a_plain_folder_has_no_blocks(image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*arguments(image_folder, tmp_path / "runs"), "--order", "quasi-random"]) == 2
    assert "is a plain folder, whose files are not stored together; leave it out" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_workers_do_not_change_the_weights(shards: Path, whole: Path, tmp_path: Path) -> None:
    assert cli.run([*arguments(shards, tmp_path / "one"), "--workers", "1", "--prefetch", "2"]) == 0
    assert_same(whole, tmp_path / "one/run")


def test_accumulated_steps_resume_too(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulate = ["--grad-accum-steps", "3"]
    assert cli.run([*arguments(shards, tmp_path / "whole"), *accumulate]) == 0
    at_step(monkeypatch, 4, kill)
    with pytest.raises(Killed):
        cli.run([*arguments(shards, tmp_path / "halves"), *accumulate])
    assert cli.run([*arguments(shards, tmp_path / "halves"), *accumulate, "--resume"]) == 0
    assert_same(tmp_path / "whole/run", tmp_path / "halves/run")


def test_resume_of_a_finished_run_changes_nothing(shards: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "runs/run", symlinks=True)
    before = outcome(tmp_path / "runs/run")
    assert cli.run(arguments(shards, tmp_path / "runs", "--resume", "auto")) == 0
    after = outcome(tmp_path / "runs/run")
    assert before[2] == after[2]
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])


@pytest.mark.curves
def test_a_damaged_log_ends_neither_resume_nor_the_summary(
    shards: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    run = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    before = rundir.read_log(run)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[2:2] = ['{"kind": "val", "step": "two"}', lines[0][:20], "[]"]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert cli.run(["train", "--resume", str(run)]) == 0
    said = capsys.readouterr().out
    why = "line 3: no epoch; line 4: not JSON; line 5: no record"
    assert f"{run}/metrics.jsonl: 3 damaged lines are left out ({why}); the others are used" in said
    assert rundir.read_log(run) == before and (run / "curves.png").exists()


def test_a_run_that_is_terminated_before_its_first_step_starts_again(
    shards: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(error: BaseException) -> None:
        def end(*_: object) -> None:
            raise error

        monkeypatch.setattr(loop, "compile_ahead", end)
        with suppress(SystemExit):
            cli.run(arguments(shards, tmp_path))
        monkeypatch.undo()

    ended(RuntimeError("a fault"))
    assert not (tmp_path / "run").exists()
    capsys.readouterr()
    ended(KeyboardInterrupt())
    assert not (tmp_path / "run").exists()
    said = f"interrupted before the first checkpoint: {tmp_path / 'run'} is deleted"
    assert said in capsys.readouterr().out.splitlines()
    ended(SystemExit(143))
    again = f"no checkpoint yet: `fastimg train --resume {tmp_path / 'run'}` starts it from its beginning"
    assert again in capsys.readouterr().out.splitlines()
    assert cli.run(["train", "--resume", str(tmp_path / "run")]) == 0
    said = f"--resume: {tmp_path / 'run'} has no checkpoint yet, and starts from its beginning"
    assert said in capsys.readouterr().out.splitlines()
    assert_same(whole, tmp_path / "run")


def test_resuming_where_there_is_nothing_says_so(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments(shards, tmp_path, "--resume", "auto")) == 0
    said = f"--resume: {tmp_path} has nothing to resume yet; starting a new run"
    assert said in capsys.readouterr().out.splitlines()


def test_resume_by_path_needs_no_other_flag(
    shards: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, 10, kill)
    with pytest.raises(Killed):
        cli.run(arguments(shards, tmp_path / "halves"))
    assert cli.run(["train", "--resume", str(tmp_path / "halves/run")]) == 0
    assert_same(whole, tmp_path / "halves/run")


def test_another_training_is_not_resumed(
    shards: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path / "runs/run", symlinks=True)
    assert cli.run([*arguments(shards, tmp_path / "runs", "--resume"), "--lr", "0.5"]) == 2
    message = capsys.readouterr().err
    assert "lr was" in message
    assert "is 0.5" in message
    assert cli.run([*arguments(shards, tmp_path / "runs", "--resume"), "-b", "8"]) == 2
    assert "--resume" in capsys.readouterr().err


@pytest.fixture(scope="module")
def begun(write_images: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images/ of blue, green and red, 12 each, and runs/run on them. Do not change it: copy it."""
    root = tmp_path_factory.mktemp("begun")
    write_images(root / "images")
    assert cli.run([*arguments(root / "images", root / "runs"), "--epochs", "1"]) == 0
    return root


@pytest.fixture
def goes_on(begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Callable[[Path], Any]], str]:
    """`goes_on(change)`: the error of --resume auto (exit code 1) after the images were changed."""

    def check(change: Callable[[Path], Any]) -> str:
        shutil.copytree(begun, tmp_path, symlinks=True, dirs_exist_ok=True)
        config = tmp_path / "runs/run/config.yaml"
        config.write_text(config.read_text().replace(str(begun), str(tmp_path)))
        change(tmp_path / "images")
        capsys.readouterr()
        assert cli.run([*arguments(tmp_path / "images", tmp_path / "runs", "--resume", "auto"), "--epochs", "1"]) == 1
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1 and said.startswith("fastimg: error: --resume: "), said
        assert f"for a new run, which may start from these weights with --weights {tmp_path}/runs/run" in said
        return said

    return check


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda images: shutil.copytree(images / "red", images / "pink"), "trained on: new: pink; restore the class"),
        (lambda images: shutil.rmtree(images / "green"), "trained on: gone: green; restore the class folders to go on"),
        (lambda images: (images / "blue").rename(images / "azure"), "trained on: renamed: blue -> azure; restore"),
        (lambda images: (images / "blue").rename(images / "zinc"), "trained on: renamed: blue -> zinc; restore"),
        (
            lambda images: ((images / "red/000.jpg").unlink(), (images / "red").rename(images / "pink")),
            "trained on: gone: red; new: pink; restore",
        ),
        (
            lambda images: (images / "red/000.jpg").rename(images / "blue/added.jpg"),
            "has other samples than {run} was trained on: blue had 12 and has 13, red had 12 and has 11; restore the",
        ),
        (
            lambda images: (images / "red/000.jpg").rename(images / "red/renamed.jpg"),
            "is not the data that {run} was trained on: files were replaced or renamed",
        ),
    ],
)
def test_changed_data_is_not_resumed(
    goes_on: Callable[..., str], tmp_path: Path, change: Callable[[Path], Any], said: str
) -> None:
    assert said.format(run=tmp_path / "runs/run") in goes_on(change)


def test_after_a_class_was_added_a_new_run_starts_from_the_weights(goes_on: Callable[..., str], tmp_path: Path) -> None:
    goes_on(lambda images: shutil.copytree(images / "red", images / "pink"))
    data, run = tmp_path / "images", tmp_path / "runs/run"
    flags = [*arguments(data, tmp_path / "runs"), "--epochs", "1", "--name", "another", "--weights", str(run)]
    assert cli.run(flags) == 0
    assert checkpoint.read_card(tmp_path / "runs/another/last/model.safetensors").class_counts == (12, 12, 12, 12)


@pytest.mark.parametrize(
    ("before", "counts", "now", "present", "said"),
    [
        ("abc", (3, 4, 5), "abd", (3, 4, 5), "renamed: c -> d"),
        ("abc", (3, 4, 5), "bcz", (4, 5, 3), "renamed: a -> z"),
        ("abc", (3, 4, 5), "bcdz", (4, 5, 9, 3), "renamed: a -> z; new: d"),
        ("abc", (3, 3, 3), "dec", (3, 3, 3), "renamed: a -> d, b -> e"),  # several of one size: by position
        ("abc", (3, 3, 3), "cd", (3, 3), "gone: a, b; new: d"),
        ("abc", (3, 4, 5), "abd", (3, 4, 6), "gone: c; new: d"),
        ("abc", (), "abd", (3, 4, 6), "renamed: c -> d"),  # a checkpoint that does not record counts
        ("abc", (), "bcd", (3, 4, 6), "gone: a; new: d"),
        ("abc", (3, 4, 5), "bac", (4, 3, 5), "the same 3 in another order (b, a, c, and were a, b, c)"),
        ("", (), "abcdefghij", (1,) * 10, "new: a, b, c, d, e, f, g, h and 2 more"),
    ],
)
def test_how_class_lists_differ(
    before: str, counts: tuple[int, ...], now: str, present: tuple[int, ...], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        changed_data.compare(Path("RUN"), Path("DATA"), tuple(before), counts, tuple(now), present)
    assert f"DATA has other classes than RUN was trained on: {said}; restore" in str(refused.value)
    changed_data.compare(Path("RUN"), Path("DATA"), tuple(now), (), tuple(now), present)
    changed_data.compare(Path("RUN"), Path("DATA"), tuple(now), present, tuple(now), present)


@pytest.mark.slow
def test_kill_9_of_the_real_program(shards: Path, whole: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fastimg", *arguments(shards, tmp_path / "halves")]
    log = tmp_path / "halves/run/metrics.jsonl"
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # one thread computes there, as in the tests: the bits may depend on it
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.sched_setaffinity(0, cores)
    try:
        for _ in range(6000):
            if process.poll() is not None or (log.exists() and len(log.read_text().splitlines()) >= 5):
                break
            time.sleep(0.01)
        process.kill()
    finally:
        process.wait()
    assert log.exists()
    assert cli.run(arguments(shards, tmp_path / "halves", "--resume")) == 0
    assert_same(whole, tmp_path / "halves/run")
