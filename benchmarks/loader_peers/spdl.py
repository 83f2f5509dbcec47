"""SPDL's pipeline of threads: with its own decoder, FFmpeg, and with TorchCodec's.

With FFmpeg, as its documentation recommends, crop, resize and flip are filters on the decoded planes, before they
become RGB; a batch is made of frames in one copy. The crop's box comes from torchvision.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fastimg.bench.peers.pipelines import AHEAD, Batches, Workload

from .decoders import DecodedFiles, torchcodec


def filtered(work: Workload) -> Batches:
    """spdl.io: FFmpeg's decoder and filters."""
    import spdl.io
    from torchvision.transforms import RandomResizedCrop

    files, size = work.sources.files, work.size

    def filters(width: int, height: int) -> str:
        if work.crop == "centre":
            short = min(width, height)
            wide, high = (int(work.resize * side / short) for side in (width, height))
            return f"scale={wide}:{high}:flags=bilinear,crop={size}:{size}"
        shape = torch.empty(0, height, width)
        y, x, high, wide = RandomResizedCrop.get_params(shape, [0.08, 1.0], [3 / 4, 4 / 3])
        flip = ",hflip" if torch.rand(()) < 0.5 else ""
        return f"crop={wide}:{high}:{x}:{y},scale={size}:{size}:flags=bilinear{flip}"

    def load(index: int) -> tuple[Any, int]:
        packets = spdl.io.demux_image(str(files[index]))
        wanted = filters(packets.width, packets.height)
        wanted = spdl.io.get_video_filter_desc(filter_desc=wanted, pix_fmt="rgb24")
        return spdl.io.decode_packets(packets, filter_desc=wanted), work.sources.label(index)

    def batch(samples: list[tuple[Any, int]]) -> torch.Tensor:
        pixels = spdl.io.convert_frames([frames for frames, _ in samples])
        return spdl.io.to_torch(pixels).permute(0, 3, 1, 2)

    return _epochs(work, load, batch)


def decoded(work: Workload) -> Batches:
    """The steps of a torch Dataset in SPDL's threads: TorchCodec, torchvision v2, torch's collation."""
    samples = DecodedFiles(work, torchcodec)

    def batch(chosen: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
        images: torch.Tensor = torch.utils.data.default_collate(chosen)[0]
        return images.permute(0, 3, 1, 2)

    return _epochs(work, samples.__getitem__, batch)


def _epochs(work: Workload, load: Callable[[int], Any], batch: Callable[[Any], torch.Tensor]) -> Batches:
    """A pipeline for each epoch: indices, loading in threads, batches."""
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)  # so that only the requested threads compute
    indices = range(len(work.sources.files))
    random = work.crop == "random"

    def batches() -> Iterator[torch.Tensor]:
        source = torch.utils.data.RandomSampler(indices) if random else indices
        pipeline = (
            PipelineBuilder()
            .add_source(source)
            .pipe(load, concurrency=work.threads, output_order="completion" if random else "input")
            .aggregate(work.batch_size)
            .pipe(batch)
            .add_sink(AHEAD)
            .build(num_threads=work.threads, max_failures=0)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return batches
