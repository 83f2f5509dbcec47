"""What each stage of a sample costs: samples are read, spliced, decoded and resized stage by stage, by the clock.

The native loader does the last three in one compiled call for several samples; here its parts are called one by one,
and what they make is compared with what the loader's decoder makes.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .loaders import Dataset, ImageDecoder, ImageError, baseline, entropy
from .loaders import frame as jpeg
from .loaders.colour import to_columns
from .loaders.crop import Window
from .loaders.decode import decode_box, read_header
from .loaders.filters import reach, resize_columns
from .loaders.resample import resample
from .loaders.scratch import Scratch
from .loaders.vectors import WIDE

Clock = Callable[[], float]

STAGES = ("read", "splice", "decode", "resize")
_ROOM = 64 << 20  # bytes of each buffer
_MOST_PIXELS = 10_000_000  # of a picture, for which the buffers are enough
_CHECKED = 8  # samples of each thread whose pixels are compared
_MARGIN = 2  # the upsampling of chroma looks past the box


@dataclass
class Costs:
    """Seconds of one core for each stage, over `images` samples of `nbytes` encoded bytes."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    images: int = 0
    nbytes: int = 0
    tiled: int = 0  # of the images: decoded by the compiled decoder of tiled JPEGs
    failed: int = 0  # could not be decoded, not among `images`

    def __iadd__(self, other: "Costs") -> "Costs":
        for name, seconds in other.seconds.items():
            self.seconds[name] += seconds
        self.images, self.nbytes = self.images + other.images, self.nbytes + other.nbytes
        self.tiled, self.failed = self.tiled + other.tiled, self.failed + other.failed
        return self

    def rate(self, stage: str) -> float:
        """Images per second of one core that does nothing else."""
        return self.images / max(self.seconds[stage], 1e-12)


def take_apart(
    dataset: Dataset,
    ids: npt.NDArray[np.int64],
    decoder: ImageDecoder,
    threads: int,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Costs:
    """The costs of samples, on so many threads at the same time. Raises what a thread raised."""
    draws = decoder.draw(seed, 0, ids)
    ready, found, errors = threading.Barrier(threads), [Costs() for _ in range(threads)], list[BaseException]()

    def work(number: int) -> None:
        try:
            bench = _Thread(decoder, clock)
            some, boxes = ids[number::threads].tolist(), draws[number::threads].tolist()
            for index, box in list(zip(some, boxes, strict=True))[:1]:  # what is compiled, and touched first
                bench.sample(dataset, index, box, check=False)
            bench.costs = found[number]
            ready.wait()
            for place, (index, box) in enumerate(zip(some, boxes, strict=True)):
                bench.sample(dataset, index, box, check=place < _CHECKED)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            errors.append(error)
            ready.abort()

    run_threads(work, threads)
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if real:
        raise real[0]
    total = Costs()
    for costs in found:
        total += costs
    return total


def read_rate(
    dataset: Dataset, ids: npt.NDArray[np.int64], threads: int, batch: int, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """(images, bytes) per second that so many threads read, batches asked for ahead as the loader does it."""
    blocks = [ids[at : at + batch] for at in range(0, len(ids), batch)]
    nbytes, errors = [0] * threads, list[BaseException]()

    def work(number: int) -> None:
        try:
            scratch = Scratch()
            for place, block in enumerate(blocks):
                if number == 0 and place + 2 < len(blocks):
                    dataset.will_need(blocks[place + 2])
                for index in block[number::threads].tolist():
                    try:
                        nbytes[number] += len(dataset.read(index, scratch))
                    except ImageError:  # counted where it is decoded
                        continue
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            errors.append(error)

    for block in blocks[:2]:
        dataset.will_need(block)
    began = clock()
    run_threads(work, threads)
    seconds = max(clock() - began, 1e-12)
    if errors:
        raise errors[0]
    return len(ids) / seconds, sum(nbytes) / seconds


def run_threads(work: Callable[[int], object], threads: int) -> None:
    """Call `work(0)`, `work(1)`, ... on threads of their own, and wait for them."""
    started = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


class _Thread:
    """What one thread holds."""

    def __init__(self, decoder: ImageDecoder, clock: Clock) -> None:
        self.decoder, self.clock, self.costs = decoder, clock, Costs()
        self.scratch, self.check_scratch = Scratch(), Scratch()
        self.frame = np.zeros(jpeg.HEADER, np.int64)
        self.bits, self.planes, self.columns, self.work = (np.empty(_ROOM, np.uint8) for _ in range(4))
        self.bounds, self.tables = np.empty(1 << 20, np.int64), np.empty(baseline.SCRATCH, np.int64)
        self.sums = np.empty(_ROOM // 2, np.uint16)
        self.out = np.empty(decoder.fields[0].shape, np.uint8)

    def sample(self, dataset: Dataset, index: int, draws: Sequence[float], check: bool) -> None:
        """One sample, its stages timed. Raises RuntimeError where `check` finds other pixels than the loader's."""
        costs, began = self.costs, self.clock()
        try:
            encoded = dataset.read(index, self.scratch)
            read = self.clock()
            spent = self._compiled(encoded, draws) or self._plain(encoded, draws)
        except ImageError:
            costs.failed += 1
            return
        for name, seconds in zip(STAGES, (read - began, *spent[1:]), strict=True):
            costs.seconds[name] += seconds
        costs.images, costs.nbytes, costs.tiled = costs.images + 1, costs.nbytes + len(encoded), costs.tiled + spent[0]
        if check:
            whole = np.empty_like(self.out)
            self.decoder.fill(encoded, draws, {"inputs": whole}, self.check_scratch)
            if not np.array_equal(whole, self.out):
                raise RuntimeError(f"{dataset.sample_name(index)}: the stages' pixels are not those of the decoder")

    def _plain(self, encoded: memoryview, draws: Sequence[float]) -> tuple[int, float, float, float]:
        """What is no tiled JPEG: the header and the window count as splicing."""
        clock, decoder = self.clock, self.decoder
        t0 = clock()
        header = read_header(encoded, decoder.max_pixels)
        window = decoder.crop.window(*header.size, draws)
        if window.size[0] * window.size[1] > decoder.max_pixels:
            raise ImageError("too long and thin to resize")
        t1 = clock()
        pixels, box = decode_box(encoded, header, window.box, self.scratch)
        t2 = clock()
        resample(pixels, window._replace(box=box), decoder.crop.interpolation, self.out)
        return 0, t1 - t0, t2 - t1, clock() - t2

    def _compiled(self, encoded: memoryview, draws: Sequence[float]) -> tuple[int, float, float, float] | None:
        """A tiled JPEG; None for what is for others to decode."""
        decoder, frame, clock = self.decoder, self.frame, self.clock
        t0 = clock()
        if not decoder.compiled or bytes(encoded[:2]) != b"\xff\xd8":
            return None
        view = np.frombuffer(encoded, np.uint8)
        view.flags.writeable = False
        if not jpeg.read_frame(view, frame) or frame[jpeg.ORIENTATION] != 1:
            return None
        if frame[jpeg.WIDTH] * frame[jpeg.HEIGHT] > min(_MOST_PIXELS, decoder.max_pixels):
            return None
        window = decoder.crop.window(int(frame[jpeg.WIDTH]), int(frame[jpeg.HEIGHT]), draws)
        cut = _Cut.of(frame, window, decoder)
        if cut is None:
            return None
        t1 = clock()
        entropy.collect(view, frame, *cut.tiles, self.bits, self.bounds)
        t2 = clock()
        fine = baseline.decode_tiles(
            view, frame, cut.side, *cut.tiles, self.bits, self.bounds, self.tables, self.planes
        )
        if not fine:
            return None
        t3 = clock()
        place = (self.planes, cut.small, *cut.tiles, cut.region, cut.height, self.sums, self.columns)
        to_columns(*place)
        t4 = clock()
        bicubic = decoder.crop.interpolation == "bicubic"
        resize_columns(self.columns, cut.height, *cut.at(window), bicubic, self.work, self.out)  # type: ignore[call-arg]
        # decode_tiles finds the tiles once more: that is splicing, not decoding.
        return 1, t2 - t0, max((t3 - t2) - (t2 - t1), 0.0) + t4 - t3, clock() - t4


@dataclass
class _Cut:
    """Where a window's pixels come from, as `loaders.tiled.crop_tiled` finds it."""

    side: int  # samples across a decoded block
    small: Any  # the frame, scaled
    tiles: tuple[int, int, int, int]  # left, right, top, bottom
    region: npt.NDArray[np.int64]
    height: int  # rows of the columns
    start: npt.NDArray[np.float64]
    extent: npt.NDArray[np.float64]

    def at(self, window: Window) -> tuple[Any, ...]:
        """What `resize_columns` is told of the place."""
        x, y = int(self.region[0]), int(self.region[1])
        if self.side == 8:
            x, y = x - window.box[0], y - window.box[1]
        return x, y, self.start, self.extent, window.size, window.at

    @classmethod
    def of(cls, frame: Any, window: Window, decoder: ImageDecoder) -> "_Cut | None":
        box, size, at = window
        bicubic, out = decoder.crop.interpolation == "bicubic", decoder.crop.size
        side, scales = 8, bool(frame[jpeg.H] == frame[jpeg.V]) and decoder.dct_scaling
        while scales and side > 1 and box[2] * side >= 16 * size[0] and box[3] * side >= 16 * size[1]:
            side //= 2
        small = jpeg.scaled(frame, side)
        start, extent, region = np.empty(2), np.empty(2), np.empty(4, np.int64)
        for i in range(2):
            start[i], extent[i] = box[i] * side / 8, box[2 + i] * side / 8
            origin = box[i] if side == 8 else 0
            start[i] -= origin
            begin, end = reach(start[i], extent[i], size[i], bicubic, at[i], at[i] + out)
            region[i] = min(origin + begin, small[jpeg.WIDTH + i] - 1)
            region[2 + i] = min(end - begin, small[jpeg.WIDTH + i] - region[i])
        width, height = int(small[jpeg.INTERVAL] * small[jpeg.MCU_WIDTH]), int(small[jpeg.MCU_HEIGHT])
        whole = (int(small[jpeg.WIDTH]), int(small[jpeg.HEIGHT]))
        ends = [min(whole[i], int(region[i] + region[2 + i]) + _MARGIN) for i in range(2)]
        left, top = max(0, int(region[0]) - _MARGIN) // width, max(0, int(region[1]) - _MARGIN) // height
        right, bottom, tiles = -(-ends[0] // width), -(-ends[1] // height), -(-whole[0] // width)
        while min(whole[0], right * width) - left * width <= 4:
            if right < tiles:
                right += 1
            elif left > 0:
                left -= 1
            else:
                return None
        rows = -(-int(region[3]) // WIDE) * WIDE
        return cls(side, small, (left, right, top, bottom), region, rows, start, extent)
