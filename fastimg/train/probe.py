"""What one thread of the native loader would do with the samples of a run: a few are decoded, in a third of a second.

What the thread computes is counted by the processor's time, so that whatever else runs on the cores does not count;
what it waits for in reading, by the clock, unless it was only made to leave its core to others.
"""

import resource
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fastimg.loaders import BatchSource, DataError, Dataset, ImageDecoder, ImageError
from fastimg.loaders.decode import read_header
from fastimg.loaders.decoder import Row
from fastimg.loaders.jpeg.decoding.tiled import TileQueue, will_compile
from fastimg.loaders.runtime.scratch import GROUP, Scratch
from fastimg.train.reporting.hints import Probe

SECONDS, SAMPLES = 0.3, 64  # at most

Clock = Callable[[], float]


def given_up() -> int:
    """How often this thread has left its core to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def probe(
    loader: BatchSource,
    images: ImageDecoder,
    seed: int,
    clock: Clock = time.perf_counter,
    processor: Clock = time.thread_time,
    waits: Callable[[], int] = given_up,
) -> Probe | None:
    """Read and decode random samples of what `loader` reads, as the native loader's threads do it, in this thread.

    None where that is not possible: the loader will say why in its turn.
    """
    ids = loader.indices
    places = np.random.default_rng(seed).integers(len(loader.dataset) if ids is None else len(ids), size=1 + SAMPLES)
    chosen = places if ids is None else ids[places]
    try:
        return _probe(loader.dataset, chosen, images, images.draw(seed, 0, chosen).tolist(), clock, processor, waits)
    except DataError:
        return None


def _probe(
    dataset: Dataset,
    chosen: npt.NDArray[np.int64],
    images: ImageDecoder,
    draws: list[list[float]],
    clock: Clock,
    processor: Clock,
    waits: Callable[[], int],
) -> Probe | None:
    rows = {field.name: np.empty((GROUP, *field.shape), field.dtype) for field in images.fields}
    scratch, alone, ids = Scratch(), Scratch(), chosen.tolist()
    queue = scratch.own(TileQueue)
    first = dataset.read(ids[0], scratch)
    if will_compile(first):  # that would take longer than what this is for
        images = replace(images, compiled=False)
    images.fill_row(first, draws[0], _row(rows, 0), alone)  # not timed: compiled code is loaded, memory is asked for
    reading = blocked = aside = 0.0
    done = tiled = noted = 0
    began, worked = clock(), processor()
    for index, drawn in zip(ids[1:], draws[1:], strict=True):
        if clock() - began > SECONDS:
            break
        at, used, before = clock(), processor(), waits()
        try:
            data = dataset.read(index, scratch.other(noted))
            seconds, after = clock() - at, processor()
            waited = max(0.0, seconds - (after - used)) if waits() > before else 0.0
            reading, blocked = reading + after - used + waited, blocked + waited
            tiled += read_header(data, images.max_pixels).restarts
            aside += processor() - after  # nobody else asks that
            done += 1
            if images.compiled and queue.add(data, images.crop, drawn, images.max_pixels, noted):
                noted += 1
            else:
                images.fill_row(data, drawn, _row(rows, noted), alone)
        except ImageError:  # it took its time all the same
            continue
        if noted == GROUP:
            queue.run(images.crop, images.dct_scaling, scratch, rows["inputs"])
            noted = 0
    queue.run(images.crop, images.dct_scaling, scratch, rows["inputs"])
    total = max(processor() - worked - aside + blocked, 1e-9)
    return Probe(done / total, min(1.0, reading / total), tiled / done) if done else None


def _row(rows: Row, number: int) -> Row:
    return {name: array[number] for name, array in rows.items()}
