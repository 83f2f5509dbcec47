"""Memory for results, which is used again."""

import math
import sys
import threading

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]

_LINE = 64  # bytes of a cache line; results are aligned to it


class ResultPool:
    """Memory for results, reused once no tensor refers to it. At most `capacity` buffers are kept.

    The system maps new memory page by page at the first write, which takes longer than the augmentation itself, even
    with the huge pages that NumPy asks for. A training loop holds one batch while it makes the next, hence two buffers.
    """

    def __init__(self, capacity: int = 2) -> None:
        self._capacity = capacity
        self._buffers: list[Bytes] = []  # newest last
        self._unreferenced = [np.empty(0, np.uint8)]  # gives the reference count of a free buffer
        self._lock = threading.Lock()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with arbitrary content."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            number = next((n for n in range(len(self._buffers)) if self._is_free(n) and self._fits(n, size)), None)
            if number is None:
                self._buffers = [*self._buffers, np.empty(size + _LINE, np.uint8)][-self._capacity :]
                number = len(self._buffers) - 1
            buffer = self._buffers[number]
            start = -buffer.ctypes.data % _LINE
            # The tensor, and whatever shares its storage, references this view, and the view references the buffer.
            return torch.from_numpy(buffer[start : start + size]).view(dtype).view(shape)

    def _fits(self, number: int, size: int) -> bool:
        """Large enough, but not so large that a small result would keep a large buffer alive."""
        return size + _LINE <= self._buffers[number].size <= 4 * (size + _LINE)

    def _is_free(self, number: int) -> bool:
        return sys.getrefcount(self._buffers[number]) == sys.getrefcount(self._unreferenced[0])


results = ResultPool()
mixtures = ResultPool()  # for mixed images, while the next ones are augmented
between = ResultPool(capacity=3)  # for the levels between the stages of a plan
