"""Masks beside images: their numbers, and how they are turned."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastimg.config.commands import Verify
from fastimg.convert.verify import verify

from ..field_samples import QUIET, SIZE, mask_of, of, palette, png, rotated, run


@pytest.mark.parametrize("layout", ["{0}/{1}", "{0}/train/{1}", "train/{0}/{1}"])
def test_folders_of_images_and_masks(layout: str, write: Any, tmp_path: Path) -> None:
    files = {layout.format("images", f"deep/{name}.jpg"): None for name in "ab"}
    masks = {layout.format("masks", f"deep/{name}.png"): png(mask_of(ord(name))) for name in "ax"}
    report = run(write(files | masks), tmp_path / "D")
    found = {Path(key).name: fields["mask"] for key, fields in of(tmp_path / "D").items()}
    assert found == {"a.jpg": mask_of(ord("a")).tolist(), "b.jpg": None}
    assert report.ignored_reasons == {"a mask without an image of its name": 1}


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


@pytest.mark.parametrize("upright", [False, True])
def test_boxes_are_for_the_pixels_that_the_mask_of_their_sample_is_for(
    upright: bool, write: Any, encode: Any, tmp_path: Path
) -> None:
    """A manifest states no size; that of the mask tells, and the box stays around what it is around."""
    numbers = np.zeros((32, 64) if not upright else (64, 32), np.uint8)
    numbers[4:12, 2:20] = 1
    row = {"path": "a.jpg", "boxes": [[2, 4, 20, 12]], "mask": "m.png"}
    photograph = rotated(encode((120, 90, 60), (64, 32)))
    folder = write({"a.jpg": photograph, "m.png": png(numbers), "t.jsonl": (json.dumps(row) + "\n").encode()})
    run(folder / "t.jsonl", tmp_path / "D", "boxes:box", "mask:mask")
    (fields,) = of(tmp_path / "D").values()
    rows, columns = np.nonzero(np.asarray(fields["mask"]))
    assert np.asarray(fields["mask"]).shape == (64, 32)
    assert fields["boxes"] == [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]


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
