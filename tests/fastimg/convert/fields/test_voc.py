"""VOC's XML and segmentation masks as fields."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastimg.loaders.errors import DataError

from ..field_samples import SIZE, mask_of, of, palette, run


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


def test_lists_with_names_that_have_spaces(write: Any, tmp_path: Path) -> None:
    """And numbers behind a space, which may belong to the name, or say whether a class is present."""
    files: dict[str, Any] = {f"JPEGImages/{name}.jpg": None for name in ("IMG 0012", "a b 1", "a b", "c  d", "e")}
    files["Annotations/e.xml"] = voc_xml()
    files["ImageSets/Main/train.txt"] = "IMG 0012\na b 1\n"
    files["ImageSets/Main/val.txt"] = "a b  1\nc  d -1\ne  0\n"
    run(write(files), tmp_path / "D")
    assert set(of(tmp_path / "D", "train")) == {"JPEGImages/IMG 0012.jpg", "JPEGImages/a b 1.jpg"}
    assert set(of(tmp_path / "D", "val")) == {"JPEGImages/a b.jpg", "JPEGImages/c  d.jpg", "JPEGImages/e.jpg"}


def test_two_images_of_one_name(write: Any, tmp_path: Path) -> None:
    folder = write({"JPEGImages/x.jpg": None, "JPEGImages/x.png": None, "Annotations/x.xml": voc_xml()})
    with pytest.raises(DataError, match=r"JPEGImages/x.png and x.jpg: two files of one name; keep one of them"):
        run(folder, tmp_path / "D")


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
