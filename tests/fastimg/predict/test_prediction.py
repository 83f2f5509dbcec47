"""`fastimg predict`: every file gets a line of output, whatever it contains."""

import csv
import errno
import io
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

import fastimg
from fastimg.errors import UsageError, UserError
from fastimg.predict import inference, prediction_sheet
from fastimg.predict.answers import Answer, print_answers, write_csv


@pytest.fixture
def run(trained):
    return trained.run


def answers(ran):
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.fixture
def odd(tmp_path):
    """The same red picture in many forms; with EXIF orientation, it is stored rotated the other way."""
    folder = tmp_path / "odd"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(40, 90, (36, 60, 3), dtype=np.uint8)
    pixels[:18, :, 0] += 150
    image = Image.fromarray(pixels)
    image.save(folder / "plain.png")
    image.quantize(64).save(folder / "palette.png")
    image.convert("RGBA").save(folder / "alpha.png")
    image.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    image.convert("L").save(folder / "gray.png")
    Image.fromarray((pixels[:, :, 0].astype(np.uint16) << 8) + 7).save(folder / "sixteen.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # stored rotated by a quarter to the left, shown rotated to the right
    image.transpose(Image.Transpose.ROTATE_90).save(folder / "rotated.png", exif=exif)
    return folder


def test_odd_images(odd, run, cli):
    ran = cli("predict", run, odd, "--json", "--no-amp")
    found = {os.path.basename(answer["file"]): answer for answer in answers(ran)}
    assert ran.code == 0 and len(found) == 7 and not any(answer["error"] for answer in found.values())
    assert [os.path.basename(answer["file"]) for answer in answers(ran)] == sorted(found)

    def shares(name):
        return dict(zip(found[name]["classes"], found[name]["probabilities"], strict=True))

    for name in ("alpha.png", "rotated.png"):  # the same pixels
        assert shares(name) == pytest.approx(shares("plain.png"), abs=2e-6), name
    assert shares("palette.png") == pytest.approx(shares("plain.png"), abs=0.05)
    assert shares("cmyk.jpg") == pytest.approx(shares("plain.png"), abs=0.2)


def test_good_and_bad_together(trained, run, tmp_path, cli):
    good = trained.images / "val" / "red" / "0.jpg"
    cut, text, empty, gone = (tmp_path / name for name in ("cut.jpg", "text.jpg", "empty.jpg", "gone.jpg"))
    cut.write_bytes(good.read_bytes()[:-100])
    text.write_text("no image")
    empty.touch()
    files = (good, cut, text, empty, gone, good)
    ran = cli("predict", run, *files, "--json", "-b", "2")
    assert ran.code == 1 and "4 of 6 files could not be read" in ran.err and "Traceback" not in ran.err
    told = answers(ran)
    assert [answer["file"] for answer in told] == [str(file) for file in files]
    for answer, reason in zip(told[1:5], ("truncated", "not an image", "empty", "No such file"), strict=True):
        assert reason in answer["error"] and answer["classes"] == [] == answer["probabilities"]
    assert told[0] == told[5] and told[0]["error"] is None and len(told[0]["classes"]) == 3
    ran = cli("predict", run, *files)
    assert ran.code == 1 and ran.out.count("not read: ") == 4 and all(str(file) in ran.out for file in files)


def test_nothing_could_be_read(run, tmp_path, cli):
    (tmp_path / "text.jpg").write_text("no image")
    ran = cli("predict", run, tmp_path / "text.jpg", tmp_path / "gone.jpg")
    assert ran.code == 1 and "2 of 2 files could not be read" in ran.err and ran.out.count("not read: ") == 2


def test_max_pixels(trained, run, cli):
    ran = cli("predict", run, trained.images / "val" / "red" / "0.jpg", "--max-pixels", "1500")
    assert ran.code == 1 and "more than --max-pixels 1500" in ran.out
    ran = cli("predict", run, trained.images / "val" / "red" / "0.jpg", "--max-pixels", "1000")
    assert ran.code == 2 and "--max-pixels 1000: no image could be read, as each is resized to 33 x 33" in ran.err


def test_probabilities_do_not_depend_on_the_batch(trained, run, cli):
    folder = trained.images / "val"
    alone, together = (answers(cli("predict", run, folder, "--json", "--no-amp", "-b", size)) for size in ("1", "64"))
    for one, other in zip(alone, together, strict=True):
        assert one["file"] == other["file"] and one["classes"] == other["classes"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
        assert sum(one["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert one["probabilities"] == sorted(one["probabilities"], reverse=True)


def test_views_that_are_averaged(trained, run, cli):
    """Each choice of --tta is another mean; alone, before the files, it means mirror."""
    file = trained.images / "val" / "red" / "0.jpg"
    flags = (("--tta",), ("--tta", "mirror"), ("--tta", "mirror-shift"), ())
    (first, mirror, shifted, alone) = (
        answers(cli("predict", *which, run, file, "--json", "--no-amp"))[0]["probabilities"] for which in flags
    )
    assert first == mirror
    assert len({tuple(mirror), tuple(shifted), tuple(alone)}) == 3


@pytest.mark.parametrize(("topk", "shown"), [("1", 1), ("2", 2), ("9", 3)])
def test_topk(topk, shown, trained, run, cli):
    (answer,) = answers(cli("predict", run, trained.images / "val" / "red" / "0.jpg", "--json", "--topk", topk))
    assert len(answer["classes"]) == len(answer["probabilities"]) == shown


@pytest.mark.parametrize("target", ["-", "out.csv"])
def test_csv(target, trained, run, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    shutil.copy(trained.images / "val" / "red" / "0.jpg", 'a,"b".jpg')
    (tmp_path / "text.jpg").write_text("no image")
    ran = cli("predict", run, 'a,"b".jpg', "text.jpg", "--csv", target, "--topk", "2")
    assert ran.code == 1
    content = ran.out if target == "-" else (tmp_path / "out.csv").read_text()
    assert target == "-" or ran.out == ""
    assert {len(row) for row in csv.reader(io.StringIO(content))} == {6}, "a row has all columns"
    assert "1 of 2 files could not be read (text.jpg: not an image" in ran.err
    good, bad = csv.DictReader(io.StringIO(content))
    assert list(good) == ["file", "error", "class1", "probability1", "class2", "probability2"]
    assert good["file"] == 'a,"b".jpg' and good["error"] == ""
    assert {good["class1"], good["class2"]} < {"blue", "green", "red"}
    assert float(good["probability1"]) >= float(good["probability2"])
    assert bad["file"] == "text.jpg" and "not an image" in bad["error"] and not bad["class1"]


def test_class_names_in_a_csv_that_are_not_utf_8(tmp_path):
    """Of folders whose names are in Latin-1: their bytes are escaped, as those of files are."""
    write_csv([Answer("a.jpg", [os.fsdecode(b"caf\xe9"), "eau"], [0.75, 0.25])], tmp_path / "out.csv")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8")))
    assert (row["class1"], row["class2"], row["probability1"]) == (r"caf\udce9", "eau", "0.75")


@pytest.mark.parametrize("name", ["no/out.csv", "folder", "file/out.csv"])
def test_a_csv_that_cannot_be_written(name, trained, run, tmp_path, cli, monkeypatch):
    """Before anything is predicted."""
    monkeypatch.setattr(inference, "load", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    ran = cli("predict", run, trained.images / "val", "--csv", tmp_path / name)
    assert ran.code == 1 and f"--csv {tmp_path / name}: " in ran.err and "Traceback" not in ran.err
    assert "; choose a file that can be written" in ran.err


def test_a_csv_that_does_not_fit_is_as_it_was(tmp_path, monkeypatch):
    target = tmp_path / "out.csv"
    target.write_text("mine")

    def full(*_):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("fastimg.loaders.containers.atomic.os.fsync", full)
    with pytest.raises(UserError, match=r"--csv .*out\.csv: larger than .*; (raise that limit|write to another)"):
        write_csv([Answer("a.jpg", ["eau"], [1.0])], target)
    assert target.read_text() == "mine" and [file.name for file in tmp_path.iterdir()] == ["out.csv"]


def test_a_csv_is_as_it_was_where_nothing_is_predicted(run, tmp_path, cli):
    (tmp_path / "old.csv").write_text("an earlier table")
    (tmp_path / "link.csv").symlink_to(tmp_path / "new.csv")
    (tmp_path / "images").mkdir()
    for name in ("old.csv", "link.csv", "other.csv"):
        ran = cli("predict", run, tmp_path / "images", "--csv", tmp_path / name, "--overwrite")
        assert ran.code == 1 and "no images in this folder" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "link.csv", "old.csv"]
    assert (tmp_path / "old.csv").read_text() == "an earlier table"


def test_a_csv_into_a_pipe(trained, run, tmp_path, cli):
    """Which is opened once: its reader would take the first end for the last."""
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        content = pool.submit((tmp_path / "pipe").read_text)
        ran = cli("predict", run, trained.images / "val", "--csv", tmp_path / "pipe")
        assert ran.code == 0, ran.err
        assert len(content.result().splitlines()) == 13


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--topk", "0"), "--topk 0"),
        (("--json", "--csv", "x.csv"), "--json and --csv"),
        (("--max-pixels", "0"), "--max-pixels 0"),
    ],
)
def test_flags_that_make_no_sense(flags, text, trained, run, cli):
    ran = cli("predict", run, trained.images / "val", *flags)
    assert ran.code == 2 and text in ran.err and ran.out == ""


def test_no_sources(run, tmp_path, cli):
    ran = cli("predict", run)
    assert ran.code == 2 and "no images given" in ran.err
    (tmp_path / "notes.txt").touch()
    ran = cli("predict", run, tmp_path)
    assert (
        ran.code == 1
        and f"{tmp_path}: no images in this folder (other files: 1 without an image's extension (.txt));" in ran.err
    )


def test_a_pipe_does_not_block(run, tmp_path, cli):
    os.mkfifo(tmp_path / "pipe.jpg")
    ran = cli("predict", run, tmp_path / "pipe.jpg")
    assert ran.code == 1 and "neither a file nor a folder" in ran.err


def test_undecodable_images_have_a_row_each(trained, run, tmp_path, heic, heif_plugin, cli):
    shutil.copy(trained.images / "val/red/0.jpg", tmp_path / "good.jpg")
    Image.open(tmp_path / "good.jpg").save(tmp_path / "good.avif")
    (tmp_path / "phone.heic").write_bytes(heic())
    (tmp_path / "drawing.svg").write_text("<svg/>")
    (tmp_path / "camera.NEF").write_bytes(b"MM\0*" + bytes(100))
    (tmp_path / "empty.nef").touch()
    (tmp_path / "notes.md").write_text("x")
    ran = cli("predict", run, tmp_path, "--json", "--no-amp")
    found = {os.path.basename(answer["file"]): answer for answer in answers(ran)}
    assert ran.code == 1
    assert list(found) == ["camera.NEF", "drawing.svg", "empty.nef", "good.avif", "good.jpg", "phone.heic"]
    assert found["phone.heic"]["error"] == "HEIC, readable after `pip install pillow-heif`"
    assert found["drawing.svg"]["error"] == "SVG, which must be converted to JPEG or PNG first"
    assert found["camera.NEF"]["error"] == "camera raw, which must be converted to JPEG or PNG first"
    assert found["empty.nef"]["error"] == "the file is empty"
    assert found["good.avif"]["classes"] == found["good.jpg"]["classes"]
    assert "1 of 7 files is not used: 1 without an image's extension (.md); the first is" in ran.err
    heif_plugin(installed=True)
    ran = cli("predict", run, tmp_path / "phone.heic", tmp_path / "gone.svg", "--json", "--no-amp")
    decoded, gone = answers(ran)
    assert decoded["error"] is None and len(decoded["classes"]) == 3
    assert gone["error"] == "No such file or directory"


@pytest.mark.usefixtures("heif_plugin")
def test_a_folder_with_only_heic_files(run, tmp_path, heic, cli):
    (tmp_path / "1.heic").write_bytes(heic())
    ran = cli("predict", run, tmp_path)
    assert ran.code == 1 and "not read: HEIC, readable after `pip install pillow-heif`" in ran.out


def test_of_equally_likely_classes_the_first_comes_first(trained, cli, monkeypatch):
    """As a model finds them without training."""
    monkeypatch.setattr("fastimg.predict.inference.answer", lambda _, images, *rest: torch.zeros(len(images), 3))
    files = sorted((trained.images / "val").glob("*/*"))
    told = answers(cli("predict", trained.run, *files, "--json", "-b", "5"))
    assert [answer["classes"] for answer in told] == [["blue", "green", "red"]] * 12
    assert told[0]["probabilities"] == [0.333333] * 3
    monkeypatch.setattr(
        "fastimg.predict.inference.answer", lambda _, images, *rest: torch.tensor([[0.0, 1, 1]] * len(images))
    )
    told = answers(cli("predict", trained.run, *files, "--json", "--topk", "2"))
    assert [answer["classes"] for answer in told] == [["green", "red"]] * 12


def test_converted_data(trained, run, cli):
    """Every sample of every split, by its key, in the order of the command line."""
    file = trained.images / "val" / "red" / "0.jpg"
    ran = cli("predict", run, file, trained.shards, file, "--json", "--no-amp")
    told = answers(ran)
    assert ran.code == 0 and len(told) == 38 and told[0] == told[-1], ran.err
    alone = {answer["file"]: answer for answer in answers(cli("predict", run, trained.shards, "--json", "--no-amp"))}
    assert list(alone) == [answer["file"] for answer in told[1:-1]]
    assert alone["red/0.jpg" if "red/0.jpg" in alone else next(iter(alone))]["classes"]


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_each_image_has_one_line_on_a_terminal(columns):
    out = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None)
    names = ["Weimaraner", "Brabancon griffon", "Rhodesian ridgeback", "Norwegian elkhound", "German shepherd"]
    shares = [0.9, 0.05, 0.03, 0.01, 0.01]
    files = ["a.jpg", "/data/photographs/of/the/year/2026/in/a/deep/folder/dogs/IMG_20260101_000001.jpg", "犬" * 60]
    print_answers([Answer(file, names, shares) for file in files] + [Answer("b.jpg", names[:1], [1.0])], out)
    lines = out.file.getvalue().splitlines()
    rows = [line for line in lines if line.startswith("│")]
    assert len(lines) == 8 and len(rows) == 4 and all(cell_len(line) <= columns for line in lines)
    assert "000001.jpg" in rows[1] and all("Weimaraner 90.0%" in row for row in rows[:3])
    assert "…" not in rows[3] or columns < 80


def test_a_sheet_and_what_csv_wrote(trained, run, tmp_path, cli, monkeypatch):
    drawn = []
    save = prediction_sheet.save_sheet

    def save_sheet(rows, names, side, file, letters, title):
        drawn.append((rows, title))
        save(rows, names, side, file, letters, title)

    monkeypatch.setattr(prediction_sheet, "save_sheet", save_sheet)
    monkeypatch.setattr(prediction_sheet, "SHOWN", 3)
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    sheet, table = tmp_path / "sheet.png", tmp_path / "answers.csv"
    files = [tmp_path / "bad.jpg", *sorted((trained.images / "val" / "red").iterdir())]
    ran = cli("predict", run, *files, "--sheet", sheet, "--csv", table)
    assert ran.code == 1 and ran.out == ""
    assert f"{sheet}: pictures of 3 of 5 answers" in ran.err
    assert f"{table}: 5 rows of file, error, class1, probability1, ..., probability3" in ran.err
    (((bad, second, last),), title) = drawn[0]
    assert title == "run: 5 predictions, 3 of which are shown, spread evenly over all"
    assert bad.lines == ("not read", "bad.jpg") and bad.wrong and bad.pixels.std() == 0
    assert (second.lines[-1], last.lines[-1]) == ("1.png", "3.png")
    assert second.pixels.std() > 0 and second.lines[0].lstrip("\u200e")[0].isdigit()
    with Image.open(sheet) as picture:
        assert picture.width > 500
    ran = cli("predict", run, files[1], "--sheet", tmp_path / "sheet.jpg")
    assert ran.code == 2 and "give a name that ends in .png" in ran.err
    ran = cli("predict", run, files[1], "--sheet", tmp_path / "nowhere" / "sheet.png")
    assert ran.code == 1 and "--sheet" in ran.err and "answer" not in ran.err


def test_swapped_arguments_are_recognised(trained, run, cli):
    photo = trained.images / "val" / "red" / "0.jpg"
    for command, given, right in (
        ("predict", (trained.images, run), (run, trained.images)),
        ("predict", (photo, photo, run), (run, photo, photo)),
        ("eval", (trained.images, run), (run, trained.images)),
        ("eval", (run, trained.images, run / "last"), (run, run / "last", trained.images)),
    ):
        ran = cli(command, *given)
        assert ran.code == 2 and f"write `fastimg {command} {' '.join(map(str, right))}`" in ran.err, ran.err
    with pytest.raises(UsageError, match="stands where a run or checkpoint is expected"):
        fastimg.predict(trained.images, run)


def test_swapped_arguments_of_commands_that_write_are_recognised(trained, run, tmp_path, cli):
    new = tmp_path / "new"
    for command, given, right in (
        ("convert", (new, trained.images), (trained.images, new)),
        ("embed", (new, trained.images), (trained.images, new)),
        ("push", ("hub://me/name", run), (run, "hub://me/name")),
    ):
        ran = cli(command, *given)
        assert ran.code == 2 and f"write `fastimg {command} {' '.join(map(str, right))}`" in ran.err, ran.err
    (tmp_path / "old").mkdir()
    (tmp_path / "old/dataset.json").write_text("{}")  # what an earlier conversion left: the source is misspelt
    ran = cli("convert", new, tmp_path / "old", "--append")
    assert ran.code != 0 and "write `fastimg convert" not in ran.err
