"""`train` without DATA: the dataset of this folder, a run to go on with, a question, or else the embedded digits."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastimg.config.commands import Train
from fastimg.config.yaml_file import dump
from fastimg.errors import UsageError, UserError
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.choices.data_left_out import train_settings, with_data

DIGITS = Path("/somewhere/digits")
PHOTOS = Path("/somewhere/photos")


def run_directory(path: Path, age: int = 0, **settings: Any) -> Path:
    """What a run leaves, as far as it is known by it; `age` in seconds."""
    path.mkdir(parents=True)
    (path / "metrics.jsonl").touch()
    config = path / "config.yaml"
    config.write_text(dump(Train(data=PHOTOS, arch="test_resnet", **settings)))
    os.utime(config, (1e9 - age, 1e9 - age))
    return path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, which is empty; the digits are not written."""
    monkeypatch.setattr("fastimg.train.choices.data_left_out.digits_folder", lambda: DIGITS)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_an_empty_folder_is_given_the_digits() -> None:
    said: list[str] = []
    config = with_data(Train(arch="resnet50", pretrained=True), said.append)
    assert config.data == DIGITS
    (words,) = said
    assert words.startswith("no DATA given: training on 1,797 handwritten digits") and "`fastimg train FOLDER`" in words


def test_the_first_line_says_on_what(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastimg.train.loop.train", lambda *_: (_ for _ in ()).throw(UsageError("enough")))
    lines = cli("train", "--arch", "test_resnet").out.splitlines()
    assert lines[0].startswith("no DATA given: training on 1,797 handwritten digits")
    assert lines[1].startswith("starting")


def test_a_dataset_here_is_taken_also_with_resume(here: Path) -> None:
    (here / "dataset.json").touch()
    run_directory(here / "runs/other")
    said: list[str] = []
    for resume in (None, "auto", "last"):
        asked = {} if resume is None else {"resume": resume}
        assert with_data(train_settings(asked), said.append).data == here
    assert said[0] == f"no DATA given: training on the dataset in the current directory, {here}"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["cat/1.jpg", "dog/1.jpg"], "this folder holds class folders; say which, as in `fastimg train .`"),
        (["D/dataset.json"], "this folder holds D (a dataset); say which, as in `fastimg train D`"),
        (
            [f"D{number}/dataset.json" for number in range(7)],
            "this folder holds D0 (a dataset), D1 (a dataset), D2 (a dataset), D3 (a dataset), D4 (a dataset) "
            "and 2 others; ",
        ),
    ],
)
def test_candidates_are_named(files: list[str], sentence: str, here: Path) -> None:
    for file in files:
        (here / file).parent.mkdir(parents=True)
        (here / file).touch()
    with pytest.raises(UsageError) as refused:
        with_data(Train())
    assert str(refused.value).startswith(f"no DATA given, and {sentence}")


def test_runs_are_candidates(here: Path) -> None:
    run_directory(here / "runs/first")
    with pytest.raises(UsageError, match=r"holds runs/first \(a run\); .* or `fastimg train --resume runs/first`"):
        with_data(Train())


def test_texts_are_asked_for() -> None:
    with pytest.raises(UsageError, match="no DATA given: a model of texts"):
        with_data(Train(arch="hf:folder"))


@pytest.mark.parametrize("resume", ["last", "auto"])
def test_resume_goes_on_with_the_newest_run(resume: str, here: Path) -> None:
    run_directory(here / "runs/new", age=1, batch_size=7)
    run_directory(here / "runs/old", age=2)
    said: list[str] = []
    config = train_settings({"resume": resume, "epochs": 3}, said.append)
    assert (config.resume, config.data, config.batch_size, config.epochs) == ("runs/new", PHOTOS, 7, 3)
    assert said == [f"no DATA given: --resume goes on with runs/new, on {PHOTOS}"]
    assert train_settings({"resume": resume, "name": "old"}).resume == "runs/old"
    assert train_settings({"resume": resume, "recipe": "finetune-cnn"}).data == PHOTOS


def test_resume_in_a_folder_of_runs_and_in_a_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_directory(here / "first", age=1)
    assert train_settings({"resume": "last"}).resume == "first"
    monkeypatch.chdir(here / "first")
    assert train_settings({"resume": "last"}).resume == str(here / "first")


@pytest.mark.parametrize("flags", [("--resume",), ("--resume", "auto"), ("--resume", "--name", "x")])
def test_resume_without_a_run_is_refused(flags: tuple[str, ...], cli: Callable[..., Any]) -> None:
    ran = cli("train", "--arch", "test_resnet", *flags)
    assert ran.code == 2 and "error: --resume without DATA: " in ran.err and "digits" not in ran.out + ran.err


def test_nothing_to_resume_of_this_data(here: Path) -> None:
    refusal = "there is no run .*D-resnet18 to continue; with --resume auto a new run begins"
    for name in (None, "D-resnet18"):
        with pytest.raises(UserError, match=refusal):
            rundir.choose(here, "D-resnet18", name, "last")
        assert rundir.choose(here, "D-resnet18", name, "auto") == (here / "D-resnet18", False)
    run = run_directory(here / "D-resnet18")
    assert rundir.choose(here, "D-resnet18", None, "last") == (run, True)


def test_python_takes_true() -> None:
    from fastimg.config.yaml_file import fitted

    assert fitted({"resume": True}, Train) == {"resume": "last"} and fitted({"resume": False}, Train)["resume"] is None
