"""COCO's annotations as fields: boxes, key points, splits, and what is wrong in them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError
from fastimg.loaders import Letterbox, Loader
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.errors import DataError

from ..field_samples import FORMATS, SIZE, of, rotated, run

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


def test_annotations_behind_a_symbolic_link(write: Any, tmp_path: Path) -> None:
    files = {**{f"photos/{name}.jpg": None for name in "abc"}, "lists/deep/x.json": COCO}
    root = write(files)
    (tmp_path / "link").symlink_to(root / "lists/deep")
    for number, folder in enumerate((root / "lists/deep", tmp_path / "link")):
        report = run(folder / "x.json", tmp_path / f"D{number}", images=root / "photos")
        assert (report.images, report.skipped) == (3, [])
        assert sorted(of(tmp_path / f"D{number}")) == [f"../../photos/{name}.jpg" for name in "abc"]


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
        ("[", "not JSON that can be read"),
        ([{"path": "a.jpg", "label": "x"}], "not COCO.s annotations: it has no list .images.; give .* csv or jsonl"),
    ],
)
def test_what_coco_lacks_or_has_twice_is_named(content: Any, reason: str, write: Any, tmp_path: Path) -> None:
    src = write({"a.jpg": None, "b.jpg": None, "c.jpg": None, "x.json": content}) / "x.json"
    with pytest.raises(DataError, match=reason):
        run(src, tmp_path / "D")


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
