"""Samples as small pictures for a sheet."""

import numpy as np
from PIL import Image

from fastimg.loaders import DataError, Dataset
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.train.reporting.tiles import Pixels

COLUMNS = 6  # of a sheet
SIDE = 192  # pixels


def thumbnail(dataset: Dataset, index: int, max_pixels: int) -> Pixels | None:
    """A whole image, shrunk; None if it cannot be decoded: another loader may have decoded it."""
    scratch = Scratch()
    try:
        data = dataset.read(index, scratch)
        image = Image.fromarray(np.ascontiguousarray(decode(data, read_header(data, max_pixels), scratch)))
    except DataError:
        return None
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)


def grey() -> Pixels:
    """What stands on a sheet for a sample without a picture."""
    return np.full((SIDE, SIDE, 3), 225, np.uint8)
