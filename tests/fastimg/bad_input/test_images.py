"""Damaged and oversized images: left out and named, or refused on demand."""

import json
import struct
import zlib

import pytest

from fastimg.wording import with_flags

from .readers import READERS

# As in fastimg.loaders.decode: pytest replaces the filters, which would turn the warning into an error.
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def bomb(width=10_000, height=10_000):
    """A PNG whose header claims this many pixels, with almost no data."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 99))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def damage(folder, split):
    """One unreadable, one truncated, one empty image and a decompression bomb in a split; returns their names."""
    whole = (folder / split / "red" / "0.jpg").read_bytes()
    contents = {
        "text.jpg": b"no image",
        "cut.jpg": whole[: len(whole) * 9 // 10],
        "empty.png": b"",
        "bomb.png": bomb(),
        "huge.png": bomb(50_000, 50_000),
    }
    for name, content in contents.items():
        (folder / split / "green" / name).write_bytes(content)
    return contents.keys()


REASONS = {
    "text.jpg": "not an image in a format that Pillow knows",
    "cut.jpg": "truncated",
    "empty.png": "the file is empty",
    "bomb.png": "10000 x 10000 pixels are more than max_pixels=89478485",
    "huge.png": "pixels are more than max_pixels=89478485",
}


def test_damaged_images_are_left_out_of_a_conversion(folder, commands, cli):
    names = damage(folder, "train")
    ran = cli(*commands["convert"](folder))
    assert ran.code == 0 and "5 images: " in ran.out
    assert all(f"{name}: " in ran.out and REASONS[name] in ran.out for name in names)


@pytest.mark.parametrize("split", ["train", "val"])
def test_damaged_images_are_left_out_of_training(split, folder, commands, cli, tmp_path):
    names = damage(folder, split)
    ran = cli(*commands["train"](folder))
    assert ran.code == 0, ran.err
    what = "training" if split == "train" else "validation"
    assert f"5 {what} images could not be decoded and were left out" in ran.out
    assert all(f"{name}: " in ran.out and REASONS[name] in ran.out for name in names)
    records = [json.loads(line) for line in next(tmp_path.glob("runs/*/metrics.jsonl")).read_text().splitlines()]
    steps = [r["samples"] for r in records if r["kind"] == "step"]
    assert sum(steps) == 24 and 0 not in steps
    assert [(r["kind"], r["samples"]) for r in records if r["kind"] in ("train", "val")] == [("train", 24), ("val", 12)]


def test_damaged_images_are_left_out_of_an_evaluation(folder, commands, cli):
    names = damage(folder, "val")
    ran = cli(*commands["eval"](folder), "--json")
    told = json.loads(ran.out)
    assert (ran.code, told["images"], told["unreadable"]) == (0, 12, 5)
    assert all(f"{name}: " in ran.err and REASONS[name] in ran.err for name in names)
    assert "5 could not be decoded" in cli(*commands["eval"](folder)).out


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", REASONS)
def test_damaged_images_are_refused_on_demand(command, name, folder, commands, refuses):
    for other in damage(folder, "val" if command == "eval" else "train") - {name}:
        next(folder.glob(f"*/green/{other}")).unlink()
    texts = [f"green/{name}", with_flags(REASONS[name]), "--on-error skip"]
    refuses(1, texts, *commands[command](folder), "--on-error", "fail")


def test_a_damaged_validation_image_is_refused_on_demand(folder, commands, cli):
    damage(folder, "val")
    ran = cli(*commands["train"](folder), "--on-error", "fail")
    assert ran.code == 1 and "green/" in ran.err and "--on-error skip" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["convert", "train", "eval"])
def test_no_decodable_image(command, folder, commands, refuses):
    for file in folder.rglob("*.*"):
        file.write_bytes(b"none")
    ran = refuses(1, [folder], *commands[command](folder))
    assert "decoded" in ran.err and "not an image" in ran.err


@pytest.mark.parametrize("command", READERS)
def test_max_pixels_is_held(command, folder, commands, refuses):
    """All images have 36 x 48 pixels or more, and each is resized to 33 x 33 or more."""
    ran = refuses(1, [folder], *commands[command](folder), "--max-pixels", "1500")
    assert "pixels are more than --max-pixels 1500" in with_flags(ran.err)
    refuses(2, ["--max-pixels", "1 or more"], *commands[command](folder), "--max-pixels", "0")


def test_max_pixels_applies_to_shards_too(shards, commands, refuses):
    refuses(1, [shards, "more than --max-pixels 1500"], *commands["train"](shards), "--max-pixels", "1500")


@pytest.mark.parametrize(
    ("command", "most", "flags", "words"),
    [
        (
            "train",
            1050,
            (),
            "resized to 33 x 33 pixels or more for a crop of 32; give 1089 or more, or a smaller --",
        ),
        ("train", 1050, ("--resident",), "give 1089 or more, or a smaller --img-size"),
        ("train", 1023, (), "resized to 32 x 32 pixels or more for a crop of 32; give 1024 or more"),
        ("eval", 1050, (), "resized to 33 x 33 pixels or more for a crop of 32; give 1089 or more"),
    ],
)
def test_fewer_pixels_than_the_crop_has_are_refused_at_once(command, most, flags, words, folder, commands, refuses):
    """Not image by image."""
    ran = refuses(2, [f"--max-pixels {most}", words], *commands[command](folder), "--max-pixels", str(most), *flags)
    assert ".jpg" not in ran.err
