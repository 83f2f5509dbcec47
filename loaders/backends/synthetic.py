"""Random pixels that are on the device already: the fastest that training could be with any loader."""

import math
from collections.abc import Generator

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.crop import CropRule, shape_of
from fastimg.loaders.epochs.config import LoaderConfig
from fastimg.loaders.epochs.plan import EpochPlan

from .adapter import DecodedBatch, LoaderAdapter


class SyntheticLoader(LoaderAdapter):
    """Ids, targets and weights of the dataset, always with the same random pixels. Nothing is read."""

    def __init__(
        self,
        dataset: Dataset,
        crop: CropRule,
        config: LoaderConfig,
        device: torch.device,
        indices: npt.NDArray[np.int64] | None = None,
        channels: int = 3,
    ) -> None:
        super().__init__(dataset, crop, config, device, indices, workers=1, channels=channels)
        self.workers = self.slot_bytes = 0  # none on the host
        generator = torch.Generator(device).manual_seed(config.seed)
        shape = (config.batch_size, *shape_of(crop), channels)
        with torch.inference_mode(False):  # it outlives the block in which the loader is made
            self._pixels = torch.randint(256, shape, dtype=torch.uint8, device=device, generator=generator)

    def describe(self) -> str:
        """See `BatchSource`."""
        return "synthetic, random pixels on the device: nothing is read, and accuracy is meaningless"

    def _decode(self, plan: EpochPlan) -> Generator[DecodedBatch, None, None]:
        shape = (self.config.batch_size, *shape_of(self.crop), self._channels)
        whole = self._pixels.view(-1)[: math.prod(shape)].view(shape)
        for step in range(plan.steps):
            decoded = plan.rows(step).decoded
            if decoded == len(whole):
                yield DecodedBatch(whole, complete=True)
                continue
            pixels = whole.clone()  # the last batch of an evaluation
            pixels[decoded:] = 0
            yield DecodedBatch(pixels)
