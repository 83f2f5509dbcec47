"""The upright sizes of samples, which are noted while a decoder reads them."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.stored_pixels import StoredPixels
from fastimg.loaders.decode import read_header
from fastimg.loaders.decoder import P, SampleReader, T
from fastimg.loaders.errors import ImageError
from fastimg.loaders.pictures.record import new_picture
from fastimg.loaders.runtime.compiled import may_call
from fastimg.loaders.runtime.scratch import Encoded, Scratch

from .picture_queue import find_sizes


class SizeReader(SampleReader):
    """A reader that reads all images whole, by another one, and keeps their upright sizes."""

    blocks = None  # a crop that is read in parts would leave out the size

    def __init__(self, reader: SampleReader, max_pixels: int) -> None:
        super().__init__(reader.dataset)
        self.of: dict[int, tuple[int, int]] = {}  # id -> width, height
        self._reader = reader
        self._max_pixels = max_pixels

    def read(self, index: int, scratch: Scratch) -> memoryview:
        data = self._reader.read(index, scratch)
        self.of[index] = read_header(data, self._max_pixels).size
        return data

    def read_group(self, ids: Sequence[int], scratch: Scratch, filled: npt.NDArray[np.bool_] | None = None) -> Encoded:
        encoded = super().read_group(ids, scratch, filled)
        sizes = np.zeros((len(ids), 2), np.int64)
        if may_call(find_sizes):
            find_sizes(encoded.spans, scratch.own(new_picture), self._max_pixels, sizes)
        for place, (index, (width, height)) in enumerate(zip(ids, sizes.tolist(), strict=True)):
            if width:
                self.of[index] = width, height
                continue
            data = encoded[place]
            if data is not None and not self._knows(index, data):
                encoded.drop(place)
        return encoded

    def stored_pixels(self, ids: Sequence[int]) -> StoredPixels | None:
        found = super().stored_pixels(ids)
        if found is not None:
            sizes = found.table[["width", "height"]][found.places].tolist()
            known = zip(ids, sizes, strict=True)
            self.of.update((index, size) for index, size in known if 0 < size[0] * size[1] <= self._max_pixels)
        return found

    def timed(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._reader.timed(read, *args, **kwargs)

    def _knows(self, index: int, data: memoryview) -> bool:
        """Keep the size of an image; False if it has none, which `read` then reports."""
        try:
            self.of[index] = read_header(data, self._max_pixels).size
        except ImageError:
            return False
        return True
