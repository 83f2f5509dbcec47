"""Stored fields after a kill, damage or a replaced shard, and what `verify` and `inspect` say of them."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fastimg.config.commands import Inspect, Verify
from fastimg.convert.journal import Journal
from fastimg.convert.verify import verify
from fastimg.errors import UserError
from fastimg.inspect.images import inspect_data
from fastimg.loaders.containers.datasets import Dataset, open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.scratch import Scratch

from ..field_samples import FORMATS, QUIET, jsonl, mask_of, of, png, run
from .field_rows import ASKED, check_rows


@FORMATS
def test_a_conversion_that_was_killed_goes_on_with_the_same_bytes(
    container: Any, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every state in which a kill can leave the folder: before and after each line of the journal."""
    rows = [
        {"path": f"{i}.jpg", "boxes": [[0, 0, 1 + i, 2]] * i, "mask": f"{i}.png", "age": i or None} for i in range(5)
    ]
    files = {f"{i}.jpg": None for i in range(5)} | {f"{i}.png": png(mask_of(i)) for i in range(5)}
    src = write(files | {"r.jsonl": jsonl(rows)}) / "r.jsonl"
    asked = ("boxes:box", "mask:mask", "age:number")
    flags: dict[str, Any] = {"format": container, "shard_size": "8KB"}
    folder = tmp_path / "D"
    states: list[dict[str, bytes]] = []
    add = Journal.add

    def contents() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    def remember(journal: Journal, shard: Any) -> None:
        states.append(contents())
        add(journal, shard)
        states.append(contents())

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "add", remember)
        run(src, folder, *asked, **flags)
    whole = contents()
    assert len(states) > 4 and "train.ffld" in whole
    for state in states[1::3]:
        shutil.rmtree(folder)
        folder.mkdir()
        for name, content in state.items():
            (folder / name).write_bytes(content)
        run(src, folder, *asked, **flags, resume=True)
        assert contents() == whole
    assert sorted(key for key in of(folder)) == [f"{i}.jpg" for i in range(5)]


def test_the_listing_has_everything_that_determines_fields(write: Any, tmp_path: Path) -> None:
    """Another mask of another size is another source, to which --resume does not go on."""
    files = {"images/a.jpg": None, "masks/a.png": png(mask_of(0))}
    run(write(files), tmp_path / "D")
    write({"masks/a.png": png(np.zeros((32, 40), np.uint8))})
    with pytest.raises(UserError, match="was started with something else: the source"):
        run(tmp_path / "source", tmp_path / "D", resume=True)


@FORMATS
def test_derived_positions_are_made_again(container: Any, table: Path, tmp_path: Path) -> None:
    run(table, tmp_path / "D", *ASKED, format=container)
    kept = tmp_path / "D" / "train.ffld"
    content = kept.read_bytes()
    for damaged in (b"", content[:-1], content[:60] + bytes([content[60] ^ 1]) + content[61:]):
        kept.write_bytes(damaged)
        check_rows(tmp_path / "D")
        assert kept.read_bytes() == content
    kept.unlink()
    check_rows(tmp_path / "D")
    assert kept.read_bytes() == content


def test_verify_and_inspect_know_fields(table: Path, tmp_path: Path) -> None:
    run(table, tmp_path / "D", *ASKED)
    said = Console(record=True, width=200, file=io.StringIO())
    found = inspect_data(Inspect(data=tmp_path / "D", no_pictures=True, workers="1"), said, QUIET)
    assert {each["name"]: each["missing"] for each in found.fields}["mask"] == 1  # type: ignore[union-attr]
    assert "boxes: box [4] of float32, at most 2 items" in said.export_text()
    description = json.loads((tmp_path / "D" / "dataset.json").read_text())
    description["splits"]["train"]["missing_fields"]["mask"] = 2
    next(each for each in description["fields"] if each["name"] == "boxes")["longest"] = 1
    (tmp_path / "D" / "dataset.json").write_text(json.dumps(description))
    said = Console(record=True, width=400, file=io.StringIO())
    assert verify(Verify(data=tmp_path / "D", deep=True), said, QUIET) == 1
    text = said.export_text()
    assert "1 sample without the field 'mask' where dataset.json says 2" in text
    assert "boxes: longer than the 1 that dataset.json states" in text


def test_a_dataset_without_fields_says_so(image_folder: Path, tmp_path: Path) -> None:
    run(image_folder, tmp_path / "D")
    described = read_description(tmp_path / "D")
    assert "fields" not in described and "fields" not in described["options"]
    assert not (tmp_path / "D" / "train.ffld").exists()
    opened: list[Dataset] = [open_dataset(tmp_path / "D"), open_dataset(image_folder)]
    for dataset in opened:
        assert dict(dataset.fields) == {}
        with pytest.raises(DataError, match="no field 'boxes'; it stores none"):
            dataset.read_field("boxes", 0)
        dataset.close()


def test_a_shard_that_is_replaced_is_noticed_when_a_field_is_read(table: Path, tmp_path: Path) -> None:
    run(table, tmp_path / "D", *ASKED)
    dataset = open_dataset(tmp_path / "D")
    dataset.read(0, Scratch())
    shard = tmp_path / "D" / "train-00000.tar"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DataError, match=r"train-00000.tar: was altered while it was in use"):
        dataset.read_field("boxes", 0)
    dataset.close()
