"""Tensors as the memory of kernels that are executed on the CPU."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


class Memory:
    """Bytes of tensors at their addresses."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        found = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = np.frombuffer(
                (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()), np.uint8
            )
        self._spans = [(start, start + len(data), data) for start, data in sorted(found.items())]

    def places(self, addresses: Array, size: int, text: str) -> Array:
        """Which tensor each address lies in. Raises IndexError for bytes that no tensor has."""
        owner = np.full(addresses.shape, -1)
        for number, (start, end, _) in enumerate(self._spans):
            owner[(addresses >= start) & (addresses + np.uint64(size) <= end)] = number
        if (owner < 0).any():
            raise IndexError(f"{text}: {int((owner < 0).sum())} accesses lie outside of every tensor")
        if (addresses % size).any():
            raise IndexError(f"{text}: an address is not a multiple of {size}")
        return owner

    def starts(self, addresses: Array) -> Array:
        """Where the tensors at addresses begin; on a device that is a multiple of 256."""
        begins = np.array([start for start, _, _ in self._spans], np.uint64)
        return begins[np.maximum(np.searchsorted(begins, addresses, side="right") - 1, 0)]

    def read(self, addresses: Array, size: int, text: str) -> Array:
        """Bytes [N, size]."""
        owner, found = self.places(addresses, size, text), np.empty((len(addresses), size), np.uint8)
        for number in np.unique(owner):
            start, _, data = self._spans[number]
            mine = owner == number
            found[mine] = data[(addresses[mine] - start).astype(np.int64)[:, None] + np.arange(size)]
        return found

    def write(self, addresses: Array, values: Array, text: str) -> None:
        owner = self.places(addresses, values.shape[1], text)
        for number in np.unique(owner):
            start, _, data = self._spans[number]
            mine = owner == number
            data[(addresses[mine] - start).astype(np.int64)[:, None] + np.arange(values.shape[1])] = values[mine]
