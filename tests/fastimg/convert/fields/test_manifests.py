"""Fields from a manifest's columns into shards and back: values, kinds, and what is missing."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastimg.config.commands import Convert, Verify
from fastimg.convert.pipeline import convert
from fastimg.convert.verify import verify
from fastimg.errors import UserError
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.errors import DataError

from ..field_samples import FORMATS, QUIET, jsonl, mask_of, of, png, run
from .field_rows import ASKED, check_rows


@FORMATS
def test_every_kind_comes_back_from_a_manifest(container: Any, table: Path, tmp_path: Path) -> None:
    report = run(table, tmp_path / "D", *ASKED, format=container)
    check_rows(tmp_path / "D")
    dataset = open_dataset(tmp_path / "D")
    fields = dataset.fields
    assert {name: (each.kind, each.dtype, each.shape, each.geometry) for name, each in fields.items()} == {
        "age": ("number", "int64", (), None),
        "height": ("number", "float32", (), None),
        "vector": ("array", "float32", (3,), None),
        "boxes": ("ragged", "float32", (4,), "box"),
        "names": ("ragged", "int64", (), None),
        "points": ("array", "float32", (2, 2), "keypoint"),
        "mask": ("image", "uint16", (), "mask"),
        "notes": ("bytes", "float32", (), None),
        "pairs": ("ragged", "int64", (2,), None),
    }
    assert {name: each.longest for name, each in fields.items() if each.longest} == {
        "boxes": 2,
        "names": 2,
        "notes": 7,
        "pairs": 3,
    }
    assert [name for name, each in fields.items() if not each.optional] == ["vector", "boxes", "names"]
    assert (fields["names"].classes, fields["names"].along) == (("cat", "dog"), "boxes")
    assert {each["name"]: each["missing"] for each in report.fields if each["missing"]} == {
        "age": 1,
        "height": 1,
        "points": 1,
        "mask": 1,
        "notes": 2,
        "pairs": 1,
    }
    dataset.close()


def test_dots_behind_a_symbolic_link_in_the_path_of_a_mask(write: Any, tmp_path: Path) -> None:
    masks = [mask_of(0), mask_of(1)]
    row = {"path": "a.jpg", "mask": "in/link/../m.png"}
    files = {"in/m.png": png(masks[0]), "else/m.png": png(masks[1]), "else/deep/x": ""}
    folder = write({"a.jpg": None, **files, "t.jsonl": jsonl([row])})
    (folder / "in/link").symlink_to(folder / "else/deep")
    run(folder / "t.jsonl", tmp_path / "D", "mask:mask")
    assert of(tmp_path / "D")["a.jpg"]["mask"] == masks[1].tolist()


def test_a_csv_has_lists_as_json_and_arrays_as_npy(write: Any, tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = io.BytesIO()
    np.save(buffer, array)
    rows = 'path,label,age,boxes,grid\na.jpg,x,7,"[[1, 2, 3, 4]]",a.npy\nb.jpg,y,,[],a.npy\n'
    src = write({"a.jpg": None, "b.jpg": None, "a.npy": buffer.getvalue(), "rows.csv": rows}) / "rows.csv"
    run(src, tmp_path / "D", "age:number", "boxes:box-xywh", "grid:array")
    assert of(tmp_path / "D") == {
        "a.jpg": {"age": 7, "boxes": [[1, 2, 4, 6]], "grid": array.tolist()},
        "b.jpg": {"age": None, "boxes": [], "grid": array.tolist()},
    }
    dataset = open_dataset(tmp_path / "D")
    assert dataset.classes == ("x", "y")  # beside fields, labels are what they were
    dataset.close()


@pytest.mark.parametrize(("first", "second"), [("tar", "beton"), ("beton", "tar"), ("tar", "tar"), ("beton", "beton")])
def test_fields_survive_conversion_from_either_container(first: Any, second: Any, table: Path, tmp_path: Path) -> None:
    run(table, tmp_path / "D", *ASKED, format=first)
    run(tmp_path / "D", tmp_path / "E", format=second)
    check_rows(tmp_path / "E")
    described = [read_description(tmp_path / name)["fields"] for name in "DE"]
    for fields in described:
        for each in fields:
            each.pop("field", None)
    assert described[0] == described[1]


@FORMATS
def test_fields_survive_append_and_merge(container: Any, table: Path, write: Any, tmp_path: Path) -> None:
    more = [{"path": "d.jpg", "boxes": [[1, 1, 2, 2]] * 5, "names": ["cat"] * 4 + ["dog"]}]
    src = write({"d.jpg": None, "more.jsonl": jsonl(more)}) / "more.jsonl"
    run(table, tmp_path / "D", *ASKED, format=container)
    run(src, tmp_path / "E", "boxes:box", "names:labels@boxes", format=container)
    convert(Convert(src=tmp_path / "D", dst=tmp_path / "E", more=(tmp_path / "M",), merge=True, workers="1"), QUIET)
    run(src, tmp_path / "D", "boxes:box", "names:labels@boxes", append=True)
    for name in "DM":
        check_rows(tmp_path / name)
        fields = of(tmp_path / name)["d.jpg"]
        assert fields["boxes"] == [[1, 1, 2, 2]] * 5 and fields["names"] == [0, 0, 0, 0, 1]
        assert [fields[other] for other in ("age", "vector", "mask")] == [None] * 3
        described = read_description(tmp_path / name)
        (boxes,) = (each for each in described["fields"] if each["name"] == "boxes")
        assert (boxes["longest"], boxes.get("optional")) == (5, None)
        assert described["splits"]["train"]["missing_fields"]["vector"] == 1
        assert verify(Verify(data=tmp_path / name, deep=True), QUIET, QUIET) == 0


def test_a_field_that_differs_is_refused_when_data_is_added(table: Path, write: Any, tmp_path: Path) -> None:
    run(table, tmp_path / "D", *ASKED)
    rows = [{"path": "d.jpg", "vector": [1.5, 2], "names": ["bird"], "boxes": [[1, 1, 2, 2]], "house": 3}]
    src = write({"d.jpg": None, "more.jsonl": jsonl(rows)}) / "more.jsonl"
    with pytest.raises(DataError, match=r"its field 'vector' has the shape \[2\], and on the other side \[3\]"):
        run(src, tmp_path / "D", "vector:array", append=True)
    with pytest.raises(DataError, match=r"its field 'names' has the classes \['bird'\], and on the other side"):
        run(src, tmp_path / "D", "boxes:box", "names:labels@boxes", append=True)
    run(
        write({"e.jpg": None, "e.jsonl": jsonl([{"path": "e.jpg", "house": 1}])}) / "e.jsonl",
        tmp_path / "E",
        "house:number",
    )
    kept = jsonl([{"path": "e.jpg", "label": "x", "house": 1}])
    run(write({"e.jpg": None, "e.jsonl": kept}) / "e.jsonl", tmp_path / "F")  # a column that is no field
    with pytest.raises(UserError, match=r"has a column 'house' that is no field there"):
        run(src, tmp_path / "F", "house:number", append=True)
    with pytest.raises(UserError, match=r"has no field house \(int\), which the new samples need"):
        run(table, tmp_path / "B", *ASKED, format="beton")
        run(src, tmp_path / "B", "house:number", append=True)


def test_boxes_that_reach_beyond_the_image_or_are_empty_stay_as_they_are(write: Any, tmp_path: Path) -> None:
    """The loader clips them to its crop; an empty one has no part that is visible."""
    boxes = [[-5, -5, 50, 10], [3, 3, 3, 9]]
    run(
        write({"a.jpg": None, "r.jsonl": jsonl([{"path": "a.jpg", "boxes": boxes}])}) / "r.jsonl",
        tmp_path / "D",
        "boxes:box",
    )
    assert of(tmp_path / "D")["a.jpg"]["boxes"] == boxes


@FORMATS
def test_none_and_ten_thousand_boxes(container: Any, write: Any, tmp_path: Path) -> None:
    many = [[i % 39, 1, 40, 2 + i % 30] for i in range(10_000)]
    rows = [{"path": "a.jpg", "boxes": many}, {"path": "b.jpg", "boxes": []}]
    run(
        write({"a.jpg": None, "b.jpg": None, "r.jsonl": jsonl(rows)}) / "r.jsonl",
        tmp_path / "D",
        "boxes:box",
        format=container,
    )
    found = of(tmp_path / "D")
    assert found["a.jpg"]["boxes"] == many and found["b.jpg"]["boxes"] == []
