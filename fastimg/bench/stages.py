"""What each stage of a sample costs: samples are read, spliced, decoded and resized stage by stage, by the clock.

The native loader does the last three in one compiled call for several samples; here its parts are called one by one,
with the record of the header and of the region that they share, and what they make is compared with what the loader's
decoder makes.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fastimg.loaders import Dataset, ImageDecoder, ImageError
from fastimg.loaders.crop import shape_of
from fastimg.loaders.decode import decode_box, read_header
from fastimg.loaders.jpeg.decoding import baseline, entropy
from fastimg.loaders.jpeg.decoding.colour import to_columns
from fastimg.loaders.jpeg.decoding.filters import resize_columns
from fastimg.loaders.jpeg.decoding.frame import is_decodable, new_header, parse_header, view_of
from fastimg.loaders.jpeg.decoding.region import find_region, new_region
from fastimg.loaders.resample import resample
from fastimg.loaders.runtime.scratch import Scratch

Clock = Callable[[], float]

STAGES = ("read", "splice", "decode", "resize")
_ROOM = 64 << 20  # bytes of each buffer
MAX_PIXELS = 10_000_000  # of a picture, for which the buffers are enough
_CHECKED = 8  # samples of each thread whose pixels are compared


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
        self.header, self.region = new_header(), new_region()
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
            self.decoder.fill_row(encoded, draws, {"inputs": whole}, self.check_scratch)
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
        decoder, header, region, clock = self.decoder, self.header, self.region, self.clock
        t0 = clock()
        if not decoder.compiled or bytes(encoded[:2]) != b"\xff\xd8":
            return None
        view, crop = view_of(encoded), decoder.crop
        if not parse_header(view, header) or not is_decodable(header) or header["orientation"][0] != 1:
            return None
        width, height = int(header["width"][0]), int(header["height"][0])
        if width * height > min(MAX_PIXELS, decoder.max_pixels):
            return None
        window, bicubic = crop.window(width, height, draws), crop.interpolation == "bicubic"
        if not find_region(header, *window, shape_of(crop)[::-1], bicubic, decoder.dct_scaling, region):
            return None
        t1 = clock()
        entropy.collect(view, header, region, self.bits, self.bounds)
        t2 = clock()
        if not baseline.decode_tiles(view, header, region, self.bits, self.bounds, self.tables, self.planes):
            return None
        t3 = clock()
        to_columns(self.planes, header, region, self.sums, self.columns)
        t4 = clock()
        resize_columns(self.columns, region, bicubic, self.work, self.out)
        # decode_tiles finds the tiles once more: that is splicing, not decoding.
        return 1, t2 - t0, max((t3 - t2) - (t2 - t1), 0.0) + t4 - t3, clock() - t4
