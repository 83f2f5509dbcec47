"""Encoding of images: --tile, --max-size, --quality, --jpeg, --raw-fraction, --originals, --compare."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import fastimg.convert.image_preparation
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.crop import Window
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.scratch import Scratch


def run(src: Path, dst: Path, **flags: Any) -> Report:
    return convert(Convert(src=src, dst=dst, workers="2", **flags), Console(quiet=True))


def stored(folder: Path) -> dict[str, bytes]:
    """Images by their original path."""
    dataset, scratch = open_dataset(folder), Scratch()
    found = {}
    for i in range(len(dataset)):
        path = dataset.sample_name(i).rpartition("(")[2][:-1]
        found[path] = bytes(dataset.read(i, scratch))
    dataset.close()
    return found


def picture(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(width).integers(0, 40, (height, width))
    pixels = np.stack([120 + 90 * np.sin(x / 17), 100 + 80 * np.cos(y / 23) + noise, (x + y) % 256], axis=2)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Large and small pictures of several kinds."""
    (tmp_path / "images/a").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(640, 480).save(tmp_path / "images/a/large.jpg", quality=92)
    picture(480, 640).convert("L").save(tmp_path / "images/a/gray.jpg", quality=92)
    picture(640, 480).save(tmp_path / "images/a/turned.jpg", quality=92, exif=exif)
    picture(635, 477).save(tmp_path / "images/a/turned odd.jpg", quality=92, exif=exif)
    picture(640, 480).save(tmp_path / "images/a/large.png")
    picture(640, 480).save(tmp_path / "images/a/full.jpg", quality=92, subsampling=0)
    picture(640, 480).save(tmp_path / "images/a/progressive.jpg", quality=92, progressive=True)
    picture(320, 240).save(tmp_path / "images/a/small.jpg", quality=92)
    picture(320, 240).convert("CMYK").save(tmp_path / "images/a/ink.jpg", quality=92)
    picture(320, 240).convert("RGBA").save(tmp_path / "images/a/small.png")
    return tmp_path / "images"


def test_tiled_by_default(folder: Path, tmp_path: Path) -> None:
    report = run(folder, tmp_path / "D")
    assert report.outcomes == {"tiled": 7, "tiled: made sequential": 1, "tiled: png, in groups of rows": 2}
    assert (report.tiled, report.reencoded, report.kept) == (10, 0, 0)
    for path, data in stored(tmp_path / "D").items():
        np.testing.assert_array_equal(decode(data), decode((folder / path).read_bytes()))
        with Image.open(io.BytesIO(data)) as ours, Image.open(folder / path) as theirs:
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
            assert ours.getexif() == theirs.getexif() and not ours.info.get("progressive")


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_larger_images_shrink(folder: Path, tmp_path: Path, container: Any) -> None:
    report = run(folder, tmp_path / "D", max_size=320, quality=90, format=container)
    assert report.outcomes["re-encoded: larger than 320 pixels"] == 7
    images = stored(tmp_path / "D")
    for path, data in images.items():
        header = read_header(data)
        source = (folder / path).read_bytes()
        before = read_header(source)
        if max(before.size) <= 320:
            assert header.size == before.size
            continue
        assert max(header.size) == 320 and header.format == "jpeg" and header.restarts
        with Image.open(folder / path) as image:
            pixels = Image.fromarray(decode(source))
            small = pixels.resize(header.size, Image.Resampling.BICUBIC, reducing_gap=None)
            assert np.abs(decode(data).astype(int) - np.asarray(small)).mean() < 4
            assert (image.mode == "L") == (Image.open(io.BytesIO(data)).mode == "L")
    assert images["a/small.jpg"] != (folder / "a/small.jpg").read_bytes()  # tiled


def test_every_image_as_a_jpeg(folder: Path, tmp_path: Path) -> None:
    small = run(folder, tmp_path / "small", jpeg="reencode", quality=30)
    large = run(folder, tmp_path / "large", jpeg="reencode", tile="off")
    assert small.reencoded == large.reencoded == small.images and small.bytes_out < large.bytes_out / 2
    for tile, name in ((True, "small"), (False, "large")):
        for path, data in stored(tmp_path / name).items():
            header = read_header(data)
            assert (header.format, header.restarts, header.orientation) == ("jpeg", tile, 1)
            assert header.size == read_header((folder / path).read_bytes()).size
            if name == "large":
                source = decode((folder / path).read_bytes()).astype(int)
                assert np.abs(decode(data) - source).mean() < 8


def test_an_upright_jpeg_in_a_beton(folder: Path, tmp_path: Path) -> None:
    report = run(folder, tmp_path / "D", format="beton", originals="drop")
    assert report.outcomes["tiled: turned upright"] == 1
    assert report.outcomes["re-encoded: turned upright, its edge cuts through blocks"] == 1
    for path, data in stored(tmp_path / "D").items():
        assert read_header(data).orientation == 1
        difference = np.abs(decode(data).astype(int) - decode((folder / path).read_bytes()))
        assert difference.max() <= (4 if path == "a/turned.jpg" else 60 if "odd" in path else 0)


def test_a_share_of_raw_pixels(folder: Path, tmp_path: Path, encode: Any) -> None:
    for i in range(80):
        (folder / f"a/{i}.jpg").write_bytes(encode(seed=i))
    run(folder, tmp_path / "D", format="beton", raw_fraction=0.5, originals="drop")
    run(folder, tmp_path / "E", format="beton", raw_fraction=0.5, originals="drop", no_shuffle=True)
    drawn = []
    for name in ("D", "E"):
        with BetonFile(tmp_path / name / "train.beton") as beton:
            raw = {}
            for i in range(len(beton)):
                sample = beton.sample(i)
                raw[sample["json"]["path"]] = not isinstance(sample["image"], bytes)
            drawn.append(raw)
    assert drawn[0] == drawn[1]
    share = np.mean([drawn[0][f"a/{i}.jpg"] for i in range(80)])
    assert 0.3 < share < 0.7
    for path, data in stored(tmp_path / "D").items():
        if "turned" not in path:
            np.testing.assert_array_equal(decode(data), decode((folder / path).read_bytes()))


@pytest.mark.parametrize("flags", [{}, {"max_size": 40}, {"max_size": 20}, {"recompress": "jpeg:95"}])
def test_small_images_as_raw_pixels(flags: dict[str, Any], folder: Path, tmp_path: Path, encode: Any) -> None:
    """Those of at most that many bytes, and no other; of what --max-size makes smaller, the smaller ones count."""
    for side in (10, 20, 21, 50, 80):
        (folder / f"a/{side}.jpg").write_bytes(encode(size=(side, side), seed=side))
        Image.fromarray(decode(encode(size=(side, side), seed=side))).save(folder / f"a/{side}.png")
    run(folder, tmp_path / "D", format="beton", raw_below="1200", originals="drop", **flags)
    assert read_description(tmp_path / "D")["options"]["raw_below"] == 1200
    raw = {}
    with BetonFile(tmp_path / "D" / "train.beton") as beton:
        for i in range(len(beton)):
            sample = beton.sample(i)
            raw[sample["json"]["path"]] = not isinstance(sample["image"], bytes)
    for side in (10, 20, 21, 50, 80):
        made = min(side, flags.get("max_size", side))
        small = 3 * made * made <= 1200
        assert raw[f"a/{side}.jpg"] == small, side
        assert raw[f"a/{side}.png"] == (small or (made == side and "recompress" not in flags)), side
    for path, data in stored(tmp_path / "D").items():
        if raw[path] and path.startswith("a/") and path[2:4] in ("10", "20"):
            np.testing.assert_array_equal(decode(data), decode((folder / path).read_bytes()))


@pytest.mark.parametrize("flags", [{"raw_fraction": 1.0}, {"raw_below": "1MB"}])
def test_shrunk_raw_pixels_are_not_encoded_between(flags: dict[str, Any], tmp_path: Path, encode: Any) -> None:
    """They are the source's, resized once, and are counted as changed."""
    source = tmp_path / "source"
    for name, size in (("large.jpg", (90, 60)), ("small.jpg", (24, 16))):
        (source / "a").mkdir(parents=True, exist_ok=True)
        (source / "a" / name).write_bytes(encode(size=size))
    report = run(source, tmp_path / "D", format="beton", max_size=30, **flags)
    assert report.outcomes == {
        "re-encoded: larger than 30 pixels, as raw pixels": 1,
        "kept: as raw pixels, chosen": 1,
    }
    found = {path: decode(data) for path, data in stored(tmp_path / "D").items()}
    expected = np.empty((20, 30, 3), np.uint8)
    resample(
        decode((source / "a/large.jpg").read_bytes()), Window((0, 0, 90, 60), (30, 20), (0, 0)), "bicubic", expected
    )
    np.testing.assert_array_equal(found["a/large.jpg"], expected)
    np.testing.assert_array_equal(found["a/small.jpg"], decode((source / "a/small.jpg").read_bytes()))


def test_compare_finds_differences(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fastimg.convert.image_preparation.tile

    def other(data: bytes, *arguments: Any) -> Any:
        tiled = real(data, *arguments)
        if tiled.kept is None and b"JFIF" in data[:20]:
            buffer = io.BytesIO()
            Image.fromarray(255 - decode(data)).save(buffer, "JPEG", restart_marker_blocks=2)
            return type(tiled)(buffer.getvalue())
        return tiled

    monkeypatch.setattr(fastimg.convert.image_preparation, "tile", other)
    report = run(folder, tmp_path / "D", compare=True)
    assert report.outcomes["kept: its tiles would decode to other pixels"] == 7
    for path, data in stored(tmp_path / "D").items():
        assert (data == (folder / path).read_bytes()) is (path != "a/ink.jpg" and not path.endswith(".png"))


def test_the_report_as_json(folder: Path, tmp_path: Path, cli: Any) -> None:
    (folder / "a/bad.jpg").write_bytes(b"bad")
    ran = cli("convert", folder, tmp_path / "D", "--json", "--max-size", "320")
    told = json.loads(ran.out)
    assert told["images"] == told["tiled"] + told["reencoded"] + told["kept"] == 10
    assert (told["format"], told["added"], told["reencoded"]) == ("tar", 10, 7)
    assert told["skipped"] == [{"path": "a/bad.jpg", "reason": "not an image in a format that Pillow knows"}]
    ran = cli("convert", folder, tmp_path / "E", "--max-size", "320")
    assert "7: 7 larger than 320 pixels" in ran.out and "1 image: 1 not an image" in ran.out
