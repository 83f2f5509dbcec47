"""A teacher's logits of a few views of each image: computed once, kept like embeddings, looked up by view and id."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fastimg.augment import Policy
from fastimg.augment.plan import to_device
from fastimg.data.datasets import DatasetPart
from fastimg.embeddings.cache import viewed
from fastimg.embeddings.encoder import FORMAT, Computed, rows_of, weights_digest
from fastimg.embeddings.store import Made
from fastimg.loaders import Batch, BatchSource, DataError
from fastimg.loaders.containers.arrays import ArrayDataset
from fastimg.loaders.decoders.arrays import ArrayDecoder
from fastimg.loaders.epochs.plan import crop_epoch_of
from fastimg.wording import plural

from .teacher import Teacher


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """How a teacher's logits of one view are computed. `open_` opens a loader that reads a part's samples in order."""

    teacher: Teacher
    policy: Policy  # the student's
    dtype: str  # of the kept logits
    reads: dict[str, Any]  # what else the images depend on
    open_: Callable[[DatasetPart], BatchSource]
    view: int | None  # the epoch whose augmentation is drawn; None: no augmentation
    seed: int
    folder = "teachers"
    verb = "labelling"

    @property
    def arch(self) -> str:
        """The teacher's."""
        return self.teacher.model.arch

    def about(self) -> dict[str, Any]:
        """Everything that logits depend on, except the sample and the view."""
        teacher = self.teacher
        order = teacher.order
        return {
            "kind": "teacher",
            "format": FORMAT,
            "arch": self.arch,
            "kwargs": teacher.model.kwargs,
            "changes": {"blurpool": teacher.model.blurpool},
            "weights": weights_digest(teacher.model.module),
            "classes": None if order is None else order.tolist(),
            "preprocessing": [teacher.preprocessing.val_size, teacher.preprocessing.mean, teacher.preprocessing.std],
            "precision": str(teacher.precision.dtype),
            "kept as": self.dtype,
            "input": self.reads,
            "augmentation": None if self.view is None else {"seed": self.seed, "policy": repr(self.policy)},
        }

    @contextmanager
    def rows(self, part: DatasetPart, tick: Callable[[int], object]) -> Iterator[Iterator[Made]]:
        """The logits of a part's samples, in order; a string gives the reason where there are none."""
        dtype = self.teacher.precision.input_dtype
        with viewed(part, self.open_, self.policy, dtype, self.view, self.seed) as (loader, feed):

            def computed() -> Iterator[Computed]:
                for batch in loader:
                    with torch.inference_mode():
                        logits = self.teacher.logits(feed(batch)).float()
                    yield batch.ids.tolist(), (logits, batch.weight)

            what = "what the teacher says of it"
            yield rows_of(computed(), loader, len(part), self.dtype, tick, what, "leave --cache-teacher out")


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptLogits:
    """The logits of K views: epoch e has those of view e modulo K."""

    views: Sequence[ArrayDataset]
    classes: int
    dtype: str
    about: tuple[str, ...]  # the teacher in words
    where: str  # they are kept
    made: int  # that were computed now
    seconds: float  # that it took to compute and open them

    def rows(self, batch: Batch, epoch: int, unreadable: Mapping[int, str]) -> torch.Tensor:
        """The logits of a batch [B, C] on its device. No sync.

        Zeros for images that this run's loader could not decode, either, which weigh nothing. Raises DataError for
        others that have none.
        """
        kept = self.views[crop_epoch_of(epoch, len(self.views))]
        found = np.zeros((len(batch.ids), self.classes), self.dtype)
        ids = batch.ids.tolist()
        for row in kept.read_rows(ids, self._head, found):
            if ids[row] not in unreadable:
                raise DataError(
                    f"{kept.sample_name(ids[row])}: was decoded, but not when the teacher saw it; remove {self.where}, "
                    "and start again"
                )
            found[row] = 0
        return to_device(torch.from_numpy(found), batch.inputs.device)

    @property
    def nbytes(self) -> int:
        """The size of the files that have them."""
        files = {file for view in self.views for file in view.files()}
        return sum(file.stat().st_size for file in files)

    @property
    def words(self) -> tuple[str, ...]:
        """For the effective configuration."""
        count = plural(len(self.views), "view")
        size = f"{self.nbytes:,} bytes of {np.dtype(self.dtype).name}"
        spent = f"{self.made:,} made now, in {self.seconds:.1f} s" if self.made else "0 made now"
        return (*self.about, f"run once over {count} of each image: {spent}; {size} in {self.where}")

    @cached_property
    def _head(self) -> bytes:
        return ArrayDecoder((self.classes,), np.dtype(self.dtype)).head
