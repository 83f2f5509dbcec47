"""Machine code that a loader's threads call: made before they start, and only where it saves more time than it takes.

A thread compiles nothing (`runtime.compiling_nothing`), and loads nothing from the machine's cache after the first
batch. What is not ready it does without: JPEGs are decoded by libjpeg-turbo, PNG files by Pillow, pictures resized by
torch, files read by Python's own functions, to the same bits. What it missed is loaded or compiled in the `background`.
The exception is the decoder of tiled JPEGs where it scales them, as nothing else has its bits: it is made for any
number of them.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.scratch import GROUP, Scratch

from .decoder import Decoder, SampleReader

# Random crops are taken to be read for so many epochs. Few, so that the first one, in which all is compiled, takes no
# longer than with torch's DataLoader.
_EPOCHS = 3
_WORTH = 50_000  # crops for each thread
# Crops of stored pixels, by all threads: they take turns without machine code, which saves 0.1 ms for each.
_WORTH_OF_PIXELS = 50_000

_log = logging.getLogger("fastimg.loaders")


def compile_ahead(
    decoder: Decoder, dataset: Dataset, indices: npt.NDArray[np.int64] | None, ranks: int, threads: int, read: int = 0
) -> bool:
    """Before an epoch: compile what a loader's threads can call, if reading so much makes up for it.

    `read` samples were read before, and as many are taken to follow. Whether there is nothing left to compile.
    """
    enough = _WORTH_OF_PIXELS if decoder.cuts_pixels(dataset) else _WORTH * threads
    samples = (len(dataset) if indices is None else len(indices)) // ranks
    if decoder.in_memory(dataset):
        return True
    if decoder.scales_tiled and _seem_tiled(dataset, indices):
        compile_for(decoder, dataset, indices)
        return True
    if max(_EPOCHS * samples, read) < enough:
        return False
    if max(samples, read) < enough and not decoder.draw(0, 0, looked_at(len(dataset), indices, 1)).shape[1]:
        return False  # without random crops, data is taken to be read once
    compile_for(decoder, dataset, indices)
    return True


def _seem_tiled(dataset: Dataset, indices: npt.NDArray[np.int64] | None) -> bool:
    """Whether one of some samples is a JPEG with restart intervals, as tiled ones are."""
    from fastimg.loaders.jpeg.plain_header import plain_glance  # of a package that texts do not need

    reader, scratch = SampleReader(dataset), Scratch()
    for index in _some(dataset, indices).tolist():
        with suppress(Exception):  # a file that cannot be read is named where it is met
            if plain_glance(reader.read(index, scratch)).interval:
                return True
    return False


def _some(dataset: Dataset, indices: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    return looked_at(len(dataset), indices, GROUP if fetched_files(dataset) is None else 1)


def compile_for(decoder: Decoder, dataset: Dataset, indices: npt.NDArray[np.int64] | None) -> None:
    """Compile what a loader's threads can call, and say so by logging."""
    compile_path(decoder, dataset, _some(dataset, indices), _log.warning)
    if getattr(dataset, "blocks", None) is not None:
        _compile_large(dataset)


def _compile_large(dataset: Dataset) -> None:
    """Compile what decodes parts of large photographs."""
    from .decoders.large import compile_large, will_compile_large  # of a package that texts do not need
    from .runtime.compiled import saying_what_is_compiled

    if will_compile_large(dataset):
        with saying_what_is_compiled("the reading of large photographs", _log.warning), suppress(Exception):
            compile_large(dataset)


def compile_path(decoder: Decoder, dataset: Dataset, ids: npt.NDArray[np.int64], say: Callable[[str], object]) -> None:
    """Decode these samples as a loader's threads would, which compiles what is not in the machine's cache yet."""
    from fastimg.loaders.runtime.compiled import saying_what_is_compiled  # numba, which texts do not need

    rows = {field.name: np.zeros((len(ids), *field.shape), field.dtype) for field in decoder.fields}
    with saying_what_is_compiled("the reading of images", say), suppress(Exception):  # threads will meet it, and say so
        decoder.fill(SampleReader(dataset), ids.tolist(), decoder.draw(0, 0, ids), rows, Scratch())
        decoder.read_ahead(dataset, ids, partial(decoder.draw, 0, 0))


def looked_at(count: int, indices: npt.NDArray[np.int64] | None, most: int) -> npt.NDArray[np.int64]:
    """Up to `most` samples, from the first to the last."""
    total = count if indices is None else len(indices)
    places = np.linspace(0, total - 1, min(most, total)).astype(np.int64)
    return places if indices is None else indices[places]
