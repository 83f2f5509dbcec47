"""Batches that may be trained on, also where they are made within torch's inference mode."""

from collections.abc import Callable, Generator, Iterator
from functools import wraps
from typing import TypeVar

import torch

_Self = TypeVar("_Self")
_Item = TypeVar("_Item")


def outside_inference_mode(
    iterate: Callable[[_Self], Generator[_Item, None, None]],
) -> Callable[[_Self], Iterator[_Item]]:
    """A generator method whose tensors are ordinary ones, whatever mode the consumer is in when it asks for the next.

    torch refuses to save tensors of inference mode for a backward pass, and to write into them outside of it; a
    loader's memory outlives the block in which it was made. The consumer's own mode is as before in its loop.
    """

    @wraps(iterate)
    def iterated(self: _Self) -> Generator[_Item, None, None]:
        items = iterate(self)
        try:
            while True:
                with torch.inference_mode(False):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
                del item  # the loader sees which batches its consumer holds
        finally:
            items.close()

    return iterated
