"""What the data is: how much of it, of which classes and sizes, what is damaged, and what is there twice."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fastimg.config.flag_types import MAX_PIXELS, parse_workers
from fastimg.config.searching import Suggest
from fastimg.data import class_balance
from fastimg.data.datasets import DatasetPart, filled_splits, names_targets, open_parts
from fastimg.data.elsewhere import sources
from fastimg.errors import UsageError, UserError
from fastimg.inspect.scan import Duplicates, SplitFacts, duplicates, gather
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.containers.content import Content, samples_of
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.system.terminal import say
from fastimg.wording import plural, with_flags

from . import resemblance
from .resemblance import NearCopies
from .sampled import evenly

LOOKED_AT = 10_000  # samples of training and validation that are read, at most; more are drawn by chance
SMALL = 1_000  # samples: of fewer, a fifth is held out for validation, since a tenth would be too few to compare by
HELD_OUT = 0.2
_VAL_SHARE = 0.3  # of what is looked at, for validation


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Pixels of the images that were looked at, by their medians."""

    width: int
    height: int
    shorter: int
    smallest: int  # shorter side
    largest: int  # longer side


@dataclass(frozen=True, kw_only=True)
class TextLengths:
    """Words of the texts that were looked at, separated by white space."""

    median: int
    p95: int
    mean: float


@dataclass(frozen=True, kw_only=True)
class Survey:  # more than 12 fields: everything that choices are made by
    """What is known about the data. `train` and `val` count the samples that training would use."""

    path: Path
    content: Content
    splits: dict[str, int]
    train: int
    val: int
    val_origin: str  # in words; empty without validation
    val_fraction: float | None  # that is held out although train would hold out another share; None: as train does
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # samples of each class in training
    targets: dict[str, str]  # kinds of targets by name, if the data names any
    looked_at: int
    unreadable: int
    unreadable_names: tuple[tuple[str, str], ...]
    sizes: Sizes | None
    words: TextLengths | None
    formats: dict[str, int]
    tiled: float  # share of the images
    mean_bytes: float
    copies: Duplicates
    near: NearCopies
    folder: bool  # of files

    @property
    def noun(self) -> str:
        """The noun for several samples."""
        return samples_of(self.content)

    @property
    def each(self) -> int:
        """Training samples of a class in the middle; of all where there are no classes."""
        counts = [count for count in self.counts if count]
        return int(np.median(counts)) if counts else self.train

    @property
    def rare(self) -> tuple[str, int, str, int] | None:
        """(rarest class, its samples, commonest class, its samples) where that is under a tenth of this."""
        named = {name: count for name, count in zip(self.classes, self.counts, strict=True) if count}
        if not named:
            return None
        least, most = min(named, key=named.__getitem__), max(named, key=named.__getitem__)
        rare = named[least] < class_balance.RARE * named[most]
        return (least, named[least], most, named[most]) if rare else None


@dataclass(frozen=True)
class Surveyed:
    """The survey, and the open parts that it is about."""

    survey: Survey
    train: DatasetPart
    val: DatasetPart | None


def survey(config: Suggest, err: Console, stack: ExitStack) -> Surveyed:
    """Open the data as training would, and look at it. `stack` closes it. Raises UsageError, UserError, DataError."""
    path = config.data
    counted = filled_splits(path, config.classes)
    fraction = _held_out(counted)
    part, val_part = open_parts(path, "train", None, fraction, 0, config.classes)
    for dataset in {id(each.dataset): each.dataset for each in (part, val_part) if each is not None}.values():
        stack.callback(dataset.close)
        for remark in [*sources([dataset]), *dataset.notes]:
            say(err, with_flags(remark))
    if captions_of(path, part.dataset) is not None:
        raise UsageError(
            f"{path}: has texts beside its images, and suggest chooses for images or texts alone; start from "
            "`fastimg train DATA --arch NAME --text-arch hf:NAME`"
        )
    workers = parse_workers(config.workers, available_cpus())
    with err.status("looking at the data"):
        facts, val_facts = _facts(part, val_part, workers, err)
        seen = [facts] if val_facts is None else [facts, val_facts]
        if not any(each.records["readable"].any() for each in seen):
            names = "; ".join(f"{name}: {reason}" for name, reason in facts.unreadable[:2])
            raise UserError(f"{path}: none of {plural(len(facts.records), 'sample')} can be read ({names})")
        near = _near(part, facts, val_facts, workers)
    known = names_targets(part.dataset)
    labels = part.dataset.labels if part.indices is None else part.dataset.labels[part.indices]
    records = np.concatenate([each.records for each in seen])
    readable = records[records["readable"]]
    images = part.dataset.content == "images"
    unreadable = [pair for each in seen for pair in each.unreadable]
    found = Survey(
        path=path,
        content=part.dataset.content,
        splits={name: count for name, count in counted.items() if count >= 0},
        train=len(part),
        val=0 if val_part is None else len(val_part),
        val_origin="" if val_part is None else val_part.origin,
        val_fraction=fraction,
        classes=part.dataset.classes,
        counts=tuple(class_balance.class_counts(labels, len(part.dataset.classes)).astype(int).tolist()),
        targets={column.target.name: column.target.kind for column in part.dataset.targets} if known else {},
        looked_at=len(records),
        unreadable=int((~records["readable"]).sum()),
        unreadable_names=tuple(unreadable[:2]),
        sizes=_sizes(readable) if images else None,
        words=None if images else _lengths(readable["words"]),
        formats=dict(sum((each.formats for each in seen), Counter[str]()).most_common()),
        tiled=float(readable["tiled"].mean()) if images else 0.0,
        mean_bytes=float(readable["bytes"].mean()),
        copies=duplicates(seen),
        near=near,
        folder=is_plain_folder(path),
    )
    return Surveyed(found, part, val_part)


def _held_out(counted: dict[str, int]) -> float | None:
    """The share of a small training split without a validation split that is held out; None: train's own choice."""
    if "val" in counted or "test" in counted or "train" not in counted:
        return None
    return HELD_OUT if 0 <= counted["train"] < SMALL else None


def _facts(
    part: DatasetPart, val_part: DatasetPart | None, workers: int, err: Console
) -> tuple[SplitFacts, SplitFacts | None]:
    """What `inspect` finds in both parts, from headers alone: sizes, lengths, copies, and what cannot be read."""
    total = len(part) + (0 if val_part is None else len(val_part))
    val_most = LOOKED_AT if total <= LOOKED_AT else int(_VAL_SHARE * LOOKED_AT)
    val_facts = None
    left = LOOKED_AT
    if val_part is not None:
        few = evenly(val_part, val_most)
        left -= len(few)
        val_facts = gather("validation", few, workers, MAX_PIXELS, False, err)
    return gather("training", evenly(part, max(1, left)), workers, MAX_PIXELS, False, err), val_facts


def _near(part: DatasetPart, facts: SplitFacts, val_facts: SplitFacts | None, workers: int) -> NearCopies:
    val = None if val_facts is None else val_facts.dataset
    if part.dataset.content == "text":
        return resemblance.of_texts(facts.dataset, val)
    readable = facts.records[facts.records["readable"]]
    if len(readable) and _sizes(readable).shorter < resemblance.SMALLEST:
        return NearCopies(
            why_not=f"pictures of under {resemblance.SMALLEST} pixels resemble each other without being copies"
        )
    return resemblance.of_images(facts.dataset, val, workers)


def _sizes(readable: npt.NDArray[np.void]) -> Sizes:
    width, height = readable["width"], readable["height"]
    shorter = np.minimum(width, height)
    return Sizes(
        width=int(np.median(width)),
        height=int(np.median(height)),
        shorter=int(np.median(shorter)),
        smallest=int(shorter.min()),
        largest=int(np.maximum(width, height).max()),
    )


def _lengths(words: npt.NDArray[np.int64]) -> TextLengths:
    p95 = int(np.percentile(words, 95, method="inverted_cdf"))
    return TextLengths(median=int(np.median(words)), p95=p95, mean=round(float(words.mean()), 1))
