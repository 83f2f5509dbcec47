"""Values that cannot be fields: their samples are named and left out, or the conversion is refused."""

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

from ..field_samples import SIZE, Rows, jsonl, mask_of, of, png, run


def deep_colours() -> bytes:
    """A PNG of 40 x 32 gray pixels with three channels of 16 bits, which Pillow reads as 8."""
    head = struct.pack(">2I5B", *SIZE, 16, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes((1 + 6 * 40) * 32))), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


BAD: list[tuple[str, Any, str]] = [
    ("boxes:box", [[1, 2, 3]], r"boxes: items of shape \[3\], not \[4\]"),
    ("boxes:box", [[1, 2, 3, 4], [1, 2, 3]], "boxes: items of several lengths"),
    ("boxes:box", [[1, 2, 3, 4], [1, None, 3, 4]], "boxes: item 1 has a value that is not a number"),
    ("boxes:box", [[1, 2, 3, "x"]], "boxes: something that is not a number"),
    ("boxes:box", [[9, 2, 3, 4]], r"boxes: item 0, \[9.0, 2.0, 3.0, 4.0\] \(xyxy\), has its second corner before"),
    ("boxes:box", [[0, 0, 9, 9], [41, 2, 50, 4]], r"boxes: item 1, .* has no part in the 40 x 32 pixels"),
    ("boxes:box", [[0, 0, 1e400, 9]], "boxes: item 0, .* has a coordinate that is not a number"),
    ("vector:array", [1.5, 2, 3, 4], r"vector: shape \[4\], not \[3\]"),
    ("vector:array", [[1.5], [2, 3]], "vector: something that is not a number, or rows of several lengths"),
    ("names:labels@boxes", ["cat"], "names: 1 item along 0 of boxes"),
    ("mask:mask", "small.png", r"mask: small.png: for 20 x 32 pixels, where the image has 40 x 32"),
    ("mask:mask", "colours.png", "mask: colours.png: a mask of colours"),
    ("mask:mask", "deep.png", "mask: deep.png: 16 bits per channel, of which only 8 could be read"),
    ("mask:mask", "a.jpg", "mask: a.jpg: a JPEG, whose pixels are not exact"),
    ("mask:mask", "cut.png", "mask: cut.png: it cannot be decoded"),
    ("mask:mask", "rows.jsonl", "mask: rows.jsonl: not an image that can be decoded"),
    ("mask:mask", "nowhere.png", "mask: nowhere.png: No such file or directory"),
    ("depth:image", "cut.png", "depth: cut.png: it cannot be decoded"),
    ("notes:bytes", "nowhere.bin", "notes: nowhere.bin: No such file or directory"),
]


def with_a_bad_value(asked: str, cell: Any) -> dict[str, Any]:
    """The files of a manifest whose second row, of a.jpg, has this cell."""
    name = asked.partition(":")[0]
    good = {"boxes": [[1, 2, 3, 4]], "vector": [1, 2, 3.5], "names": ["cat"], "mask": "m.png", "depth": "m.png"}
    first = {"path": "b.jpg", "boxes": [[1, 2, 3, 4]], name: good.get(name, "rows.jsonl")}
    return {
        "a.jpg": None,
        "b.jpg": None,
        "rows.jsonl": jsonl([first, {"path": "a.jpg", name: cell}]),
        "m.png": png(mask_of(0)),
        "small.png": png(mask_of(0)[:, :20]),
        "cut.png": png(mask_of(0))[:200],
        "deep.png": deep_colours(),
        "colours.png": png(np.arange(40 * 32 * 3, dtype=np.uint8).reshape(32, 40, 3)),
    }


@pytest.mark.parametrize(("asked", "cell", "reason"), BAD)
def test_a_bad_value_names_its_sample(asked: str, cell: Any, reason: str, write: Any, tmp_path: Path) -> None:
    asks = {asked} | ({"boxes:box"} if "@" in asked else set())
    report = run(write(with_a_bad_value(asked, cell)) / "rows.jsonl", tmp_path / "D", *sorted(asks))
    ((path, said),) = report.skipped
    assert path == "a.jpg" and re.match(reason, said)
    assert list(of(tmp_path / "D")) == ["b.jpg"]


def test_a_bad_value_ends_the_conversion_if_asked(write: Any, tmp_path: Path) -> None:
    src = write(with_a_bad_value("boxes:box", [[9, 2, 3, 4]])) / "rows.jsonl"
    with pytest.raises(DataError, match=r"rows.jsonl: row 2: a.jpg: boxes: item 0, .*; repair or remove it, or skip"):
        run(src, tmp_path / "D", "boxes:box", on_error="fail")
    assert not (tmp_path / "D").exists()


@pytest.mark.parametrize(
    ("fields", "rows", "error", "reason"),
    [
        (["age"], [{}], UsageError, r"--field age: give NAME:KIND, with a kind of number, array"),
        (["age:nmber"], [{}], UsageError, r"--field age:nmber: .*did you mean number"),
        (["age:number", "age:array"], [{}], UsageError, "--field age: given twice"),
        (["path:bytes"], [{}], UsageError, "--field path:bytes: a field's name has"),
        (["a.b:bytes"], [{}], UsageError, "--field a.b:bytes: a field's name has"),
        (["names:labels@boxes"], [{}], UsageError, "only ragged and labels go along another field"),
        (["agee:number"], [{"age": 1}], DataError, r"no column 'agee' \(--field\); .*did you mean age"),
        (["label:number"], [{"label": 1}], UsageError, "--field label: the column is already its path, label"),
        (["age:number"], [{"age": "old"}], DataError, r"row 1: column 'age': 'old' is not a number"),
        (["age:number"], [{"age": None}], DataError, r"field 'age': every row is empty"),
        (["x:array"], [{"x": 3}], DataError, r"row 1: column 'x': '3' is not a list"),
        (["x:array"], [{"x": "3,4"}], DataError, r"'3,4' is neither a JSON list nor the path of an .npy file"),
        (["x:array"], [{"x": []}], DataError, "field 'x': its arrays have no elements"),
        (["x:ragged"], [{"x": [[], []]}], DataError, "field 'x': its arrays have no elements"),
        (["x:array"], [{"x": "a.npy"}], DataError, r"'a.npy' cannot be read"),
        (["x:labels"], [{"x": ["a", 1]}], DataError, "is not a list of names, or of whole numbers"),
        (["x:labels"], [{"x": ["a"]}, {"x": [1]}], DataError, "row 2: .* has names where other rows have numbers"),
    ],
)
def test_flags_and_cells_that_cannot_be_fields_are_refused(
    fields: list[str], rows: Rows, error: type[Exception], reason: str, write: Any, tmp_path: Path
) -> None:
    rows = [{"path": "a.jpg"} | row for row in rows]
    src = write({"a.jpg": None, "rows.jsonl": jsonl(rows)}) / "rows.jsonl"
    with pytest.raises(error, match=reason):
        run(src, tmp_path / "D", *fields)


def test_flags_without_an_effect_on_fields_are_refused(table: Path, tmp_path: Path, image_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--field: .* is a folder and has no columns"):
        run(image_folder, tmp_path / "D", "boxes:box")
    with pytest.raises(UsageError, match=r"--field goes with images alone"):
        run(table, tmp_path / "D", "boxes:box", text_column="notes")
