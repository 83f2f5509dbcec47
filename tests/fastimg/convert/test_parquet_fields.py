"""Columns of parquet files beside image bytes become fields: files as bytes, numbers, lists and names."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg.config.commands import Verify
from fastimg.convert.report import Skipped
from fastimg.convert.verify import verify
from fastimg.errors import UsageError
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.errors import DataError

from .field_samples import FORMATS, QUIET, SIZE, mask_of, of, palette, png, run

ASKED = ("mask:mask", "depth:image", "raw:bytes", "age:number", "boxes:box-xywh", "kinds:labels@boxes", "tags:labels")
MASKS = [mask_of(0), mask_of(1), None]


@pytest.fixture
def table(tmp_path: Path, encode: Any) -> Path:
    """Three images: one with all fields, one with a mask by its path and no boxes, one that lacks the files."""
    (tmp_path / "b.png").write_bytes(png(MASKS[1]))
    columns: dict[str, Any] = {
        "image": [{"bytes": encode((90 * k, 9, 9), SIZE), "path": f"{name}.jpg"} for k, name in enumerate("abc")],
        "mask": [{"bytes": palette(MASKS[0]), "path": "x.png"}, {"bytes": None, "path": "b.png"}, None],
        "depth": [png(MASKS[0]), png(MASKS[1]), None],
        "raw": [b"\0\1", b"\2", b""],
        "age": [3, None, -1],
        "boxes": [[[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 9.0, 9.5]], [], [[1.0, 1.0, 1.0, 1.0]]],
        "kinds": [[1, 0], [], [1]],
        "tags": [["new", "old"], ["old"], []],
        "note": ["kept", "too", "here"],
    }
    names = {"_type": "ClassLabel", "names": ["cat", "dog"]}
    features = {"image": {"_type": "Image"}, "kinds": {"_type": "List", "feature": names}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


@FORMATS
def test_every_kind_comes_back(container: Any, table: Path, tmp_path: Path) -> None:
    report = run(table, tmp_path / "D", *ASKED, format=container, on_error="fail")
    found = of(tmp_path / "D")
    assert {key: each["mask"] for key, each in found.items()} == {
        f"{name}.jpg": None if mask is None else mask.tolist() for name, mask in zip("abc", MASKS, strict=True)
    }
    assert found["a.jpg"]["depth"] == MASKS[0].tolist() and found["c.jpg"]["depth"] is None
    assert [each["raw"] for each in found.values()] == [b"\0\1", b"\2", None]
    assert [each["age"] for each in found.values()] == [3, None, -1]
    assert [each["boxes"] for each in found.values()] == [[[1, 2, 4, 6], [0, 0, 9, 9.5]], [], [[1, 1, 2, 2]]]
    assert [each["kinds"] for each in found.values()] == [[1, 0], [], [1]]
    assert [each["tags"] for each in found.values()] == [[0, 1], [1], []]
    with closing(open_dataset(tmp_path / "D")) as dataset:
        assert dataset.fields["kinds"].classes == ("cat", "dog") and dataset.fields["tags"].classes == ("new", "old")
    missing = {each["name"]: each["missing"] for each in report.fields if each["missing"]}
    assert missing == {"mask": 1, "depth": 1, "raw": 1, "age": 1}
    assert verify(Verify(data=tmp_path / "D", deep=True), QUIET, QUIET) == 0


def test_a_folder_of_parquet_files_has_fields(table: Path, tmp_path: Path) -> None:
    (tmp_path / "P").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"P/{split}-00000-of-00001.parquet").write_bytes(table.read_bytes())
    (tmp_path / "P/b.png").write_bytes(png(MASKS[1]))
    run(tmp_path / "P", tmp_path / "D", *ASKED)
    assert of(tmp_path / "D", "test") == of(tmp_path / "D")


@pytest.mark.parametrize(
    ("column", "cells", "asked", "reason"),
    [
        (
            "mask",
            [png(np.zeros((2, 3), np.uint8))],
            "mask:mask",
            "mask: mask: for 3 x 2 pixels, where the image has 40",
        ),
        ("mask", [b"none"], "mask:mask", "mask: mask: not an image that can be decoded"),
        ("boxes", [[[1.0, float("nan"), 2.0, 3.0]]], "boxes:box", "boxes: item 0 has a value that is not a number"),
    ],
)
def test_a_bad_value_names_its_sample(
    column: str, cells: Any, asked: str, reason: str, tmp_path: Path, encode: Any
) -> None:
    pq.write_table(pa.table({"image": [encode((9, 9, 9), SIZE)], column: cells}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=rf"t.parquet: row 1: .*{reason}"):
        run(tmp_path / "t.parquet", tmp_path / "D", asked, on_error="fail")


def test_columns_that_cannot_be_fields_are_refused(table: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'mas' \(--field\).*did you mean mask"):
        run(table, tmp_path / "D", "mas:mask")
    with pytest.raises(UsageError, match="--field image: the column is already its path"):
        run(table, tmp_path / "D", "image:image")
    with pytest.raises(DataError, match=r"t.parquet: row 1: column 'age': '3' is not a path"):
        run(table, tmp_path / "D", "age:mask")


def test_bytes_of_masks_beside_paths_of_images_are_named(tmp_path: Path, encode: Any) -> None:
    """Paths of images make a listing, which keeps paths alone."""
    (tmp_path / "a.jpg").write_bytes(encode((9, 9, 9), SIZE))
    cells = [{"bytes": png(MASKS[0]), "path": "m.png"}], [png(MASKS[0])]
    for cell in cells:
        pq.write_table(pa.table({"path": ["a.jpg"], "label": ["x"], "mask": cell}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=r"row 1: the column 'mask' holds the bytes of a file, .* give their paths"):
            run(tmp_path / "t.parquet", tmp_path / "D", "mask:mask")
    (tmp_path / "m.png").write_bytes(png(MASKS[0]))
    struct = pa.array([{"bytes": None, "path": "m.png"}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"path": ["a.jpg"], "label": ["x"], "mask": struct}), tmp_path / "t.parquet")
    run(tmp_path / "t.parquet", tmp_path / "D", "mask:mask", on_error="fail")
    assert of(tmp_path / "D")["a.jpg"]["mask"] == MASKS[0].tolist()


def test_a_row_without_a_label_is_skipped_with_its_fields(table: Path, tmp_path: Path) -> None:
    rows = pq.read_table(table).append_column("label", pa.array(["x", "", "x"]))
    pq.write_table(rows, table)
    report = run(table, tmp_path / "D", *ASKED)
    assert report.skipped == [Skipped("b.jpg", "the label is empty")]
    assert set(of(tmp_path / "D")) == {"a.jpg", "c.jpg"}
    with pytest.raises(DataError, match=r"t.parquet: row 2: b.jpg: the label is empty"):
        run(table, tmp_path / "E", *ASKED, on_error="fail")
