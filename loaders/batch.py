"""What the loader hands out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch on the device, valid until the next one is asked for: its memory is the loader's and is used again.

    `weight` is 1 for a real sample, 0 for padding and for a sample that could not be decoded (its pixels are zeros).
    `fields` holds what a decoder of your own fills beside `inputs`, by name; `ImageDecoder` fills nothing else.
    """

    inputs: torch.Tensor  # uint8 [B, 3, H, W], channels-last in memory; int32 tokens [B, L]; or arrays [B, ...]
    targets: torch.Tensor  # int64 [B], -1 where the dataset has no label
    ids: torch.Tensor  # int64 [B], index in the dataset; always on the host, where plans are drawn
    weight: torch.Tensor  # float32 [B]
    samples: int  # rows of weight 1, known on the host without asking the device
    ready: torch.cuda.Event | None = None  # when it stands, for other streams than that which asked for it
    fields: Mapping[str, torch.Tensor] = field(default_factory=dict)  # [B, *shape] each, on the device
