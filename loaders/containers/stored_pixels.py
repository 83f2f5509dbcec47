"""Where pixels lie that need no decoding, for compiled code."""

import numpy as np

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
