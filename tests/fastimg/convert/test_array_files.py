"""`convert --image-field`: folders and manifests of arrays, without images beside them."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from fastimg.config.commands import Convert, Verify
from fastimg.convert.annotations.array_files import preview
from fastimg.convert.journal import Journal
from fastimg.convert.pipeline import convert
from fastimg.convert.verify import verify
from fastimg.errors import UsageError
from fastimg.loaders import CenterCrop, Loader, open_dataset
from fastimg.loaders.errors import DataError, ImageError

from .field_samples import FORMATS, QUIET, mask_of, png, told


def bands_of(number: int, dtype: Any = np.uint16) -> Any:
    """Four bands of a size of their own."""
    rng = np.random.default_rng(number)
    return rng.integers(0, 9_000, (4, 20 + number % 3, 26)).astype(dtype)


def write_arrays(folder: Path, count: int = 8) -> Path:
    """A class folder of .npy and TIFF files: a/0.npy, b/1.tif ..."""
    for number in range(count):
        file = folder / "ab"[number % 2] / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        if number % 4 == 1:
            tifffile.imwrite(file.with_suffix(".tif"), bands_of(number), photometric="minisblack")
        else:
            np.save(file, bands_of(number))
    return folder


def run(src: Path, dst: Path, **flags: Any) -> Any:
    return convert(Convert(src=src, dst=dst, **{"image_field": "bands", "workers": "1", **flags}), QUIET)


def stored(folder: Path, split: str = "train") -> dict[str, Any]:
    """The arrays by their files' numbers."""
    with contextlib.closing(open_dataset(folder, split)) as dataset:
        keys = [dataset.sample_key(index) for index in range(len(dataset))]
        return {Path(key).stem: dataset.read_field("bands", index) for index, key in enumerate(keys)}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@FORMATS
def test_a_folder_of_arrays(container: Any, tmp_path: Path, cli: Any) -> None:
    src = write_arrays(tmp_path / "arrays")
    report = run(src, tmp_path / "D", format=container)
    assert report.images == 8 and report.classes == 2 and not report.skipped
    described = json.loads((tmp_path / "D/dataset.json").read_text())
    assert described["options"]["image_field"] == "bands"
    (stated,) = described["fields"]
    assert (stated["geometry"], stated["dtype"], stated["shape"]) == ("bands", "uint16", [4, 0, 0])
    assert "optional" not in stated
    for number, found in stored(tmp_path / "D").items():
        assert np.array_equal(found, bands_of(int(number)))
    assert verify(Verify(data=tmp_path / "D", deep=True), QUIET, QUIET) == 0
    shown = cli("inspect", tmp_path / "D", "--output", tmp_path / "pictures")
    assert shown.code == 0 and "bands [4, H, W] of uint16" in shown.out, shown.err
    crop = CenterCrop(size=16, resize=16)
    with Loader(tmp_path / "D", crop=crop, fields=["bands"], batch_size=8, workers=1) as loader:
        batch = next(iter(loader))
    assert batch.fields["bands"].shape == (8, 4, 16, 16) and batch.fields["bands"].dtype == torch.uint16
    assert sorted(batch.targets.tolist()) == [0] * 4 + [1] * 4 and (batch.weight == 1).all()
    other = "beton" if container == "tar" else "tar"
    convert(Convert(src=tmp_path / "D", dst=tmp_path / "again", format=other, workers="1"), QUIET)
    assert stored(tmp_path / "again").keys() == stored(tmp_path / "D").keys()
    for number, found in stored(tmp_path / "again").items():
        assert np.array_equal(found, bands_of(int(number)))


@FORMATS
def test_converted_again_images_are_still_previews(container: Any, tmp_path: Path, cli: Any) -> None:
    """Also if the first conversion is older than the key, in a dataset of two, and if images are appended."""
    run(write_arrays(tmp_path / "arrays"), tmp_path / "D")
    file = tmp_path / "D/dataset.json"
    described = json.loads(file.read_text())
    assert described.pop("previewed") == "bands"
    file.write_text(json.dumps(described))
    photos = tmp_path / "photos"
    for number in range(6):
        photo = photos / "ab"[number % 2] / f"{number + 20}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        photo.write_bytes(png(mask_of(number, (24, 20))))
    for name, paths in {
        "again": (tmp_path / "D", tmp_path / "again", "--format", container),
        "both": ("--merge", photos, tmp_path / "D", tmp_path / "both", "--format", container),
        "D": ("--append", photos, tmp_path / "D"),
    }.items():
        made = cli("convert", *paths, "--workers", "1")
        assert made.code == 0, made.err
        assert json.loads((tmp_path / name / "dataset.json").read_text())["previewed"] == "bands"
        ran = cli("train", tmp_path / name, "--arch", "test_resnet", "--img-size", "32", "--no-amp", "--dry-run")
        assert ran.code == 0 and "previews of the arrays in the field 'bands'" in " ".join(ran.out.split()), ran.err
    convert(Convert(src=tmp_path / "photos", dst=tmp_path / "plain", workers="1"), QUIET)
    assert "previewed" not in json.loads((tmp_path / "plain/dataset.json").read_text())


def test_training_on_arrays_alone(tmp_path: Path, cli: Any) -> None:
    src = write_arrays(tmp_path / "arrays")
    run(src, tmp_path / "D", val_fraction=0.25)
    flags = ("--image-field", "bands", "--arch", "test_resnet", "--img-size", "32", "--workers", "1", "--no-amp")
    ran = cli("train", tmp_path / "D", *flags, "-b", "3", "--epochs", "1", "-o", tmp_path, "--name", "run")
    assert ran.code == 0 and "4 bands of the field 'bands'; mean" in ran.out, ran.err
    assert "previews" not in ran.out
    predicted = cli("predict", tmp_path / "run", src / "a/0.npy", src / "b/1.tif", "--json")
    assert predicted.code == 0 and len(predicted.out.splitlines()) == 2, predicted.err
    previews = cli("train", tmp_path / "D", *flags[2:], "--dry-run")
    assert previews.code == 0, previews.err
    assert "previews of the arrays in the field 'bands'" in " ".join(previews.out.split())
    assert "add --image-field bands" in " ".join(previews.out.split())


def test_a_manifest_of_arrays_with_fields_beside_them(tmp_path: Path) -> None:
    write_arrays(tmp_path, 3)
    rows = []
    for number, name in enumerate(("a/0.npy", "b/1.tif", "a/2.npy")):
        bands = bands_of(number)
        (tmp_path / f"{number}.png").write_bytes(png(mask_of(number, bands.shape[:0:-1])))
        rows.append({"path": name, "label": "xy"[number % 2], "mask": f"{number}.png", "age": number})
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run(tmp_path / "t.jsonl", tmp_path / "D", field=("mask:mask", "age:number"), on_error="fail")
    assert report.images == 3
    assert all(np.array_equal(found, bands_of(int(number))) for number, found in stored(tmp_path / "D").items())
    with contextlib.closing(open_dataset(tmp_path / "D")) as dataset:
        assert set(dataset.fields) == {"mask", "age", "bands"}
        assert sorted(int(dataset.read_field("age", index)) for index in range(3)) == [0, 1, 2]
    assert verify(Verify(data=tmp_path / "D", deep=True), QUIET, QUIET) == 0


@FORMATS
def test_resumed_and_appended(container: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src = write_arrays(tmp_path / "arrays")
    flags: dict[str, Any] = {"format": container, "shard_size": "12KB"}
    run(src, tmp_path / "whole", **flags)
    add, added = Journal.add, []

    def stop_at_the_second(journal: Journal, shard: Any) -> None:
        added.append(shard)
        if len(added) == 2:
            raise KeyboardInterrupt
        add(journal, shard)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Journal, "add", stop_at_the_second)
        run(src, tmp_path / "D", **flags)
    assert not (tmp_path / "D/dataset.json").exists()
    run(src, tmp_path / "D", **flags, resume=True)
    assert contents(tmp_path / "D") == contents(tmp_path / "whole")
    more = write_arrays(tmp_path / "more", 12)  # the same again, and four others
    assert run(more, tmp_path / "D", append=True).images == 20
    assert verify(Verify(data=tmp_path / "D", deep=True), QUIET, QUIET) == 0


def test_files_that_differ_from_most_are_skipped_by_name(tmp_path: Path) -> None:
    src = write_arrays(tmp_path / "arrays", 6)
    np.save(src / "a/five.npy", np.zeros((5, 20, 26), np.uint16))
    np.save(src / "a/float.npy", np.zeros((4, 20, 26), np.float32))
    np.save(src / "b/flat.npy", np.zeros(7, np.uint16))
    np.savez(src / "b/several.npz", a=np.zeros(3))
    (src / "b/several.npz").rename(src / "b/several.npy")
    (src / "b/cut.npy").write_bytes((src / "a/0.npy").read_bytes()[:300])
    (src / "b/cut.tif").write_bytes(b"II*\0damaged")
    (src / "b/note.md").write_text("not an array")
    report = run(src, tmp_path / "D")
    assert report.images == 6 and report.ignored_reasons == {"neither .npy nor TIFF": 1}
    reasons = {Path(path).name: reason for path, reason in report.skipped}
    assert reasons["five.npy"] == "holds 5 bands of uint16, and most of the files 4 bands of uint16"
    assert reasons["float.npy"] == "holds 4 bands of float32, and most of the files 4 bands of uint16"
    assert reasons["flat.npy"] == "uint16 [7] is no image of bands; give numbers, [C, H, W]"
    assert "an .npz of several arrays" in reasons["several.npy"]
    assert all(re.match("cannot be read", reasons[name]) for name in ("cut.npy", "cut.tif")) and len(reasons) == 6
    with pytest.raises(DataError, match=r"(five|float)\.npy: holds .*; repair or remove it"):
        run(src, tmp_path / "E", on_error="fail")


def test_where_no_file_is_an_array(tmp_path: Path, image_folder: Path) -> None:
    src = tmp_path / "arrays"
    (src / "a").mkdir(parents=True)
    (src / "a/x.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"none of its 1 file holds an array \(the last one: a/x.npy: cannot be read"):
        run(src, tmp_path / "D")
    with pytest.raises(DataError, match=r"the class is empty .*add .npy or TIFF files"):
        run(image_folder, tmp_path / "D")
    np.save(src / "a/x.npy", np.zeros((2, 3, 4), np.uint8))
    with pytest.raises(DataError, match=r"the class is empty .*or store its .npy files as arrays, with --image-field"):
        run(src, tmp_path / "D", image_field=None)


def test_flags_that_do_not_go_together(tmp_path: Path) -> None:
    src = write_arrays(tmp_path / "arrays", 2)
    run(src, tmp_path / "D")
    for flags, source, message in (
        ({}, tmp_path / "D", r"--image-field bands has no effect: .*D is neither a folder of class folders nor a man"),
        ({}, Path("sklearn:digits"), "has no effect: sklearn:digits is neither"),
        ({"image_field": "a.b"}, src, "--image-field a.b: a field's name has"),
        ({"field": ("x:number",)}, src, "--field: .*arrays is a folder and has no columns"),
        ({"text_column": "t"}, src, "--image-field bands and --text-column"),
    ):
        with pytest.raises(UsageError, match=message):
            run(source, tmp_path / "E", **flags)
    (tmp_path / "t.jsonl").write_text(json.dumps({"path": "arrays/a/0.npy", "label": "x", "age": 3}) + "\n")
    with pytest.raises(UsageError, match=r"--image-field age: .* has another field or target of this name"):
        run(tmp_path / "t.jsonl", tmp_path / "E", image_field="age", field=("age:number",))
    with pytest.raises(DataError, match=r"no\.csv: no such file"):
        run(tmp_path / "no.csv", tmp_path / "E")


def test_the_conversion_says_what_the_images_are(tmp_path: Path) -> None:
    said = told(write_arrays(tmp_path / "arrays", 2), tmp_path / "D", image_field="bands")
    assert "its files are arrays, stored as the field 'bands'; the image of each is a preview of it" in said


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_previews(count: int) -> None:
    ramp = np.linspace(-3, 7, 16 * 24, dtype=np.float32).reshape(16, 24)
    bands = np.stack([ramp] * count)
    bands[0, 0, 0] = np.nan
    with Image.open(io.BytesIO(preview(bands))) as image:
        assert image.size == (24, 16) and image.mode == ("RGB" if count >= 3 else "L")
        levels = np.asarray(image.convert("L"), np.float64)
    assert np.abs(levels - np.linspace(0, 255, 16 * 24).reshape(16, 24))[1:].max() < 4  # of a JPEG


def test_previews_of_bytes_and_of_nothing() -> None:
    constant = preview(np.full((3, 8, 8), 77, np.uint8))
    with Image.open(io.BytesIO(constant)) as image:
        assert abs(np.asarray(image, np.int64) - 77).max() <= 1
    for empty in (np.full((1, 8, 8), np.nan), np.full((4, 8, 8), 900, np.uint16)):
        with Image.open(io.BytesIO(preview(empty))) as image:
            assert not np.asarray(image).any()
    with pytest.raises(ImageError, match="a side of more than 65535 pixels"):
        preview(np.zeros((1, 1, 70_000), np.uint8))
