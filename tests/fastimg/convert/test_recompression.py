"""`convert --recompress`: images that are no JPEGs, as JPEGs or without loss, and what the report says about it."""

import io
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin
from rich.console import Console

import fastimg.convert.image_preparation
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.recompression.facts import psnr
from fastimg.convert.report import Report
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.scratch import Scratch

from .conversions import contents

QUIET = Console(quiet=True)
DEEP = {"deep.png", "deep rgb.png", "deep.tif", "deep.ppm"}
FRAMES = {"frames.gif", "frames.webp", "pages.tif"}
ALPHA = {"alpha.png", "key.png"}
JPEGS = {"photo.jpg"}
DAMAGED = "damaged.png"


def pixels(seed: int = 0, width: int = 192, height: int = 160) -> Any:
    """A picture of many colours [H, W, 3]."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).integers(0, 30, (height, width))
    planes = (120 + 90 * np.sin(x / 17), 100 + 80 * np.cos(y / 23) + noise, (x + y) % 256)
    return np.stack(planes, axis=2).clip(0, 255).astype(np.uint8)


def deep_png() -> bytes:
    """A PNG of three channels of 16 bits, which Pillow shows with 8."""
    values = np.random.default_rng(1).integers(0, 1 << 16, (8, 8, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    head = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    packed = (struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of many kinds, all in the class `a`."""
    top = tmp_path_factory.mktemp("kinds") / "images"
    a = top / "a"
    a.mkdir(parents=True)
    photo = Image.fromarray(pixels())
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "drawn")
    photo.save(a / "photo.jpg", quality=92)
    photo.save(a / "photo.png")
    photo.save(a / "turned.png", exif=exif, icc_profile=profile, pnginfo=text)
    Image.fromarray(pixels(2)[:40, :40]).save(a / "small.png")
    photo.quantize(64).save(a / "palette.png")
    photo.quantize(64).convert("RGB").save(a / "few.png")
    photo.convert("L").save(a / "gray.png")
    photo.convert("L").convert("RGB").save(a / "gray rgb.tif")
    photo.convert("1").save(a / "two.png")
    photo.save(a / "plain.bmp")
    photo.save(a / "lossy.webp", quality=80)
    photo.save(a / "plain.ppm")
    photo.convert("CMYK").save(a / "ink.tif")
    alpha = photo.convert("RGBA")
    alpha.putalpha(Image.fromarray(pixels()[:, :, 0]))
    alpha.save(a / "alpha.png")
    photo.save(a / "key.png", transparency=tuple(pixels()[0, 0].tolist()))
    Image.fromarray(pixels()[:, :, 0].astype(np.uint16) * 257).save(a / "deep.png")
    Image.fromarray(pixels()[:, :, 0].astype(np.uint16) * 257).save(a / "deep.tif")
    (a / "deep rgb.png").write_bytes(deep_png())
    (a / "deep.ppm").write_bytes(b"P6 8 8 65535\n" + np.arange(192, dtype=">u2").tobytes())
    others = [Image.fromarray(255 - pixels())]
    photo.save(a / "frames.gif", save_all=True, append_images=others)
    photo.save(a / "frames.webp", save_all=True, append_images=others, lossless=True)
    photo.save(a / "pages.tif", save_all=True, append_images=others)
    (a / DAMAGED).write_bytes((a / "photo.png").read_bytes()[:5000])
    return top


def run(src: Path, dst: Path, console: Console = QUIET, **flags: Any) -> Report:
    return convert(Convert(src=src, dst=dst, **{"workers": "2", "recompress": "jpeg:90", **flags}), console)


def stored(folder: Path) -> dict[str, bytes]:
    """Images by the names of their files."""
    dataset, scratch = open_dataset(folder), Scratch()
    found = {}
    for i in range(len(dataset)):
        name = dataset.sample_name(i).rpartition("/")[2].rstrip(")")
        found[name] = bytes(dataset.read(i, scratch))
    dataset.close()
    return found


def source(folder: Path, name: str) -> bytes:
    return (folder / "a" / name).read_bytes()


@pytest.fixture(scope="module", params=["jpeg:90", "lossless"])
def made(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A dataset of tars for either value."""
    dst = tmp_path_factory.mktemp("made") / "D"
    return dst, run(folder, dst, recompress=request.param)


def test_the_report_counts_every_image(made: tuple[Path, Report], folder: Path) -> None:
    _, report = made
    assert [skipped.path for skipped in report.skipped] == [f"a/{DAMAGED}"]
    assert report.images == len(list((folder / "a").iterdir())) - 1 == sum(report.outcomes.values())
    assert report.images == report.tiled + report.recompressed + report.kept and report.tiled == len(JPEGS)
    kept = {"png": 2, "ppm": 1, "tiff": 1}
    assert (
        kept.items()
        <= {
            outcome[6:].partition(",")[0]: count
            for outcome, count in report.outcomes.items()
            if "than 8 bits" in outcome
        }.items()
    )
    assert report.recompression is not None
    assert report.recompressed == sum(facts["images"] for facts in report.recompression["formats"].values())
    flat = json.loads(report.to_json())
    assert flat["recompressed"] == report.recompressed and flat["recompression"] == report.recompression


def test_the_numbers_are_those_of_the_files(made: tuple[Path, Report], folder: Path) -> None:
    dst, report = made
    images = stored(dst)
    changed = {name for name, data in images.items() if data != source(folder, name)} - JPEGS
    assert report.recompression is not None and json.loads((dst / "dataset.json").read_text())["recompressed"] == (
        report.recompression
    )
    for kind, facts in report.recompression["formats"].items():
        names = [name for name in sorted(changed) if read_header(source(folder, name)).format == kind]
        before = sum(len(source(folder, name)) for name in names)
        assert (facts["images"], facts["bytes_before"]) == (len(names), before)
        assert facts["bytes_after"] == sum(len(images[name]) for name in names)
        errors = {
            name: float(np.mean((decode(source(folder, name)).astype(float) - decode(images[name])) ** 2))
            for name in names
        }
        ratios = {name: 10 * math.log10(255**2 / error) for name, error in errors.items() if error}
        assert facts["equal"] == len(names) - len(ratios)
        if ratios:
            assert facts["psnr_mean"] == pytest.approx(np.mean(list(ratios.values())))
            assert facts["psnr_worst"] == pytest.approx(min(ratios.values()))
            assert ratios[facts["worst"].removeprefix("a/")] == pytest.approx(min(ratios.values()))
        else:
            assert (facts["psnr_mean"], facts["psnr_worst"], facts["worst"]) == (None, None, "")


def test_pixels(made: tuple[Path, Report], folder: Path) -> None:
    dst, report = made
    images = stored(dst)
    assert report.recompression is not None
    for name, data in images.items():
        before = source(folder, name)
        again, header = decode(data), read_header(data)
        if report.recompression["to"] == "lossless" or name in DEEP | JPEGS:
            np.testing.assert_array_equal(again, decode(before))
            continue
        assert (header.format, header.restarts, header.orientation) == ("jpeg", True, 1)
        ratio = psnr(decode(before), again)
        assert ratio is not None and ratio > (22 if name == "two.png" else 30)
        with Image.open(io.BytesIO(data)) as image:
            gray = name in ("gray.png", "gray rgb.tif", "two.png")
            assert image.mode == ("L" if gray else "RGB")
            assert gray or [part[1:3] for part in image.layer] == [(1, 1)] * 3  # type: ignore[attr-defined]  # 4:4:4


def test_what_is_lost_is_counted(made: tuple[Path, Report], folder: Path) -> None:
    _, report = made
    assert report.recompression is not None
    if report.recompression["to"] == "lossless":
        assert report.recompression["lost"] == {"metadata": 1}  # the comment
        return
    assert report.recompression["lost"] == {
        "alpha": len(ALPHA),
        "later frames": len(FRAMES),
        "CMYK colours": 1,
        "colour profile": 1,
        "metadata": 1,
        "EXIF orientation (turned upright)": 1,
    }


def test_without_loss_takes_fewer_bytes_or_none_are_touched(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "D", recompress="lossless")
    images = stored(tmp_path / "D")
    kinds = {name: read_header(data).format for name, data in images.items()}
    others = ("few.png", "gray rgb.tif", "turned.png", "alpha.png", "key.png", "plain.bmp", "plain.ppm")
    assert {kinds[name] for name in others} == {"png"}
    modes = {}
    for name, data in images.items():
        same = data == source(folder, name)
        assert same or name in JPEGS or len(data) < len(source(folder, name))
        assert same or name not in DEEP | FRAMES | {"ink.tif", "lossy.webp"}
        with Image.open(io.BytesIO(data)) as ours, Image.open(folder / "a" / name) as theirs:
            modes[name] = ours.mode
            if name not in DEEP:
                np.testing.assert_array_equal(np.asarray(ours.convert("RGBA")), np.asarray(theirs.convert("RGBA")))
            if name == "turned.png":
                assert ours.getexif()[0x0112] == 6 and ours.info["icc_profile"] == theirs.info["icc_profile"]
    assert (modes["few.png"], modes["gray rgb.tif"], modes["alpha.png"]) == ("P", "L", "RGBA")


def test_without_loss_large_images_become_pngs_in_groups_of_rows(tmp_path: Path) -> None:
    a = tmp_path / "images" / "a"
    a.mkdir(parents=True)
    noise = np.random.default_rng(4).integers(0, 40, (400, 300, 3))  # without it, groups would cost too much
    photo = Image.fromarray(np.minimum(pixels(width=300, height=400) + noise, 255).astype(np.uint8))
    photo.save(a / "large.bmp")
    photo.save(a / "badly packed.png", compress_level=0)
    photo.save(a / "packed.png", optimize=True)
    photo.save(a / "packed.webp", lossless=True)
    report = run(a.parent, tmp_path / "D", recompress="lossless")
    images = stored(tmp_path / "D")
    assert {name for name, data in images.items() if b"fgRP" not in data} == {"packed.webp"} and len(images) == 4
    assert report.outcomes == {
        "recompressed: bmp": 1,
        "recompressed: png": 1,
        "tiled: png, in groups of rows": 1,
        "kept: webp, not smaller without loss": 1,
    }
    for name, data in images.items():
        np.testing.assert_array_equal(decode(data), decode(source(a.parent, name)))
    run(a.parent, tmp_path / "E", recompress="lossless", tile="off")
    assert not any(b"fgRP" in data for data in stored(tmp_path / "E").values())
    assert stored(tmp_path / "E")["packed.png"] == source(a.parent, "packed.png")


@pytest.mark.parametrize("value", ["jpeg:90", "lossless"])
def test_in_a_beton(value: str, folder: Path, tmp_path: Path) -> None:
    report = run(folder, tmp_path / "D", recompress=value, format="beton")
    assert report.recompression is not None
    with BetonFile(tmp_path / "D/train.beton") as beton:
        samples = [beton.sample(i) for i in range(len(beton))]
    originals = 0
    for sample in samples:
        name = sample["json"]["path"].removeprefix("a/")
        jpeg = isinstance(sample["image"], bytes)
        assert jpeg == (name in JPEGS or (value != "lossless" and name not in DEEP))
        assert bool(sample["original"]) is not jpeg
        if sample["original"]:
            originals += len(sample["original"])
            np.testing.assert_array_equal(decode(bytes(sample["original"])), decode(source(folder, name)))
            np.testing.assert_array_equal(sample["image"], decode(source(folder, name)))
    if value == "lossless":
        formats = report.recompression["formats"].values()
        saved = sum(facts["bytes_before"] - facts["bytes_after"] for facts in formats)
        others = (source(folder, sample["json"]["path"].removeprefix("a/")) for sample in samples)
        assert saved and originals == sum(map(len, others)) - len(source(folder, "photo.jpg")) - saved
    run(folder, tmp_path / "E", recompress=None, format="beton")
    tar = run(tmp_path / "E", tmp_path / "F", recompress=value)  # `original` is what is recompressed
    assert tar.recompression == {**report.recompression, "formats": tar.recompression["formats"]}  # type: ignore[index]
    assert {kind: facts["images"] for kind, facts in tar.recompression["formats"].items()} == {  # type: ignore[index]
        kind: facts["images"] for kind, facts in report.recompression["formats"].items()
    }


@pytest.mark.parametrize("value", ["jpeg:90", "lossless"])
def test_raw_pixels_of_a_beton(value: str, folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "raw", recompress=None, format="beton", originals="drop")
    before = stored(tmp_path / "raw")
    report = run(tmp_path / "raw", tmp_path / "D", recompress=value)
    assert report.recompression is not None and set(report.recompression["formats"]) == {"raw"}
    images = stored(tmp_path / "D")
    assert len(images) == len(before)
    if value == "lossless":
        for name, data in images.items():
            np.testing.assert_array_equal(decode(data), decode(before[name]))
        assert report.kept + report.recompressed + report.tiled == report.images
    else:
        assert report.recompressed == report.images - len(JPEGS)
        assert {read_header(data).format for data in images.values()} == {"jpeg"}


@pytest.mark.parametrize("value", ["jpeg:90", "lossless"])
@pytest.mark.parametrize("container", ["tar", "beton"])
def test_interrupted_and_resumed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, container: str
) -> None:
    flags: dict[str, Any] = {"recompress": value, "format": container, "shard_size": "60KB"}
    run(folder, tmp_path / "whole", **flags, workers="1")
    left = iter(range(14))

    def decode_or_stop(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return decode(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fastimg.convert.image_preparation, "decode", decode_or_stop)
        run(folder, tmp_path / "D", **flags)
    assert len((tmp_path / "D/convert.json").read_text().splitlines()) > 1  # a shard was finished
    other = {"jpeg:90": "jpeg:91", "lossless": None}[value]
    with pytest.raises(UserError, match=rf"started with something else: --recompress \({value} there, {other} here\)"):
        run(folder, tmp_path / "D", **flags | {"recompress": other}, resume=True)
    run(folder, tmp_path / "D", **flags, resume=True)
    assert contents(tmp_path / "D") == contents(tmp_path / "whole")


def test_append_and_merge(folder: Path, tmp_path: Path, image_folder: Path) -> None:
    first = run(folder, tmp_path / "D")
    with pytest.raises(UsageError, match=r"D was made with --recompress jpeg:90; leave it out, or --merge both"):
        run(image_folder, tmp_path / "D", recompress="lossless", append=True)
    with pytest.raises(UsageError, match=r"no effect with --jpeg reencode"):
        run(image_folder, tmp_path / "D", recompress=None, jpeg="reencode", append=True)
    more = tmp_path / "more/a"
    more.mkdir(parents=True)
    Image.fromarray(pixels(3)).save(more / "new.png")
    Image.fromarray(np.full((40, 40, 3), 128, np.uint8)).save(more / "flat.png")
    console = Console(file=io.StringIO(), width=300)
    report = run(more.parent, tmp_path / "D", console, recompress=None, append=True)
    assert "was made with --recompress jpeg:90; so is what is added" in console.file.getvalue()  # type: ignore[attr-defined]
    assert report.recompression is not None and first.recompression is not None
    facts, before = report.recompression["formats"]["png"], first.recompression["formats"]["png"]
    new = sum((more / name).stat().st_size for name in ("new.png", "flat.png"))
    assert (facts["images"], facts["equal"]) == (before["images"] + 2, before["equal"] + 1)
    assert facts["bytes_before"] == before["bytes_before"] + new
    ratio = psnr(pixels(3), decode(stored(tmp_path / "D")["new.png"]))
    count = before["images"] - before["equal"]
    assert facts["psnr_mean"] == pytest.approx((before["psnr_mean"] * count + ratio) / (count + 1))
    merged = run(tmp_path / "D", more.parent, more=(tmp_path / "M2",), merge=True, recompress=None)
    assert merged.recompression is None and stored(tmp_path / "M2")["photo.png"] == stored(tmp_path / "D")["photo.png"]
    with pytest.raises(UsageError, match=r"M2 was made with no --recompress; leave it out"):
        run(image_folder, tmp_path / "M2", append=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"recompress": "jpeg"}, r"--recompress jpeg: give lossless, or jpeg: with a quality of 1 to 100"),
        ({"recompress": "jpeg:0"}, r"--recompress jpeg:0: give"),
        ({"recompress": "jpeg:101"}, r"--recompress jpeg:101: give"),
        ({"recompress": "png"}, r"--recompress png: give"),
        ({"jpeg": "reencode"}, r"no effect with --jpeg reencode, which encodes every image"),
        ({"format": "beton", "raw_fraction": 1.0}, r"no effect: --raw-fraction 1 stores pixels"),
        ({"recompress": "lossless", "format": "beton", "originals": "drop"}, r"no effect with --originals drop"),
    ],
)
def test_refused(flags: dict[str, Any], message: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(folder, tmp_path / "D", **flags)
    assert not (tmp_path / "D").exists()


def test_damaged_images_follow_on_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{DAMAGED}: .*--on-error skip"):
        run(folder, tmp_path / "D", on_error="fail")
    assert not (tmp_path / "D").exists()


def test_raw_fraction_keeps_what_it_drew(folder: Path, tmp_path: Path) -> None:
    """The pixels of the source, not those of a JPEG made of it."""
    report = run(folder, tmp_path / "D", format="beton", raw_fraction=0.5, originals="drop")
    drawn = 0
    with BetonFile(tmp_path / "D/train.beton") as beton:
        for i in range(len(beton)):
            sample = beton.sample(i)
            if not isinstance(sample["image"], bytes):
                drawn += 1
                expected = decode(source(folder, sample["json"]["path"].removeprefix("a/")))
                np.testing.assert_array_equal(sample["image"], expected)
    assert len(DEEP) < drawn < report.images


def test_inspect_and_verify_tell(made: tuple[Path, Report], cli: Any) -> None:
    dst, report = made
    assert report.recompression is not None
    line = f"to {report.recompression['to']}: 1 bmp, 92.2 kB -> "
    for command in (("inspect", dst, "--no-pictures"), ("verify", dst, "--deep")):
        assert line in " ".join(cli(*command).out.split())
        assert json.loads(cli(*command, "--json").out)["recompressed"] == report.recompression
    described = json.loads((dst / "dataset.json").read_text())
    text = (dst / "dataset.json").read_text()
    try:
        described["recompressed"]["formats"]["bmp"]["images"] = "one"
        (dst / "dataset.json").write_text(json.dumps(described))
        assert "dataset.json: recompressed: Expected `int`, got `str`" in " ".join(cli("verify", dst).out.split())
    finally:
        (dst / "dataset.json").write_text(text)
