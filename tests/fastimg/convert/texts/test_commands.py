"""Flags, `verify`, `inspect` and the command line with datasets of texts."""

import json

import pytest

from fastimg.errors import UsageError

from .manifests import manifest, text_folder, write


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("tile", "off"), ("max_size", 10), ("quality", 90), ("jpeg", "reencode"), ("raw_fraction", 0.5)),
        *(("raw_below", "64KB"), ("originals", "drop"), ("compare", True), ("max_pixels", 100)),
    ],
)
def test_flags_about_images_are_refused(flag, value, tmp_path, make):
    beton = {"format": "beton"} if flag in ("quality", "raw_fraction", "raw_below", "originals") else {}
    with pytest.raises(UsageError, match=rf"--{flag.replace('_', '-')} has no effect on texts"):
        make(manifest(tmp_path, "csv"), **{flag: value}, **beton)


@pytest.mark.parametrize("options", [{"text_column": "text"}, {"no_header": True}])
def test_flags_about_columns_are_refused_without_columns(options, image_folder, tmp_path, make):
    flag = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(UsageError, match=rf"{flag}: .* is a folder and has no columns"):
        make(image_folder, **options)
    if "no_header" in options:
        with pytest.raises(UsageError, match=r"--no-header: the columns of .*set\.jsonl have names"):
            make(manifest(tmp_path, "jsonl"), **options)


def test_verify(tmp_path, make, cli):
    dst, _ = make(manifest(tmp_path, "csv"))
    ran = cli("verify", dst, "--deep")
    assert (ran.code, "no fault (1 shard, 6 texts read)" in ran.out) == (0, True)
    root = text_folder(tmp_path / "texts")
    write(root / "neg/0.txt", b"caf\xe9")
    write(root / "pos/3.txt", b" ")
    ran = cli("verify", root, "--deep", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["faults"] == [
        {"name": str(root / "neg/0.txt"), "fault": "not UTF-8"},
        {"name": str(root / "pos/3.txt"), "fault": "nothing but white space"},
    ]
    ran = cli("verify", dst, "--max-pixels", 5)
    assert (ran.code, "--max-pixels has no effect on texts" in ran.err) == (2, True)


def test_inspect(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = text_folder(tmp_path / "texts", ("train", "test"))
    write(root / "test/neg/0.txt", "neg text 0 of train\n")  # a leak
    write(root / "train/pos/9.txt", "pos text 1 of train\n")  # a copy
    write(root / "train/pos/8.txt", b"\xff")
    write(root / "train/pos/7.txt", "lots of\x1b words " * 50)
    before = sorted(tmp_path.rglob("*"))
    ran = cli("inspect", root, "--json")
    found = json.loads(ran.out)
    assert (found["content"], found["texts"], found["samples"]) == ("text", 19, {"train": 11, "test": 8})
    assert found["splits"]["train"] == {"neg": 4, "pos": 7}
    assert found["words"] == {"min": 5, "median": 5, "mean": 13.1, "p95": 150, "max": 150}
    assert found["characters"]["max"] == 750
    assert (found["duplicates"]["within"], found["duplicates"]["leaked"], found["unreadable"]) == (1, 1, 1)
    assert len(found["shown"]) == 10 and {len(one["text"]) for one in found["shown"]} > {80}
    ran = cli("inspect", root, "--samples", 3)
    assert "neg text" in ran.out and "1 text identical to one in another split" in ran.out
    assert "\x1b" not in ran.out and str(root / "train/pos/8.txt") in ran.out
    assert sorted(tmp_path.rglob("*")) == before  # no pictures
    for flag in (("--img-size", 32), ("--headers-only",), ("--output", "x"), ("--hflip", 0.5)):
        ran = cli("inspect", root, *flag)
        assert (ran.code, f"{flag[0]} has no effect on texts" in ran.err) == (2, True)


def test_the_command_line(tmp_path, cli):
    src = write(tmp_path / "set.csv", "1,it is good\n0,it is bad\n1,so fine\n0,not so fine\n")
    ran = cli("convert", src, tmp_path / "D", "--text-column", 2, "--label-column", 1, "--no-header", "--json")
    assert (ran.code, json.loads(ran.out)["content"]) == (0, "text")
    ran = cli("convert", src, tmp_path / "E")
    assert ran.code == 0 and "texts" in ran.out and "text from column '2'" in ran.out and "tiled" not in ran.out
