"""Bounds of what an index says, checked of all samples at once when it is loaded."""

from typing import Any

import numpy as np
import numpy.typing as npt


def are_inside(
    numbers: npt.NDArray[Any], offsets: npt.NDArray[Any], sizes: npt.NDArray[Any], lengths: npt.NDArray[np.uint64]
) -> bool:
    """Whether parts [N] lie inside the files of these lengths that they name: unsigned integers of any width."""
    if not len(numbers):
        return True
    if int(numbers.max()) >= len(lengths):
        return False
    room = lengths[numbers]
    sizes = sizes.astype(np.uint64)
    return bool(((sizes <= room) & (offsets <= room - np.minimum(sizes, room))).all())


def are_flags(content: npt.NDArray[np.uint8]) -> bool:
    """Whether bytes are all 0 or 1, as those of booleans are."""
    return int(content.max(initial=0)) <= 1
