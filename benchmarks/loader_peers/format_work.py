"""What the loaders of `by_format` have to do, and torchvision's part of it."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from fastimg.bench.peers.pipelines import Workload


@dataclass(frozen=True, kw_only=True)
class FormatWork(Workload):
    """RandomResizedCrop without a flip, or images as they are stored, in a new order each epoch, as RGB."""

    whole: bool = False  # all images have `size` rows and columns


class Steps:
    """What torchvision does with a Pillow image. Returns pixels [S, S, 3], which collate faster than planes."""

    def __init__(self, work: FormatWork) -> None:
        from torchvision.transforms import v2

        self.crop = None if work.whole else v2.RandomResizedCrop(work.size, antialias=True)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image if self.crop is None else self.crop(image)))
