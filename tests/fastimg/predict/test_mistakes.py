"""The mistakes written by `eval`: a table of all, and a sheet of the most confident ones."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders import FilesDataset, decode
from fastimg.predict import mistakes, pictures
from fastimg.predict.mistakes import Predictions, write_mistakes


def predictions(truth, predicted, confidence):
    n = len(truth)
    return Predictions(
        np.arange(n), np.array(truth), np.array(predicted), np.array(confidence), np.zeros(n, bool), np.zeros(n)
    )


@pytest.fixture
def images(tmp_path, encode):
    """Six files, the fourth of which is not an image."""
    for i in range(6):
        (tmp_path / f"{i}.jpg").write_bytes(b"nothing" if i == 3 else encode(seed=i))
    data = FilesDataset(tmp_path, [f"{i}.jpg" for i in range(6)])
    yield data
    data.close()


@pytest.fixture
def sheet(monkeypatch):
    """Arguments of the drawing: rows, title."""
    drawn = []
    monkeypatch.setattr(
        mistakes, "save_sheet", lambda rows, names, side, file, letters, title: drawn.append((rows, title))
    )
    return drawn


def table(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_the_most_confident_come_first_and_ties_in_order(images, tmp_path, sheet):
    found = predictions([0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0], [0.99, 0.7, 0.9, 0.7, 0.95, float("nan")])
    written = write_mistakes(found, images, ("cat", "犬"), "val", "val", tmp_path)
    rows = table(written.table)
    assert [row["key"] for row in rows] == ["4.jpg", "2.jpg", "1.jpg", "3.jpg", "5.jpg"]
    assert rows[1] == {
        "key": "2.jpg",
        "true": "犬",
        "true_index": "1",
        "predicted": "cat",
        "predicted_index": "0",
        "confidence": "0.900000",
    }
    ((tiles,), title) = sheet[0]
    assert title == "val: 5 mistakes among 6 images, the most confident first; red: what was predicted"
    assert [line.lstrip("\u200e") for line in tiles[1].lines][::2] == ["90% cat", "2.jpg"]


def test_an_image_that_cannot_be_decoded_is_grey(images, tmp_path, sheet):
    """Another loader may have been able to decode it."""
    found = predictions([0] * 6, [0, 0, 1, 1, 0, 0], [0.9] * 6)
    assert write_mistakes(found, images, ("a", "b"), "val", "val", tmp_path).undecodable == 1
    tiles = sheet[0][0][0]
    assert tiles[0].pixels.std() > 0 and tiles[1].pixels.std() == 0


def test_the_limit_of_pixels_is_the_evaluations(trained, tmp_path, cli, monkeypatch):
    """An image that a larger limit admits is on the sheet; without the flag it is the usual limit."""
    limits = []

    def read_header(content, max_pixels):
        limits.append(max_pixels)
        return decode.read_header(content, max_pixels)

    monkeypatch.setattr(pictures, "read_header", read_header)
    data = shutil.copytree(trained.images / "val", tmp_path / "data")
    (data / "red").rename(data / "other")
    (data / "blue").rename(data / "red")
    (data / "other").rename(data / "blue")  # so that there are mistakes
    for flags in ((), ("--max-pixels", 200_000_000)):
        ran = cli("eval", trained.run, data, *flags, "--output", tmp_path / "plot.png", "--overwrite", "--no-amp")
        assert ran.code == 0 and "grey" not in ran.err, ran.err
    assert set(limits) == {decode.MAX_PIXELS, 200_000_000}


def test_the_size_of_a_sheet_is_limited(images, tmp_path, sheet, monkeypatch):
    monkeypatch.setattr(mistakes, "SHOWN", 2)
    found = predictions([0] * 6, [1, 1, 1, 0, 0, 0], [0.9, 0.8, 0.7, 1.0, 1.0, 1.0])
    written = write_mistakes(found, images, ("a", "b"), "val", "val", tmp_path)
    assert len(table(written.table)) == 3 and [len(row) for row in sheet[0][0]] == [2]
    assert "3 mistakes among 6 images, the 2 most confident of them" in sheet[0][1]


@pytest.mark.parametrize("wrong", [0, 4])
def test_the_picture_opens(wrong, images, tmp_path):
    found = predictions([0] * 6, [1] * wrong + [0] * (6 - wrong), [0.9] * 6)
    written = write_mistakes(found, images, ("a", "$b$"), "val", "val", tmp_path)
    with Image.open(written.sheet) as picture:
        assert np.asarray(picture.convert("L")).std() > 0
        if wrong == 0:
            assert picture.height < 200  # the title alone


def test_eval_writes_them_next_to_the_confusion_matrix(trained, tmp_path, cli):
    ran = cli(
        "eval", trained.run, trained.images, "--output", tmp_path / "plot.png", "--overwrite", "--json", "--no-amp"
    )
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["mistakes"] == str(tmp_path / "mistakes-val.csv")
    assert told["mistakes_sheet"] == str(tmp_path / "mistakes-val.png") and (tmp_path / "mistakes-val.png").is_file()
    matrix = np.array(told["confusion"])
    rows = table(tmp_path / "mistakes-val.csv")
    assert len(rows) == matrix.sum() - matrix.trace()
    pairs = [(int(row["true_index"]), int(row["predicted_index"])) for row in rows]
    assert all(pairs.count((t, p)) == matrix[t, p] for t in range(3) for p in range(3) if t != p)


def test_an_unwritable_folder_is_a_one_line_error(trained, tmp_path, cli):
    (tmp_path / "mistakes-val.csv").mkdir()
    ran = cli("eval", trained.run, trained.images, "--output", tmp_path / "plot.png", "--overwrite")
    assert ran.code == 1 and "choose a folder that can be written" in ran.err and "Traceback" not in ran.err
