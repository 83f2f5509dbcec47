"""The cost of each stage of a sample: times reading, splicing, decoding and resizing separately.

The native loader does the last three in one compiled call for several samples. Here its parts are called one by one,
with the records of the header and of the region that they share, and the result is compared with the loader's pixels.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fastimg.loaders import Dataset, ImageDecoder, ImageError
from fastimg.loaders.crop import fill_of, reaches_out, shape_of
from fastimg.loaders.decode import decode_box, read_header
from fastimg.loaders.decoders.picture_queue import PictureQueue
from fastimg.loaders.decoders.resize_queue import ResizeQueue
from fastimg.loaders.jpeg.decoding import baseline
from fastimg.loaders.jpeg.decoding.colour import to_columns
from fastimg.loaders.jpeg.decoding.crops import CropQueue, peek
from fastimg.loaders.jpeg.decoding.entropy import tiles
from fastimg.loaders.jpeg.decoding.frame import TILED, new_header, view_of
from fastimg.loaders.jpeg.decoding.region import find_region, new_region, scaling_of
from fastimg.loaders.jpeg.decoding.turning import resize_upright
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.scratch import Scratch

Clock = Callable[[], float]

STAGES = ("read", "splice", "decode", "resize")
_BUFFER_BYTES = 64 << 20
MAX_PIXELS = 10_000_000  # of an image that fits the buffers
_CHECKED = 8  # samples of each thread whose pixels are compared


@dataclass
class Costs:
    """Seconds of one core per stage, over `images` samples with `nbytes` encoded bytes."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    images: int = 0
    nbytes: int = 0
    tiled: int = 0  # images decoded by the compiled decoder of tiled JPEGs
    failed: int = 0  # samples that could not be decoded; not counted in `images`

    def __iadd__(self, other: "Costs") -> "Costs":
        for name, seconds in other.seconds.items():
            self.seconds[name] += seconds
        self.images += other.images
        self.nbytes += other.nbytes
        self.tiled += other.tiled
        self.failed += other.failed
        return self

    def rate(self, stage: str) -> float:
        """Images per second of a core that does only this stage."""
        return self.images / max(self.seconds[stage], 1e-12)


def take_apart(
    dataset: Dataset,
    ids: npt.NDArray[np.int64],
    decoder: ImageDecoder,
    threads: int,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Measure the costs of samples, on this number of threads at the same time. Raises what a thread raises."""
    draws = decoder.draw(seed, 0, ids)
    ready = threading.Barrier(threads)
    costs_by_thread = [Costs() for _ in range(threads)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            bench = _Thread(decoder, clock)
            samples = list(zip(ids[number::threads].tolist(), draws[number::threads].tolist(), strict=True))
            for index, box in samples[:1]:  # loads compiled code, touches memory
                bench.sample(dataset, index, box, check=False)
            bench.costs = costs_by_thread[number]
            ready.wait()
            for place, (index, box) in enumerate(samples):
                bench.sample(dataset, index, box, check=place < _CHECKED)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)
            ready.abort()

    run_threads(work, threads)
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if real:
        raise real[0]
    total = Costs()
    for costs in costs_by_thread:
        total += costs
    return total


def read_rate(
    dataset: Dataset, ids: npt.NDArray[np.int64], threads: int, batch: int, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """(images, bytes) per second read by this number of threads, with batches requested ahead as in the loader."""
    blocks = [ids[start : start + batch] for start in range(0, len(ids), batch)]
    nbytes = [0] * threads
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            scratch = Scratch()
            for place, block in enumerate(blocks):
                if number == 0 and place + 2 < len(blocks):
                    dataset.will_need(blocks[place + 2])
                for index in block[number::threads].tolist():
                    try:
                        nbytes[number] += len(dataset.read(index, scratch))
                    except ImageError:  # counted when decoding
                        continue
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
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
    """Call `work(0)`, `work(1)`, ... on separate threads, and wait for them."""
    started = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


class _Thread:
    """The buffers and costs of one thread."""

    def __init__(self, decoder: ImageDecoder, clock: Clock) -> None:
        self.decoder = decoder
        self.clock = clock
        self.costs = Costs()
        self.scratch = Scratch()
        self.check_scratch = Scratch()
        self.header = new_header()
        self.region = new_region()
        self.bits, self.planes, self.columns, self.work = (np.empty(_BUFFER_BYTES, np.uint8) for _ in range(4))
        self.bounds = np.empty(1 << 20, np.int64)
        self.tables = np.empty(baseline.SCRATCH, np.int64)
        self.sums = np.empty(_BUFFER_BYTES // 2, np.uint16)
        self.out = np.empty(decoder.fields[0].shape, np.uint8)
        self.pair = np.empty((2, *self.out.shape), np.uint8)
        self.queue = CropQueue()
        self.pictures = PictureQueue()
        self.resizes = ResizeQueue()

    def sample(self, dataset: Dataset, index: int, draws: Sequence[float], check: bool) -> None:
        """Time the stages of one sample. Raises RuntimeError if `check` is set and its pixels are not the loader's."""
        costs = self.costs
        began = self.clock()
        try:
            encoded = dataset.read(index, self.scratch)
            read = self.clock()
            jpeg = self._tiled(encoded, draws) or self._untiled(encoded, draws)
            tiled, *times = jpeg or self._picture(encoded, draws) or self._plain(encoded, draws)
        except ImageError:
            costs.failed += 1
            return
        for name, seconds in zip(STAGES, (read - began, *times), strict=True):
            costs.seconds[name] += seconds
        costs.images += 1
        costs.nbytes += len(encoded)
        costs.tiled += int(tiled)
        if check:
            whole = np.empty_like(self.out)
            self.decoder.fill_row(encoded, draws, {"inputs": whole}, self.check_scratch)
            if not np.array_equal(whole, self.out):
                raise RuntimeError(f"{dataset.sample_name(index)}: the stages' pixels differ from the decoder's")

    def _picture(self, encoded: memoryview, draws: Sequence[float]) -> tuple[int, float, float, float] | None:
        """A PNG, WebP, BMP, PPM or TIFF that compiled code decodes: (0, then seconds per stage). None for others.

        Two are decoded and resized in one call, as in the loader, and the resize is timed once more alone. The header
        and the window count as splicing.
        """
        decoder, clock, crop = self.decoder, self.clock, self.decoder.crop
        if not decoder.compiled or decoder.depth != 8 or fill_of(crop) is not None:
            return None
        group = self.check_scratch.group(2)
        group.reserve(len(encoded))
        for place in range(2):
            group.buffer(place)[: len(encoded)] = encoded
        group.take(np.full(2, len(encoded)), np.ones(2, np.bool_))
        t0 = clock()
        if self.pictures.add_group(group, (0, 1), crop, np.array([draws, draws]), decoder.max_pixels):
            return None
        t1 = clock()
        if self.pictures.run(crop, self.scratch, self.pair):
            return None
        t2 = clock()
        window = crop.window(*read_header(encoded, decoder.max_pixels).size, draws)
        width, height = window.box[2:]
        pixels = np.zeros((height, width, self.out.shape[2]), np.uint8)
        alone = window._replace(box=(0, 0, width, height))
        t3 = clock()
        if self.resizes.add(pixels, alone, shape_of(crop), 0):
            self.resizes.run(crop, self.scratch, self.out[None])
        else:
            resample(pixels, alone, crop.interpolation, self.out)
        t4 = clock()
        self.out[:] = self.pair[0]
        return 0, (t1 - t0) / 2, max((t2 - t1) / 2 - (t4 - t3), 0.0), t4 - t3

    def _plain(self, encoded: memoryview, draws: Sequence[float]) -> tuple[int, float, float, float]:
        """An image that the compiled decoder does not take: (0, then seconds per stage).

        The header and the window count as splicing.
        """
        clock = self.clock
        decoder = self.decoder
        t0 = clock()
        header = read_header(encoded, decoder.max_pixels)
        window = decoder.crop.window(*header.size, draws)
        if window.size[0] * window.size[1] > decoder.max_pixels:
            raise ImageError("too long and thin to resize")
        t1 = clock()
        pixels, box = decode_box(encoded, header, window.box, self.scratch, decoder.channels)
        t2 = clock()
        resample(pixels, window._replace(box=box), decoder.crop.interpolation, self.out)
        return 0, t1 - t0, t2 - t1, clock() - t2

    def _untiled(self, encoded: memoryview, draws: Sequence[float]) -> tuple[int, float, float, float] | None:
        """An untiled JPEG: (0, then seconds per stage). None for images that the compiled decoder does not take.

        Two are decoded and resized in one call, as in the loader, and the resize is timed once more alone.
        """
        decoder = self.decoder
        clock = self.clock
        crop = decoder.crop
        queue = self.queue
        queue.clear()
        t0 = clock()
        if not decoder.compiled or not queue.add(encoded, crop, draws, decoder.max_pixels, 0):
            return None
        t1 = clock()
        queue.add(encoded, crop, draws, decoder.max_pixels, 1)
        t2 = clock()
        if queue.run(crop, scaling_of(decoder.dct_scaling), self.scratch, self.pair):
            return None
        t3 = clock()
        width, height, _, _ = peek(view_of(encoded), self.header)
        window = crop.window(width, height, draws)
        bicubic = crop.interpolation == "bicubic"
        find_region(self.header, *window, shape_of(crop)[::-1], bicubic, 0, self.region)
        t4 = clock()
        resize_upright(self.columns, self.region, bicubic, self.work, self.out)
        t5 = clock()
        self.out[:] = self.pair[0]
        return 0, t1 - t0, max((t3 - t2) / 2 - (t5 - t4), 0.0), t5 - t4

    def _tiled(self, encoded: memoryview, draws: Sequence[float]) -> tuple[int, float, float, float] | None:
        """A tiled JPEG: (1, then seconds per stage). None for images that the compiled decoder does not take."""
        decoder = self.decoder
        header = self.header
        region = self.region
        clock = self.clock
        t0 = clock()
        if not decoder.compiled or bytes(encoded[:2]) != b"\xff\xd8":
            return None
        view = view_of(encoded)
        crop = decoder.crop
        width, height, _, kind = peek(view, header)
        if kind != TILED or width * height > min(MAX_PIXELS, decoder.max_pixels):
            return None
        window = crop.window(width, height, draws)
        bicubic = crop.interpolation == "bicubic"
        scaling = scaling_of(decoder.dct_scaling)
        if reaches_out(window, *shape_of(crop)[::-1]):
            return None
        if not find_region(header, *window, shape_of(crop)[::-1], bicubic, scaling, region):
            return None
        t1 = clock()
        tiles.collect(view, header, region, self.bits, self.bounds)
        t2 = clock()
        if not baseline.decode_tiles(view, header, region, self.bits, self.bounds, self.tables, self.planes):
            return None
        t3 = clock()
        to_columns(self.planes, header, region, self.sums, self.columns)
        t4 = clock()
        resize_upright(self.columns, region, bicubic, self.work, self.out)
        # decode_tiles locates the tiles again: that part counts as splicing, not as decoding.
        return 1, t2 - t0, max((t3 - t2) - (t2 - t1), 0.0) + t4 - t3, clock() - t4
