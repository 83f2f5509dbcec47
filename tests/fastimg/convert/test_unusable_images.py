"""Images that cannot be decoded or found, and rows without a label: left out and named, or refused."""

import re
from dataclasses import replace

import pytest

from fastimg.config.commands import Convert
from fastimg.convert.image_preparation import Prepare
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Skipped
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.decode import read_header
from fastimg.loaders.errors import DataError
from fastimg.loaders.opening import open_image

from ...loaders.runtime.pools import ending
from .conversions import samples, stop_after


@pytest.fixture
def damaged(image_folder, encode):
    """Five unusable images: path -> part of the reason."""
    folder = image_folder / "red"
    (folder / "cut.jpg").write_bytes(encode()[:-200])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "text.png").write_text("no image")
    (folder / "huge.png").write_bytes(encode(size=(400, 300), kind="PNG"))
    (folder / "gone.jpg").symlink_to("nowhere")
    return {
        "red/cut.jpg": "truncated",
        "red/empty.jpg": "empty",
        "red/text.png": "not an image",
        "red/huge.png": "400 x 300 pixels are more than max_pixels=10000",
        "red/gone.jpg": "no such file",
    }


def test_undecodable_images_are_left_out_and_named(config, damaged, console):
    report = convert(replace(config, max_pixels=10_000), console)
    assert report.images == 36 and len(report.skipped) == 5
    for path, reason in report.skipped:
        assert damaged[path] in reason
    assert len(samples(config.dst)) == 36 and max(samples(config.dst)) > f"{35:09d}"  # numbers have gaps


@pytest.mark.parametrize(
    "options",
    [{"tile": "auto", "compare": True}, {"recompress": "jpeg:95"}, {"recompress": "lossless"}, {"format": "beton"}],
    ids=str,
)
def test_every_step_keeps_to_max_pixels(options, config, image_folder, encode, console, monkeypatch):
    """None falls back to the default limit, which an image may exceed where --max-pixels allows it."""
    (image_folder / "red" / "a.png").write_bytes(encode(size=(40, 30), kind="PNG"))
    (image_folder / "red" / "b.jpg").write_bytes(encode(size=(40, 30), progressive=True))
    (image_folder / "red" / "c.png").write_bytes(encode(size=(40, 30), kind="PNG"))
    monkeypatch.setattr(read_header, "__defaults__", (1,))
    monkeypatch.setattr(open_image, "__defaults__", (1,))
    report = convert(replace(config, max_pixels=10_000, **options), console)
    assert report.images == 39 and not report.skipped


def test_left_out_images_do_not_move_others(config, image_folder, tmp_path, console):
    convert(config, console)
    before = samples(config.dst)
    gone = image_folder / "blue" / "004.jpg"
    gone.write_bytes(bytes(gone.stat().st_size))
    convert(replace(config, dst=tmp_path / "other"), console)
    after = samples(tmp_path / "other")
    assert after == {stem: sample for stem, sample in before.items() if sample[0]["path"] != "blue/004.jpg"}


def test_an_empty_shard_is_not_written(config, image_folder, console):
    convert(replace(config, no_shuffle=True), console)
    for note, *_ in list(samples(config.dst).values())[:8]:
        file = image_folder / note["path"]
        file.write_bytes(bytes(file.stat().st_size))
    report = convert(replace(config, no_shuffle=True, overwrite=True), console)
    assert report.images == 28 and not (config.dst / "train-00000.tar").exists()
    assert len(open_dataset(config.dst)) == 28


@pytest.mark.parametrize("name", ["cut.jpg", "empty.jpg", "text.png", "huge.png", "gone.jpg"])
def test_undecodable_images_stop_the_run(config, damaged, image_folder, console, name):
    for other in damaged.keys() - {f"red/{name}"}:
        (image_folder / other).unlink()
    file = image_folder / "red" / name
    with pytest.raises(DataError, match=f"^{re.escape(str(file))}: .*{damaged[f'red/{name}']}.*--on-error skip"):
        convert(replace(config, on_error="fail", max_pixels=10_000, dst=config.dst / "deep"), console)
    assert not config.dst.exists()


def test_a_row_without_its_file(image_folder, tmp_path, console):
    src = tmp_path / "set.csv"
    src.write_text("path,label\nimages/red/000.jpg,a\nimages/red/nowhere.jpg,a\n")
    config = Convert(src=src, dst=tmp_path / "out")
    with pytest.raises(DataError, match=r"set\.csv: row 3: images/red/nowhere\.jpg: no such file; .*--on-error skip"):
        convert(replace(config, on_error="fail"), console)
    assert not config.dst.exists()
    report = convert(config, console)
    assert report.images == 1 and report.skipped == [Skipped("images/red/nowhere.jpg", "no such file")]


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_a_row_without_a_label(image_folder, tmp_path, console, container):
    src = tmp_path / "set.csv"
    rows = ["red/000.jpg,a", "red/001.jpg,", "red/001.jpg,b", "red/002.jpg, "]
    src.write_text("path,label\n" + "".join(f"images/{row}\n" for row in rows))
    config = Convert(src=src, dst=tmp_path / "out", format=container)
    with pytest.raises(DataError, match=r"set\.csv: row 3: images/red/001\.jpg: the label is empty; .*--on-error skip"):
        convert(replace(config, on_error="fail"), console)
    assert not config.dst.exists()
    report = convert(config, console)
    assert report.images == 2 and report.classes == 2
    left_out = {f"images/red/{name}.jpg": "the label is empty" for name in ("001", "002")}
    assert dict(report.skipped) == left_out and len(report.skipped) == 2


@pytest.mark.parametrize("val_fraction", [0.0, 0.25])
def test_a_class_without_usable_images(config, image_folder, console, val_fraction):
    for file in ((image_folder / "blue" / "000.jpg"), *(image_folder / "green").iterdir()):
        file.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"no training image of class 'green' can be decoded \(green/.*not an image"):
        convert(replace(config, val_fraction=val_fraction), console)
    assert not config.dst.exists()


def test_a_split_without_usable_images(tmp_path, encode, console):
    for name, content in (("train/a/1.jpg", encode()), ("val/a/1.jpg", b"no image")):
        (tmp_path / "src" / name).parent.mkdir(parents=True)
        (tmp_path / "src" / name).write_bytes(content)
    with pytest.raises(DataError, match="no image of the split val can be decoded"):
        convert(Convert(src=tmp_path / "src", dst=tmp_path / "out"), console)


def test_unusual_errors_of_decoders(config, console, monkeypatch):
    """Pillow's AVIF plugin raises RuntimeError on damaged files."""
    stop_after(monkeypatch, 35, RuntimeError("Failed to decode image"))
    report = convert(config, console)
    assert [reason for _, reason in report.skipped] == ["the decoder failed (RuntimeError: Failed to decode image)"]


def test_an_image_that_changes_during_the_conversion(config, image_folder, console, monkeypatch):
    file = image_folder / "red" / "000.jpg"
    monkeypatch.setattr("fastimg.convert.pipeline._check_missing", lambda *_: file.write_bytes(b"another size"))
    report = convert(config, console)
    assert report.skipped == [Skipped("red/000.jpg", "changed after the source was listed")]


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_the_first_failure_ends_the_conversion(config, image_folder, console, monkeypatch, container):
    """Images that are read ahead are not waited for; all but the first wait until threads are told to end."""
    (image_folder / "blue/000.jpg").write_bytes(b"no image")
    ended, prepare = ending(monkeypatch, "prepare"), Prepare.__call__
    begun = []

    def prepare_later(self, entry):
        begun.append(entry.path)
        if entry.path != "blue/000.jpg":
            ended.wait()
        return prepare(self, entry)

    monkeypatch.setattr(Prepare, "__call__", prepare_later)
    with pytest.raises(DataError, match=r"blue/000\.jpg: not an image"):
        convert(replace(config, workers="1", no_shuffle=True, on_error="fail", format=container), console)
    assert len(begun) <= 2
