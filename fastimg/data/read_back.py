"""What a device computes, read on the host one batch late: while the device computes the next batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy.typing as npt
import torch

_T = TypeVar("_T")


def read_back(
    results: Iterable[tuple[_T, Sequence[torch.Tensor]]],
) -> Iterator[tuple[_T, list[npt.NDArray[Any]]]]:
    """For each (item, tensors) the item and the tensors as arrays, in order.

    From a GPU, tensors are copied without a sync into pinned memory, and yielded once the tensors after them are
    enqueued. On a CPU they are yielded at once, without a copy: they may be views of a batch, which the next replaces.
    """
    before: tuple[_T, _Copies] | None = None
    for item, tensors in results:
        if tensors[0].device.type != "cuda":
            yield item, [tensor.numpy() for tensor in tensors]
            continue
        copies = _Copies(tensors)
        if before is not None:
            yield before[0], before[1].arrays()
        before = item, copies
    if before is not None:
        yield before[0], before[1].arrays()


class _Copies:
    """Copies to the host that are under way on the current stream of the tensors' device."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._host = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # torch takes pinned memory for these
        self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # cores are for the loader
        self._done.record(torch.cuda.current_stream(tensors[0].device))

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Waits until they are there."""
        self._done.synchronize()  # sync point, for work that was enqueued a batch ago
        return [tensor.numpy() for tensor in self._host]
