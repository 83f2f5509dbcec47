"""The demo in short form: it completes, and replaces only the folder of an earlier demo."""

from pathlib import Path

import pytest
from PIL import Image

from fastimg import cli


def test_the_demo_runs_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert cli.run(["demo", "--output", str(folder), "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    for words in ("fastimg convert", "fastimg train", "fastimg eval", "fastimg predict", "try next", "top-1"):
        assert words in out
    assert (folder / "shards/dataset.json").exists()
    with Image.open(folder / "predictions.png") as sheet:
        assert sheet.size[0] > 300
    assert cli.run(["demo", "--output", str(folder), "--epochs", "1"]) == 0  # an earlier demo is replaced


def test_a_foreign_folder_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    assert cli.run(["demo", "--output", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    assert "another folder" in " ".join(capsys.readouterr().err.split())
