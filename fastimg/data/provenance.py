"""What a checkpoint was trained on, and which samples of a dataset can therefore evaluate it.

A checkpoint stores digests, not paths: they identify a dataset wherever it is, and reveal one that has changed.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.config.values.folds import Fold
from fastimg.loaders import DataError, Dataset, FilesDataset, list_splits, open_dataset
from fastimg.loaders.containers.content import samples_of, singular
from fastimg.loaders.containers.tars.dataset import TarDataset
from fastimg.loaders.folders.folder import SPLIT_FOLDERS, Level
from fastimg.loaders.folders.stored_files import StoredFilesDataset
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.loaders.runtime.scratch import Scratch

from . import folds
from .datasets import DatasetPart, filled_splits, open_filled
from .elsewhere import as_given
from .splits import share_of_split, stratified_split

_AT_ONCE = 8  # requests to an object store
_PROBES = 16  # samples, spread over a split, whose content tells it from another with the same labels


@dataclass(frozen=True, kw_only=True)
class ProbeSample:
    """A sample that stands for its split."""

    index: int
    name: str  # digest of the file name, in a plain folder; else empty
    content: str


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What identifies a split under any path."""

    samples: int
    labels: str  # digest of the labels, in order
    counts: str  # digest of the number of samples of each class
    content: str  # digest of some samples, and of file names in a plain folder
    folder: bool  # a plain folder, not shards
    probes: tuple[ProbeSample, ...] = ()  # those samples; checkpoints of earlier versions have none

    @classmethod
    def of(cls, dataset: Dataset) -> "Identity":
        """The identity of an open split. Reads a few samples."""
        probes = _probes(dataset)
        return cls(
            samples=len(dataset),
            labels=_labels_digest(dataset),
            counts=_counts_digest(dataset.labels),
            content=_content_digest(dataset, probes),
            folder=isinstance(dataset, FilesDataset),
            probes=probes,
        )

    def fits(self, dataset: Dataset) -> bool:
        """Whether `dataset` is this split."""
        if len(dataset) != self.samples or _labels_digest(dataset) != self.labels:
            return False
        return _content_digest(dataset, _probes(dataset)) == self.content

    def shared(self, dataset: Dataset) -> int:
        """How many of the probes `dataset` holds: by file name in a plain folder, by position in shards."""
        if self.folder != isinstance(dataset, FilesDataset):
            return 0
        if self.folder:
            names = {probe.name for probe in self.probes}
            named = {index: name for index in range(len(dataset)) if (name := _name_digest(dataset, index)) in names}
            present = set(zip(named.values(), _sample_digests(dataset, list(named)), strict=True))
            return sum((probe.name, probe.content) in present for probe in self.probes)
        inside = [probe for probe in self.probes if probe.index < len(dataset)]
        found = _sample_digests(dataset, [probe.index for probe in inside])
        return sum(probe.content == content for probe, content in zip(inside, found, strict=True))


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """The split that a model was trained on: all of it, or what `stratified_split` left of it."""

    split: str
    identity: Identity  # of the whole split
    held_out: float  # the share that was held out by `seed`; 0: none
    seed: int
    validation: Identity | None  # of the split that it was validated on, where that was another
    data: str  # digest of the path of the dataset
    place: str  # digest of the path of the split in it
    fold: Fold | None = None  # that was held out, in place of a share

    def trained(self, dataset: Dataset, data: Path) -> npt.NDArray[np.int64]:
        """The samples of the split, which is at `data`, that were trained on."""
        return self._sides(dataset, data)[0]

    def validated(self, dataset: Dataset, data: Path) -> npt.NDArray[np.int64]:
        """The samples of the split, which is at `data`, that were held out."""
        return self._sides(dataset, data)[1]

    def _sides(self, dataset: Dataset, data: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if self.fold is None:
            return stratified_split(dataset.labels, self.held_out, self.seed)
        inside = folds.held_out(dataset, data, self.fold)
        return np.flatnonzero(~inside), np.flatnonzero(inside)


def record(data: Path, part: DatasetPart, val_part: DatasetPart | None, split: str, seed: int) -> TrainedOn:
    """The record of a training that is about to begin."""
    apart = val_part is not None and val_part.held_out is None
    return TrainedOn(
        split=split,
        identity=Identity.of(part.dataset),
        held_out=(val_part.held_out or 0.0) if val_part is not None else 0.0,
        seed=seed,
        validation=Identity.of(val_part.dataset) if val_part is not None and apart else None,
        data=_path_digest(data),
        place=_place_digest(part.dataset),
        fold=val_part.fold if val_part is not None else None,
    )


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What of a dataset is evaluated."""

    dataset: Dataset
    split: str
    origin: str  # in words
    indices: npt.NDArray[np.int64] | None = None  # None: the whole split
    trained_on: bool | None = None  # whether any of these samples were, by the checkpoint's record; None: unknown
    warning: str | None = None


def select(
    data: Path,
    split: str | None,
    history: Sequence[TrainedOn] | None,
    classes: Level | None = None,
    *,
    held_out: bool = False,
) -> Selection:
    """Open what is to be evaluated: all of `split`, or without one, samples that were not trained on.

    Those are the first of val, test, train and the other splits that was not trained on, or the part of it that
    training held out. `history` has the checkpoint's own training first, then those of the weights that it started
    from; None where the checkpoint does not say. With `held_out` a fold that training held out comes before any other
    split. `classes` is that of `open_dataset`. Raises DataError.
    """
    if split is not None:
        return _judged(data, split, history, classes, whole=True)
    names = filled_splits(data, classes, evaluates=True) or list_splits(data, classes, evaluates=True)
    if held_out and history and history[0].fold is not None and history[0].split in names:
        return _judged(data, history[0].split, history, classes)
    ordered: list[str] = [name for name in ("val", "test", "train") if name in names]
    ordered += [name for name in names if name not in ordered]
    for name in ordered:
        selection = _judged(data, name, history, classes)
        if not selection.trained_on:
            return selection
        selection.dataset.close()
    return _judged(data, ordered[0], history, classes)


def _judged(
    data: Path, split: str, history: Sequence[TrainedOn] | None, classes: Level | None, whole: bool = False
) -> Selection:
    """The part of a split to evaluate: the part that was held out, unless the `whole` split is asked for."""
    dataset = open_filled(data, split, classes, evaluates=True)
    nameless = not whole and _is_one_folder(dataset)
    selection = Selection(dataset=dataset, split=split, origin=_name(data) if nameless else split)
    unit = samples_of(dataset.content)
    if history is None:
        if split in ("val", "test"):
            return selection
        return replace(selection, warning=_UNKNOWN.format(unit=unit))
    known = [each for each in history if each.identity.fits(dataset)]
    if not known:
        validated = any(each.validation is not None and each.validation.fits(dataset) for each in history)
        if validated:
            return replace(selection, trained_on=False)
        if change := _change(data, dataset, history, classes):
            return replace(
                selection, warning=f"{change}; some of these {len(dataset):,} {unit} may have been trained on"
            )
        for each in history:
            if same := each.identity.shared(dataset):
                overlap = _OVERLAP.format(same=same, probes=len(each.identity.probes), unit=unit)
                return replace(selection, warning=overlap)
        if any(_may_be(each.identity, data, dataset, classes) for each in history):
            return replace(selection, warning=_SAME_COUNTS.format(unit=unit))
        return replace(selection, trained_on=False)
    holding = next((each for each in known if each.held_out), None)
    chosen = np.arange(len(dataset))
    if holding is not None and not whole:
        chosen = holding.validated(dataset, data)
        share = share_of_split(len(chosen), len(dataset), singular(dataset.content), split)
        by = f"seed {holding.seed}" if holding.fold is None else str(holding.fold)
        selection = replace(selection, indices=chosen, origin=f"{share}, held out of training by {by}")
    seen = int(np.isin(chosen, np.concatenate([each.trained(dataset, data) for each in known])).sum())
    if not seen:
        return replace(selection, trained_on=False)
    which = f"all {seen:,} {unit}" if seen == len(chosen) else f"{seen:,} of these {len(chosen):,} {unit}"
    warning = f"{which} were trained on, so the result says little about new {unit}"
    if holding is not None and whole:
        warning += f"; leave out --split to evaluate the {unit} that were held out"
    return replace(selection, trained_on=True, warning=warning)


def file_label(data: Path, selection: Selection, history: Sequence[TrainedOn] | None) -> str:
    """What files about an evaluation are called after: the split of the data that was trained on, else the data too.

    A folder of class folders without splits has only its own name.
    """
    own = not _is_one_folder(selection.dataset)
    trained_there = any(each.data == _path_digest(data) for each in history or ())
    words = [*([] if own and trained_there else [_name(data)]), *([selection.split] if own else [])]
    return "-".join([*words, *(["held-out"] if selection.indices is not None else [])])


def _is_one_folder(dataset: Dataset) -> bool:
    """Whether class folders lie in no folder of a split, so that `train` is only what they are read as."""
    if not isinstance(dataset, FilesDataset) or not len(dataset):
        return False
    return not any(part.lower() in SPLIT_FOLDERS for part in Path(dataset.paths[0]).parent.parts)


def _name(data: Path) -> str:
    """The last part of the data's path, or of its URL."""
    return Path(as_given(data.resolve() if mirror_at(data) is None else data)).name.removesuffix(".beton")


_UNKNOWN = (
    "the checkpoint is from before fastimg recorded what was trained on; if it was trained on these {unit}, the result "
    "says little about new {unit}"
)


_OVERLAP = (
    "the data overlaps the training data ({same} of the {probes} {unit} that were compared are in both), so the result "
    "may say little about new {unit}"
)


_SAME_COUNTS = (
    "the data has as many {unit} of every class as the training data, but stores them differently; if they are the "
    "same {unit}, the result says little about new {unit}"
)


def _may_be(trained: Identity, data: Path, dataset: Dataset, classes: Level | None) -> bool:
    """Whether `dataset` may be the training data before or after a conversion, which changes its bytes and its order.

    Only the numbers of samples can tell then. Two plain folders differ by more than that. The conversion may have
    divided the split that was trained on.
    """
    if trained.folder and isinstance(dataset, FilesDataset):
        return False
    if trained.counts == _counts_digest(dataset.labels):
        return True
    splits = list_splits(data, classes, evaluates=True)
    if len(splits) == 1 or sum(splits.values()) != trained.samples:
        return False
    labels = []
    for split in splits:
        with closing(open_dataset(data, split, classes, evaluates=True)) as each:
            labels.append(each.labels)
    return trained.counts == _counts_digest(np.concatenate(labels))


def _change(data: Path, dataset: Dataset, history: Sequence[TrainedOn], classes: Level | None) -> str | None:
    """How data at the path that was trained on has changed since; None where it has not, or is at another path."""
    for each in history:
        if each.place == _place_digest(dataset):
            return _difference(each, dataset)
        if each.data != _path_digest(data):
            continue
        if each.split not in list_splits(data, classes, evaluates=True):
            return f"the data has changed since the checkpoint was trained on it (its {each.split} split is gone)"
        with closing(open_dataset(data, each.split, classes, evaluates=True)) as trained:
            if not each.identity.fits(trained):
                return _difference(each, trained)
    return None


def _difference(record: TrainedOn, dataset: Dataset) -> str:
    """How the split that was trained on, now `dataset`, has changed."""
    unit = samples_of(dataset.content)
    before = record.identity.samples
    now = len(dataset)
    how = f"{before:,} {unit} then, {now:,} now"
    if before == now:
        labels = _labels_digest(dataset) != record.identity.labels
        how = f"the same number of {unit}, but other {'labels' if labels else 'contents or names'}"
    return f"the {record.split} split has changed since the checkpoint was trained on it ({how})"


def _labels_digest(dataset: Dataset) -> str:
    return hashlib.sha256(np.ascontiguousarray(dataset.labels, "<i8").tobytes()).hexdigest()


def _counts_digest(labels: npt.NDArray[np.int64]) -> str:
    return hashlib.sha256(np.bincount(labels[labels >= 0]).astype("<i8").tobytes()).hexdigest()


def _content_digest(dataset: Dataset, probes: Sequence[ProbeSample]) -> str:
    """Of samples spread over the split, and in a plain folder of all file names: a renamed file moves others."""
    digest = hashlib.sha256()
    if isinstance(dataset, FilesDataset):
        for index in range(len(dataset)):
            digest.update(os.fsencode(os.path.basename(dataset.sample_key(index))) + b"\n")
    for probe in probes:
        digest.update(bytes.fromhex(probe.content))
    return digest.hexdigest()


def _probes(dataset: Dataset) -> tuple[ProbeSample, ...]:
    """Samples spread over the split."""
    named = isinstance(dataset, FilesDataset)
    indices = np.unique(np.linspace(0, len(dataset) - 1, min(_PROBES, len(dataset))).astype(np.int64)).tolist()
    return tuple(
        ProbeSample(index=index, name=_name_digest(dataset, index) if named else "", content=content)
        for index, content in zip(indices, _sample_digests(dataset, indices), strict=True)
    )


def _name_digest(dataset: Dataset, index: int) -> str:
    return hashlib.sha256(os.fsencode(os.path.basename(dataset.sample_key(index)))).hexdigest()


def _sample_digests(dataset: Dataset, indices: Sequence[int]) -> list[str]:
    """Of the encoded samples; an unreadable one, which the loader will report, has the digest of no bytes.

    Raises DataError where an object store does not give one: that is no fault of the sample, and meets all others.
    """
    if fetched_files(dataset) is not None and isinstance(
        dataset, TarDataset | StoredFilesDataset
    ):  # its shards are not fetched for this
        with ThreadPoolExecutor(_AT_ONCE, "fastimg-glance") as pool:
            return list(pool.map(lambda index: hashlib.sha256(dataset.glance(index)).hexdigest(), indices))
    scratch = Scratch()
    return [_sample_digest(dataset, index, scratch) for index in indices]


def _sample_digest(dataset: Dataset, index: int, scratch: Scratch) -> str:
    try:
        return hashlib.sha256(dataset.read(index, scratch)).hexdigest()
    except (DataError, OSError):
        return hashlib.sha256().hexdigest()


def _place_digest(dataset: Dataset) -> str:
    """Of the path of the first shard; in a plain folder, of the folder that holds the split's classes."""
    if not isinstance(dataset, FilesDataset):
        return _path_digest(next(iter(dataset.files()), Path(dataset.name)))  # a split without samples has no shards
    elsewhere = isinstance(dataset, StoredFilesDataset)  # names are URLs, which are in no folder here
    names = [dataset.sample_name(index) for index in (0, len(dataset) - 1)]
    ends = [f"/{name}" if elsewhere else os.path.abspath(name) for name in names]
    # Files are sorted by class: the first and the last are of different classes, which share the split's folder alone.
    return _path_digest(Path(os.path.commonpath([os.path.dirname(end) for end in ends])))


def _path_digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
