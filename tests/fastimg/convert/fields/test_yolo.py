"""YOLO's label files as boxes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.errors import DataError

from ..field_samples import SIZE, of, rotated, run

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


def test_yolo_behind_a_symbolic_link(write: Any, tmp_path: Path) -> None:
    root = write({**YOLO, "deep/er/data.yaml": DESCRIBED})
    (root / "deep/er/data.yaml").write_text(DESCRIBED.replace("path: .", f"path: {root}"))
    (tmp_path / "link").symlink_to(root / "deep/er")
    run(tmp_path / "link", tmp_path / "D")
    assert set(of(tmp_path / "D")) == {"../../images/train/a.jpg", "../../images/train/b.jpg"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"labels/train/a.txt": "0 0.5 0.5 0.5\n"}, r"a.txt: line 1: not a class .* and at least four"),
        ({"labels/train/a.txt": "0 0.5 0.5 0.5 0.5\nx 1 1 1 1\n"}, r"a.txt: line 2: not a class and numbers"),
        ({"labels/train/a.txt": "0 0.5 nan 0.5 0.5\n"}, r"line 1: not a class .* finite"),
        ({"labels/train/a.txt": "-1 0.5 0.5 0.5 0.5\n"}, r"line 1: not a class \(0, 1"),
        ({"labels/train/a.txt": "0 0.5 0.5 0.5 0.5 0.9\n"}, r"5 numbers are neither a box nor a polygon"),
        ({"labels/train/a.txt": "2 0.5 0.5 0.5 0.5\n"}, r"names 2 classes, and a box has the class 2"),
        (
            {"data.yaml": "train: train.txt\nnames: [a, b]\n", "train.txt": b"images/train/\xe9.jpg\n"},
            r"train.txt: cannot be read \('utf-8' codec can't decode byte 0xe9 .*\); correct it",
        ),
        ({"data.yaml": "names: " + 3000 * "["}, r"cannot be read \(more than 100 levels"),
        (
            {"data.yaml": "a: &a [1, 2]\n" + "".join(f"a: &a [{', '.join(['*a'] * 9)}]\n" for _ in range(9))},
            r"cannot be read \(\*a stands for itself",
        ),
        ({"data.yaml": "train: nowhere\nnames: [a, b]\n"}, r"train: no such file or folder: nowhere"),
        ({"data.yaml": "train: images/train\nnames: [a, a]\n"}, r"no list of different names"),
        ({"data.yaml": "train: images/train\nnames: {1: a}\n"}, r"not numbered from 0 on"),
    ],
)
def test_what_yolo_has_wrong_is_named(files: dict[str, Any], reason: str, write: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=reason):
        run(write({**YOLO, "data.yaml": DESCRIBED, **files}), tmp_path / "D")


def test_yolos_boxes_are_for_the_upright_image(write: Any, encode: Any, tmp_path: Path) -> None:
    """As Ultralytics reads images."""
    files = {"images/a.jpg": rotated(encode((120, 90, 60), SIZE)), "labels/a.txt": "0 0.5 0.25 1 0.5\n"}
    run(write(files), tmp_path / "D")
    assert of(tmp_path / "D")["images/a.jpg"]["boxes"] == [[0, 0, 32, 20]]


@pytest.mark.parametrize("layout", ["images/{}/d.jpg", "{}/images/d.jpg"])
def test_two_folders_of_one_split(layout: str, write: Any, tmp_path: Path) -> None:
    images = {layout.format(split): None for split in ("train", "val", "valid")}
    with pytest.raises(DataError, match="source: two folders are the split val: val and valid; keep one of them"):
        run(write({**images, "labels/x.txt": "", "train/labels/d.txt": ""}), tmp_path / "D")
