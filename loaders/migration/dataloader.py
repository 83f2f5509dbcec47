"""The arguments of torch's DataLoader -> the settings of this package's loader, or what to give in their place."""

import warnings
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from fastimg.loaders.order import DropLast, Sampling
from fastimg.loaders.wording import plural

# Arguments about processes and pinned memory, which this loader does not have.
WITHOUT_EFFECT = (
    *("pin_memory", "pin_memory_device", "persistent_workers", "prefetch_factor", "worker_init_fn"),
    *("multiprocessing_context", "timeout", "in_order"),
)
_COLLATES = ("torch.utils.data._utils.collate", "default_collate")
_SAMPLERS = "RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler and DistributedSampler"


class Sampled(NamedTuple):
    """What a sampler asks for; None where it says nothing."""

    shuffle: bool = False
    places: npt.NDArray[np.int64] | None = None  # of the samples that are read, among all
    sampling: Sampling | None = None
    rank: int | None = None
    world_size: int | None = None
    seed: int | None = None
    tells_epoch: Any = None  # the sampler, whose `epoch` a script sets
    drop_last: DropLast = False


class Batching(NamedTuple):
    """What a script asks for: batches of this size, of these samples."""

    batch_size: int
    drop_last: DropLast
    sampled: Sampled
    seed: int | None


def batching_of(
    batch_size: Any,
    shuffle: Any,
    drop_last: Any,
    seed: int | None,
    samples: int,
    others: dict[str, Any],
) -> Batching:
    """The meaning of a DataLoader's arguments, of which `others` are those that ImageFolderLoader does not name.

    Warns once of those without effect here. Raises TypeError for arguments that cannot be, with the way out.
    """
    sampler, batch_sampler = others.pop("sampler", None), others.pop("batch_sampler", None)
    collate, generator = others.pop("collate_fn", None), others.pop("generator", None)
    _check_others(others)
    if collate is not None and (getattr(collate, "__module__", ""), getattr(collate, "__name__", "")) != _COLLATES:
        raise TypeError(
            "ImageFolderLoader cannot take collate_fn: batches are (images, targets) already; give then=, a function "
            "of these two, such as v2.MixUp(num_classes=10), or decode with a Loader"
        )
    if batch_sampler is not None:
        if _kind(batch_sampler) != "BatchSampler":
            raise TypeError(
                f"ImageFolderLoader cannot take the batch_sampler {_named(batch_sampler)}: give torch's own "
                "BatchSampler, or batch_size, sampler and drop_last in place of it"
            )
        given = {
            "sampler": sampler is not None,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "batch_size": batch_size != 1,
        }
        if both := [name for name, there in given.items() if there]:
            raise TypeError(
                f"ImageFolderLoader: batch_sampler and {' and '.join(both)} exclude each other: leave "
                f"{'it' if len(both) == 1 else 'these'} out, since the batch_sampler has its own"
            )
        sampler, batch_size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
    if batch_size is None:
        raise TypeError("ImageFolderLoader has only batches: give batch_size, as in batch_size=1")
    if sampler is not None and shuffle:
        raise TypeError("ImageFolderLoader: a sampler says itself whether it shuffles; leave out one of them")
    if generator is not None:
        if seed is not None:
            raise TypeError("ImageFolderLoader: give seed or generator, not both")
        if not hasattr(generator, "initial_seed"):
            raise TypeError(f"ImageFolderLoader: generator={generator!r} is no torch.Generator; give it as seed")
        seed = int(generator.initial_seed())
    sampled = Sampled(shuffle=bool(shuffle)) if sampler is None else _sampled(sampler, samples)
    dropped = bool(drop_last) or sampled.drop_last  # a batch that is not full has all that is uneven
    return Batching(batch_size, dropped, sampled, sampled.seed if seed is None else seed)


def _sampled(sampler: Any, samples: int) -> Sampled:
    kind = _kind(sampler)
    others = {"DistributedSampler": "dataset", "SequentialSampler": "data_source", "RandomSampler": "data_source"}
    if kind in others and (count := len(getattr(sampler, others[kind]))) != samples:
        raise TypeError(
            f"ImageFolderLoader: the {kind} is of {plural(count, 'sample')}, and the data has {samples:,}; "
            "make it of the same data"
        )
    if kind == "SequentialSampler":
        return Sampled()
    if kind == "DistributedSampler":
        return Sampled(
            shuffle=sampler.shuffle,
            rank=sampler.rank,
            world_size=sampler.num_replicas,
            seed=sampler.seed,
            tells_epoch=sampler,
            drop_last="uneven" if sampler.drop_last else False,
        )
    seed = None if getattr(sampler, "generator", None) is None else int(sampler.generator.initial_seed())
    if kind == "SubsetRandomSampler":
        places = np.asarray(sampler.indices, np.int64)
        outside = np.flatnonzero((places < 0) | (places >= samples))
        if len(outside):
            _refuse(
                f"the SubsetRandomSampler, whose indices[{outside[0]}] is {places[outside[0]]}",
                f"give numbers from 0 to {samples - 1:,}, those of the samples of the data",
            )
        return Sampled(shuffle=True, places=places, seed=seed)
    if kind == "RandomSampler":
        if sampler.replacement:
            _refuse("RandomSampler(replacement=True)", "leave replacement out, and each sample is drawn once an epoch")
        _check_count(kind, sampler.num_samples, samples)
        return Sampled(shuffle=True, seed=seed)
    if kind == "WeightedRandomSampler":
        if not sampler.replacement:
            _refuse(
                "WeightedRandomSampler(replacement=False)",
                "leave replacement out, and a sample is drawn as often as its weight says; or give "
                "SubsetRandomSampler(indices), which draws each of them once",
            )
        if len(sampler.weights) != samples:
            _refuse(
                f"a WeightedRandomSampler of {plural(len(sampler.weights), 'weight')}",
                f"give {plural(samples, 'weight')}, one for each sample of the data",
            )
        _check_count(kind, sampler.num_samples, samples)
        return Sampled(shuffle=True, sampling=Sampling(np.asarray(sampler.weights, np.float64)), seed=seed)
    return _refuse(
        f"the sampler {_named(sampler)}", f"give one of torch's own, {_SAMPLERS}, or a Subset of the samples as data"
    )


def _check_count(kind: str, drawn: int, samples: int) -> None:
    """Raises TypeError unless a sampler draws as many samples as there are."""
    if drawn < samples:
        rest = f"give num_samples={samples}, and end each epoch early, as with itertools.islice(loader, batches)"
        _refuse(f"{kind}(num_samples={drawn}) of {plural(samples, 'sample')}", rest)
    if drawn > samples:
        more = f"give num_samples={samples}, and train for more epochs, each of which has another order"
        _refuse(f"{kind}(num_samples={drawn}) of {plural(samples, 'sample')}", more)


def _named(sampler: Any) -> str:
    """A class with its module, as a script's own may be called as torch's is."""
    kind = type(sampler)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _refuse(what: str, remedy: str) -> NoReturn:
    raise TypeError(f"ImageFolderLoader cannot take {what}: {remedy}")


def _kind(sampler: Any) -> str:
    """The name of torch's class; of any other, and of one derived from it, nothing."""
    of_torch = type(sampler).__module__.startswith("torch.utils.data.")
    return type(sampler).__name__ if of_torch else ""


def _check_others(others: dict[str, Any]) -> None:
    """One warning for arguments without effect here. Raises TypeError for unknown ones."""
    for name in others:
        if name not in WITHOUT_EFFECT:
            raise TypeError(f"ImageFolderLoader has no argument {name!r}; help(ImageFolderLoader) lists them")
    told = [name for name in others if others[name]]
    if told:
        warnings.warn(
            f"ImageFolderLoader ignores {', '.join(told)}: it decodes in threads, and pins its own memory",
            stacklevel=4,
        )
