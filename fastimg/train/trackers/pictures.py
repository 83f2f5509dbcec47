"""The pictures that trackers get before the first step: samples, and how augmentation changes them."""

from pathlib import Path

import numpy as np

from fastimg.data.datasets import center_crop, train_crop
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.train.reporting.sheets import draw_augmented, draw_samples
from fastimg.train.run import Run

_SAMPLES, _ROWS, _EPOCHS = 36, 8, 5


def draw(run: Run) -> list[Path]:
    """Draw them into the run's directory; none for texts, embeddings, bands and random pixels.

    Raises what drawing raises.
    """
    setup = run.setup
    config = setup.config
    if setup.model.text is not None or setup.data.embedding is not None or config.loader == "synthetic":
        return []
    if config.image_field is not None:
        return []
    dataset = setup.data.loader.dataset
    indices = setup.data.loader.indices
    every = np.arange(len(dataset), dtype=np.int64) if indices is None else np.asarray(indices, np.int64)
    ids = np.sort(np.random.default_rng(config.seed).permutation(every)[:_SAMPLES])
    preprocessing = setup.input.preprocessing
    crop = center_crop(preprocessing) if config.no_aug else train_crop(preprocessing, config)
    policy = None if config.no_aug else setup.input.policy
    files = [setup.directory / f"{name}.png" for name in ("samples", "augmented")]
    most = config.max_pixels or MAX_PIXELS
    name = setup.directory.name
    draw_samples(dataset, ids, most, files[0], title=f"{name}: training images")
    epochs = 1 if policy is None else _EPOCHS
    draw_augmented(
        *(dataset, ids[:_ROWS], crop, policy, setup.input.kornia, config.seed, epochs, most, files[1]),
        title=f"{name}: what the model sees",
    )
    return files
