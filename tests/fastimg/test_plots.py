"""Pictures: they are written, they open, and odd data does not stop them."""

import numpy as np
import pytest
from PIL import Image

from fastimg.plots import plot_confusion, plot_curves, plot_predictions


def opens(file):
    with Image.open(file) as image:
        image.load()
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("n", [1, 3, 26, 61])
def test_a_confusion_matrix_of_any_size(n, tmp_path):
    names = ["$x^$", "[bold]", "a_b", "ä b", "犬", "long" * 20][:n] + [f"c{i}" for i in range(n - 6)]
    plot_confusion(np.eye(n, dtype=np.int64), names, "title", tmp_path / "c.png")
    assert opens(tmp_path / "c.png").std() > 0


def test_a_class_without_images(tmp_path):
    plot_confusion(np.array([[0, 0], [1, 2]]), ["a", "b"], "t", tmp_path / "c.png")
    assert opens(tmp_path / "c.png").std() > 0


def record(kind, step, epoch=1):
    values = {"kind": kind, "step": step, "epoch": epoch, "loss": 1.0, "top1": 0.5, "samples": 3}
    return values | ({"lr": 0.1, "images_per_second": 9.0, "wait_share": 0.0} if kind == "train" else {})


@pytest.mark.parametrize(
    "records",
    [
        [record("train", 5)],
        [record("val", 5)],
        [record("train", 5), record("val", 10), record("train", 15, 2), record("val", 20, 2)],
    ],
)
def test_curves(records, tmp_path):
    plot_curves(records, tmp_path / "curves.png")
    assert opens(tmp_path / "curves.png").std() > 0


@pytest.mark.parametrize("count", [1, 6, 7])
def test_predictions(count, tmp_path):
    images = [np.full((8, 9, 3), i, np.uint8) for i in range(count)]
    plot_predictions(images, ["a (50%)"] * count, [True, False] * 4, tmp_path / "p.png")
    assert opens(tmp_path / "p.png").shape[1] == pytest.approx(187 * min(6, count), abs=1)
