"""What `Loader(...)` is called with, in either way -> dataset, decoder, settings."""

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, cast

from fastimg.loaders.containers.datasets import Dataset, open_dataset
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.stores import url_of

from .batch import FieldSelection
from .crop import CenterCrop, CropRule, RandomResizedCrop, Size, View, check_room, pair
from .decoder import Decoder
from .epochs.config import LoaderConfig
from .epochs.surroundings import EXPLICIT, Follows, ranks_here, seed_here
from .order import BLOCK, Order

_RESIZE = 0.875  # the usual share of the resized image's shorter side that a centre crop keeps
_OPEN = ("order", "block", "seed", "rank", "world_size")  # chosen where they are None
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(LoaderConfig) if field.name != "batch_size"}


class Arguments(NamedTuple):
    """What a loader is made of."""

    dataset: Dataset
    opened: bool  # it was opened here: the loader closes it
    decoder: Decoder
    config: LoaderConfig
    follows: Follows  # what the loader takes from its process


# An argument of torch's DataLoader -> what a Loader takes in its place.
_INSTEAD = {
    "shuffle": 'give order="random" or order="sequential"',
    "num_workers": "give workers, a number of threads",
    "prefetch_factor": "give prefetch, a number of batches",
    "sampler": "give order, indices, sampling, or rank and world_size",
    "batch_sampler": "give batch_size, and order, indices, sampling, or rank and world_size",
    "collate_fn": "give then= to loader.tuples(), or a Decoder with fields of its own",
    "generator": "give seed",
    "worker_init_fn": "leave it out: what is drawn depends on seed, the epoch and the sample",
    **dict.fromkeys(("pin_memory", "pin_memory_device"), "leave it out: memory is pinned where device is a GPU"),
    **dict.fromkeys(
        ("persistent_workers", "multiprocessing_context", "timeout", "in_order"), "leave it out: there are no processes"
    ),
}


def refuse_index(loader: object, index: object) -> NoReturn:
    """Raises TypeError for `loader[index]`, which a DataLoader asks its dataset for."""
    raise TypeError(
        f"{type(loader).__name__} has batches in the order of an epoch and no [{index!r}]: iterate over it, as in "
        "next(iter(loader)); it takes the place of a DataLoader, and is not to be wrapped in one"
    )


def refuse_unknown(others: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument that a Loader does not have, with what it has in place of a DataLoader's."""
    for name in others:
        if name in _INSTEAD:
            raise TypeError(f"Loader has no argument {name!r}: {_INSTEAD[name]}")
        raise TypeError(f"Loader got an unexpected keyword argument {name!r}; help(Loader) lists those that it has")


def resolve(
    data: Dataset | str | PathLike[str],
    decoder: Decoder | None,
    config: LoaderConfig | None,
    crop: CropRule | Size | None,
    views: Sequence[View] | None,
    split: str | None,
    max_pixels: int | None,
    channels: int | None,
    depth: int | None,
    fields: Sequence[str] | FieldSelection | None,
    settings: dict[str, Any],
    elsewhere: Mapping[str, Any] = MappingProxyType({}),
) -> Arguments:
    """Open what is named by its path, and make what is given by keywords. `settings` has every field of LoaderConfig.

    `elsewhere`: arguments of `open_dataset` for data in an object store. An `order` and a `block` of None are chosen. A
    crop in pixels is a RandomResizedCrop, of a sequential order a CenterCrop. Without a `config`, ranks and a `seed` of
    None are those of this process. Raises TypeError for arguments that contradict each other, ValueError for values
    that cannot be, and what `open_dataset` raises.
    """
    stated = {name: value for name, value in settings.items() if value is not None or name not in _OPEN}
    follows = EXPLICIT
    chooses = config is None and settings["block"] is None
    if config is None:
        if settings["batch_size"] is None:
            raise TypeError("Loader: give batch_size, or a config")
        fetched = fetched_files(data) is not None or (isinstance(data, str | PathLike) and url_of(data) is not None)
        chosen: Order = "quasi-random" if fetched and settings["sampling"] is None else "random"
        if ("rank" in stated) != ("world_size" in stated):
            raise TypeError(
                "Loader: rank and world_size go together; give both, or neither, which takes them from "
                "torch.distributed or torchrun's environment"
            )
        follows = Follows(ranks="rank" not in stated, seed="seed" not in stated, even=True)
        if follows.ranks:
            stated |= dict(zip(("rank", "world_size"), ranks_here(), strict=True))
        if follows.seed:
            stated["seed"] = seed_here(stated["world_size"])
        config = LoaderConfig(**{"order": chosen, "block": "shard" if fetched else BLOCK, **stated})
    elif given := [name for name, value in stated.items() if value != _DEFAULTS.get(name)]:
        raise TypeError(f"Loader: {', '.join(given)} and a config were given; put everything into the config")
    if fields is not None and views is not None:
        raise TypeError("Loader: fields move with one crop, but views have several; leave one of them out")
    if decoder is None:
        decoder = _decoder(crop, views, max_pixels, channels, depth, config.order)
    elif any(given is not None for given in (crop, views, max_pixels, channels, depth)):
        raise TypeError("Loader: crop, views, max_pixels, channels and depth are the decoder's; give them to it")
    elif not isinstance(decoder, Decoder):
        raise TypeError(f"Loader: {type(decoder).__name__} is not a Decoder; derive it from fastimg.loaders.decoder")
    elif fields is not None:
        raise TypeError("Loader: fields go with crop; a decoder of your own may be given to a FieldsDecoder")
    dataset, opened = _dataset(data, split, elsewhere)
    if chooses and config.block == "shard" and fetched_files(dataset) is None:  # a .beton is fetched whole
        config = dataclasses.replace(config, block=BLOCK)
    if fields is not None:
        try:
            decoder = _with_fields(decoder, fields, dataset)
        except BaseException:
            if opened:
                dataset.close()
            raise
    return Arguments(dataset, opened, decoder, config, follows)


def _dataset(
    data: Dataset | str | PathLike[str], split: str | None, elsewhere: Mapping[str, Any]
) -> tuple[Dataset, bool]:
    """The dataset, and whether it was opened here."""
    if isinstance(data, str | PathLike):
        return open_dataset(str(data), split or "train", **elsewhere), True
    if given := [name for name, value in elsewhere.items() if value is not None]:
        raise TypeError(
            f"Loader: {', '.join(given)} have no effect on a dataset that is open; give them to open_dataset"
        )
    if split is not None:
        raise TypeError(f"Loader: split={split!r} has no effect on a dataset that is open; open that split")
    return data, False


def _with_fields(decoder: Decoder, fields: Sequence[str] | FieldSelection, dataset: Dataset) -> Decoder:
    from .decoders.fields import FieldsDecoder
    from .decoders.images import ImageDecoder

    assert isinstance(decoder, ImageDecoder)
    selection = fields if isinstance(fields, FieldSelection) else FieldSelection(names=fields)
    return FieldsDecoder.of(decoder, selection, dataset)


def _decoder(
    crop: CropRule | Size | None,
    views: Sequence[View] | None,
    max_pixels: int | None,
    channels: int | None,
    depth: int | None,
    order: Order,
) -> Decoder:
    if crop is None and views is None:
        raise TypeError("Loader: give crop, in pixels or as a crop object, or views, or a decoder")
    from .decode import MAX_PIXELS  # here, because text datasets do not need the JPEG decoder
    from .decoders.images import ImageDecoder
    from .decoders.views import ViewDecoder

    most = MAX_PIXELS if max_pixels is None else max_pixels
    kept = 3 if channels is None else channels
    bits = 8 if depth is None else depth
    if views is None:
        images = ImageDecoder(_crop(cast(CropRule | Size, crop), order), most, channels=kept, depth=bits)
        check_room(images.max_pixels, images.crop)
        return images
    if crop is not None:
        raise TypeError("Loader: crop and views were given; each View has a crop of its own, so leave crop out")
    if not isinstance(views, Sequence):
        raise TypeError(f"Loader: views={views!r}; give a list of Views (an earlier `views=2` is now `crop_epochs=2`)")
    return ViewDecoder(tuple(views), most, channels=kept, depth=bits)


def _crop(crop: CropRule | Size, order: Order) -> CropRule:
    if hasattr(crop, "window"):
        return cast(CropRule, crop)
    height, width = pair(crop, "crop")
    if order == "sequential":
        return CenterCrop(size=(height, width), resize=(round(height / _RESIZE), round(width / _RESIZE)))
    return RandomResizedCrop(size=(height, width))
