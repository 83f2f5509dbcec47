"""Where pixels lie that need no decoding, for compiled code."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PIXELS = np.dtype(
    [
        ("file", np.int64),  # an open one
        ("offset", np.int64),  # of the first row
        ("address", np.int64),  # of the first row in memory; 0 where it has to be read from the file
        ("pitch", np.int64),  # bytes from a row to the next
        ("width", np.int64),  # 0 for a sample that has to be decoded
        ("height", np.int64),
        ("channels", np.int64),  # of uint8, those of a pixel side by side
    ]
)


class StoredPixels(NamedTuple):
    """Where the pixels of some samples lie."""

    table: npt.NDArray[np.void]  # PIXELS [n]
    places: npt.NDArray[np.int64]  # [k], of each sample in the table
