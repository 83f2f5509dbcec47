"""`fastimg eval`: the numbers, against the same numbers computed apart."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from fastimg.checkpoint import find, read_card
from fastimg.models import Preprocessing


def told_of(cli, *arguments):
    ran = cli("eval", *arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.fixture
def plot(tmp_path):
    return tmp_path / "plot.png"


def test_numbers_are_those_of_the_predictions(trained, plot, cli):
    """Top-1, loss, precision, recall and confusion from the probabilities that `predict` gives for the same files."""
    told = told_of(cli, trained.run, trained.images, "--plot", plot, "--no-amp", "-b", "5")
    files = sorted((trained.images / "val").glob("*/*"))
    ran = cli("predict", trained.run, *files, "--json", "--no-amp", "-b", "7")
    answers = [json.loads(line) for line in ran.out.splitlines()]
    names = ["blue", "green", "red"]
    matrix, losses = np.zeros((3, 3), int), []
    for file, answer in zip(files, answers, strict=True):
        assert answer["file"] == str(file)
        matrix[names.index(file.parent.name), names.index(answer["classes"][0])] += 1
        losses.append(-np.log(answer["probabilities"][answer["classes"].index(file.parent.name)]))
    assert told["confusion"] == matrix.tolist() and told["images"] == 12 == matrix.sum()
    assert told["top1"] == pytest.approx(np.trace(matrix) / 12) and told["top5"] is None
    assert told["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    right, predicted, true = np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
    for at, score in enumerate(told["classes"]):
        assert (score["name"], score["images"]) == (names[at], true[at])
        assert score["precision"] == pytest.approx(right[at] / max(predicted[at], 1))
        assert score["recall"] == pytest.approx(right[at] / true[at])


def test_shards_and_folder_say_the_same(trained, plot, cli):
    folder = told_of(cli, trained.run, trained.images, "--plot", plot)
    shards = told_of(cli, trained.run, trained.shards, "--plot", plot)
    for name in ("split", "images", "unreadable", "top1", "classes", "confusion"):
        assert folder[name] == shards[name]
    assert folder["loss"] == pytest.approx(shards["loss"], rel=1e-6)


def test_it_is_what_training_validated(trained, plot, cli):
    """The best checkpoint's own numbers, from the training's log."""
    told = told_of(cli, trained.run, trained.images, "--plot", plot, "--no-amp")
    log = [json.loads(line) for line in (trained.run / "metrics.jsonl").read_text().splitlines()]
    best = max((record for record in log if record["kind"] == "val"), key=lambda record: record["top1"])
    assert (told["top1"], told["loss"]) == (pytest.approx(best["top1"]), pytest.approx(best["loss"], rel=1e-4))


@pytest.mark.parametrize(("split", "images"), [("train", 24), ("val", 12)])
def test_splits(split, images, trained, plot, cli):
    told = told_of(cli, trained.run, trained.images, "--split", split, "--plot", plot)
    assert (told["split"], told["images"]) == (split, images)


def test_the_picture(trained, tmp_path, cli):
    run = shutil.copytree(trained.run, tmp_path / "run", symlinks=True)
    told = told_of(cli, run, trained.images)
    assert told["plot"] == str(run / "best" / "confusion-val.png")
    with Image.open(told["plot"]) as image:
        image.load()
    assert np.asarray(image.convert("RGB")).std() > 0


def test_words(trained, plot, cli):
    ran = cli("eval", trained.run, trained.images, "--plot", plot)
    assert ran.code == 0 and ran.err == ""
    assert all(word in ran.out for word in ("blue", "green", "red", "precision", "recall", "top-1", str(plot)))
    assert "top-5" not in ran.out and "decoded" not in ran.out


def test_ten_classes_have_a_top5(tmp_path, encode, fast, cli):
    for label in range(10):
        for split in ("train", "val"):
            folder = tmp_path / "d" / split / f"c{label}"
            folder.mkdir(parents=True)
            (folder / "0.png").write_bytes(encode((25 * label, 99, 99), seed=label, kind="PNG"))
    assert cli("train", tmp_path / "d", *fast, "-o", tmp_path, "--name", "run").code == 0
    told = told_of(cli, tmp_path / "run", tmp_path / "d", "--no-amp")
    files = sorted((tmp_path / "d" / "val").glob("*/*"))
    ran = cli("predict", tmp_path / "run", *files, "--json", "--topk", "5", "--no-amp")
    found = [
        file.parent.name in json.loads(line)["classes"] for file, line in zip(files, ran.out.splitlines(), strict=True)
    ]
    assert told["top5"] == pytest.approx(np.mean(found)) and 0 <= told["top1"] <= told["top5"] < 1
    assert "top-5" in cli("eval", tmp_path / "run", tmp_path / "d").out


def test_preprocessing_is_the_checkpoints(trained, tmp_path, fast, cli):
    """Whoever evaluates need not know with which sizes and means the model was trained."""
    sizes = (
        "--val-crop-size",
        "40",
        "--val-resize-size",
        "48",
        "--mean",
        "0.1",
        "0.2",
        "0.3",
        "--interpolation",
        "bicubic",
    )
    assert cli("train", trained.images, *fast, *sizes, "-o", tmp_path, "--name", "run").code == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    log = [record for record in records if record["kind"] == "val"]
    told = told_of(cli, tmp_path / "run", trained.images, "--no-amp")
    assert told["loss"] == pytest.approx(log[-1]["loss"], rel=1e-4)
    assert read_card(find(tmp_path / "run")).preprocessing == Preprocessing(
        train_size=32, val_size=40, val_resize=48, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5)
    )
