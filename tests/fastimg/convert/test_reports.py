"""What a conversion reports: its counts, and every file that it did not use."""

import json
from dataclasses import replace

import pytest

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report, Skipped, print_report
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.decode import decode
from fastimg.loaders.runtime.scratch import Scratch

from .conversions import samples
from .field_samples import mask_of, png, run


def test_report(console):
    report = Report(
        dst="[out]",
        format="tar",
        images=1200,
        added=1200,
        classes=2,
        splits={"train": 1000, "val": 200},
        bytes_in=5_000_000,
        bytes_out=6_000_000,
        skipped=[Skipped(f"a/{i}.jpg", "the file is empty") for i in range(14)],
        tiled=1100,
        reencoded=0,
        kept=100,
        outcomes={"tiled": 1100, "kept: png": 90, "kept: bmp": 10},
        ignored=13,
        ignored_names=[Skipped(f"{i}.jpg", "loose") for i in range(10)],
        ignored_summary="12 loose (.jpg); 1 hidden",
        seconds=2.0,
        images_per_second=600.0,
    )
    print_report(report, console)
    shown = console.file.getvalue()
    for text in (
        "[out]",
        "1,200 of 2 classes (train 1,000, val 200)",
        "600 img/s",
        "5.0 MB in, 6.0 MB out",
        "14 images: 14 the",
        "1,100 images",
        "100 as they were: 90 png, 10 bmp",
    ):
        assert text in shown
    assert "skipped a/9.jpg: the file is empty" in shown and "a/10.jpg" not in shown and "... and 4 more" in shown
    assert "ignored" in shown and "13 files: 12 loose (.jpg); 1 hidden" in shown
    assert "ignored 9.jpg: loose" in shown and "... and 3 more" in shown
    told = json.loads(report.to_json())
    assert told["ignored"] == 13 and told["ignored_names"][9] == {"path": "9.jpg", "reason": "loose"}
    assert told["skipped"][0] == {"path": "a/0.jpg", "reason": "the file is empty"} and told["images"] == 1200


@pytest.fixture
def loose(image_folder, encode, heic, heif_plugin):
    """The class folder, and 15 images next to its classes, two HEICs in one class, a note and a hidden file."""
    for i in range(15):
        (image_folder / f"IMG_{i:02}.jpg").write_bytes(encode(seed=i))
    for i in range(2):
        (image_folder / f"red/{i}.heic").write_bytes(heic(i))
    (image_folder / "red/empty.jpg").touch()
    (image_folder / "README.md").write_text("x")
    (image_folder / "blue/.DS_Store").write_text("x")
    return image_folder


HEIC = "HEIC, readable after `pip install pillow-heif`"


def test_used_skipped_and_ignored_files_add_up(config, loose, console):
    report = convert(config, console)
    files = sum(path.is_file() for path in loose.rglob("*"))
    assert (report.images, len(report.skipped), report.ignored) == (36, 1, 19)
    assert report.images + len(report.skipped) + report.ignored == files
    reasons = {"outside any class folder": 15, HEIC: 2, "without an image's extension": 1}
    reasons["hidden by a leading dot"] = 1
    assert report.ignored_reasons == reasons and list(report.ignored_reasons) == list(reasons)
    assert report.ignored_extensions == {".jpg": 15, ".heic": 2, "": 1, ".md": 1}
    print_report(report, console)
    shown = console.file.getvalue()
    assert "19 files: 15 outside any class folder (.jpg); 2 HEIC, readable after" in shown
    for line in (
        "ignored IMG_00.jpg: outside any class folder",
        f"ignored red/0.heic: {HEIC}",
        "ignored README.md: without an image's extension",
        "ignored blue/.DS_Store: hidden by a leading dot",
        "... and 9 more",
    ):
        assert f"\n{line}\n" in shown
    told = json.loads(report.to_json())
    assert (told["ignored"], told["ignored_reasons"]) == (19, reasons) and len(told["ignored_names"]) == 10
    assert told["ignored_names"][0] == {"path": "IMG_00.jpg", "reason": "outside any class folder"}
    stored = read_description(config.dst)["ignored"]
    assert (stored["files"], stored["counts"][HEIC], stored["names"][HEIC]) == (
        *(19, {".heic": 2}),
        ["red/0.heic", "red/1.heic"],
    )
    again = convert(replace(config, resume=True), console)
    assert (again.ignored, again.ignored_names) == (report.ignored, report.ignored_names)


def test_ignored_files_add_up_over_appending_and_merging(config, loose, encode, tmp_path, console):
    (tmp_path / "more/red").mkdir(parents=True)
    (tmp_path / "more/red/1.jpg").write_bytes(encode(seed=77))
    (tmp_path / "more/0.jpg").write_bytes(encode(seed=78))
    convert(config, console)
    appended = convert(Convert(src=tmp_path / "more", dst=config.dst, append=True, workers="2"), console)
    merged = Convert(src=loose, dst=tmp_path / "more", more=(tmp_path / "merged",), merge=True, workers="2")
    for report in (appended, convert(merged, console)):
        assert (report.images, len(report.skipped), report.ignored) == (37, 1, 20)
        assert report.ignored_reasons["outside any class folder"] == 16


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"JPEGImages/a.jpg": None, "Annotations/a.xml": "<annotation/>"}, "annotations"),
        ({"images/a.jpg": None, "labels/a.txt": "0 0.5 0.5 0.5 0.5\n"}, "labels"),
        ({"images/a.jpg": None, "masks/a.png": png(mask_of(3))}, "masks"),
    ],
)
def test_layouts_of_annotations_say_that_other_files_are_not_counted(files, what, write, tmp_path):
    report = run(write({**files, "other.txt": "x"}), tmp_path / "D")
    assert (report.images, report.skipped, report.ignored) == (1, [], 0)
    assert report.uncounted == [f"source holds images with {what}; other files beside them are not counted"]


def test_appending_to_a_dataset_without_counts_of_ignored_files(config, tmp_path, encode, console):
    convert(config, console)
    description = read_description(config.dst)
    del description["ignored"]
    (config.dst / "dataset.json").write_text(json.dumps(description))
    (tmp_path / "more/red").mkdir(parents=True)
    for name in ("red/1.jpg", "0.jpg"):
        (tmp_path / "more" / name).write_bytes(encode(seed=77))
    assert convert(Convert(src=tmp_path / "more", dst=config.dst, append=True, workers="2"), console).ignored == 1


def test_heic_is_stored_if_its_plugin_is_installed(config, loose, heic, heif_plugin, console):
    heif_plugin(installed=True)
    (loose / "red/really_heic.jpg").write_bytes(heic(9))
    report = convert(config, console)
    assert (report.images, report.ignored) == (39, 17)
    stored = {note["path"]: (ext, content) for note, _, ext, content in samples(config.dst).values()}
    assert stored["red/0.heic"] == ("heif", heic(0)) and stored["red/really_heic.jpg"] == ("heif", heic(9))
    dataset, scratch = open_dataset(config.dst), Scratch()
    assert {decode(dataset.read(i, scratch)).shape[2] for i in range(39)} == {3}
    dataset.close()
    heif_plugin(installed=False)  # a machine without the plugin
    second = convert(replace(config, src=config.dst, dst=config.dst.parent / "second"), console)
    assert len(second.skipped) == 3
    assert {reason for _, reason in second.skipped} == {f"a sample without an image that can be decoded: {HEIC}"}
