"""datago: its client on a folder of files, which are read and decoded in Rust's threads.

It decodes whole images and has no random crop (its own are centred, for buckets of aspect ratios), so that torchvision
cuts and resizes Pillow's images in the thread that takes them, as with a DataLoader without workers: a second thread
decodes, and does not crop.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import torch

from fastimg.bench.peers.pipelines import Batches, Peer

from .format_work import FormatWork, Steps

_BUFFERED = 256  # samples, decoded ahead


def of_files(work: FormatWork) -> Batches:
    """A client for each epoch, which it shuffles itself."""
    os.environ["DATAGO_MAX_TASKS"] = str(work.threads)  # read when a client starts
    from datago import DatagoClient, initialize_logging

    initialize_logging(log_level="error")
    torch.set_num_threads(1)
    source = {"root_path": os.path.commonpath(work.sources.files), "random_sampling": True}
    about = {"source_type": "file", "source_config": source, "limit": len(work.sources.files)}
    steps = Steps(work)

    def batches() -> Iterator[torch.Tensor]:
        client: Any = DatagoClient(json.dumps(about | {"samples_buffer_size": _BUFFERED}))
        client.start()
        try:
            images = []
            while (sample := client.get_sample()) is not None:
                images.append(steps(sample.image.to_pil_image().convert("RGB")))
                if len(images) == work.batch_size:
                    yield torch.stack(images).permute(0, 3, 1, 2)
                    images = []
            if images:
                yield torch.stack(images).permute(0, 3, 1, 2)
        finally:
            client.stop()

    return batches


FILES = Peer(
    open=of_files,
    about="the files, decoded whole in threads; torchvision v2 in the thread that takes the batches",
    module="datago",
    install="uv pip install datago",
)
