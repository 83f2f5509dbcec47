"""Derived files with other content and right checksums: not used, and named by verify."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fastimg import cli
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import DataError, open_dataset
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.derived import block_index, dc_images
from fastimg.loaders.containers.derived.digests import KINDS
from fastimg.loaders.containers.derived.kept import HEAD
from fastimg.loaders.containers.derived.records import RECORD
from fastimg.loaders.containers.fields import POSITION
from fastimg.loaders.runtime.scratch import Scratch

COUNT = 8
DIFFERS = "not what is derived of its shards; delete it, and it is made again"


@pytest.fixture(params=["tar", "beton"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, encode: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight photographs, with a class, labels, a number, and boxes."""
    for module in (block_index, dc_images):
        monkeypatch.setattr(module, "MIN_PIXELS", 40 * 40)
    rows = ["path,kind,tags,score,boxes"]
    for i in range(COUNT):
        (tmp_path / f"{i}.jpg").write_bytes(encode((20 * i, 90, 30), (72, 64), seed=i))
        rows.append(f'{i}.jpg,{"ab"[i % 2]},{("x|y", "y", "")[i % 3]},{i / 3},"{[[1, 1, 9, 9]] * (i % 3)}"')
    (tmp_path / "m.csv").write_text("\n".join(rows) + "\n")
    asked = Convert(
        src=tmp_path / "m.csv",
        dst=tmp_path / "D",
        format=request.param,
        target=("kind", "tags:multilabel", "score:number"),
        field=("boxes:box",),
        label_delimiter="|",
        workers="1",
    )
    convert(asked, Console(quiet=True))
    return tmp_path / "D"


def everything(folder: Path) -> list[Any]:
    dataset = open_dataset(folder)
    try:
        ids = np.arange(len(dataset))
        found: list[Any] = [dataset.labels.tolist()]
        found += [[part.tolist() for part in column.rows(ids)] for column in dataset.targets]
        found += [bytes(dataset.read(index, Scratch())) for index in range(COUNT)]
        for index in range(COUNT):
            boxes = dataset.read_field("boxes", index)
            assert isinstance(boxes, np.ndarray)
            found.append(boxes.tolist())
        return found
    finally:
        dataset.close()


def rewrite(file: Path, at: int, new: bytes, held: int | None = None) -> None:
    """Change a file's content `at` a place, and compute its checksum again."""
    data = bytearray(file.read_bytes())
    data[HEAD.size + at : HEAD.size + at + len(new)] = new
    data[HEAD.size - 4 : HEAD.size] = struct.pack("<I", zlib.crc32(data[HEAD.size :][:held]))
    file.write_bytes(data)


def without_digests(folder: Path) -> None:
    """Describe a dataset as an older version did."""
    described = json.loads((folder / "dataset.json").read_text())
    for split in described["splits"].values():
        del split["derived"]
    (folder / "dataset.json").write_text(json.dumps(described))


def changes(folder: Path) -> list[tuple[str, int, bytes]]:
    """(suffix, place, bytes) of changes to what a sample has: other values that are possible."""
    first = COUNT * 9  # of labels: flags and ends come before
    found = [(".fcol", first, struct.pack("<i", 1)), (".fcol", first - 8 * COUNT, struct.pack("<q", 1))]
    found += [(".ffld", COUNT + POSITION.itemsize, struct.pack("<Q", 4096))]
    if (folder / "train.fidx").exists():
        found += [(".fidx", RECORD.fields["label"][1], struct.pack("<i", 1))]  # type: ignore[index]
    return found


def test_what_conversion_states_of_derived_files_is_what_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = json.loads((folder / "dataset.json").read_text())["splits"]["train"]["derived"]
    made = {magic.decode() for suffix, (magic, _) in KINDS.items() if (folder / f"train{suffix}").exists()}
    assert described.keys() == made and len(made) >= 4
    right = everything(folder)
    assert cli.run(["verify", str(folder), "--deep"]) == 0
    capsys.readouterr()
    for suffix, at, new in changes(folder):
        file = folder / f"train{suffix}"
        before = file.read_bytes()
        rewrite(file, at, new)
        assert file.read_bytes() != before
        spoilt = file.read_bytes()
        assert cli.run(["verify", str(folder)]) == 1
        assert f"train{suffix}: not what is derived of its shards; delete it" in " ".join(
            capsys.readouterr().out.split()
        )
        file.write_bytes(spoilt)
        assert everything(folder) == right
        assert file.read_bytes() == before  # made again


def test_of_an_older_description_verify_names_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_digests(folder)
    everything(folder)  # opens as before
    for suffix, at, new in changes(folder):
        file = folder / f"train{suffix}"
        before = file.read_bytes()
        rewrite(file, at, new)
        assert cli.run(["verify", str(folder)]) == 1
        assert f"train{suffix}: not what is derived of its shards; delete it" in " ".join(
            capsys.readouterr().out.split()
        )
        file.write_bytes(before)


def test_a_digest_of_another_content_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = json.loads((folder / "dataset.json").read_text())
    described["splits"]["train"]["derived"]["FIMGCOL1"] = "0" * 64
    (folder / "dataset.json").write_text(json.dumps(described))
    assert cli.run(["verify", str(folder)]) == 1
    assert "the digest that it states of train.fcol is not that" in " ".join(capsys.readouterr().out.split())


def test_values_out_of_bounds_are_never_used(folder: Path) -> None:
    """Without digests, and with right checksums: shards, places, labels, counts and flags."""
    right = everything(folder)
    without_digests(folder)
    big, huge = struct.pack("<I", 2**32 - 1), struct.pack("<Q", 2**45)
    numbers = 2 * COUNT + 8 * COUNT  # about where values follow flags and ends
    harms = [
        (".fcol", 0, b"\2"),
        (".fcol", COUNT, huge),
        (".fcol", numbers, struct.pack("<i", -5)),
        (".fcol", numbers, big),
    ]
    harms += [(".ffld", 0, b"\2"), (".ffld", COUNT, huge), (".ffld", COUNT + 12, big), (".ffld", COUNT + 8, big)]
    if (folder / "train.fidx").exists():
        at = {name: place for name, (_, place) in (RECORD.fields or {}).items()}  # type: ignore[misc]
        harms += [(".fidx", at["shard"], big), (".fidx", at["size"], huge), (".fidx", at["offset"], huge)]
        harms += [(".fidx", at["offset"], bytes(8)), (".fidx", at["label"], struct.pack("<i", -5))]
        harms += [(".fidx", at["label"], struct.pack("<i", 2)), (".fidx", at["width"], big)]
    for suffix, place, new in harms:
        file = folder / f"train{suffix}"
        before = file.read_bytes()
        rewrite(file, place, new)
        assert everything(folder) == right, (suffix, place, new)
        assert file.read_bytes() == before


@pytest.mark.parametrize(("suffix", "width"), [(".ftil", 32), (".fdci", 24)])
def test_entries_of_large_photographs_out_of_bounds_are_never_used(folder: Path, suffix: str, width: int) -> None:
    without_digests(folder)
    file = folder / f"train{suffix}"
    made = file.read_bytes()
    for place, new in ((0, 2**45), (8, 2**31 - 1), (8, 2**63 + 7), (12, 2**31 - 1)):
        nbytes = 8 if new > 2**32 else 4
        rewrite(file, place, new.to_bytes(nbytes, "little"), COUNT * width)
        assert file.read_bytes() != made
        everything(folder)
        assert file.read_bytes() == made


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("options", 1),
        ("targets", {"a": 1}),
        ("fields", [1]),
        ("schema", []),
        ("version", True),
        ("version", -1),
        ("classes", ["a", "a"]),
        ("previewed", 3),
        ("inputs", "text"),
    ],
)
def test_a_description_of_other_types_is_refused(folder: Path, key: str, value: Any) -> None:
    described = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps(described | {key: value}))
    with pytest.raises(DataError, match=r"dataset.json: not a dataset description \(.*\); convert again"):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("missing", {"score": -1}), ("missing", 3), ("class_counts", [9] * 9), ("derived", {"FIMGIDX2": "x"})],
)
def test_counts_that_cannot_be_are_refused(folder: Path, key: str, value: Any) -> None:
    described = json.loads((folder / "dataset.json").read_text())
    described["splits"]["train"][key] = value
    (folder / "dataset.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"dataset.json: not a dataset description \(.*\); convert again"):
        open_dataset(folder)


def test_boxes_are_stored_where_the_index_says(folder: Path) -> None:
    """The positions that a test above changes are those of boxes."""
    if (folder / "train.beton").exists():
        with BetonFile(folder / "train.beton") as reader:
            offsets = reader.extents("boxes")[0]
        kept = np.frombuffer((folder / "train.ffld").read_bytes()[HEAD.size + COUNT :], POSITION)
        assert kept["offset"].tolist() == offsets.tolist()
