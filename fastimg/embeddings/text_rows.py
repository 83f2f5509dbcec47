"""The text side of batches of images: tokens or embeddings of each sample's text, looked up by the batch's ids.

Any loader reads the images; `PairedLoader` adds to each of its batches the fields `text` and `present`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastimg.data.datasets import TextSource
from fastimg.loaders import Batch, BatchSource, Dataset, ImageError
from fastimg.loaders.containers.arrays import ArrayDataset
from fastimg.loaders.containers.npy import npy_array, npy_bytes
from fastimg.loaders.crop import Size
from fastimg.loaders.decoders.arrays import MULTIPLE, PAD, put_tokens
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.preparation import Preparation
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.runtime.times import LoaderTimes
from fastimg.models.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]
Fetch = Callable[[Ids], tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]]

TEXT, PRESENT = "text", "present"  # the fields of a batch


@dataclass(frozen=True)
class TextRows:
    """The texts of a split, as a model reads them. `fetch` gives the rows of ids, and which of them have a text.

    `has_image` [N] tells which samples have an image, and not a blank one.
    """

    has_image: npt.NDArray[np.bool_]
    fetch: Fetch
    tokens: ArrayDataset | None = None  # in the cache

    def fields(self, ids: torch.Tensor, device: torch.device) -> dict[str, torch.Tensor]:
        """`text`, int32 tokens [B, L] or embeddings [B, D], and `present`, bool [B, 2]: has an image, has a text.

        On a GPU they are copied from pinned memory, behind what is enqueued.
        """
        places = ids.numpy()
        rows, has_text = self.fetch(places)
        present = np.stack([self.has_image[places], has_text], axis=1)
        return {TEXT: _on(device, rows), PRESENT: _on(device, present)}


def _on(device: torch.device, array: npt.NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def padded(tokens: list[npt.NDArray[Any]]) -> npt.NDArray[np.int32]:
    """Tokens of texts side by side, int32 [B, L]: L is that of the longest, rounded up to MULTIPLE."""
    longest = max((len(row) for row in tokens), default=0)
    rows = np.empty((len(tokens), max(MULTIPLE, -(-longest // MULTIPLE) * MULTIPLE)), np.int32)
    for own, row in zip(tokens, rows, strict=True):
        put_tokens(own, row)
    return rows


class KeptTokens:
    """Tokens from the cache: all of them in memory where they are small, else read when they are needed."""

    def __init__(self, dataset: ArrayDataset) -> None:
        self._dataset = dataset

    def __call__(self, ids: Ids) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """See `TextRows.fetch`."""
        if self._dataset.in_memory:
            tokens, ends = self._table
            rows = [tokens[ends[index] : ends[index + 1]] for index in ids.tolist()]
        else:
            scratch = Scratch()
            rows = [self._read(index, scratch) for index in ids.tolist()]
        return padded(rows), np.array([len(row) > 0 for row in rows], np.bool_)

    @cached_property
    def _table(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """All tokens one after the other, and where those of each text begin [N + 1]."""
        scratch = Scratch()
        rows = [self._read(index, scratch).copy() for index in range(len(self._dataset))]
        ends = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
        return np.concatenate([*rows, np.zeros(0, np.int32)]).astype(np.int32), ends

    def _read(self, index: int, scratch: Scratch) -> npt.NDArray[Any]:
        try:
            return npy_array(self._dataset.read(index, scratch))
        except ImageError:  # there is no text
            return np.zeros(0, np.int32)


class KeptEmbeddings:
    """Embeddings [D] of texts from the cache."""

    def __init__(self, dataset: ArrayDataset, width: int, dtype: npt.DTypeLike) -> None:
        self._dataset = dataset
        self._blank = np.zeros(width, dtype)
        self._head = npy_bytes(self._blank)[: -self._blank.nbytes]

    def __call__(self, ids: Ids) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """See `TextRows.fetch`."""
        rows = np.zeros((len(ids), *self._blank.shape), self._blank.dtype)
        has_text = np.ones(len(ids), np.bool_)
        unread = self._dataset.read_rows(ids.tolist(), self._head, rows)
        for row in unread:
            try:
                rows[row] = npy_array(self._dataset.read(int(ids[row]), Scratch()))
            except ImageError:  # there is no text
                rows[row] = 0
                has_text[row] = False
        return rows, has_text


class FreshTokens:
    """Texts that are read and tokenised when they are needed, for what sees each of them once."""

    def __init__(self, captions: Dataset, tokenizer: Tokenizer) -> None:
        self._captions = captions
        self._tokenizer = tokenizer

    def __call__(self, ids: Ids) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """See `TextRows.fetch`."""
        scratch = Scratch()
        rows: list[npt.NDArray[Any]] = []
        for index in ids.tolist():
            try:
                rows.append(self._tokenizer.tokens(self._captions.read(index, scratch)))
            except ImageError:  # there is no text
                rows.append(np.full(0, PAD, np.int32))
        return padded(rows), np.array([len(row) > 0 for row in rows], np.bool_)


class PairedLoader:
    """The batches of `images`, each with the fields `text` and `present`; in all else the loader of the images."""

    def __init__(self, images: BatchSource, texts: TextSource, device: torch.device) -> None:
        self._images = images
        self._texts = texts
        self._device = device
        self.dataset: Dataset = images.dataset
        self.config: LoaderConfig = images.config
        self.slots = images.slots
        self.workers = images.workers
        self.slot_bytes = images.slot_bytes

    def __iter__(self) -> Iterator[Batch]:
        """See BatchSource."""
        for batch in self._images:
            yield replace(batch, fields={**batch.fields, **self._texts.fields(batch.ids, self._device)})

    def __len__(self) -> int:
        return len(self._images)

    @property
    def epoch(self) -> int:
        """See BatchSource."""
        return self._images.epoch

    @property
    def indices(self) -> Ids | None:
        """See BatchSource."""
        return self._images.indices

    @property
    def wait_seconds(self) -> float:
        """See BatchSource."""
        return self._images.wait_seconds

    def spent(self) -> LoaderTimes:
        """See BatchSource."""
        return self._images.spent()

    @property
    def unreadable(self) -> dict[int, str]:
        """See BatchSource."""
        return self._images.unreadable

    @property
    def rerouted(self) -> dict[int, str]:
        """See BatchSource."""
        return self._images.rerouted

    def set_epoch(self, epoch: int) -> None:
        """See BatchSource."""
        self._images.set_epoch(epoch)

    def set_size(self, size: Size) -> None:
        """See BatchSource."""
        self._images.set_size(size)

    def prepare(self, preparation: Preparation) -> None:
        """See BatchSource."""
        self._images.prepare(preparation)

    def state_dict(self) -> dict[str, int | str]:
        """See BatchSource."""
        return self._images.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See BatchSource."""
        self._images.load_state_dict(state)

    def describe(self) -> str:
        """See BatchSource."""
        return f"{self._images.describe()}, and texts by their ids"

    def close(self) -> None:
        """See BatchSource."""
        self._images.close()


def inputs_beside(batch: Batch, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """What a model takes beside the images of a batch: nothing, or its texts and which inputs are there."""
    if PRESENT not in batch.fields:
        return ()
    text = batch.fields[TEXT]
    return (text.to(dtype) if text.is_floating_point() else text), batch.fields[PRESENT]
