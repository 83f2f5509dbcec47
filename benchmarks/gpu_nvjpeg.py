"""The ceiling of decoding on a GPU: nvJPEG alone, on whole files that are in memory, without reading and resizing."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import measure
import numpy as np
import torch
from bench import Bench
from images import list_images

from fastimg.loaders.backends import nvcodec
from fastimg.loaders.crop import RandomResizedCrop
from fastimg.loaders.decode import read_header, stored_box
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.random import uniforms


def ceiling(bench: Bench) -> None:
    """Images a second of nvJPEG by engine: whole files, and the tiles that random crops touch."""
    bench.need_cuda()
    whole, cut = _encoded(bench)
    calls: dict[str, Callable[[], object]] = {"torchvision, nvJPEG, whole": _by_torchvision(whole, bench.device)}
    for engine in ("auto", "cuda") if nvcodec.installed() else ():
        for name, jpegs in (("whole", whole), ("spliced crops", cut)):
            calls[f"nvImageCodec, {engine}, {name}"] = _by_codec(jpegs, bench, engine)
    if not nvcodec.installed():
        bench.console.print(f"{bench.section}: nvImageCodec: skipped: not installed")
    speeds = measure.interleaved(
        {name: partial(_rate, call, len(whole), bench) for name, call in calls.items()}, bench.sizes.repeats
    )
    rows: list[dict[str, Any]] = [{"what": name, "images_per_second": speed} for name, speed in speeds.items()]
    bench.report(f"decoding on the GPU alone, batches of {len(whole)}", rows)


def _encoded(bench: Bench) -> tuple[list[bytes], list[bytes]]:
    """A batch of whole JPEGs, and of the tiles that random crops of them touch."""
    paths = [bench.folder / name for name in list_images(bench.folder)]
    whole = [(paths * -(-bench.sizes.batch // len(paths)))[i].read_bytes() for i in range(bench.sizes.batch)]
    crop = RandomResizedCrop(size=bench.sizes.crop)
    draws = uniforms(0, 0, np.arange(len(whole)), 0, crop.draws)
    cut = []
    for jpeg, numbers in zip(whole, draws.tolist(), strict=True):
        header = read_header(jpeg)
        part, _ = splice(jpeg, stored_box(crop.window(*header.size, numbers).box, header))
        cut.append(bytes(part))
    return whole, cut


def _by_torchvision(jpegs: list[bytes], device: torch.device) -> Callable[[], object]:
    from torchvision.io import ImageReadMode, decode_jpeg  # deprecated since 0.29, to be removed

    tensors = [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]
    return lambda: decode_jpeg(tensors, mode=ImageReadMode.RGB, device=device)


def _by_codec(jpegs: list[bytes], bench: Bench, engine: Any) -> Callable[[], object]:
    codec = nvcodec.NvCodec(bench.device, engine)
    parsed = [one for one in map(codec.parse, jpegs) if one is not None]
    stream = torch.cuda.current_stream(bench.device).cuda_stream

    def decode() -> None:
        refused = [one for one in codec.decode(parsed, stream) if one is None]
        if refused or len(parsed) < len(jpegs):
            raise RuntimeError(f"{len(refused) + len(jpegs) - len(parsed)} of {len(jpegs)} images were refused")
        measure.synchronise(bench.device)  # the images' memory is reused

    return decode


def _rate(decode: Callable[[], object], count: int, bench: Bench) -> float:
    decode()  # memory is allocated
    measure.synchronise(bench.device)
    began, batches = time.perf_counter(), 0
    while batches < 2 or time.perf_counter() - began < bench.sizes.seconds:
        decode()
        batches += 1
    measure.synchronise(bench.device)
    return batches * count / (time.perf_counter() - began)
