"""Plots: they are written, they can be opened, and unusual data does not stop them."""

from dataclasses import astuple
from functools import partial

import numpy as np
import pytest
from PIL import Image

from fastimg.config.commands import Train
from fastimg.train.reporting import plots, summary
from fastimg.train.reporting.plots import CurveNotes, plot_curves, plot_predictions


def opens(file):
    with Image.open(file) as image:
        image.load()
        return np.asarray(image.convert("RGB"))


def drawn_by(draw, monkeypatch):
    """(The figure saved by `draw()`, its return value)."""
    kept, save = [], plots.save

    def keep(figure, *rest, **options):
        save(figure, *rest, **options)
        kept.append(figure)

    monkeypatch.setattr(plots, "save", keep)
    said = draw()
    return kept[0], said


def record(kind, step, epoch=1, loss=1.0):
    values = {"kind": kind, "step": step, "epoch": epoch, "loss": loss, "top1": 0.5, "samples": 3}
    values |= {"lr": 0.1} if kind in ("train", "step") else {}
    return values | ({"images_per_second": 9.0, "wait_share": 0.0} if kind == "train" else {})


def curves(records, monkeypatch, tmp_path, steps_per_epoch=5, **notes):
    """Axes of the figure drawn from these records."""
    draw = partial(plot_curves, records, steps_per_epoch, CurveNotes(**notes), tmp_path / "curves.png")
    return drawn_by(draw, monkeypatch)[0].axes


def lines(axis):
    """Label -> points of each line."""
    return {line.get_label(): [tuple(map(float, point)) for point in line.get_xydata()] for line in axis.get_lines()}


def ticks(axis):
    """The visible ones."""
    low, high = axis.get_xlim()
    return [tick for tick in axis.get_xticks().tolist() if low <= tick <= high]


def test_a_run_of_three_steps_shows_each_of_them(tmp_path, monkeypatch):
    records = [*(record("step", step, loss=4.0 - step) for step in (1, 2, 3)), record("train", 3), record("val", 3)]
    axes = curves(records, monkeypatch, tmp_path, steps_per_epoch=3)
    assert lines(axes[0]) == {
        "training loss": [(1 / 3, 3.0), (2 / 3, 2.0), (1.0, 1.0)],
        "validation loss": [(1.0, 1.0)],
    }
    assert list(lines(axes[1])) == ["training accuracy", "validation accuracy"]
    assert len(lines(axes[2])["learning rate"]) == 3 and lines(axes[3])["images_per_second"] == [(1.0, 9.0)]
    for axis in axes:
        assert ticks(axis) == [0, 1] and axis.get_xlabel() == "epoch"
        assert all(line.get_marker() not in ("None", "") for line in axis.get_lines())
    assert opens(tmp_path / "curves.png").std() > 0


def test_a_small_last_batch_makes_no_spike_and_the_best_epoch_is_marked(tmp_path, monkeypatch):
    records = [record("step", step, 1 + (step - 1) // 3) | {"samples": 10} for step in range(1, 7)]
    records[2] |= {"samples": 2, "loss": 7.0}
    records += [record("val", 3, 1, 2.0), record("val", 6, 2, 3.0)]
    figure, _ = drawn_by(
        partial(plot_curves, records, 3, CurveNotes(title="photos-resnet18", best=1), tmp_path / "c.png"), monkeypatch
    )
    drawn = lines(figure.axes[0])
    assert drawn["training loss"] == [(1 / 3, 1.0), (1.0, 2.0), (4 / 3, 1.0), (5 / 3, 1.0), (2.0, 1.0)]
    assert drawn["best checkpoint, epoch 1"] == [(1.0, 2.0)]
    assert figure.get_suptitle() == "photos-resnet18"


def test_before_an_epoch_is_done_steps_are_counted(tmp_path, monkeypatch):
    axes = curves([record("step", 1), record("step", 2)], monkeypatch, tmp_path, steps_per_epoch=1000)
    assert lines(axes[0])["training loss"] == [(1.0, 1.0), (2.0, 1.0)]
    assert (axes[0].get_xlabel(), ticks(axes[0])) == ("step", [0, 1, 2])


@pytest.mark.parametrize("epochs", [1, 2, 5, 90, 300])
def test_ticks_are_whole_epochs(epochs, tmp_path, monkeypatch):
    records = [record("train", 5 * epoch, epoch) for epoch in range(1, epochs + 1)]
    for axis in curves(records, monkeypatch, tmp_path):
        assert ticks(axis) and all(tick == round(tick) for tick in ticks(axis))


def test_many_steps_are_means_and_epochs_are_marked(tmp_path, monkeypatch):
    records = [record("step", step, 1 + (step - 1) // 500) for step in range(5, 1001, 5)]
    records += [record("train", 100), record("train", 500), record("train", 1000, 2), record("val", 1000, 2)]
    axes = curves(records, monkeypatch, tmp_path, 500, loss="label smoothing 0.1, mixup 0.2", top1="mixup 0.2")
    each = "training loss (label smoothing 0.1, mixup 0.2), means of 5 steps"
    assert list(lines(axes[0])) == [each, "its mean over each epoch", "validation loss"]
    assert [x for x, _ in lines(axes[0])["its mean over each epoch"]] == [1.0, 2.0]
    assert axes[0].get_lines()[0].get_marker() == "None" and len(lines(axes[0])[each]) == 200
    assert next(iter(lines(axes[1]))) == "training accuracy (mixup 0.2), means of 5 steps"
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == list(lines(axes[0]))


def test_records_of_older_runs_are_running_means(tmp_path, monkeypatch):
    records = [record("train", 50), record("train", 100), record("val", 100)]
    axes = curves(records, monkeypatch, tmp_path, 100, loss="binary cross-entropy", validated="cross-entropy")
    assert list(lines(axes[0])) == [
        "training loss (binary cross-entropy), running mean of the epoch",
        "validation loss (cross-entropy)",
    ]


@pytest.mark.parametrize("records", [[], [record("val", 5)], [record("train", 5)]])
def test_curves_of_what_there_is(records, tmp_path, monkeypatch):
    assert len(curves(records, monkeypatch, tmp_path)) == 4
    assert opens(tmp_path / "curves.png").std() > 0


@pytest.mark.parametrize(
    ("settings", "notes"),
    [
        ({}, ("label smoothing 0.1", "", "plain cross-entropy")),
        ({"smoothing": 0.0}, ("", "", "")),
        (
            {"mixup": 0.2},
            ("label smoothing 0.1, mixup 0.2", "mixup 0.2: the larger share counts", "plain cross-entropy"),
        ),
        (
            {"cutmix": 1.0, "bce_loss": True, "smoothing": 0.0},
            ("binary cross-entropy, cutmix 1", "cutmix 1: the larger share counts", "cross-entropy"),
        ),
    ],
)
def test_a_note_on_training_with_augmentation(settings, notes):
    assert astuple(summary._curve_notes(Train(**settings), "top1", True))[:4] == ("top1", *notes)


def test_numbers_and_labels_are_not_smoothed():
    assert summary._curve_notes(Train(smoothing=0.1), "mae", False).loss == ""


@pytest.mark.parametrize("count", [1, 6, 7])
def test_predictions(count, tmp_path):
    images = [np.full((8, 9, 3), i, np.uint8) for i in range(count)]
    plot_predictions(images, ["a (50%)"] * count, [True, False] * 4, tmp_path / "p.png")
    assert opens(tmp_path / "p.png").shape[1] == pytest.approx(187 * min(6, count), abs=1)


def test_a_long_caption_is_shortened_in_the_middle(tmp_path, monkeypatch):
    images = [np.zeros((8, 9, 3), np.uint8)]
    figure, said = drawn_by(
        partial(plot_predictions, images, ["v" * 40 + "w" * 40], [True], tmp_path / "p.png"), monkeypatch
    )
    assert figure.axes[0].get_title() == "v" * 11 + "…" + "w" * 10 and said == []


def test_another_metric_is_drawn_where_it_decides(monkeypatch, tmp_path):
    """Its records may begin with validation, and go below zero."""
    steps = [{"kind": "step", "epoch": 1, "step": n, "loss": 1.0, "lr": 0.1} for n in (1, 2)]
    val = {"kind": "val", "epoch": 1, "step": 2, "loss": 1.0, "$.r2": -0.5}
    axes = curves([*steps, val], monkeypatch, tmp_path, 2, metric="$.r2")
    assert axes[1].get_title() == "$.r2" and axes[1].get_ylim()[0] == -0.5
    (line,) = axes[1].get_lines()
    assert list(line.get_ydata()) == [-0.5]


def test_a_picture_that_does_not_fit_leaves_the_one_that_was_there(tmp_path, monkeypatch):
    file = tmp_path / "sheet.png"
    file.write_bytes(b"mine")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastimg.loaders.containers.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        plot_predictions([np.zeros((8, 8, 3), np.uint8)], ["a"], [True], file)
    assert file.read_bytes() == b"mine" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("name", "written"), [("a.pdf", "a.pdf"), ("a", "a.png")])
def test_pictures_in_the_format_of_their_names(tmp_path, name, written):
    plot_predictions([np.zeros((8, 8, 3), np.uint8)], ["a"], [True], tmp_path / name)
    start = {"a.pdf": b"%PDF", "a.png": b"\x89PNG"}[written]
    assert (tmp_path / written).read_bytes().startswith(start)
