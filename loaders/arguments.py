"""What `Loader(...)` is called with, in either way -> dataset, decoder, settings."""

import dataclasses
from os import PathLike
from typing import Any, Literal, NamedTuple, TypedDict

from .crop import CenterCrop, Crop, RandomResizedCrop
from .decode import MAX_PIXELS
from .epochs import LoaderConfig, Padding
from .order import Order
from .ring import RingDecoder
from .sample import Decoder, ImageDecoder
from .shards import Dataset, open_dataset

_RESIZE = 0.875  # the usual share of the resized image's shorter side that a centre crop keeps


class Settings(TypedDict, total=False):
    """The fields of `LoaderConfig`, as keywords."""

    batch_size: int
    order: Order
    block: int
    window: int
    together: int | None
    padding: Padding | None
    seed: int
    workers: int | None
    prefetch: int
    on_error: Literal["skip", "fail"]
    rank: int
    world_size: int


class Arguments(NamedTuple):
    """What a loader is made of."""

    dataset: Dataset
    opened: bool  # it was opened here: the loader closes it
    decoder: Decoder | RingDecoder
    config: LoaderConfig


def resolve(
    data: Dataset | str | PathLike[str],
    decoder: Decoder | RingDecoder | None,
    config: LoaderConfig | None,
    crop: Crop | int | None,
    split: str | None,
    max_pixels: int | None,
    settings: dict[str, Any],
) -> Arguments:
    """Open what is named by its path, and make what is given by keywords.

    A crop in pixels is a RandomResizedCrop, of a sequential order a CenterCrop. Raises TypeError for arguments that
    contradict each other or are unknown, and what `open_dataset` raises.
    """
    if config is None:
        config = _config(settings)
    elif settings:
        raise TypeError(f"Loader: {', '.join(settings)} stand in the config already; give one or the other")
    if decoder is None:
        if crop is None:
            raise TypeError("Loader: give crop, in pixels or as a Crop, or a decoder")
        decoder = ImageDecoder(_crop(crop, config.order), MAX_PIXELS if max_pixels is None else max_pixels)
    elif crop is not None or max_pixels is not None:
        raise TypeError("Loader: crop and max_pixels are the decoder's; give them to it")
    if isinstance(data, str | PathLike):
        return Arguments(open_dataset(str(data), split or "train"), True, decoder, config)
    if split is not None:
        raise TypeError(f"Loader: split={split!r} has no effect on a dataset that is open; open that split")
    return Arguments(data, False, decoder, config)


def _config(settings: dict[str, Any]) -> LoaderConfig:
    known = [field.name for field in dataclasses.fields(LoaderConfig)]
    if unknown := [name for name in settings if name not in known]:
        raise TypeError(f"Loader: no setting is called {', '.join(unknown)}; there are {', '.join(known)}")
    if "batch_size" not in settings:
        raise TypeError("Loader: give batch_size, or a config")
    return LoaderConfig(**settings)


def _crop(crop: Crop | int, order: Order) -> Crop:
    if not isinstance(crop, int):
        return crop
    if crop < 1:
        raise ValueError(f"crop {crop}: give 1 pixel or more")
    if order == "sequential":
        return CenterCrop(size=crop, resize=round(crop / _RESIZE))
    return RandomResizedCrop(size=crop)
