"""Samples per second at prediction: of a checkpoint on its data, and of a model alone, before anything is trained."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from fastimg.config.intent import BATCH
from fastimg.data.datasets import worker_count
from fastimg.data.model_input import model_input
from fastimg.loaders import open_dataset
from fastimg.models.precision import choose, set_backends
from fastimg.models.ranks import start
from fastimg.models.registry import Model
from fastimg.predict import inference
from fastimg.system.measurement import synchronise

Clock = Callable[[], float]
_TOKENS = 128  # of a text, where a model is measured alone
_ALONE = 32  # samples in a batch then
_PASSES = 2  # batches at least


def prediction_speed(
    checkpoint: Path,
    data: Path,
    split: str,
    device: str = "auto",
    seconds: float = 1.0,
    clock: Clock = time.perf_counter,
) -> float:
    """Samples of a split that a checkpoint answers in a second, as `fastimg predict` does: read, decoded and answered.

    One batch comes before, which does not count; then batches until `seconds` are over or the split is.
    """
    with start(device) as ranks, closing(open_dataset(data, split)) as dataset:
        engine = inference.load(checkpoint, ranks.device, None)
        texts = inference.texts_beside(engine, dataset, data)
        workers = worker_count("auto", ranks)
        every = np.arange(len(dataset))
        batch = min(BATCH[ranks.device.type], len(every))

        def answer(indices: "np.ndarray[tuple[int], np.dtype[np.int64]]", most: float) -> float:
            """Answer these samples, for at most so many seconds. Returns samples per second."""
            began = clock()
            count = 0
            loader = engine.loader(dataset, batch, workers, None, "skip", indices=indices, texts=texts)
            with closing(loader):
                for seen, probabilities in engine.answers(loader):
                    probabilities.cpu()  # sync point: the answers are there
                    count += int((seen.weight > 0).sum())
                    if clock() - began >= most:
                        break
            return count / max(clock() - began, 1e-9)

        answer(every[:batch], seconds)
        return answer(every, seconds)


def model_speed(model: Model, device: str = "auto", seconds: float = 0.5, clock: Clock = time.perf_counter) -> float:
    """Samples of the model's own size that it answers in a second, without reading them: the fastest of some batches.

    Moves the model to the device.
    """
    with start(device) as ranks, torch.inference_mode():
        set_backends(ranks.device)
        precision = choose(ranks.device, True, "auto")
        module = model.module.to(ranks.device).eval()
        if model.convolutional:
            module.to(memory_format=torch.channels_last)
        p = model.preprocessing
        batch = BATCH["cuda"] if ranks.device.type == "cuda" else _ALONE
        inputs = torch.zeros(batch, _TOKENS, dtype=torch.int32, device=ranks.device)
        if model.text is None:
            inputs = model_input(None, p.blank(batch, p.val_size, ranks.device), p.policy, precision.input_dtype)

        def taken() -> float:
            """Seconds of a batch."""
            began = clock()
            with precision.autocast():
                module(inputs)
            synchronise(ranks.device)
            return clock() - began

        taken()  # the first one allocates
        end = clock() + seconds
        times = [taken() for _ in range(_PASSES)]
        while clock() < end:
            times.append(taken())
        return batch / max(min(times), 1e-9)
