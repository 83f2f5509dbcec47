"""Outlines of objects, from COCO and YOLO, become masks of classes."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastimg.config.commands import Verify
from fastimg.convert.annotations.segmentations import Outline, drawn_mask
from fastimg.convert.verify import verify
from fastimg.errors import UsageError
from fastimg.loaders import Letterbox, Loader
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.errors import DataError

from .field_samples import FORMATS, QUIET, SIZE, mask_of, of, png, rotated, run, told

IMAGES = {"a.jpg": None, "b.jpg": None, "c.jpg": None}
# What pycocotools writes for the pixels of RING, which tests/peers compares for others.
RING_AS_TEXT = (
    "T5h0800000000^O22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22NN22N`000000000l4"
)


def boxed(*corners: int) -> Any:
    """A mask of the image that is 1 between (left, top) and (right, bottom)."""
    left, top, right, bottom = corners
    mask = np.zeros(SIZE[::-1], np.uint8)
    mask[top:bottom, left:right] = 1
    return mask


def corners(left: float, top: float, right: float, bottom: float) -> list[float]:
    return [left, top, right, top, right, bottom, left, bottom]


RING = boxed(5, 4, 35, 28) - boxed(10, 10, 30, 20)


def runs(mask: Any) -> list[int]:
    """Run lengths down the columns."""
    column = mask.T.reshape(-1).astype(bool)
    return np.diff([*np.flatnonzero(np.diff(column, prepend=False)), column.size], prepend=0).tolist()


def coco(*segmentations: Any, categories: int = 2, **image: Any) -> dict[str, Any]:
    """COCO's annotations of three images: these segmentations are those of a.jpg, of the categories 9, 4, 9, ..."""
    return {
        "images": [
            {"id": 1, "file_name": "a.jpg", "width": SIZE[0], "height": SIZE[1]} | image,
            {"id": 2, "file_name": "b.jpg"},
            {"id": 3, "file_name": "c.jpg"},
        ],
        "annotations": [
            {"id": 70 + i, "image_id": 1, "category_id": (9, 4)[i % 2], "bbox": [1, 1, 9, 9], "segmentation": shape}
            for i, shape in enumerate(segmentations)
        ],
        "categories": [{"id": number, "name": f"kind {number}"} for number in (4, 9, *range(10, 8 + categories))],
    }


def drawn(write: Any, tmp_path: Path, *segmentations: Any, **image: Any) -> Any:
    """The mask of a.jpg."""
    src = write(IMAGES | {"x.json": coco(*segmentations, **image)}) / "x.json"
    run(src, tmp_path / "D", masks="semantic", on_error="fail")
    return np.asarray(of(tmp_path / "D")["a.jpg"]["mask"])


def test_a_polygon_covers_the_pixels_whose_middle_it_encloses() -> None:
    outlines = [Outline("", 1, [corners(1, 2, 5, 4)]), Outline("", 2, [corners(10.6, 3.4, 12.4, 5.6)])]
    mask = drawn_mask(outlines, SIZE, np.uint8)
    np.testing.assert_array_equal(mask, boxed(1, 2, 5, 4) + 2 * boxed(11, 3, 12, 6))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ([corners(1, 2, 5, 4), corners(20, 6, 30, 9)], boxed(1, 2, 5, 4) + boxed(20, 6, 30, 9)),
        ([corners(1, 2, 5, 4), corners(3, 1, 9, 4)], boxed(1, 2, 5, 4) | boxed(3, 1, 9, 4)),  # both cover some pixels
        ([corners(-50, -3, 4, 7)], boxed(0, 0, 4, 7)),
        ([corners(30, 20, 900, 900)], boxed(30, 20, 40, 32)),
        ([corners(50, 2, 60, 4)], boxed(0, 0, 0, 0)),
        ([[3, 3, 3, 9, 3, 5]], boxed(0, 0, 0, 0)),  # a line
        ([[3, 3, 3, 3, 9, 3, 9, 3, 9, 9, 3, 9]], boxed(3, 3, 9, 9)),  # corners that are doubled
        ([], boxed(0, 0, 0, 0)),
        ({"size": [32, 40], "counts": runs(RING)}, RING),
        ({"size": [32, 40], "counts": RING_AS_TEXT}, RING),
        ({"size": [32, 40], "counts": [0, 32 * 40]}, boxed(0, 0, 40, 32)),
        ({"size": [32, 40], "counts": [32 * 40]}, boxed(0, 0, 0, 0)),
    ],
)
def test_what_a_segmentation_covers(shape: Any, expected: Any) -> None:
    np.testing.assert_array_equal(drawn_mask([Outline("", 1, shape)], SIZE, np.uint8), expected)


def test_points_may_be_shares_of_the_image() -> None:
    mask = drawn_mask([Outline("", 1, [corners(0.25, 0.5, 1.5, 1)])], SIZE, np.uint8, relative=True)
    np.testing.assert_array_equal(mask, boxed(10, 16, 40, 32))


def test_the_object_of_fewer_pixels_is_on_top() -> None:
    shapes = [[corners(2, 2, 6, 6)], [corners(0, 0, 20, 20)], [corners(4, 4, 8, 8)]]
    mask = drawn_mask([Outline("", k + 1, shape) for k, shape in enumerate(shapes)], SIZE, np.uint8)
    assert (mask[3, 3], mask[0, 0], mask[7, 7], mask[30, 30]) == (1, 2, 3, 0)
    assert mask[5, 5] == 3  # of equal ones the later one


@FORMATS
def test_masks_of_cocos_segmentations(container: Any, write: Any, tmp_path: Path) -> None:
    content = coco([corners(1, 2, 9, 10)], {"size": [32, 40], "counts": RING_AS_TEXT}, None)
    content["annotations"][1] |= {"iscrowd": 1}
    src = write(IMAGES | {"x.json": content}) / "x.json"
    said = told(src, tmp_path / "D", masks="semantic", format=container)
    found = of(tmp_path / "D")
    ring = np.where(RING == 1, 1, 0)
    np.testing.assert_array_equal(found["a.jpg"]["mask"], np.where(boxed(1, 2, 9, 10) == 1, 2, ring))
    assert not np.any(found["b.jpg"]["mask"]) and len(found["a.jpg"]["boxes"]) == 3
    assert "not in the masks: 1 annotation without a segmentation" in said and "not stored" not in said
    with closing(open_dataset(tmp_path / "D")) as dataset:
        schema = dataset.fields["mask"]
        assert schema.classes == ("background", "kind 4", "kind 9") and (schema.dtype, schema.optional) == (
            "uint8",
            False,
        )
    assert verify(Verify(data=tmp_path / "D", deep=True), QUIET, QUIET) == 0
    with Loader(tmp_path / "D", crop=Letterbox(size=40), batch_size=3, fields=["mask"], order="sequential") as loader:
        assert next(iter(loader)).fields["mask"].unique().tolist() == [0, 1, 2, 255]
    run(src, tmp_path / "E", masks="semantic", max_size=20, format=container)
    assert np.shape(of(tmp_path / "E")["a.jpg"]["mask"]) == (16, 20)


@pytest.mark.parametrize(("categories", "dtype"), [(254, "uint8"), (255, "uint16")])
def test_the_number_of_classes_decides_the_depth(categories: int, dtype: str, write: Any, tmp_path: Path) -> None:
    content = coco([corners(1, 2, 9, 10)], categories=categories)
    content["annotations"][0]["category_id"] = content["categories"][-1]["id"]
    run(write(IMAGES | {"x.json": content}) / "x.json", tmp_path / "D", masks="semantic")
    assert np.max(of(tmp_path / "D")["a.jpg"]["mask"]) == categories
    with closing(open_dataset(tmp_path / "D")) as dataset:
        assert dataset.fields["mask"].dtype == dtype


def test_a_mask_of_a_rotated_photograph_is_upright(write: Any, encode: Any, tmp_path: Path) -> None:
    photo = {"a.jpg": rotated(encode((120, 90, 60), SIZE))}
    src = write(IMAGES | photo | {"x.json": coco([corners(1, 2, 9, 10)])}) / "x.json"
    run(src, tmp_path / "D", masks="semantic", on_error="fail")
    mask = np.asarray(of(tmp_path / "D")["a.jpg"]["mask"])
    np.testing.assert_array_equal(mask, np.rot90(2 * boxed(1, 2, 9, 10), -1))
    upright = coco({"size": [40, 32], "counts": runs(np.rot90(RING, -1))}, width=32, height=40)
    run(write(IMAGES | photo | {"x.json": upright}) / "x.json", tmp_path / "E", masks="semantic", on_error="fail")
    np.testing.assert_array_equal(of(tmp_path / "E")["a.jpg"]["mask"], 2 * np.rot90(RING, -1))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ([[1, 2, 3, 4]], "polygon 0 has 2 points; it takes three"),
        ([corners(1, 2, 5, 4), [1, 2, 3, 4, 5, 6, 7]], "polygon 1 has 7 numbers, which are not pairs of x and y"),
        ([[1, 2, 3, 4, float("nan"), 6]], "polygon 0 has a coordinate that is not a number, or beyond 100,000 pixels"),
        ([[1, 2, 3, 4, 1e9, 6]], "polygon 0 has a coordinate that is not a number, or beyond 100,000 pixels"),
        ([[1, 2, 3, 4, "5", 6]], "polygon 0 has something that is not a number"),
        ([1, 2, 3, 4, 5, 6], "its segmentation is neither a list of polygons nor run lengths"),
        ("polygon", "its segmentation is neither a list of polygons nor run lengths"),
        (
            {"size": [40, 32], "counts": runs(RING)},
            r"its run lengths have the size \[40, 32\], and the image \[32, 40\]",
        ),
        ({"size": [32, 40], "counts": [5, 6]}, "its run lengths count 11 pixels, where the image has 1,280"),
        ({"size": [32, 40], "counts": [-5, 1285]}, "its run lengths are no list of whole numbers from 0 on"),
        ({"size": [32, 40]}, "its run lengths are no list of whole numbers from 0 on"),
        ({"size": [32, 40], "counts": "T5h0\t"}, r"its run lengths cannot be decoded, at '\\t' after 2 numbers"),
        ({"size": [32, 40], "counts": "T5h"}, "its run lengths cannot be decoded: they end within a number"),
    ],
)
def test_a_bad_segmentation_names_its_sample(shape: Any, reason: str, write: Any, tmp_path: Path) -> None:
    src = write(IMAGES | {"x.json": coco([corners(1, 2, 9, 10)], shape)}) / "x.json"
    report = run(src, tmp_path / "D", masks="semantic")
    ((path, said),) = report.skipped
    assert path == "a.jpg"
    with pytest.raises(DataError, match=rf"a.jpg: mask: annotation 71: {reason}"):
        run(src, tmp_path / "E", masks="semantic", on_error="fail")
    assert said.startswith("mask: annotation 71: ")
    assert not run(src, tmp_path / "F").skipped  # without masks nobody reads it


YOLO = {
    "images/a.jpg": None,
    "images/b.jpg": None,
    "labels/a.txt": "1 0.25 0.5 0.5 0.5 0.5 1 0.25 1\n0 0.5 0.5 1 1\n",
    "labels/b.txt": "0 0 0 2 0 2 2 0 2\n",  # beyond the image
    "data.yaml": "train: images\nnames: [cat, dog]\n",
}


@FORMATS
def test_masks_of_yolos_polygons(container: Any, write: Any, tmp_path: Path) -> None:
    src = write(YOLO)
    assert "not in the masks: 1 box without a polygon" in told(src, tmp_path / "D", masks="semantic", format=container)
    found = of(tmp_path / "D")
    np.testing.assert_array_equal(found["images/a.jpg"]["mask"], 2 * boxed(10, 16, 20, 32))
    assert np.all(found["images/b.jpg"]["mask"]) and found["images/a.jpg"]["boxes"][0] == [10, 16, 20, 32]
    with closing(open_dataset(tmp_path / "D")) as dataset:
        assert dataset.fields["mask"].classes == ("background", "cat", "dog")


def test_yolos_polygons_are_for_the_upright_image(write: Any, encode: Any, tmp_path: Path) -> None:
    run(write(YOLO | {"images/a.jpg": rotated(encode((9, 9, 9), SIZE))}), tmp_path / "D", masks="semantic")
    mask = np.asarray(of(tmp_path / "D")["images/a.jpg"]["mask"])
    assert mask.shape == (40, 32) and (mask[20:, 8:16] == 2).all() and np.count_nonzero(mask) == 20 * 8


def test_masks_without_an_effect_are_refused(write: Any, image_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--masks semantic has no effect: no source has COCO's or YOLO's outlines"):
        run(image_folder, tmp_path / "D", masks="semantic")
    src = write(IMAGES | {"x.json": coco(None)}) / "x.json"
    with pytest.raises(UsageError, match=r"--masks semantic has no effect: .*x.json has no segmentations"):
        run(src, tmp_path / "D", masks="semantic")
    root = write(YOLO | {"labels/a.txt": "0 0.5 0.5 1 1\n", "labels/b.txt": ""})
    with pytest.raises(UsageError, match=r"--masks semantic has no effect: .* has no polygons"):
        run(root, tmp_path / "D", masks="semantic")


def test_drawn_masks_and_others_are_not_one_field(write: Any, tmp_path: Path) -> None:
    """Their numbers mean something else."""
    run(write(YOLO), tmp_path / "D", masks="semantic")
    (tmp_path / "source").rename(tmp_path / "yolo")
    pairs = write({"images/c.jpg": None, "masks/c.png": png(mask_of(0))})
    with pytest.raises(DataError, match=r"its field 'mask' has the classes none, and on the other side \['background'"):
        run(pairs, tmp_path / "D", append=True)
