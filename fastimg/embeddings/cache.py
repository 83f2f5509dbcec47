"""Caches of what is derived from data: tokens of texts, and embeddings of a frozen encoder, each computed once.

digests of the samples' content -> ArrayCache -> ArrayDataset: the same samples, with arrays as content
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fastimg.augment import Policy, draw
from fastimg.data.datasets import DatasetPart
from fastimg.data.digests import DIGEST, NONE, Elsewhere, of, sample_digests, stamp_of
from fastimg.data.model_input import model_input
from fastimg.loaders import Batch, BatchSource, Dataset, ImageError, Loader, LoaderConfig
from fastimg.loaders.backends.settings import Backend
from fastimg.loaders.containers.arrays import ArrayDataset, Views
from fastimg.loaders.containers.content import singular
from fastimg.loaders.containers.npy import npy_bytes
from fastimg.loaders.crop import CropRule
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.decoder import Decoder
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.models.tokenizer import Tokenizer
from fastimg.system.terminal import say
from fastimg.wording import plural

from .encoder import FORMAT, Encoder, backbone_digest
from .store import ArrayCache, CacheShard, Made, ShardPlan

_HEADER = len(npy_bytes(np.zeros(1, np.int32))) - 4  # bytes before the tokens of a text
_QUEUED = 4096  # texts submitted to the pool at a time


@dataclass
class Keeper:
    """Where arrays are cached, and what computes them."""

    root: Path
    ranks: Ranks
    workers: int
    console: Console  # for messages of rank 0
    nodes: "CacheNodes | None" = None  # of a cluster, which read and compute instead of this machine
    _digests: dict[int, tuple[Dataset, npt.NDArray[np.void]]] = field(default_factory=dict)  # by the dataset's id()

    def say(self, text: str) -> None:
        """Print a message."""
        say(self.console, text)

    def digests(self, dataset: Dataset, split: str = "") -> npt.NDArray[np.void]:
        """The digests of all samples of a dataset, which is read only once; by the nodes if it is a named split."""
        entry = self._digests.get(id(dataset))
        if entry is None:
            stamp = stamp_of(dataset)
            file = self.root / "digests" / f"{stamp[:32]}.bin"
            with self.ranks.first_goes_first(), self.progress("reading", len(dataset)) as tick:
                elsewhere = self.nodes.digests(split) if self.nodes and split else None
                entry = dataset, sample_digests(dataset, stamp, file, self.workers, self.say, tick, elsewhere)
            self._digests[id(dataset)] = entry
        return entry[1]

    def tokens(self, dataset: Dataset, tokenizer: Tokenizer) -> ArrayDataset:
        """The dataset, with the tokens of its texts as content."""
        about = {"kind": "tokens", "format": FORMAT, "tokenizer": tokenizer.digest, "length": tokenizer.length}
        cache = ArrayCache(self.root / "tokens", about, self.say)
        digests = self.digests(dataset)

        def make(ids: npt.NDArray[np.int64]) -> Generator[Made, None, None]:
            def tokenise(index: int) -> Made:
                try:
                    return tokenizer.tokens(dataset.read(index, Scratch()))
                except ImageError as error:
                    return str(error)

            with (
                ThreadPoolExecutor(self.workers, "tokens") as pool,
                self.progress("tokenising", len(ids)) as tick,
            ):
                for start in range(0, len(ids), _QUEUED):  # in pieces: the pool keeps references to its results
                    for made in pool.map(tokenise, ids[start : start + _QUEUED].tolist()):
                        tick(1)
                        yield made

        made = cache.fill(digests, self.ranks, make)
        if made:
            self.say(f"tokens      {plural(made, 'text')} tokenised, once, in {cache.folder}")
        sizes = cache.places(digests)["size"].astype(np.int64)
        return cache.dataset(dataset, digests, np.maximum(sizes - _HEADER, 0) // 4)

    def arrays(self, part: DatasetPart, making: "Making") -> tuple[ArrayDataset, Path, int]:
        """The arrays of a part's samples, the cache folder, and the number of arrays computed now."""
        dataset = part.dataset
        own = _own(part)
        source = _source(part)
        digests = _of_view(self.digests(source, part.split or ""), making.view)
        lengths = dataset.lengths if isinstance(dataset, ArrayDataset) else None
        cache = ArrayCache(self.root / making.folder, making.about(), self.say)

        def make(places: npt.NDArray[np.int64]) -> Generator[Made, None, None]:
            if not len(places):
                return
            share = f" (the share of one rank of {self.ranks.world_size})" if self.ranks.world_size > 1 else ""
            count = plural(len(places), singular(dataset.content))
            self.say(f"{making.verb:<12}{count} with {making.arch}, once{share}")
            with (
                self.progress(f"{making.verb} with {making.arch}", len(places)) as tick,
                making.rows(replace(part, indices=own[places]), tick) as rows,
            ):
                yield from rows

        def by_length(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            if lengths is None:
                return places
            return places[np.argsort(-lengths[own[places]], kind="stable")]

        if self.nodes is None:
            made = cache.fill(digests[own], self.ranks, make, by_length)
        else:
            write = partial(self._on_nodes, self.nodes, cache.key, part.split or "", own, digests[own], making)
            made = cache.fill_elsewhere(digests[own], self.ranks, write, by_length)
        return cache.dataset(source, digests, lengths), cache.folder, made  # with lengths: the same batches as of texts

    def missing(self, part: DatasetPart, making: "Making") -> int:
        """How many arrays of a part's samples are not kept. Where none are, no sample is read to find that out."""
        own = _own(part)
        cache = ArrayCache(self.root / making.folder, making.about(), self.say)
        if not cache.folder.exists():
            return len(own)
        cache.load()
        return len(cache.missing(_of_view(self.digests(_source(part), part.split or ""), making.view)[own]))

    def _on_nodes(
        self,
        nodes: "CacheNodes",
        key: str,
        split: str,
        own: npt.NDArray[np.int64],
        digests: npt.NDArray[np.void],
        making: "Making",
        plan: list[ShardPlan],
    ) -> Iterator[tuple[CacheShard, Path]]:
        total = sum(len(each.ids) for each in plan)
        self.say(f"{making.verb:<12}{plural(total, 'sample')} with {making.arch}, once, on the cluster")
        with self.progress(f"{making.verb} with {making.arch}", total) as tick:
            yield from nodes.write(key, split, own, digests, tick, plan)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], object]]:
        """A progress bar; yields the function that advances it."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        quiet = not (self.ranks.first and self.console.is_terminal)
        with Progress(*columns, console=self.console, transient=True, disable=quiet) as bar:
            task = bar.add_task(what, total=total)
            yield lambda count: bar.advance(task, count)


class CacheNodes(Protocol):
    """The nodes of a cluster: see `nodes.EncodingNodes`."""

    def digests(self, split: str) -> Elsewhere:
        """What reads digests of a split."""

    def write(
        self,
        key: str,
        split: str,
        ids: npt.NDArray[np.int64],
        digests: npt.NDArray[np.void],
        tick: Callable[[int], object],
        plan: list[ShardPlan],
    ) -> Iterator[tuple[CacheShard, Path]]:
        """The shards of a plan of the cache `key`, of the samples `ids` of a split, in any order."""


class Making(Protocol):
    """How arrays are made of samples: `verb` says it, `arch` names the model, and `folder` is where they are kept."""

    @property
    def folder(self) -> str:
        """Below the cache's root."""

    @property
    def verb(self) -> str:
        """Such as encoding."""

    @property
    def arch(self) -> str:
        """The model."""

    @property
    def view(self) -> int | None:
        """The epoch whose augmentation is drawn; None: no augmentation."""

    def about(self) -> dict[str, Any]:
        """Everything that an array depends on, except the sample and the view."""

    def rows(self, part: DatasetPart, tick: Callable[[int], object]) -> AbstractContextManager[Iterator[Made]]:
        """The arrays of a part's samples, in order; a string gives the reason where there is none."""


@contextmanager
def viewed(
    part: DatasetPart,
    open_: Callable[[DatasetPart], BatchSource],
    policy: Policy,
    dtype: torch.dtype,
    view: int | None,
    seed: int,
) -> Iterator[tuple[BatchSource, Callable[[Batch], torch.Tensor]]]:
    """A loader of a view of samples, and what turns its batches into a model's input, as training sees them."""
    loader = open_(part)
    if view is not None:
        loader.set_epoch(view)

    def feed(batch: Batch) -> torch.Tensor:
        plan = None if view is None else draw(policy, batch.ids, seed, view)
        return model_input(plan, batch.inputs, policy, dtype)

    try:
        yield loader, feed
    finally:
        loader.close()


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How embeddings are computed. `open_` opens a loader that reads a part's samples in order."""

    model: Model
    ranks: Ranks
    precision: Precision
    policy: Policy
    dtype: str  # of the cached embeddings
    reads: dict[str, Any]  # what else the model's input depends on
    open_: Callable[[DatasetPart], BatchSource]
    view: int | None = None  # the epoch whose augmentation is drawn; None: no augmentation
    seed: int = 0
    folder = "embeddings"
    verb = "encoding"

    @property
    def arch(self) -> str:
        """The model."""
        return self.model.arch

    def about(self) -> dict[str, Any]:
        """Everything that an embedding depends on, except the sample."""
        text = self.model.text
        drawn = None if self.view is None else {"seed": self.seed, "policy": repr(self.policy)}
        reads = self.reads
        if text is not None:
            reads = {"tokenizer": text.tokenizer.digest, "length": text.tokenizer.length}
        return {
            "kind": "embeddings",
            "format": FORMAT,
            "arch": self.model.arch,
            "kwargs": self.model.kwargs,
            "changes": {"blurpool": self.model.blurpool, "pooling": text.settings["pooling"] if text else None},
            "weights": backbone_digest(self.model),
            "precision": str(self.precision.dtype),
            "kept as": self.dtype,
            "input": reads,
            "augmentation": drawn,
        }

    @contextmanager
    def rows(self, part: DatasetPart, tick: Callable[[int], object]) -> Iterator[Iterator[Made]]:
        """The embeddings of a part's samples, in order; a string gives the reason where there is none."""
        dtype = self.precision.input_dtype
        with viewed(part, self.open_, self.policy, dtype, self.view, self.seed) as (loader, feed):
            yield Encoder(self.model, self.precision.autocast, feed, self.dtype).rows(loader, len(part), tick)


def pixels_of(
    crop: CropRule, preprocessing: Preprocessing, backend: Backend, decode: str, max_pixels: int | None
) -> dict[str, Any]:
    """What the pixels of an input depend on, except the image."""
    return {
        "crop": repr(crop),
        "mean": preprocessing.mean,
        "std": preprocessing.std,
        "loader": backend,
        "decode": "gpu" if decode == "gpu" else "cpu",
        "most pixels": max_pixels or MAX_PIXELS,
        "scaled": False,  # whether crops may be decoded at reduced size
        **({} if preprocessing.dtype == "uint8" else {"dtype": preprocessing.dtype}),
        **({} if preprocessing.field is None else {"field": preprocessing.field}),
    }


def array_loader(part: DatasetPart, decoder: Decoder, config: LoaderConfig, device: torch.device) -> BatchSource:
    """A loader of tokens or embeddings."""
    return Loader(part.dataset, decoder, config, device, part.indices)


def views(datasets: list[ArrayDataset]) -> Dataset:
    """The datasets in turn, one per epoch."""
    return datasets[0] if len(datasets) == 1 else Views(datasets)


def _own(part: DatasetPart) -> npt.NDArray[np.int64]:
    """The ids of a part's samples."""
    return part.indices if part.indices is not None else np.arange(len(part.dataset))


def _source(part: DatasetPart) -> Dataset:
    """The samples themselves, by whose content arrays are kept."""
    return part.dataset.source if isinstance(part.dataset, ArrayDataset) else part.dataset


def _of_view(digests: npt.NDArray[np.void], view: int | None) -> npt.NDArray[np.void]:
    """Digests of augmented samples, from the content, the index, which determines the draws, and the view."""
    if view is None:
        return digests
    named = [
        NONE if (own := digest.tobytes()) == NONE else of(own, f"{index} {view}".encode())
        for index, digest in enumerate(digests)
    ]
    return np.frombuffer(b"".join(named), DIGEST)
