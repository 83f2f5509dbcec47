"""What tests of fields share: small images and masks, how they are converted, and what comes back."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report
from fastimg.loaders.containers.datasets import open_dataset

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


def palette(numbers: Any) -> bytes:
    image = Image.fromarray(np.asarray(numbers, np.uint8), "P")
    image.putpalette([value for i in range(256) for value in (255 - i, i, 7)])
    return png(image)


def rotated(jpeg: bytes) -> bytes:
    """The JPEG with an EXIF orientation; its stored pixels stay."""
    with Image.open(io.BytesIO(jpeg)) as image:
        exif = Image.Exif()
        exif[0x0112] = ROTATED
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", exif=exif)
        return buffer.getvalue()


def run(src: Path, dst: Path, *fields: str, **flags: Any) -> Report:
    return convert(Convert(src=src, dst=dst, field=fields, workers="1", **flags), QUIET)


def told(src: Path, dst: Path, **flags: Any) -> str:
    """What a conversion says."""
    said = Console(record=True, width=400, file=io.StringIO())
    convert(Convert(src=src, dst=dst, workers="1", **flags), said)
    return said.export_text()


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
