"""A manifest with a field of every kind, and what comes back of it."""

from pathlib import Path
from typing import Any

import numpy as np

from fastimg.loaders.containers.datasets import open_dataset

from ..field_samples import Rows, mask_of, plain

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
