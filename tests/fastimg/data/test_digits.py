"""The embedded digits dataset."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fastimg.data import digits
from fastimg.data.digits import COUNT, digits_folder, write_digits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return digits_folder()


def test_they_equal_scikit_learns(folder, tmp_path):
    assert folder == tmp_path / "cache" / "fastimg" / "digits"
    files = sorted(folder.rglob("*.png"), key=lambda file: file.name)
    images, labels = load_digits(return_X_y=True)
    assert len(files) == COUNT == len(images)
    assert [int(file.parent.name) for file in files] == labels.tolist()
    for i in (0, 7, COUNT - 1):
        pixels = np.asarray(Image.open(files[i]))
        assert pixels.shape == (8, 8) and np.abs(pixels / 255 * 16 - images[i].reshape(8, 8)).max() < 0.04


def test_they_are_written_once(folder, monkeypatch):
    monkeypatch.setattr(digits, "write_digits", lambda folder: pytest.fail("written again"))
    assert digits_folder() == folder


def test_all_or_nothing(tmp_path, monkeypatch):
    def fails(*arguments):
        raise OSError("no space")

    monkeypatch.setattr(digits.Image, "fromarray", fails)
    with pytest.raises(OSError, match="no space"):
        write_digits(tmp_path / "d")
    assert not (tmp_path / "d").exists()
    monkeypatch.undo()
    write_digits(tmp_path / "d")  # over the remains
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_two_at_once(tmp_path, monkeypatch):
    """As two trainings that are the first ones in a new cache: one ends while the other writes."""
    draw = digits.Image.fromarray

    def later(pixels):
        monkeypatch.setattr(digits.Image, "fromarray", draw)
        write_digits(tmp_path / "d")
        return draw(pixels)

    monkeypatch.setattr(digits.Image, "fromarray", later)
    write_digits(tmp_path / "d")
    assert len(list((tmp_path / "d").rglob("*.png"))) == COUNT
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_another_folder_is_not_replaced(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/mine.txt").touch()
    with pytest.raises(OSError, match="not empty"):
        write_digits(tmp_path / "d")
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "mine.txt"]
