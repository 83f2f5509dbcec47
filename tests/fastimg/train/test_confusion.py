"""The plot of a confusion matrix: one to a thousand classes; names that are long, similar or not in any font."""

import numpy as np
import pytest
from PIL import Image

from fastimg.train.reporting import confusion
from fastimg.train.reporting.confusion import ConfusedPair, confused_pairs, plot_confusion


def opens(file):
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """draw(matrix, names): (the figure, the remarks); the picture is c.png."""
    kept, save = [], confusion.save
    monkeypatch.setattr(confusion, "save", lambda figure, *rest, **options: kept.append((figure, rest, options)))

    def drawn(matrix, names, title="title", written=False):
        said = plot_confusion(np.asarray(matrix, np.int64), names, title, tmp_path / "c.png")
        figure, rest, options = kept.pop()
        if written:
            save(figure, *rest, **options)
        return figure, said

    return drawn


def labels_of(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


def listed(figure):
    """The rows below the header of the list of pairs."""
    texts = [text.get_text() for text in figure.axes[1].texts]
    return [tuple(texts[at : at + 5]) for at in range(0, len(texts), 5)][2:]


def confused(n):
    """Ten images of each class; of class i, min(i, 10) are classified as the class before it."""
    matrix = np.diag(10 - np.minimum(np.arange(n), 10))
    for i in range(1, n):
        matrix[i, i - 1] = min(i, 10)
    return matrix


@pytest.mark.parametrize("n", [1, 3, 41])
def test_it_is_written_for_any_names(n, draw, tmp_path):
    names = ["$x^$", "[bold]", "a_b", "ä b", "long" * 20, ""][:n] + [f"c{i}" for i in range(n - 6)]
    draw(np.eye(n), names, written=True)
    assert opens(tmp_path / "c.png").std() > 0


def test_few_classes_have_shares_and_counts(draw):
    figure, said = draw([[6, 2], [0, 0]], ["a", "b"])
    assert said == [] and [text.get_text() for text in figure.axes[0].texts] == ["75%\n6", "25%\n2"]
    assert figure.axes[0].images[0].get_array().tolist() == [[0.75, 0.25], [None, None]]  # not drawn
    assert figure.get_suptitle().endswith("\ngrey: classes without samples")
    assert listed(figure) == [("2", "25%", "a", "→", "b")]


def test_without_mistakes(draw):
    figure, _ = draw(np.eye(2), ["a", "b"])
    assert [text.get_text() for text in figure.axes[1].texts if text.get_text()] == ["no mistakes"]


@pytest.mark.parametrize("n", [3, 40])
def test_up_to_forty_classes_are_named(n, draw):
    names = [f"n{i:04d}-breed" for i in range(n)]
    figure, said = draw(confused(n), names)
    axis = figure.axes[0]
    assert said == [] and labels_of(axis) == names == [label.get_text() for label in axis.get_xticklabels()]
    assert min(label.get_fontsize() for label in axis.get_yticklabels()) >= 7


def test_more_classes_have_numbers_and_the_worst_pairs_their_names(draw):
    matrix = np.diag(np.full(200, 10))
    matrix[169, 170], matrix[3, 8] = 5, 10
    figure, said = draw(matrix, [f"name {i}" for i in range(200)])
    axis = figure.axes[0]
    assert said == [] and axis.images[0].get_array().shape == (200, 200) and "name 3" not in labels_of(axis)
    assert [[text.lstrip("\u200e") for text in row] for row in listed(figure)] == [
        ["10", "50%", "3 name 3", "→", "8 name 8"],
        ["5", "33%", "169 name 169", "→", "170 name 170"],
    ]
    (marks,) = axis.collections
    assert marks.get_offsets().tolist() == [[8, 3], [170, 169]]
    pixels = axis.get_position().width * figure.get_figwidth() * 110 / 200
    assert pixels > 3  # a cell is visible


def test_labels_are_not_clipped(draw, tmp_path):
    """The layout has no room for so many labels: the figure grows instead of clipping them."""
    draw(np.eye(40), [f"a very long name of the class number {i}" for i in range(40)], written=True)
    edge = opens(tmp_path / "c.png")[:, :3]
    assert edge.min() == edge.max()


def test_of_a_thousand_classes_the_most_confused_are_shown(draw):
    matrix = np.diag(np.full(1000, 10))
    for true, predicted in ((7, 500), (999, 8), (500, 7)):
        matrix[true, predicted] = 5
    figure, said = draw(matrix, [f"class {i}" for i in range(1000)], "val")
    assert said == ["the picture shows the 40 most confused of 1,000 classes; --json has all of them"]
    names = labels_of(figure.axes[0])
    assert len(names) == 40 and {"class 7", "class 8", "class 500", "class 999"} <= set(names)
    assert names == sorted(names, key=lambda name: int(name.split()[1]))
    title = "val\nthe 40 most confused of 1,000 classes; shares are of all images of the true class"
    assert figure.get_suptitle() == title
    shares = figure.axes[0].images[0].get_array()
    assert shares[names.index("class 7"), names.index("class 500")] == pytest.approx(1 / 3)
    assert len(listed(figure)) == 3


def test_long_names_are_shortened_in_the_middle_and_stay_distinct(draw):
    names = ["x" * 79 + "a", "x" * 79 + "b", "y" * 40 + "a" + "y" * 40, "y" * 40 + "b" + "y" * 40, "z" * 32]
    figure, _ = draw(confused(5), names)
    short, same = "x" * 16 + "…" + "x" * 14, "y" * 16 + "…" + "y" * 15
    assert labels_of(figure.axes[0]) == [f"{short}a", f"{short}b", f"2: {same}", f"3: {same}", "z" * 32]


def test_the_order_of_the_worst_pairs():
    matrix = np.array([[5, 2, 0], [4, 4, 0], [1, 2, 1]])
    assert confused_pairs(matrix, 3) == [
        ConfusedPair(true=1, predicted=0, count=4, share=0.5),
        ConfusedPair(true=2, predicted=1, count=2, share=0.5),
        ConfusedPair(true=0, predicted=1, count=2, share=2 / 7),
    ]
