"""The fields that decoders fill, and the batch that the loader hands out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch


class Field(NamedTuple):
    """A field of a batch. `shape` leaves out the batch dimension; rows without a sample hold `blank`.

    The dtype is bool, uint8, int8, int16, int32, int64, float16, float32 or float64. A field of dtype object stays on
    the host, and only a decoder with its own ring can use it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blank: int | None = 0


# The fields that every batch has in addition to the decoder's.
LABEL_FIELDS = (
    Field("targets", (), np.dtype(np.int64)),
    Field("ids", (), np.dtype(np.int64)),
    Field("weight", (), np.dtype(np.float32)),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch on the device, valid until the next one is requested: the loader reuses its memory.

    `weight` is 1 for a real sample, 0 for padding and for a sample that could not be decoded (its pixels are zeros).
    `fields` holds, by name, what a custom decoder fills in addition to `inputs`; `ImageDecoder` fills only `inputs`.
    """

    inputs: torch.Tensor  # uint8 [B, 3, H, W], channels-last in memory; int32 tokens [B, L]; or arrays [B, ...]
    targets: torch.Tensor  # int64 [B], -1 where the dataset has no label
    ids: torch.Tensor  # int64 [B], indices in the dataset; always on the host, where augmentation is planned
    weight: torch.Tensor  # float32 [B]
    samples: int  # number of rows with weight 1, known on the host without asking the device
    ready: torch.cuda.Event | None = None  # recorded when the batch is complete, for streams other than the consumer's
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)  # [B, *shape] each, on the device
