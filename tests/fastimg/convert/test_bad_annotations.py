"""Annotations that no program should write: a sentence that names the sample, or a stated rule, for each."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastimg.convert.annotations.segmentations import Outline, drawn_mask
from fastimg.loaders import Loader, RandomResizedCrop, View
from fastimg.loaders.errors import DataError

from .field_samples import SIZE, Rows, jsonl, mask_of, of, palette, png, run

HUGE = 10**400  # a whole number that no float can be


def coco(annotations: Rows, images: Rows | None = None, **others: Any) -> dict[str, Any]:
    listed = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}] if images is None else images
    return {"images": listed, "annotations": annotations, "categories": [{"id": 7, "name": "cat"}], **others}


def box(*sides: Any, **others: Any) -> dict[str, Any]:
    return {"image_id": 1, "category_id": 7, "bbox": list(sides), **others}


@pytest.mark.parametrize(
    ("sides", "reason"),
    [
        ((1, 2, -3, 4), r"boxes: item 0, \[1.0, 2.0, -2.0, 6.0\] \(xyxy\), has its second corner before its first"),
        ((float("nan"), 2, 3, 4), "boxes: item 0 has a value that is not a number"),
        ((float("inf"), 2, 3, 4), "boxes: item 0, .* has a coordinate that is not a number"),
        ((90, 2, 3, 4), r"boxes: item 0, .* has no part in the 40 x 32 pixels"),
        ((HUGE, 2, 3, 4), "boxes: something that is not a number"),
    ],
)
def test_a_box_of_cocos_that_is_none_skips_its_sample(
    sides: Any, reason: str, write: Any, tmp_path: Path, encode: Any
) -> None:
    content = coco([box(*sides, area=1, id=1)])
    src = write({"a.jpg": None, "b.jpg": None, "x.json": content}) / "x.json"
    report = run(src, tmp_path / "D")
    ((path, said),) = report.skipped
    assert path == "a.jpg" and re.match(reason, said)
    assert of(tmp_path / "D")["b.jpg"]["boxes"] == []  # listed without annotations
    with pytest.raises(DataError, match=rf"a\.jpg: {reason}"):
        run(src, tmp_path / "E", on_error="fail")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (coco([], categories=[{"id": 7, "name": None}]), "category 7 has the name None, not a text"),
        (coco([], categories=[{"id": 7, "name": 3}]), "category 7 has the name 3, not a text"),
        (coco([box(1, 2, 3, 4, image_id=1.0)]), "annotation 0 has the image_id 1.0, which is not a whole number"),
        (coco([box(1, 2, 3, 4, image_id=None)]), "annotation 0 has no image_id"),
        (coco([box(1, 2, 3, None)]), "annotation 0 has no bbox of four numbers"),
        (coco([3]), "annotation 0 has no image_id"),  # type: ignore[list-item]
        (coco([], images=["a.jpg"]), "image 0 has no id"),  # type: ignore[list-item]
    ],
)
def test_what_coco_has_in_place_of_numbers_is_named(content: Any, reason: str, write: Any, tmp_path: Path) -> None:
    src = write({"a.jpg": None, "x.json": content}) / "x.json"
    with pytest.raises(DataError, match=rf"x\.json: {reason}"):
        run(src, tmp_path / "D", images=src.parent)


def test_ids_of_annotations_may_be_anything(write: Any, tmp_path: Path) -> None:
    """Nothing refers to them; only numbers are compared."""
    content = coco([box(1, 2, 3, 4, id=[1]), box(1, 2, 3, 4, id={"x": 1}, iscrowd=1), box(5, 6, 7, 8)])
    run(write({"a.jpg": None, "b.jpg": None, "x.json": content}) / "x.json", tmp_path / "D")
    found = of(tmp_path / "D")["a.jpg"]
    assert len(found["boxes"]) == 3 and found["iscrowd"] == [0, 1, 0]


def test_an_image_that_coco_lists_twice_is_two_samples(write: Any, tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "a.jpg"}]
    run(write({"a.jpg": None, "x.json": coco([box(1, 2, 3, 4)], images)}) / "x.json", tmp_path / "D")
    assert len(json.loads((tmp_path / "D/dataset.json").read_text())["splits"]) == 1
    report = run(tmp_path / "D", tmp_path / "E")
    assert report.images == 2


def test_a_point_beyond_all_numbers() -> None:
    with pytest.raises(ValueError, match="what: polygon 0 has a coordinate beyond 100,000 pixels"):
        drawn_mask([Outline("what", 1, [[0, 0, HUGE, 0, 3, 3]])], (8, 8), np.uint8)


def test_a_cell_with_a_number_beyond_all_numbers_skips_its_sample(write: Any, tmp_path: Path) -> None:
    rows = [{"path": "a.jpg", "boxes": [[0, 0, HUGE, 9]]}, {"path": "b.jpg", "boxes": [[1, 2, 3, 4]]}]
    src = write({"a.jpg": None, "b.jpg": None, "t.jsonl": jsonl(rows)}) / "t.jsonl"
    ((path, said),) = run(src, tmp_path / "D", "boxes:box").skipped
    assert path == "a.jpg" and said == "boxes: something that is not a number"


VOC = "<annotation><size><width>{}</width><height>32</height></size>{}</annotation>"
OBJECT = "<object><name>cat</name><bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        (VOC.format("nan", ""), r"a\.xml has no number in size/width \('nan'\)"),
        (VOC.format("inf", ""), r"a\.xml has no number in size/width \('inf'\)"),
        (VOC.format("40", OBJECT.format("nan")), r"a\.xml: object 0 has no number in bndbox/xmin \('nan'\)"),
    ],
)
def test_numbers_of_voc_that_are_none(xml: str, reason: str, write: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        run(write({"JPEGImages/a.jpg": None, "Annotations/a.xml": xml}), tmp_path / "D")


def test_a_class_of_yolos_that_nobody_could_name(write: Any, tmp_path: Path) -> None:
    src = write({"images/a.jpg": None, "labels/a.txt": "1e15 0.5 0.5 0.5 0.5\n"})
    with pytest.raises(DataError, match=r"a box has the class 1000000000000000, which no data\.yaml names"):
        run(src, tmp_path / "D")


def test_masks_that_only_some_samples_have_of_palettes_and_of_16_bits(write: Any, tmp_path: Path) -> None:
    """Images without a mask, a palette and 16 bits in one dataset: 255 everywhere, indices, and all numbers."""
    deep = mask_of(1, dtype=np.uint16)
    indices = mask_of(2) % 200
    files = {f"images/{name}.jpg": None for name in "abc"}
    src = write(files | {"masks/a.png": png(deep), "masks/b.png": palette(indices)})
    assert not run(src, tmp_path / "D").skipped
    crop = RandomResizedCrop(size=SIZE[::-1], scale=(1.0, 1.0), ratio=(1.25, 1.25))
    with Loader(tmp_path / "D", crop=crop, fields=["mask"], batch_size=3, workers=1, order="sequential") as loader:
        batch = next(iter(loader))
    names = [Path(loader.dataset.sample_key(int(index))).stem for index in batch.ids]
    seen = {name: mask.numpy() for name, mask in zip(names, batch.fields["mask"], strict=True)}
    assert np.array_equal(seen["a"], deep) and np.array_equal(seen["b"], indices) and (seen["c"] == 255).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (2, 50)])
def test_views_larger_than_the_image_are_enlarged(size: tuple[int, int], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    (tmp_path / "F/a").mkdir(parents=True)
    (tmp_path / "F/a/x.png").write_bytes(png(pixels))
    views = [View(crop=64, n=2, scale=(0.4, 1)), View(crop=(30, 70), scale=(0.05, 0.4), name="wide")]
    with Loader(tmp_path / "F", views=views, batch_size=1, workers=1) as loader:
        batch = next(iter(loader))
    assert [tuple(view.shape) for view in batch.views] == [(1, 3, 64, 64)] * 2 + [(1, 3, 30, 70)]
    assert batch.weight.tolist() == [1.0]
    if size == (1, 1):
        assert all((view == view[:, :, :1, :1]).all() for view in batch.views)
    else:
        assert any(len(view.unique()) > 3 for view in batch.views)
