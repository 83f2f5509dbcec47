"""LitData's chunks, written by `litdata.optimize` with the unchanged JPEGs, and its streaming loader over them."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.pipelines import Batches, Transform, Workload, first_of

from .decoders import pixels


def make_chunks(sources: Sources) -> None:
    """Write the images, in order; JPEGs that Pillow has only opened keep their bytes."""
    import litdata

    inputs = [(str(file), sources.label(index)) for index, file in enumerate(sources.files)]
    litdata.optimize(
        fn=_sample,
        inputs=inputs,
        output_dir=str(_chunks(sources)),
        chunk_bytes="64MB",
        num_workers=1,
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )


def _sample(given: tuple[str, int]) -> dict[str, Any]:
    path, label = given
    return {"image": Image.open(path), "class": label}


def _chunks(sources: Sources) -> Path:
    return sources.folder / "litdata"


class _Transformed:
    """torchvision's v2 transforms on a decoded sample."""

    def __init__(self, work: Workload) -> None:
        self.transform = Transform(work).transform

    def __call__(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        return pixels(self.transform(sample["image"])), sample["class"]


def streamed(work: Workload) -> Batches:
    """StreamingDataset, which decodes by torchvision.io, in a StreamingDataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset

    random = work.crop == "random"
    data = StreamingDataset(str(_chunks(work.sources)), shuffle=random, drop_last=False, transform=_Transformed(work))
    workers = work.workers if random else min(1, work.workers)  # one worker keeps the order
    if workers == 0:
        torch.set_num_threads(1)
    loader = StreamingDataLoader(data, batch_size=work.batch_size, num_workers=workers, persistent_workers=workers > 0)
    return first_of(loader)
