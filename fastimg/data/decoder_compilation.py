"""The decoders of JPEGs that a command needs: compiled before it reads its data, once per machine, and said so."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt

from fastimg.loaders import CenterCrop, DataError, Dataset, ImageDecoder, ImageError
from fastimg.loaders.compiling_ahead import compile_path, looked_at
from fastimg.loaders.decoders.large import compile_large, will_compile_large
from fastimg.loaders.jpeg.decoding.crops import compile_for, is_worth_compiling, missing_decoder
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.runtime.scratch import Scratch

_LOOKED_AT = 64  # samples: a folder may hold JPEGs of several kinds

Say = Callable[[str], object]


def compile_decoders(
    dataset: Dataset, indices: npt.NDArray[np.int64] | None, say: Say, crops: int | None = None
) -> bool:
    """Compile what fastimg's loader needs for some of the images, if this machine has not yet, and say how long it
    took. Returns False where that is left out because so few crops would not make up for it.

    crops: as many as there are samples, if left out, which is how the loader decides without random crops.
    """
    crops = len(dataset) if crops is None else crops
    worth, done, scratch = True, {""}, Scratch()
    few = _LOOKED_AT if fetched_files(dataset) is None else 1
    for index in looked_at(len(dataset), indices, few).tolist():
        with suppress(DataError, ImageError):  # the loader will report these
            content = dataset.read(index, scratch)
            missing = missing_decoder(content)
            if missing in done:
                continue
            done.add(missing)
            if missing != "tiled" and not is_worth_compiling(crops):
                worth = False
                continue
            with _compiling("the decoder of " + missing + " JPEGs", say):
                compile_for(content)
    with suppress(DataError, ImageError):
        if will_compile_large(dataset):
            with _compiling("the decoder of large photographs", say):
                compile_large(dataset)
    if is_worth_compiling(crops):
        compile_path(ImageDecoder(CenterCrop(size=8, resize=8)), dataset, looked_at(len(dataset), indices, 1), say)
    return worth


@contextmanager
def _compiling(what: str, say: Say) -> Iterator[None]:
    """Say that something is compiled, and how long it took."""
    say(f"compiling {what}, once per machine")
    began = time.perf_counter()
    yield
    say(f"compiled    {what} in {time.perf_counter() - began:.1f} s")
