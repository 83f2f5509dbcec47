"""Which samples belong to which fold: a function of their content alone, whatever their order and their container.

A sample's fold is a hash of its bytes, or of its group's value, so that nothing is written down, samples that are added
later move no other, and equal samples are never on both sides. Stratified, samples are dealt out class by class in the
order of those hashes.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.config.values.folds import Fold
from fastimg.errors import UserError, nearest, printable
from fastimg.loaders import Dataset
from fastimg.loaders.containers.content import singular
from fastimg.wording import plural, several

from .derived import cache_root
from .digests import of, sample_digests, stamp_of

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


def held_out(
    dataset: Dataset, data: Path, fold: Fold, say: Callable[[str], object] = lambda text: None
) -> npt.NDArray[np.bool_]:
    """Which samples of a split are in the fold [N]. Reads the samples once, and keeps their digests.

    Raises UserError for a column that is not there or constant, more folds than samples or groups, and a fold, or a
    rest, without samples.
    """
    stamp = stamp_of(dataset)
    file = cache_root(data, None) / "digests" / f"{stamp[:32]}.bin"
    keys = _keys(sample_digests(dataset, stamp, file, os.cpu_count() or 1, say))
    if fold.group is not None:
        keys = group_keys(dataset, data, fold.group, keys)
    units = len(np.unique(keys))
    what = "group" if fold.group else f"different {singular(dataset.content)}"
    if units < fold.of:
        raise UserError(
            f"{data}: {plural(units, what, 'is')} too few for {plural(fold.of, 'fold')}; give as many folds or fewer"
        )
    numbers = assigned(keys, dataset.labels, fold.of, fold.stratify)
    inside: npt.NDArray[np.bool_] = numbers == fold.number
    if inside.all() or not inside.any():
        raise UserError(
            f"{data}: all {several(what)} fall {'into' if inside.all() else 'outside of'} fold {fold.number} of "
            f"{fold.of}, since there are few; add --stratify, which deals them out evenly, or give fewer folds"
        )
    return inside


def assigned(keys: Keys, labels: Ints, of: int, stratify: bool) -> Ints:
    """The fold of each sample [N]: samples of one key are in one fold."""
    if not stratify:
        return (keys % np.uint64(of)).astype(np.int64)
    units, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    sizes = np.bincount(inverse)
    classes = np.unique(labels, return_inverse=True)[1]
    if (sizes == 1).all():
        return _dealt(classes[first], of)[inverse]
    counts = np.zeros((len(units), int(classes.max()) + 1))
    np.add.at(counts, (inverse, classes), 1)
    return _balanced(counts, of)[inverse]


def _dealt(classes: Ints, of: int) -> Ints:
    """Samples in the order of their keys, dealt out class by class, one round after the other [N]."""
    order = np.argsort(classes, kind="stable")
    folds = np.empty(len(classes), np.int64)
    folds[order] = np.arange(len(classes)) % of
    return folds


def _balanced(counts: npt.NDArray[np.float64], of: int) -> Ints:
    """Groups of `counts` [groups, C] samples: the largest first, each to the fold that it makes least uneven.

    As scikit-learn's StratifiedGroupKFold, by shares of each class; groups of one size in the order of their keys.
    """
    shares = counts / counts.sum(axis=0)
    filled = np.zeros((of, counts.shape[1]))
    folds = np.empty(len(counts), np.int64)
    for group in np.argsort(-counts.sum(axis=1), kind="stable"):
        after = ((filled + shares[group]) ** 2 - filled**2).sum(axis=1)  # how much the sum of squares would grow
        folds[group] = int(after.argmin())
        filled[folds[group]] += shares[group]
    return folds


def group_keys(dataset: Dataset, data: Path, column: str, own: Keys) -> Keys:
    """Keys [N] of the values that samples have in a column: a target, or one of their notes. Without one: their `own`.

    Raises UserError if no sample has a value, or all have the same.
    """
    values, names = _column(dataset, column)
    known = [value for value in values if value is not None]
    if not known:
        there = f"; there are {', '.join(map(printable, sorted(names)[:8]))}" if names else "; there are none"
        hint = nearest(column, names) or there
        raise UserError(f"{data}: --group {printable(column)}: no sample has a value in such a column{hint}")
    if len(set(known)) == 1 and len(known) == len(values):
        raise UserError(
            f"{data}: --group {printable(column)}: every sample has {printable(known[0])[:60]!r}, so that nothing can "
            "be held out; give another column, or leave --group out"
        )
    hashed = {value: _key(of(value.encode("utf-8", "surrogatepass"))) for value in set(known)}
    keys = own.copy()
    for index, value in enumerate(values):
        if value is not None:
            keys[index] = hashed[value]
    return keys


def _column(dataset: Dataset, column: str) -> tuple[list[str | None], set[str]]:
    """The values of a column as texts, None where there is none; and the columns that there are."""
    for target in dataset.targets:
        if target.target.name == column and target.target.kind != "multilabel" and len(dataset.targets) > 1:
            known = target.target.classes
            return [
                (known[value] if known else repr(float(value))) if present else None
                for value, present in zip(target.values.tolist(), target.present.tolist(), strict=True)
            ], set()
    note: Callable[[int], dict[str, Any]] | None = getattr(dataset, "note", None)
    if note is None:
        return [None] * len(dataset), set()
    notes = [note(index) for index in range(len(dataset))]
    names = {name for each in notes[:1000] for name in each}
    found = [each.get(column) for each in notes]
    return [None if value is None else value if isinstance(value, str) else repr(value) for value in found], names


def _keys(digests: npt.NDArray[np.void]) -> Keys:
    return digests.view("<u8").reshape(len(digests), -1)[:, 0].astype(np.uint64)


def _key(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")
