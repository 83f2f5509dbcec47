"""`fastimg verify` names every fault, and reports none for an intact dataset."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastimg import cli
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert


@pytest.fixture
def shards(image_folder: Path, tmp_path: Path) -> Path:
    convert(Convert(src=image_folder, dst=tmp_path / "D", val_fraction=0.25, shard_size="40KB"), Console(quiet=True))
    return tmp_path / "D"


@pytest.fixture
def faults(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Run it with --json and check the exit code; returns the faults."""

    def run(*arguments: object) -> list[dict[str, Any]]:
        code = cli.run(["verify", *map(str, arguments), "--json"])
        result = json.loads(capsys.readouterr().out)
        assert code == (1 if result["faults"] else 0)
        return list(result["faults"])

    return run


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(content)


def test_a_whole_dataset_has_no_fault(
    shards: Path, faults: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert faults(shards) == []
    assert faults(shards, "--deep") == []
    assert cli.run(["verify", str(shards), "--deep"]) == 0
    assert "no fault" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["train-00001.tar", "train-00000.idx", "val-00000.tar"])
def test_one_altered_byte_is_found(shards: Path, faults: Callable[..., list[dict[str, Any]]], name: str) -> None:
    flip(shards / name, (shards / name).stat().st_size // 2)
    found = faults(shards)
    assert any(fault["name"].endswith(name) and "altered" in fault["fault"] for fault in found)


def test_a_quick_sum_of_another_content_is_found(shards: Path, faults: Callable[..., list[dict[str, Any]]]) -> None:
    description = json.loads((shards / "dataset.json").read_text())
    first = description["splits"]["train"]["shards"][0]
    first["xxh3"] = "0" * 32
    (shards / "dataset.json").write_text(json.dumps(description))
    (found,) = faults(shards)
    assert found["name"].endswith(first["name"]) and "xxh3 in dataset.json is of another content" in found["fault"]
    for split in description["splits"].values():
        for shard in split["shards"]:
            del shard["xxh3"]
    (shards / "dataset.json").write_text(json.dumps(description))
    assert faults(shards) == []  # as older versions wrote it
    flip(shards / "train-00001.tar", 3000)
    assert [Path(fault["name"]).name for fault in faults(shards)][:1] == ["train-00001.tar"]


def test_missing_and_truncated_files_are_found(shards: Path, faults: Callable[..., list[dict[str, Any]]]) -> None:
    (shards / "train-00000.tar").unlink()
    size = (shards / "val-00000.tar").stat().st_size
    with (shards / "val-00000.tar").open("r+b") as file:
        file.truncate(5000)
    told = faults(shards)
    assert len(told) == 2
    found = {Path(fault["name"]).name: fault["fault"] for fault in told}
    again = "copy it again, or convert again with --overwrite"
    assert found == {  # one each, though no split can be opened
        "train-00000.tar": f"missing; {again}",
        "val-00000.tar": f"5000 bytes, not {size}: cut short or altered; {again}",
    }


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ('"version": 1,', '"version": 1', "not a dataset description"),
        ('"class_counts": [\n    9,', '"class_counts": [\n    8,', "[9, 9, 9] images of its classes where"),
    ],
)
def test_an_altered_description_is_found(
    shards: Path, faults: Callable[..., list[dict[str, Any]]], before: str, after: str, fault: str
) -> None:
    text = (shards / "dataset.json").read_text()
    assert before in text.replace("     ", "    ")
    (shards / "dataset.json").write_text(text.replace("     ", "    ").replace(before, after))
    (found,) = faults(shards)
    assert fault in found["fault"]


def test_an_index_that_belongs_to_another_tar_is_found(
    shards: Path, tmp_path: Path, faults: Callable[..., list[dict[str, Any]]]
) -> None:
    (tmp_path / "foreign").mkdir()
    for number, other in (("00000", "00001"), ("00001", "00000")):
        (tmp_path / f"foreign/x-{number}.tar").write_bytes((shards / f"train-{number}.tar").read_bytes())
        (tmp_path / f"foreign/x-{number}.idx").write_bytes((shards / f"train-{other}.idx").read_bytes())
    found = faults(tmp_path / "foreign")
    assert {Path(fault["name"]).name for fault in found} & {"x-00000.idx", "x-00000.tar"}
    assert {Path(fault["name"]).name for fault in found} & {"x-00001.idx", "x-00001.tar"}


def test_headers_of_a_plain_folder_are_read_and_what_was_not_checked_is_said(
    image_folder: Path, faults: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    cut, other = image_folder / "red/000.jpg", image_folder / "red/001.jpg"
    cut.write_bytes(cut.read_bytes()[:200])  # its header is whole
    assert cli.run(["verify", str(image_folder)]) == 0
    said = "no fault (36 headers read; no checksums, which only converted data has; --deep decodes every image)"
    assert capsys.readouterr().out == f"{image_folder}: {said}\n"
    other.write_bytes(b"<html>not found</html>")
    (fault,) = faults(image_folder)
    assert fault["name"] == str(other)
    assert [fault["name"] for fault in faults(image_folder, "--deep")] == [str(cut), str(other)]
    assert len(faults(image_folder, "--max-pixels", "10")) == 36


def test_headers_of_shards_without_a_description_are_read(
    shards: Path, faults: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    (shards / "dataset.json").unlink()
    (shards / "convert.json").unlink(missing_ok=True)
    number = len(list(shards.glob("*.tar")))
    assert cli.run(["verify", str(shards), "--deep"]) == 0
    assert f"no fault ({number} shards, 36 images decoded; no checksums" in capsys.readouterr().out
    assert cli.run(["verify", str(shards), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["shards"], told["headers"], told["images"]) == (number, 36, 0)
    assert told["unchecked"] == ["no checksums, which only converted data has", "--deep decodes every image"]


def test_max_pixels_without_anything_that_has_pixels_is_refused(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["verify", str(shards), "--max-pixels", "10"]) == 2
    assert "--max-pixels has no effect on converted data without --deep" in capsys.readouterr().err


def test_a_missing_dataset_is_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", str(tmp_path / "nowhere")]) == 1
    assert "no such file or folder" in " ".join(capsys.readouterr().err.split())


def test_files_that_a_folder_leaves_out_are_named(
    image_folder: Path, faults: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    (image_folder / "loose.jpg").touch()
    assert cli.run(["verify", str(image_folder)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("1 of 37 files is not used: 1 outside any class folder (.jpg)") == 1
