"""`--max-size` with boxes, points and masks."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.decode import decode_mask, read_header
from fastimg.loaders.runtime.scratch import Scratch

from ..field_samples import FORMATS, SIZE, jsonl, mask_of, png, rotated, run


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
