"""Pictures: they are written, they open, and odd data does not stop them."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from fastimg import plots
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


def drawn_by(draw, monkeypatch):
    """(The figure that `draw()` saves, what it returns)."""
    kept, save = [], plots._save
    monkeypatch.setattr(plots, "_save", lambda figure, *rest: (save(figure, *rest), kept.append(figure)))
    said = draw()
    return kept[0], said


def confused(n):
    """Ten images of each class; of class i, min(i, 10) are taken for the class before it."""
    matrix = np.diag(10 - np.minimum(np.arange(n), 10))
    for i in range(1, n):
        matrix[i, i - 1] = min(i, 10)
    return matrix


@pytest.mark.parametrize("n", [3, 60, 61, 120, 150])
def test_a_confusion_matrix_names_its_classes(n, tmp_path, monkeypatch):
    names = [f"n{i:04d}-breed" for i in range(n)]
    draw = partial(plot_confusion, confused(n), names, "title", tmp_path / "c.png")
    figure, said = drawn_by(draw, monkeypatch)
    axis = figure.axes[0]
    assert said == []
    for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        assert [label.get_text() for label in labels] == names
        assert min(label.get_fontsize() for label in labels) >= 7
        # Lines of text do not overlap: a class has at least as many points as its label.
        assert 72 * figure.get_figwidth() * 0.7 / n >= labels[0].get_fontsize() or n < 10


def test_of_a_thousand_classes_the_most_confused_are_shown(tmp_path, monkeypatch):
    matrix = np.diag(np.full(1000, 10))
    for true, predicted in ((7, 500), (999, 8), (500, 7)):
        matrix[true, predicted] = 5
    draw = partial(plot_confusion, matrix, [f"class {i}" for i in range(1000)], "val", tmp_path / "c.png")
    figure, said = drawn_by(draw, monkeypatch)
    assert said == ["the picture shows the 40 most confused of 1,000 classes; --json has all of them"]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 40 and {"class 7", "class 8", "class 500", "class 999"} <= set(names)
    assert names == sorted(names, key=lambda name: int(name.split()[1]))
    title = figure.axes[0].get_title()
    assert title == "val\nthe 40 most confused of 1,000 classes; colour: share of all images of the true class"
    shares = figure.axes[0].images[0].get_array()
    assert shares[names.index("class 7"), names.index("class 500")] == pytest.approx(1 / 3)
    assert figure.axes[0].images[0].get_array().shape == (40, 40)
    counts = [text.get_text() for text in figure.axes[0].texts]
    assert counts.count("5") == 3 and counts.count("10") == 40


def test_long_names_end_in_an_ellipsis_and_stay_apart(tmp_path, monkeypatch):
    names = ["x" * 79 + "a", "x" * 79 + "b", "y" * 80, "z" * 32]
    figure, _ = drawn_by(partial(plot_confusion, confused(4), names, "t", tmp_path / "c.png"), monkeypatch)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == [f"0: {'x' * 31}…", f"1: {'x' * 31}…", f"{'y' * 31}…", "z" * 32]


def test_a_caption_that_is_too_long_ends_in_an_ellipsis(tmp_path, monkeypatch):
    images = [np.zeros((8, 9, 3), np.uint8)]
    figure, said = drawn_by(partial(plot_predictions, images, ["w" * 80], [True], tmp_path / "p.png"), monkeypatch)
    assert figure.axes[0].get_title() == "w" * 21 + "…" and said == []
