"""What a run keeps of its data: tokens of texts, and the embeddings of a frozen encoder, each made once.

digests of the samples' content -> ArrayCache -> ArrayDataset: the same samples, with arrays for content
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fastimg.augment import Policy, draw
from fastimg.data.datasets import Part
from fastimg.data.model_input import model_input
from fastimg.loaders import BatchSource, Dataset, ImageError, Loader, LoaderConfig
from fastimg.loaders.backends.settings import Backend
from fastimg.loaders.containers.arrays import ArrayDataset, Views, npy_bytes
from fastimg.loaders.containers.content import singular
from fastimg.loaders.crop import Crop
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.loaders.decoder import Decoder
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing
from fastimg.models.tokenizer import Tokenizer
from fastimg.wording import plural

from .digests import DIGEST, NONE, of, sample_digests, stamp_of
from .encoder import FORMAT, Encoder, backbone_digest
from .store import ArrayCache, Made

_HEAD = len(npy_bytes(np.zeros(1, np.int32))) - 4  # bytes before the tokens of a text
_TEXTS = 4096  # that wait to be tokenised
BATCH = {"cpu": 64, "cuda": 256}  # samples that are encoded together: a divisor of a shard


@dataclass
class Keeper:
    """Where arrays are kept, and who makes them."""

    root: Path
    ranks: Ranks
    workers: int
    console: Console  # hears rank 0
    _digests: dict[int, tuple[Dataset, npt.NDArray[np.void]]] = field(default_factory=dict)  # by the dataset's id()

    def say(self, text: str) -> None:
        """A sentence for a person."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def digests(self, dataset: Dataset) -> npt.NDArray[np.void]:
        """Of every sample; read once for a dataset."""
        known = self._digests.get(id(dataset))
        if known is None:
            stamp = stamp_of(dataset)
            keep = self.root / "digests" / f"{stamp[:32]}.bin"
            with self.ranks.first_goes_first(), self.progress("reading", len(dataset)) as tick:
                known = dataset, sample_digests(dataset, stamp, keep, self.workers, self.say, tick)
            self._digests[id(dataset)] = known
        return known[1]

    def tokens(self, dataset: Dataset, tokenizer: Tokenizer) -> ArrayDataset:
        """The texts of a dataset as tokens."""
        about = {"kind": "tokens", "format": FORMAT, "tokenizer": tokenizer.digest, "length": tokenizer.length}
        cache, digests = ArrayCache(self.root / "tokens", about, self.say), self.digests(dataset)

        def make(ids: npt.NDArray[np.int64]) -> Generator[Made, None, None]:
            def one(index: int) -> Made:
                try:
                    return tokenizer.tokens(dataset.read(index, Scratch()))
                except ImageError as error:
                    return str(error)

            with (
                ThreadPoolExecutor(self.workers, "tokens") as pool,
                self.progress("tokenising", len(ids)) as tick,
            ):
                for start in range(0, len(ids), _TEXTS):  # a pool holds what it was given
                    for made in pool.map(one, ids[start : start + _TEXTS].tolist()):
                        tick(1)
                        yield made

        made = cache.fill(digests, self.ranks, make)
        if made:
            self.say(f"tokens      {plural(made, 'text')} tokenised, once, in {cache.folder}")
        sizes = cache.places(digests)["size"].astype(np.int64)
        return cache.dataset(dataset, digests, np.maximum(sizes - _HEAD, 0) // 4)

    def embeddings(self, part: Part, encoding: "Encoding") -> tuple[ArrayDataset, Path, int]:
        """The embeddings of a part's samples, the folder that keeps them, and how many were made just now."""
        dataset, ids = part.dataset, part.indices
        own = ids if ids is not None else np.arange(len(dataset))
        source = dataset.source if isinstance(dataset, ArrayDataset) else dataset
        digests = _of_view(self.digests(source), encoding.view)
        lengths = dataset.lengths if isinstance(dataset, ArrayDataset) else None
        cache = ArrayCache(self.root / "embeddings", encoding.about(), self.say)

        def make(places: npt.NDArray[np.int64]) -> Generator[Made, None, None]:
            if not len(places):
                return
            self.say(f"encoding    {plural(len(places), singular(dataset.content))} with {encoding.model.arch}, once")
            with (
                self.progress(f"encoding with {encoding.model.arch}", len(places)) as tick,
                encoding.rows(replace(part, indices=own[places]), tick) as rows,
            ):
                yield from rows

        def by_length(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            if lengths is None:
                return places
            return places[np.argsort(-lengths[own[places]], kind="stable")]

        made = cache.fill(digests[own], self.ranks, make, by_length)
        return cache.dataset(source, digests, lengths), cache.folder, made  # batches are those of the texts

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], object]]:
        """A bar, and who moves it."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        quiet = not (self.ranks.first and self.console.is_terminal)
        with Progress(*columns, console=self.console, transient=True, disable=quiet) as bar:
            task = bar.add_task(what, total=total)
            yield lambda count: bar.advance(task, count)


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How embeddings are made. `open_` opens the loader that reads samples for it, in their order."""

    model: Model
    ranks: Ranks
    precision: Precision
    policy: Policy
    dtype: str  # of the numbers that are kept
    reads: dict[str, Any]  # what else the model's input depends on
    open_: Callable[[Part], BatchSource]
    view: int | None = None  # the epoch whose augmentation is drawn; None: nothing is augmented
    seed: int = 0

    def about(self) -> dict[str, Any]:
        """All that an embedding depends on beside the sample."""
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
    def rows(self, part: Part, tick: Callable[[int], object]) -> Iterator[Iterator[Made]]:
        """What becomes of a part's samples, in their order."""
        loader = self.open_(part)
        if self.view is not None:
            loader.set_epoch(self.view)

        def feed(batch: Any) -> torch.Tensor:
            plan = None if self.view is None else draw(self.policy, batch.ids, self.seed, self.view)
            return model_input(plan, batch.inputs, self.policy, self.precision.input_dtype)

        encoder = Encoder(self.model, self.precision.autocast, feed, self.dtype)
        try:
            yield encoder.rows(loader, len(part), tick)
        finally:
            loader.close()


def pixels_of(
    crop: Crop, preprocessing: Preprocessing, backend: Backend, decode: str, max_pixels: int | None
) -> dict[str, Any]:
    """What the pixels of an image depend on, beside the image."""
    return {
        "crop": repr(crop),
        "mean": preprocessing.mean,
        "std": preprocessing.std,
        "loader": backend,
        "decode": "gpu" if decode == "gpu" else "cpu",
        "most pixels": max_pixels or MAX_PIXELS,
        "scaled": False,  # whether a crop may be decoded smaller than it is
    }


def array_loader(part: Part, decoder: Decoder, config: LoaderConfig, device: torch.device) -> BatchSource:
    """The loader of tokens or embeddings."""
    return Loader(part.dataset, decoder, config, device, part.indices)


def views(datasets: list[ArrayDataset]) -> Dataset:
    """One after the other, an epoch each."""
    return datasets[0] if len(datasets) == 1 else Views(datasets)


def _of_view(digests: npt.NDArray[np.void], view: int | None) -> npt.NDArray[np.void]:
    """An augmented sample is named by its content, its place, which is what it draws by, and the view."""
    if view is None:
        return digests
    named = [
        NONE if (own := digest.tobytes()) == NONE else of(own, f"{index} {view}".encode())
        for index, digest in enumerate(digests)
    ]
    return np.frombuffer(b"".join(named), DIGEST)
