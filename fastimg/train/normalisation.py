"""Mean and standard deviation of bands, and of images of 16 bits: measured on training samples where none are known."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from fastimg.config.commands import Train
from fastimg.config.flag_types import parse_workers
from fastimg.config.yaml_file import load
from fastimg.data.datasets import DatasetPart, center_crop
from fastimg.errors import UserError
from fastimg.loaders import BatchSource
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.system.terminal import say
from fastimg.wording import plural

from .checkpoints.run_directory import CONFIG
from .choices.stated_weights import Stated
from .opening import open_loader

SAMPLES = 1000  # training samples that are measured, at most
_BATCH = 32


def normalised(
    config: Train,
    stated: Stated,
    model: Model,
    preprocessing: Preprocessing,
    ranks: Ranks,
    part: DatasetPart,
    resumed: Path | None,
    console: Console,
) -> Preprocessing:
    """`preprocessing` with what --mean and --std leave open, for bands and images of 16 bits; others have the model's.

    What weights state is taken over where they saw the same kind of pixels, and a run that is `resumed` keeps its own.
    Otherwise rank 0 measures up to SAMPLES training samples, cropped as in validation, for all. Raises UserError if
    none of them can be read.
    """
    if not preprocessing.is_deep:
        return preprocessing
    if (config.mean is not None and config.std is not None) or _are_stated(stated, preprocessing):
        return preprocessing
    known = _of_run(resumed, preprocessing.channels)
    if known is None:
        text = ""
        if ranks.first:
            mean, std, words = _measured(config, model, preprocessing, ranks, part)
            text = json.dumps([mean, std, words])
        mean, std, words = json.loads(ranks.broadcast(text))
        say(console, words)
        known = tuple(mean), tuple(std)
    return replace(preprocessing, mean=config.mean or known[0], std=config.std or known[1])


def _are_stated(stated: Stated, preprocessing: Preprocessing) -> bool:
    """Whether the weights saw the same kind of pixels, so that the preprocessing is already theirs."""
    own = stated.preprocessing
    return own is not None and all(
        (
            own.dtype == preprocessing.dtype,
            (own.field is None) == (preprocessing.field is None),
            own.channels == preprocessing.channels,
        )
    )


def _of_run(run: Path | None, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """What a run that is resumed began with."""
    if run is None or not (run / CONFIG).exists():
        return None
    before = load(run / CONFIG, Train)
    if before.mean is None or before.std is None or len(before.mean) != channels:
        return None
    return before.mean, before.std


def _measured(
    config: Train, model: Model, preprocessing: Preprocessing, ranks: Ranks, part: DatasetPart
) -> tuple[list[float], list[float], str]:
    """Mean and standard deviation of each channel over the pixels of samples, and a sentence about them."""
    workers = str(parse_workers(config.workers, ranks.cpus))
    alone = replace(config, batch_size=min(_BATCH, len(part)), workers=workers)
    with closing(open_loader(alone, None, part, center_crop(preprocessing), "random", "zeros", model)) as loader:
        read, mean, std = moments(loader, SAMPLES)
        if not read:
            raise UserError(
                f"{part.origin}: none of its samples could be read, to measure mean and standard deviation "
                f"({next(iter(loader.unreadable.values()), 'none was tried')}); repair them, or give --mean and --std"
            )
    if preprocessing.field is None:
        mean, std = (values / 65535 for values in (mean, std))
    constant = torch.nonzero(std == 0)[:, 0].tolist()
    std = torch.where(std == 0, 1.0, std)
    words = f"measured    mean and standard deviation, on {plural(read, 'training sample')}"
    if constant:
        numbers = ", ".join(map(str, constant))
        words += f"; constant in them, and left as they are: channel {numbers}, counted from 0"
    first, second = ([float(f"{value:.6g}") for value in values.tolist()] for values in (mean, std))
    return first, second, words


def moments(loader: BatchSource, most: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    """How many samples were read, at most so many, and the mean and standard deviation [C] of their values, float64."""
    read = 0
    mean = squares = torch.zeros(0, dtype=torch.float64)
    for batch in loader:
        for image in batch.inputs.cpu()[batch.weight.cpu() > 0][: most - read]:
            values = image.flatten(1).to(torch.float64)  # [C, H * W]
            own = values.mean(dim=1)
            spread = (values - own[:, None]).square().mean(dim=1)
            if not read:
                mean, squares = own, spread
            else:  # all images have as many pixels
                off = own - mean
                mean = mean + off / (read + 1)
                squares = squares + (spread - squares + off.square() * (read / (read + 1))) / (read + 1)
            read += 1
        if read >= most:
            break
    return read, mean, squares.sqrt()
