"""The demo in short form: it completes, and replaces only the folder of an earlier demo."""

from pathlib import Path

import pytest
from PIL import Image

from fastimg import cli, demo
from fastimg.data.digits import write_digits
from fastimg.errors import UserError


def test_the_demo_runs_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every sixth digit."""

    def write_few(images: Path) -> None:
        write_digits(images)
        for number, file in enumerate(sorted(images.rglob("*.png"))):
            if number % 6:
                file.unlink()

    monkeypatch.setattr(demo, "write_digits", write_few)
    folder = tmp_path / "demo"
    assert cli.run(["demo", "--output", str(folder), "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    for words in ("fastimg convert", "fastimg train", "fastimg eval", "fastimg predict", "try next", "top-1"):
        assert words in out
    assert (folder / "shards/dataset.json").exists()
    with Image.open(folder / "predictions.png") as sheet:
        assert sheet.size[0] > 300


def test_an_earlier_demo_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here by one that soon ends."""

    def end(images: Path) -> None:
        raise UserError("no images today")

    monkeypatch.setattr(demo, "write_digits", end)
    folder = tmp_path / "demo"
    assert cli.run(["demo", "--output", str(folder)]) == 1
    begun = sorted(folder.iterdir())
    assert len(begun) == 1  # which tells that this is a demo's
    (folder / "shards").mkdir()
    (folder / "shards/dataset.json").write_text("{}")
    assert cli.run(["demo", "--output", str(folder)]) == 1
    assert sorted(folder.iterdir()) == begun
    for mine in ("mine.txt", "runs/other/a", "runs/digits/best/b"):
        (folder / mine).parent.mkdir(parents=True, exist_ok=True)
        (folder / mine).touch()
    assert cli.run(["demo", "--output", str(folder)]) == 1
    assert (folder / "mine.txt").exists() and (folder / "runs/other/a").exists()  # only a demo's own is deleted
    assert not (folder / "runs/digits").exists()


def test_a_folder_by_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To an empty folder, and to that of an earlier demo. What is linked in there is not deleted."""

    def end(images: Path) -> None:
        raise UserError("no images today")

    monkeypatch.setattr(demo, "write_digits", end)
    (tmp_path / "there").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/a.txt").touch()
    link = tmp_path / "link"
    link.symlink_to("there")
    for _ in range(2):
        assert cli.run(["demo", "--output", str(link)]) == 1
        assert link.is_symlink() and [path.name for path in link.iterdir()] == [".fastimg-demo"]
        (link / "images").symlink_to(tmp_path / "kept")
        (link / "shards").mkdir()
    assert (tmp_path / "kept/a.txt").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dangling").symlink_to("nowhere/else")
    (tmp_path / "file").touch()
    for name in ("dangling", "file/demo"):
        assert cli.run(["demo", "--output", str(tmp_path / name)]) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert f"--output {tmp_path / name}: " in said and "choose a folder that can be created" in said


def test_a_foreign_folder_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    assert cli.run(["demo", "--output", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    assert "another folder" in " ".join(capsys.readouterr().err.split())
