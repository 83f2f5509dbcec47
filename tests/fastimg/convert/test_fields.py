"""Fields from every source into shards and back: values, kinds, what is missing, and what is refused by its sample."""

import io
import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert, Inspect, Verify
from fastimg.convert.journal import Journal
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report
from fastimg.convert.verify import verify
from fastimg.errors import UsageError, UserError
from fastimg.inspect.images import inspect_data
from fastimg.loaders import Letterbox, Loader
from fastimg.loaders.containers.datasets import Dataset, open_dataset
from fastimg.loaders.containers.description import read_description
from fastimg.loaders.decode import decode_mask, read_header
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.scratch import Scratch

QUIET = Console(quiet=True)
FORMATS = pytest.mark.parametrize("container", ["tar", "beton"])
SIZE = (40, 32)  # of images, width and height
ROTATED = 6  # an EXIF orientation by which the stored rows are the picture's columns, from right to left
Rows = list[dict[str, Any]]


def png(pixels: Any, **saved: Any) -> bytes:
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels))
    image.save(buffer, "PNG", **saved)
    return buffer.getvalue()


def mask_of(seed: int, size: tuple[int, int] = SIZE, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, size[::-1], dtype=dtype)


def rotated(jpeg: bytes) -> bytes:
    """The JPEG with an EXIF orientation; its stored pixels stay."""
    with Image.open(io.BytesIO(jpeg)) as image:
        exif = Image.Exif()
        exif[0x0112] = ROTATED
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", exif=exif)
        return buffer.getvalue()


@pytest.fixture
def write(tmp_path: Path, encode: Any) -> Callable[[dict[str, Any]], Path]:
    """`write(files)`: a folder of these files; None is a JPEG, and what is no bytes or text is written as JSON."""

    def make(files: dict[str, Any]) -> Path:
        root = tmp_path / "source"
        for seed, (name, content) in enumerate(files.items()):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                content = encode((10 * seed, 90, 40), SIZE, seed=seed)
            elif not isinstance(content, bytes | str):
                content = json.dumps(content)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return make


def run(src: Path, dst: Path, *fields: str, **flags: Any) -> Report:
    return convert(Convert(src=src, dst=dst, field=fields, workers="1", **flags), QUIET)


def plain(value: Any) -> Any:
    """A value of a field as lists; a mask as its pixels."""
    if isinstance(value, bytes) and value[:4] == b"\x89PNG":
        with Image.open(io.BytesIO(value)) as image:
            return np.asarray(image).tolist()
    return value.tolist() if isinstance(value, np.ndarray) else value


def of(folder: Path, split: str = "train") -> dict[str, dict[str, Any]]:
    """The fields of every sample by its key."""
    dataset = open_dataset(folder, split)
    try:
        return {
            dataset.sample_key(i): {name: plain(dataset.read_field(name, i)) for name in dataset.fields}
            for i in range(len(dataset))
        }
    finally:
        dataset.close()


def jsonl(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


MASKS = [mask_of(0), mask_of(1, dtype=np.uint16)]
ROWS: Rows = [
    {
        "path": "a.jpg",
        "age": 3,
        "height": 1.5,
        "vector": [1, 2.5, -3],
        "boxes": [[1, 2, 11, 12], [0, 0, 40, 32]],
        "names": ["dog", "cat"],
        "points": [[1, 2], None],
        "mask": "a.png",
        "notes": "a.bin",
        "pairs": [[1, 2]],
    },
    {
        "path": "b.jpg",
        "age": None,
        "height": None,
        "vector": [4, 5, 6],
        "boxes": [],
        "names": [],
        "points": [[3.5, 4], [5, 6]],
        "mask": "b.png",
        "notes": None,
        "pairs": [[3, 4], [5, 6], [7, 8]],
    },
    {"path": "c.jpg", "age": -4, "height": 2, "boxes": [[5, 5, 9, 9]], "names": ["cat"], "vector": [0, 0, 0]},
]
ASKED = (
    *("age:number", "height:number", "vector:array", "boxes:box", "names:labels@boxes", "points:keypoint"),
    *("mask:mask", "notes:bytes", "pairs:ragged"),
)
EXPECTED: dict[str, dict[str, Any]] = {
    "a.jpg": {
        "age": 3,
        "height": 1.5,
        "vector": [1, 2.5, -3],
        "boxes": [[1, 2, 11, 12], [0, 0, 40, 32]],
        "names": [1, 0],
        "mask": MASKS[0].tolist(),
        "pairs": [[1, 2]],
    },
    "b.jpg": {
        "age": None,
        "height": None,
        "vector": [4, 5, 6],
        "boxes": [],
        "names": [],
        "points": [[3.5, 4], [5, 6]],
        "mask": MASKS[1].tolist(),
        "pairs": [[3, 4], [5, 6], [7, 8]],
    },
    "c.jpg": {
        "age": -4,
        "height": 2.0,
        "vector": [0, 0, 0],
        "boxes": [[5, 5, 9, 9]],
        "names": [0],
        "points": None,
        "mask": None,
        "pairs": None,
    },
}


@pytest.fixture
def table(write: Any) -> Path:
    folder: Path = write(
        {
            **{f"{name}.jpg": None for name in "abc"},
            "a.png": png(MASKS[0]),
            "b.png": png(MASKS[1]),
            "a.bin": b"\0bytes\xff",
            "rows.jsonl": jsonl(ROWS),
        }
    )
    return folder / "rows.jsonl"


def check_rows(folder: Path) -> None:
    """Everything that ROWS state is in the dataset."""
    dataset = open_dataset(folder)
    try:
        index = {dataset.sample_key(i): i for i in range(len(dataset))}
        for key, fields in EXPECTED.items():
            for name, value in fields.items():
                assert plain(dataset.read_field(name, index[key])) == value, (key, name)
        points = dataset.read_field("points", index["a.jpg"])
        assert isinstance(points, np.ndarray)
        np.testing.assert_array_equal(points, np.array([[1, 2], [np.nan, np.nan]], np.float32))
        assert dataset.read_field("notes", index["a.jpg"]) == b"\0bytes\xff"
        assert [dataset.read_field("notes", index[key]) for key in ("b.jpg", "c.jpg")] == [None, None]
    finally:
        dataset.close()


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


COCO: dict[str, Any] = {
    "images": [
        {"id": 20, "file_name": "b.jpg", "width": 40, "height": 32},
        {"id": 10, "file_name": "a.jpg", "width": 40, "height": 32},
        {"id": 30, "file_name": "c.jpg"},
    ],
    "annotations": [
        {"id": 1, "image_id": 10, "category_id": 9, "bbox": [1, 2, 10, 8], "area": 70.5, "iscrowd": 0},
        {"id": 2, "image_id": 10, "category_id": 4, "bbox": [0.5, 0, 39.5, 32], "area": 900, "iscrowd": 1},
        {"id": 3, "image_id": 20, "category_id": 9, "bbox": [0, 0, 4, 4], "segmentation": [[0, 0, 4, 0, 4, 4]]},
    ],
    "categories": [{"id": 9, "name": "dog"}, {"id": 4, "name": "cat"}],
}


def coco(**changed: Any) -> dict[str, Any]:
    return COCO | changed


def changed(key: str, place: int, **values: Any) -> dict[str, Any]:
    """COCO with other values in one item of a list; None takes a key away."""
    items = [dict(item) for item in COCO[key]]
    items[place] = {name: value for name, value in (items[place] | values).items() if value is not None}
    return coco(**{key: items})


@FORMATS
def test_coco(container: Any, write: Any, tmp_path: Path) -> None:
    src = write({"images/a.jpg": None, "images/b.jpg": None, "images/c.jpg": None, "x.json": COCO}) / "x.json"
    said = Console(record=True, width=300, file=io.StringIO())
    convert(Convert(src=src, dst=tmp_path / "D", format=container, workers="1"), said)
    assert of(tmp_path / "D") == {
        "images/a.jpg": {
            "boxes": [[1, 2, 11, 10], [0.5, 0, 40, 32]],
            "box_labels": [1, 0],
            "iscrowd": [0, 1],
            "area": [70.5, 900],
            "image_id": 10,
        },
        "images/b.jpg": {"boxes": [[0, 0, 4, 4]], "box_labels": [1], "iscrowd": [0], "area": [16], "image_id": 20},
        "images/c.jpg": {"boxes": [], "box_labels": [], "iscrowd": [], "area": [], "image_id": 30},
    }
    dataset = open_dataset(tmp_path / "D")
    assert dataset.fields["box_labels"].classes == ("cat", "dog")
    assert "not stored: segmentation of 1 annotation" in said.export_text()
    dataset.close()


def test_a_folder_laid_out_as_coco_is_has_its_splits(write: Any, tmp_path: Path) -> None:
    files = {f"{split}2017/{name}.jpg": None for split in ("train", "val") for name in "abc"}
    lists = {f"annotations/instances_{split}2017.json": COCO for split in ("train", "val")}
    run(write(files | lists), tmp_path / "D")
    assert {split: len(of(tmp_path / "D", split)) for split in ("train", "val")} == {"train": 3, "val": 3}
    assert of(tmp_path / "D", "val")["val2017/b.jpg"]["boxes"] == [[0, 0, 4, 4]]


def test_a_file_of_cocos_beside_the_images_of_each_split(write: Any, tmp_path: Path) -> None:
    files = {f"{split}/{name}.jpg": None for split in ("train", "valid") for name in "abc"}
    lists = {f"{split}/_annotations.coco.json": COCO for split in ("train", "valid")}
    run(write(files | lists), tmp_path / "D")
    assert {split: len(of(tmp_path / "D", split)) for split in ("train", "val")} == {"train": 3, "val": 3}
    assert of(tmp_path / "D", "val")["valid/b.jpg"]["boxes"] == [[0, 0, 4, 4]]


def test_a_folder_with_one_file_of_cocos(write: Any, tmp_path: Path) -> None:
    files = {f"images/{name}.jpg": None for name in "abc"}
    root = write(files | {"labels.json": COCO})
    run(root, tmp_path / "D")
    assert of(tmp_path / "D")["images/b.jpg"]["boxes"] == [[0, 0, 4, 4]]
    write({"others/d.jpg": None})  # two folders are two classes
    run(root, tmp_path / "E")
    dataset = open_dataset(tmp_path / "E")
    assert dataset.classes == ("images", "others")
    assert not dataset.fields
    dataset.close()


def keypoints(number: int, points: Any) -> dict[str, Any]:
    return changed("annotations", number, keypoints=points)


def test_key_points_of_coco_go_along_their_boxes(write: Any, tmp_path: Path) -> None:
    content = keypoints(0, [3, 4, 2, 5.5, 6, 1, 0, 0, 0])
    src = write({"a.jpg": None, "b.jpg": None, "c.jpg": None, "x.json": content}) / "x.json"
    run(src, tmp_path / "D")
    dataset = open_dataset(tmp_path / "D")
    points, flags = (dataset.read_field(name, 0) for name in ("keypoints", "keypoint_flags"))
    np.testing.assert_array_equal(points, [[[3, 4], [5.5, 6], [np.nan, np.nan]], [[np.nan, np.nan]] * 3])
    np.testing.assert_array_equal(flags, [[2, 1, 0], [0, 0, 0]])
    assert {name: np.shape(dataset.read_field(name, 2)) for name in ("boxes", "keypoints", "keypoint_flags")} == {
        "boxes": (0, 4),
        "keypoints": (0, 3, 2),
        "keypoint_flags": (0, 3),
    }
    dataset.close()
    crop, asked = Letterbox(size=64), ["keypoints", "keypoint_flags"]
    with Loader(tmp_path / "D", crop=crop, batch_size=3, fields=asked, order="sequential") as loader:
        batch = next(iter(loader))
        assert batch.fields["keypoints"].shape == (3, 2, 3, 2)
        assert batch.fields["keypoint_flags"][0].tolist() == [[2, 1, 0], [0, 0, 0]]
        np.testing.assert_allclose(batch.fields["keypoints"][0, 0, 0], [4.8, 6.4 + 6], atol=0.5)  # 6 or 7 rows above


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([1, 2], "annotation 1 has keypoints that are not x, y and a flag for each point"),
        ([1, "2", 2], "annotation 1 has keypoints that are not x, y and a flag for each point"),
        ([1, 2, 3], "annotation 1 has a key point whose flag is not 0, 1 or 2"),
    ],
)
def test_key_points_that_are_none_are_named(points: Any, reason: str, write: Any, tmp_path: Path) -> None:
    src = write({"a.jpg": None, "b.jpg": None, "c.jpg": None, "x.json": keypoints(0, points)}) / "x.json"
    with pytest.raises(DataError, match=reason):
        run(src, tmp_path / "D")


def test_key_points_of_several_numbers_are_not_stored(write: Any, tmp_path: Path) -> None:
    content = keypoints(0, [1, 2, 2])
    content["annotations"][1] = content["annotations"][1] | {"keypoints": [1, 2, 2, 3, 4, 2]}
    src = write({"a.jpg": None, "b.jpg": None, "c.jpg": None, "x.json": content}) / "x.json"
    said = Console(record=True, width=300, file=io.StringIO())
    convert(Convert(src=src, dst=tmp_path / "D", workers="1"), said)
    assert "not stored: key points, because not all boxes have the same number of them" in said.export_text()
    assert "keypoints" not in of(tmp_path / "D")["a.jpg"]


def test_the_folder_of_cocos_images_may_be_given(write: Any, tmp_path: Path) -> None:
    root = write({"elsewhere/a.jpg": None, "elsewhere/b.jpg": None, "elsewhere/c.jpg": None, "x/y.json": COCO})
    with pytest.raises(UsageError, match=r"'b.jpg' is not beside it; name the folder of its images with --images"):
        run(root / "x/y.json", tmp_path / "D")
    run(root / "x/y.json", tmp_path / "D", images=root / "elsewhere")
    assert len(of(tmp_path / "D")) == 3
    with pytest.raises(UsageError, match=r"--images .* has no effect: no source is COCO's annotations"):
        run(tmp_path / "D", tmp_path / "E", images=root)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (changed("images", 0, id=None), "image 0 has no id"),
        (changed("images", 0, id="20"), "image 0 has the id '20', which is not a whole number"),
        (changed("images", 0, id=10), "two images have the id 10"),
        (changed("images", 1, file_name=None), "image 10 has no file_name"),
        (changed("annotations", 1, id=1), "two annotations have the id 1"),
        (changed("annotations", 0, image_id=99), "annotation 1 is of the image 99, which is not listed"),
        (changed("annotations", 0, category_id=1), "annotation 1 is of the category 1, which is not listed"),
        (changed("annotations", 0, category_id=None), "annotation 1 has no category_id"),
        (changed("annotations", 0, bbox=[1, 2, 3]), "annotation 1 has no bbox of four numbers"),
        (changed("annotations", 0, iscrowd=2), "annotation 1 has an area that is no number, or an iscrowd other than"),
        (changed("categories", 1, id=9), "two categories have the id 9"),
        (changed("categories", 1, name="dog"), "two categories are called 'dog'"),
        ({"info": {}}, "not COCO's annotations"),
        ("[", "not COCO's annotations"),
    ],
)
def test_what_coco_lacks_or_has_twice_is_named(content: Any, reason: str, write: Any, tmp_path: Path) -> None:
    src = write({"a.jpg": None, "b.jpg": None, "c.jpg": None, "x.json": content}) / "x.json"
    with pytest.raises(DataError, match=reason):
        run(src, tmp_path / "D")


YOLO = {
    "images/train/a.jpg": None,
    "images/train/b.jpg": None,
    "images/val/c.jpg": None,
    "labels/train/a.txt": "1 0.5 0.5 0.5 0.25\n\n0 0.25 0.25 0.5 0.5\n",
    "labels/val/c.txt": "0 0.1 0.25 0.9 0.25 0.9 0.75\n",
}
DESCRIBED = "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: no\n  1: dog\n"


def test_yolo(write: Any, tmp_path: Path) -> None:
    run(write({**YOLO, "data.yaml": DESCRIBED}), tmp_path / "D")
    assert of(tmp_path / "D") == {
        "images/train/a.jpg": {"boxes": [[10, 12, 30, 20], [0, 0, 20, 16]], "box_labels": [1, 0]},
        "images/train/b.jpg": {"boxes": [], "box_labels": []},  # an image without a label file has no boxes
    }
    (box,) = of(tmp_path / "D", "val")["images/val/c.jpg"]["boxes"]  # around a polygon
    np.testing.assert_allclose(box, [4, 8, 36, 24], rtol=1e-6)
    dataset = open_dataset(tmp_path / "D")
    assert dataset.fields["box_labels"].classes == ("no", "dog")  # not false, as YAML 1.1 has it
    dataset.close()


def test_yolo_without_a_description_and_as_roboflow_writes_it(write: Any, tmp_path: Path) -> None:
    run(write(YOLO), tmp_path / "D")
    assert set(of(tmp_path / "D")) == {"images/train/a.jpg", "images/train/b.jpg"}
    swapped = {name.replace("images/train", "train/images").replace("labels/train", "train/labels"): content
               for name, content in YOLO.items() if "train" in name}  # fmt: skip
    root = tmp_path / "other"
    (tmp_path / "source").rename(tmp_path / "first")
    write({**swapped, "data.yaml": "train: ../train/images\nnames: [cat, dog]\nkpt_shape: [1, 2]\n"}).rename(root)
    (root / "train/labels/a.txt").write_text("0 0.5 0.5 0.5 0.5 0.1 0.1\n")
    run(root, tmp_path / "E")
    assert of(tmp_path / "E")["train/images/a.jpg"]["boxes"] == [[10, 8, 30, 24]]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"labels/train/a.txt": "0 0.5 0.5 0.5\n"}, r"a.txt: line 1: not a class .* and at least four"),
        ({"labels/train/a.txt": "0 0.5 0.5 0.5 0.5\nx 1 1 1 1\n"}, r"a.txt: line 2: not a class and numbers"),
        ({"labels/train/a.txt": "0 0.5 nan 0.5 0.5\n"}, r"line 1: not a class .* finite"),
        ({"labels/train/a.txt": "-1 0.5 0.5 0.5 0.5\n"}, r"line 1: not a class \(0, 1"),
        ({"labels/train/a.txt": "0 0.5 0.5 0.5 0.5 0.9\n"}, r"5 numbers are neither a box nor a polygon"),
        ({"labels/train/a.txt": "2 0.5 0.5 0.5 0.5\n"}, r"names 2 classes, and a box has the class 2"),
        ({"data.yaml": "train: nowhere\nnames: [a, b]\n"}, r"train: no such file or folder: nowhere"),
        ({"data.yaml": "train: images/train\nnames: [a, a]\n"}, r"no list of different names"),
        ({"data.yaml": "train: images/train\nnames: {1: a}\n"}, r"not numbered from 0 on"),
    ],
)
def test_what_yolo_has_wrong_is_named(files: dict[str, str], reason: str, write: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        run(write({**YOLO, "data.yaml": DESCRIBED, **files}), tmp_path / "D")


def voc_xml(*objects: tuple[str, list[Any]], size: tuple[int, int] = SIZE) -> str:
    boxes = "".join(
        f"<object><name>{name}</name><difficult>{i % 2}</difficult><bndbox>"
        + "".join(
            f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
        )
        + "</bndbox></object>"
        for i, (name, box) in enumerate(objects)
    )
    sides = f"<width>{size[0]}</width><height>{size[1]}</height>"
    return f"<annotation><size>{sides}</size>{boxes}</annotation>"


def palette(numbers: Any) -> bytes:
    image = Image.fromarray(np.asarray(numbers, np.uint8), "P")
    image.putpalette([value for i in range(256) for value in (255 - i, i, 7)])
    return png(image)


def test_voc(write: Any, tmp_path: Path) -> None:
    border = np.where(mask_of(3) > 200, 255, mask_of(3) % 3)
    files = {
        "JPEGImages/a.jpg": None,
        "JPEGImages/b.jpg": None,
        "JPEGImages/c.jpg": None,
        "Annotations/a.xml": voc_xml(("dog", [1, 1, 40, 32]), ("cat", [5, 6, 10, 12])),
        "Annotations/b.xml": voc_xml(),
        "SegmentationClass/a.png": palette(border),
        "ImageSets/Main/train.txt": "a\nb  1\n",
        "ImageSets/Main/val.txt": "c\n",
    }
    run(write(files), tmp_path / "D")
    assert of(tmp_path / "D") == {
        "JPEGImages/a.jpg": {
            "boxes": [[0, 0, 40, 32], [4, 5, 10, 12]],
            "box_labels": [1, 0],
            "difficult": [0, 1],
            "mask": border.tolist(),  # a palette is kept as its indices
        },
        "JPEGImages/b.jpg": {"boxes": [], "box_labels": [], "difficult": [], "mask": None},
    }
    assert of(tmp_path / "D", "val")["JPEGImages/c.jpg"]["boxes"] is None  # nobody has annotated it


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        ("<annotation>", "a.xml: not XML that can be read"),
        (voc_xml(("dog", ["x", 1, 2, 3])), r"a.xml: object 0 has no number in bndbox/xmin \('x'\)"),
        (voc_xml(("", [1, 1, 2, 3])), "a.xml: object 0 has no name"),
    ],
)
def test_what_voc_has_wrong_is_named(xml: str, reason: str, write: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        run(write({"JPEGImages/a.jpg": None, "Annotations/a.xml": xml}), tmp_path / "D")


@pytest.mark.parametrize("layout", ["{0}/{1}", "{0}/train/{1}", "train/{0}/{1}"])
def test_folders_of_images_and_masks(layout: str, write: Any, tmp_path: Path) -> None:
    files = {layout.format("images", f"deep/{name}.jpg"): None for name in "ab"}
    masks = {layout.format("masks", f"deep/{name}.png"): png(mask_of(ord(name))) for name in "ax"}
    report = run(write(files | masks), tmp_path / "D")
    found = {Path(key).name: fields["mask"] for key, fields in of(tmp_path / "D").items()}
    assert found == {"a.jpg": mask_of(ord("a")).tolist(), "b.jpg": None}
    assert report.ignored_reasons == {"a mask without an image of its name": 1}


@pytest.mark.parametrize("stated", [True, False])
def test_annotations_of_a_rotated_photograph_become_upright(
    stated: bool, write: Any, encode: Any, tmp_path: Path
) -> None:
    """COCO states the size that its boxes are for; without it they are taken to be for the stored pixels."""
    photo = rotated(encode((120, 90, 60), SIZE))
    sizes = {"width": 40, "height": 32} if stated else {"width": None, "height": None}
    boxes = {"x": changed("images", 1, file_name="a.jpg", **sizes)}
    root = write({"a.jpg": photo, "b.jpg": None, "c.jpg": None, "x.json": boxes["x"]})
    run(root / "x.json", tmp_path / "D")
    # Upright, it is 32 x 40: what was left is above, and what was above is right.
    assert of(tmp_path / "D")["a.jpg"]["boxes"] == [[22, 1, 30, 11], [0, 0.5, 32, 40]]
    upright = changed("images", 1, file_name="a.jpg", width=32, height=40)
    upright["annotations"] = [upright["annotations"][0] | {"bbox": [1, 2, 30, 38]}]
    run(write({"a.jpg": photo, "x.json": upright}) / "x.json", tmp_path / "E")
    assert of(tmp_path / "E")["a.jpg"]["boxes"] == [[1, 2, 31, 40]]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_mask_of_stored_pixels_is_turned_with_its_photograph(
    dtype: Any, write: Any, encode: Any, tmp_path: Path
) -> None:
    numbers = mask_of(5, dtype=dtype)
    turned = np.rot90(numbers, -1)  # orientation 6: a quarter clockwise
    files = {"images/a.jpg": rotated(encode((120, 90, 60), SIZE)), "images/b.jpg": rotated(encode((120, 90, 60), SIZE))}
    masks = {"masks/a.png": png(numbers), "masks/b.png": png(turned.copy())}
    run(write(files | masks), tmp_path / "D")
    assert [fields["mask"] for _, fields in sorted(of(tmp_path / "D").items())] == [turned.tolist()] * 2
    assert verify(Verify(data=tmp_path / "D", deep=True), QUIET, QUIET) == 0


def test_yolos_boxes_are_for_the_upright_image(write: Any, encode: Any, tmp_path: Path) -> None:
    """As Ultralytics reads images."""
    files = {"images/a.jpg": rotated(encode((120, 90, 60), SIZE)), "labels/a.txt": "0 0.5 0.25 1 0.5\n"}
    run(write(files), tmp_path / "D")
    assert of(tmp_path / "D")["images/a.jpg"]["boxes"] == [[0, 0, 32, 20]]


@pytest.mark.parametrize(
    ("mode", "numbers"),
    [
        ("1", [[0, 1], [1, 0]]),
        ("P", [[0, 255], [3, 3]]),
        ("L", [[0, 255], [3, 3]]),
        ("RGB", [[0, 200], [3, 3]]),  # three equal channels
        ("LA", [[0, 200], [3, 3]]),
    ],
)
def test_masks_keep_their_numbers_in_any_mode(mode: str, numbers: Any, write: Any, tmp_path: Path, encode: Any) -> None:
    gray = Image.fromarray(np.asarray(numbers, np.uint8) * (255 if mode == "1" else 1))
    content = palette(numbers) if mode == "P" else png(gray.convert(mode))
    run(write({"images/a.jpg": encode(size=(2, 2)), "masks/a.png": content}), tmp_path / "D")
    assert of(tmp_path / "D")["images/a.jpg"]["mask"] == numbers


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


@FORMATS
def test_max_size_shrinks_boxes_points_and_masks(container: Any, write: Any, tmp_path: Path, encode: Any) -> None:
    """Boxes and points by the same factors as the image, masks as torch's nearest neighbour; a turned image, too."""
    sides = (8, 6)  # of a small image, which stays as it is
    rows = [
        {"path": "a.jpg", "b": [[4, 6, 20, 30], [30, 20, 50, 28]], "p": [[10, 8], [45, 3]], "m": "a.png"},
        {"path": "b.jpg", "b": [[1, 2, 3, 4]], "p": [[1, 2], [3, 4]], "m": "b.png"},
        {"path": "c.jpg", "b": [], "p": [], "m": "c.png"},
    ]
    deep = mask_of(3, dtype=np.uint16)
    files = {"a.jpg": rotated(encode(size=SIZE)), "b.jpg": encode(size=sides), "c.jpg": encode(size=SIZE)}
    masks = {"a.png": png(mask_of(1, SIZE[::-1])), "b.png": png(mask_of(2, sides)), "c.png": png(deep)}
    src = write(files | masks | {"rows.jsonl": jsonl(rows)}) / "rows.jsonl"
    run(src, tmp_path / "whole", "b:box", "p:keypoint", "m:mask", format=container, no_shuffle=True)
    run(src, tmp_path / "D", "b:box", "p:keypoint", "m:mask", format=container, no_shuffle=True, max_size=20)
    whole, dataset, scratch = open_dataset(tmp_path / "whole"), open_dataset(tmp_path / "D"), Scratch()
    for index, expected in enumerate(((16, 20), sides, (20, 16))):
        before = read_header(bytes(whole.read(index, scratch))).size
        assert read_header(bytes(dataset.read(index, scratch))).size == expected
        factors = np.array(expected) / before
        boxes = whole.read_field("b", index) * np.tile(factors, 2)
        np.testing.assert_allclose(dataset.read_field("b", index), boxes.clip(0, np.tile(expected, 2)), rtol=1e-6)
        points = whole.read_field("p", index) * factors
        points[(points > expected).any(-1)] = np.nan
        np.testing.assert_allclose(dataset.read_field("p", index), points, rtol=1e-6)
        mask = decode_mask(whole.read_field("m", index), before)
        values = torch.from_numpy(mask.astype(np.float32))[None, None]
        nearest = torch.nn.functional.interpolate(values, size=expected[::-1], mode="nearest")[0, 0]
        shrunk = decode_mask(dataset.read_field("m", index), expected)
        np.testing.assert_array_equal(shrunk, nearest.numpy())
        assert shrunk.dtype == mask.dtype == (np.uint16 if index == 2 else np.uint8)
    whole.close()
    dataset.close()


def test_flags_without_an_effect_on_fields_are_refused(table: Path, tmp_path: Path, image_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--field: .* is a folder and has no columns"):
        run(image_folder, tmp_path / "D", "boxes:box")
    with pytest.raises(UsageError, match=r"--field goes with images alone"):
        run(table, tmp_path / "D", "boxes:box", text_column="notes")


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
