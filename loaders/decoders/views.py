"""The decoder of several views of each image: one read, one header, one decode -> a row of each crop."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.batch import Field
from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CropRule, Size, View, Window, check_room, fill_of, shape_of
from fastimg.loaders.decode import (
    MAX_PIXELS,
    Header,
    Pixels,
    as_deep,
    check_channels,
    check_depth,
    decode_boxes,
    decode_deep,
    deep_part,
    in_gray,
    read_header,
)
from fastimg.loaders.decoder import Decoder, Failure, Row, Rows, SampleReader, attempt
from fastimg.loaders.errors import ImageError
from fastimg.loaders.jpeg.decoding.region import Scaling, scaling_of
from fastimg.loaders.jpeg.decoding.union import Taken, UnionQueue
from fastimg.loaders.jpeg.rewriting.splice import Box
from fastimg.loaders.random import uniforms
from fastimg.loaders.resample import resample, resample_deep
from fastimg.loaders.runtime.scratch import Scratch

from .images import ImageDecoder, check_scaling, pixel_limit
from .pixel_cuts import has_compiled_windows
from .view_cuts import ViewCuts


@dataclass(frozen=True)
class ViewDecoder(Decoder):
    """Encoded image -> pixels of several crops, decoded once: `batch.views`, `batch.views_of(name)`.

    They are uint8, or uint16 with `depth` 16.

    The crops are numbered through the list, from 0: the n of the first View, then the next's. Each has draws of its
    own, which depend on its number and on nothing of the other crops; number 0 has those of `ImageDecoder`. Each has
    the pixels, bit for bit, that an `ImageDecoder` with its crop alone makes of its draws, whatever the format. If a
    crop of an image cannot be decoded, the sample has weight 0, and all its views are zeros.

    Raises ValueError for no views, for two of the same name, for fewer max_pixels than a crop has, and as ImageDecoder
    for channels, a depth, max_pixels and dct_scaling.
    """

    views: tuple[View, ...]
    max_pixels: int = MAX_PIXELS
    dct_scaling: Scaling = False  # each crop of a tiled JPEG, as `ImageDecoder` has it
    compiled: bool = True  # JPEGs by our own decoder, not libjpeg-turbo's: the same bits
    channels: int = 3  # of all crops: 3 for RGB, 1 for gray
    depth: int = 8  # bits of a channel
    crops: tuple[CropRule, ...] = field(init=False)  # by number
    parts: tuple[slice, ...] = field(init=False)  # of an image's draws: each crop's

    _STAGE = 0x0C  # ImageDecoder's
    _STAGES = 1 << 16  # from a crop's stage to the next one's

    def __post_init__(self) -> None:
        check_channels(self.channels)
        check_depth(self.depth)
        object.__setattr__(self, "max_pixels", pixel_limit(self.max_pixels))
        check_scaling(self.dct_scaling)
        if self.depth == 16 and self.dct_scaling:
            raise ValueError("dct_scaling is for JPEGs, which have 8 bits; leave it out, or depth=16")
        views = tuple(self.views)
        if not views:
            raise ValueError("views is an empty list; give one View or more, or `crop` for one crop of each image")
        for view in views:
            if not isinstance(view, View):
                raise ValueError(f"views holds {view!r}; give Views, such as View(crop=224, n=2)")
        object.__setattr__(self, "views", views)
        object.__setattr__(self, "crops", tuple(view.rule() for view in views for _ in range(view.n)))
        for view in views:
            check_room(self.max_pixels, view.rule())
        ends = accumulate((crop.draws for crop in self.crops), initial=0)
        object.__setattr__(self, "parts", tuple(slice(begin, end) for begin, end in pairwise(ends)))
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two views are called {name!r}; give each a name of its own")

    @property
    def names(self) -> tuple[str, ...]:
        """What each View is called."""
        return tuple(str(place) if view.name is None else view.name for place, view in enumerate(self.views))

    @property
    def fields(self) -> tuple[Field, ...]:
        """`inputs`, which holds the first View, and one for each further View."""
        return tuple(
            Field(name, (view.n, *shape_of(view.rule()), self.channels), np.dtype(f"uint{self.depth}"), apart=True)
            for name, view in self._stored()
        )

    @property
    def view_fields(self) -> Mapping[str, str]:
        """See `Decoder`."""
        return {name: f"views[{place}]" if place else "inputs" for place, name in enumerate(self.names)}

    @property
    def scales_tiled(self) -> bool:
        """See `Decoder`."""
        return self.compiled and bool(self.dct_scaling)

    def sized(self, size: Size) -> Self:
        """Raises TypeError: each view has its own size."""
        raise TypeError("views have sizes of their own, which cannot be changed; make a loader with other views")

    def present(self, inputs: torch.Tensor, rows: Rows) -> torch.Tensor:
        """See `Decoder`: the first crop."""
        return inputs[:, 0].permute(0, 3, 1, 2)

    def draw(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The numbers that choose the crops, those of each crop after the one's before."""
        return np.concatenate(
            [
                uniforms(seed, epoch, ids, self._STAGE + number * self._STAGES, crop.draws)
                for number, crop in enumerate(self.crops)
            ],
            axis=1,
        )

    def cuts_pixels(self, dataset: Dataset) -> bool:
        """See `Decoder`."""
        stores = bool(getattr(dataset, "stores_pixels", False)) and type(self).fill_row is ViewDecoder.fill_row
        return stores and self.compiled and self.depth == 8 and all(map(has_compiled_windows, self.crops))

    def fill(
        self, reader: SampleReader, ids: Sequence[int], draws: npt.NDArray[np.float64], rows: Rows, scratch: Scratch
    ) -> list[Failure]:
        """See `Decoder`: groups of samples, whose JPEGs are decoded in one call."""
        if not self.compiled or self.depth == 16 or type(self).fill_row is not ViewDecoder.fill_row:
            return super().fill(reader, ids, draws, rows, scratch)
        cut = scratch.own(ViewCuts).cut(reader, ids, self.crops, draws, self.max_pixels, scratch, self._outs(rows))
        if cut is not None and cut.all():
            return []
        failures: list[Failure] = []
        for group in scratch.groups(len(ids)):
            parts = {name: array[group] for name, array in rows.items()}
            filled = None if cut is None else cut[group].tolist()
            failed = self._fill_group(reader, ids[group], draws[group], parts, filled, scratch)
            failures += [(group.start + place, error) for place, error in failed]
            if any(not isinstance(error, ImageError) for _, error in failed):
                break
        return failures

    def fill_row(self, data: memoryview, draws: Sequence[float], row: Row, scratch: Scratch) -> None:
        """See `Decoder`."""
        outs = self._outs({name: array[None] for name, array in row.items()})
        if self.depth == 16:
            self._decode(data, self._split(draws), [out[0] for out in outs], scratch)
            return
        queue = scratch.own(UnionQueue)
        queue.begin(self.crops, outs)
        self._queue_or_decode(data, self._split(draws), 0, False, outs, queue, scratch)
        if queue.run(scaling_of(self.dct_scaling), scratch):
            self._decode_alone(data, self._split(draws), [out[0] for out in outs], scratch)

    def _fill_group(
        self,
        reader: SampleReader,
        ids: Sequence[int],
        draws: npt.NDArray[np.float64],
        rows: Rows,
        filled: Sequence[bool] | None,
        scratch: Scratch,
    ) -> list[Failure]:
        """Fill up to MOST rows but what is `filled`: JPEGs are queued and decoded at the end, others at once."""
        outs = self._outs(rows)
        queue = scratch.own(UnionQueue)
        queue.begin(self.crops, outs)
        failures: list[Failure] = []
        encoded = reader.read_group(ids, scratch)
        left = queue.add_group(encoded, draws, self.max_pixels)

        def read_and_queue(place: int, taken: Taken | None) -> None:
            held = encoded[place]
            data = held or reader.read(ids[place], scratch.other(place))  # queued samples must stay in memory
            taken = taken if held else None  # what was not read in the group, nobody has looked at
            self._queue_or_decode(data, self._split(draws[place].tolist()), place, True, outs, queue, scratch, taken)

        todo: dict[int, Taken | None] = dict.fromkeys(range(len(ids))) if left is None else dict(left)
        if filled is not None:
            todo = {place: taken for place, taken in todo.items() if not filled[place]}
        cuts = scratch.own(ViewCuts)
        for place in cuts.decode(encoded, list(todo), self.crops, draws, self.max_pixels, scratch, outs):
            error = attempt(read_and_queue, place, todo[place])
            if error is not None:
                failures.append((place, error))
                if not isinstance(error, ImageError):
                    return failures
        for place, data in queue.run(scaling_of(self.dct_scaling), scratch):  # the damaged ones
            numbers = self._split(draws[place].tolist())
            error = attempt(self._decode_alone, data, numbers, [out[place] for out in outs], scratch)
            if error is not None:
                failures.append((place, error))
        return failures

    def _queue_or_decode(
        self,
        data: memoryview,
        draws: Sequence[Sequence[float]],
        place: int,
        patient: bool,
        outs: Sequence[Pixels],
        queue: UnionQueue,
        scratch: Scratch,
        taken: Taken | None = None,
    ) -> None:
        """Queue a sample's crops, or decode them; `taken` is what `UnionQueue.add` would return, where it is known."""
        if taken is None:
            taken = queue.add(data, draws, self.max_pixels, place, patient) if self.compiled else "other"
        if taken == "other":
            self._decode(data, draws, [out[place] for out in outs], scratch)
        elif taken == "alone":
            self._decode_alone(data, draws, [out[place] for out in outs], scratch)

    def _decode(
        self, data: bytes | memoryview, draws: Sequence[Sequence[float]], outs: Sequence[Pixels], scratch: Scratch
    ) -> None:
        """Decode what the compiled decoder does not take, once, by libjpeg-turbo or Pillow."""
        header = read_header(data, self.max_pixels)
        windows = [crop.window(*header.size, numbers) for crop, numbers in zip(self.crops, draws, strict=True)]
        for window in windows:
            if window.size[0] * window.size[1] > self.max_pixels:  # a strip of 1 x 30000, its short side made 256
                raise ImageError(f"{header.width} x {header.height} pixels are too long and thin to resize")
        if self.depth == 16:
            self._decode_deep(data, header, windows, outs, scratch)
            return
        parts = decode_boxes(data, header, [window.box for window in windows], scratch, self.channels)
        for (pixels, box), window, crop, out in zip(parts, windows, self.crops, outs, strict=True):
            resample(pixels, window._replace(box=box), crop.interpolation, out, fill_of(crop))

    def _decode_deep(
        self,
        data: bytes | memoryview,
        header: Header,
        windows: Sequence[Window],
        outs: Sequence[npt.NDArray[Any]],
        scratch: Scratch,
    ) -> None:
        """The crops of 16 bits of an image that is decoded once; those of one that has 8 are scaled."""
        deep = decode_deep(data, header)
        boxes = [window.box for window in windows]
        parts: Iterator[tuple[npt.NDArray[Any], Box]]
        if deep is not None:
            parts = (deep_part(deep, box, self.channels) for box in boxes)
        else:
            parts = map(as_deep, decode_boxes(data, header, boxes, scratch, self.channels))
        for (pixels, box), window, crop, out in zip(parts, windows, self.crops, outs, strict=True):
            fill = fill_of(crop)
            beyond = None if fill is None else 257 * fill
            resample_deep(pixels, window._replace(box=box), crop.interpolation, out, beyond)

    def _decode_alone(
        self, data: bytes | memoryview, draws: Sequence[Sequence[float]], outs: Sequence[Pixels], scratch: Scratch
    ) -> None:
        """Decode each crop as if there were no others: of a damaged image some may still be whole."""
        for crop, numbers, out in zip(self.crops, draws, outs, strict=True):
            alone = ImageDecoder(crop, self.max_pixels, self.dct_scaling, self.compiled, self.channels)
            alone.fill_row(memoryview(data), numbers, {"inputs": out}, scratch)

    def _outs(self, rows: Rows) -> list[Pixels]:
        """The pixels [k, H, W, C] of each crop in rows [k, n, H, W, C] of each View."""
        return [rows[name][:, place] for name, view in self._stored() for place in range(view.n)]

    def _stored(self) -> Iterator[tuple[str, View]]:
        return zip(self.view_fields.values(), self.views, strict=True)

    def _split(self, draws: Sequence[float]) -> list[Sequence[float]]:
        """The draws of each crop, of those of an image."""
        return [draws[part] for part in self.parts]

    def describe(self) -> str:
        """See `Decoder`."""
        sizes = ", ".join(f"{view.n} x {'x'.join(map(str, shape_of(view.rule())))}" for view in self.views)
        scaling = ", tiled ones DCT-scaled where crops are large" if self.dct_scaling else ""
        deep = " with 16 bits" if self.depth == 16 else ""
        return (
            f"{'images' if deep else 'JPEGs'} decoded on the CPU{in_gray(self.channels)}{deep}, views {sizes}{scaling}"
        )
