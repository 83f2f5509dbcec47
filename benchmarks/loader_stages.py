"""The native loader in parts: what each stage of a sample costs on one thread, the floor, and the time with the GIL.

The stages are called one by one on the samples of an epoch, in its order, as the loader's threads call them; `others`
is what the loader takes beyond their sum, by the clock, with one thread. A second copy of the machine's work runs
nowhere: rounds of all measurements are interleaved, and the median of n counts.
"""

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import measure
import numpy as np
import simplejpeg
import torch
from gil import Sampler
from loader_data import Sources
from measure import Spread
from rich.console import Console

from fastimg.loaders import Dataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.decode import read_header, stored_box
from fastimg.loaders.resample import resample
from fastimg.loaders.scratch import Scratch
from fastimg.loaders.splice import splice

STAGES = ("read", "header", "window", "splice", "decode", "resize")


def run(args: argparse.Namespace, sources: Sources, shared: dict[str, Any], console: Console) -> None:
    """Measure the stages, or the GIL, or both; show and keep them."""
    torch.set_num_threads(1)
    data = open_dataset(sources.tiled)
    decoder = ImageDecoder(RandomResizedCrop(size=args.size))
    try:
        if args.stages:
            _stages(args, data, decoder, shared, console)
        if args.gil:
            _gil(args, data, decoder, shared, console)
    finally:
        data.close()


def _stages(
    args: argparse.Namespace, data: Dataset, decoder: ImageDecoder, shared: dict[str, Any], console: Console
) -> None:
    ids = _tiled(data)
    found: dict[str, list[float]] = {name: [] for name in (*STAGES, "loader", "fill")}
    parts = _parts(data, decoder, ids)
    floors: dict[int, list[float]] = {workers: [] for workers in args.workers}
    with_loader = Loader(data, decoder, LoaderConfig(batch_size=args.batch_size, workers=1), indices=ids)
    for number in range(1 + args.repeats):
        stages = _one_by_one(data, decoder, ids, number)
        stages["loader"] = _timed(lambda: sum(batch.samples for batch in with_loader)) / len(ids)
        stages["fill"] = _timed(lambda number=number: _fill(data, decoder, ids, number)) / len(ids)
        for workers in args.workers:
            seconds = _on_threads(workers, parts)
            if number:
                floors[workers].append(len(parts) / seconds)
        if number:
            for name, seconds in stages.items():
                found[name].append(seconds * 1e6)
    with_loader.close()
    spreads = {name: Spread.of(values) for name, values in found.items()}
    total = sum(spreads[name].median for name in STAGES)
    rows = [{"stage": name, **spreads[name].columns("us/image")} for name in STAGES]
    rows += [
        {"stage": "sum of the stages", "us/image": f"{total:.4g}"},
        {"stage": "read and ImageDecoder.fill", **spreads["fill"].columns("us/image")},
        {"stage": "loader, 1 thread", **spreads["loader"].columns("us/image")},
        {"stage": "others", "us/image": f"{spreads['loader'].median - total:.4g}"},
    ]
    measure.show(console, "native loader, one thread, microseconds an image", rows)
    floor_rows = [
        {"floor": "simplejpeg decodes the spliced parts", "threads": workers, **Spread.of(values).columns("img/s")}
        for workers, values in floors.items()
    ]
    measure.show(console, "decoding alone", floor_rows)
    fields = {name: spread.fields("microseconds") for name, spread in spreads.items()}
    record = {"stages": fields, "sum": round(total, 1), "others": round(spreads["loader"].median - total, 1)}
    decode_only = {str(w): Spread.of(v).fields("images_per_second") for w, v in floors.items()}
    measure.append(args.out, {**shared, "benchmark": "loader stages", **record, "decode_only": decode_only})


def _tiled(data: Dataset) -> np.ndarray:
    """Ids of the tiled JPEGs, in random order: what is no JPEG has other stages."""
    scratch = Scratch()
    headers = (read_header(data.read(i, scratch)) for i in range(len(data)))
    ids = np.flatnonzero([header.turbo and header.restarts for header in headers])
    if not len(ids):
        raise SystemExit("no JPEG among the images: nothing to take apart")
    return np.random.default_rng(0).permutation(ids)


def _one_by_one(data: Dataset, decoder: ImageDecoder, ids: np.ndarray, epoch: int) -> dict[str, float]:
    """Seconds per image of each stage."""
    spent = dict.fromkeys(STAGES, 0.0)
    scratch, out = Scratch(), np.empty((decoder.crop.size, decoder.crop.size, 3), np.uint8)
    clock = time.perf_counter
    for index, draws in zip(ids.tolist(), decoder.draw(0, epoch, ids).tolist(), strict=True):
        t0 = clock()
        encoded = data.read(index, scratch)
        t1 = clock()
        header = read_header(encoded)
        t2 = clock()
        window = decoder.crop.window(*header.size, draws)
        t3 = clock()
        x, y, width, height = stored_box(window.box, header)
        part, (left, top) = splice(encoded, (x, y, width, height), buffer=scratch.spliced(len(encoded) + 2))
        t4 = clock()
        room = scratch.pixels(header.width * header.height * 3)
        pixels = simplejpeg.decode_jpeg(part, "RGB", strict=True, buffer=room)
        t5 = clock()
        cut = pixels[y - top : y - top + height, x - left : x - left + width]
        resample(cut, window._replace(box=(0, 0, width, height)), decoder.crop.interpolation, out)
        t6 = clock()
        for name, seconds in zip(STAGES, (t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4, t6 - t5), strict=True):
            spent[name] += seconds
    return {name: seconds / len(ids) for name, seconds in spent.items()}


def _fill(data: Dataset, decoder: ImageDecoder, ids: np.ndarray, epoch: int) -> None:
    """What a loader's thread does, without the loader."""
    scratch = Scratch()
    row = {field.name: np.empty(field.shape, field.dtype) for field in decoder.fields}
    for index, draws in zip(ids.tolist(), decoder.draw(0, epoch, ids).tolist(), strict=True):
        decoder.fill(data.read(index, scratch), draws, row, scratch)


def _parts(data: Dataset, decoder: ImageDecoder, ids: np.ndarray) -> list[bytes]:
    """The spliced JPEGs of an epoch."""
    scratch, parts = Scratch(), []
    for index, draws in zip(ids.tolist(), decoder.draw(0, 0, ids).tolist(), strict=True):
        encoded = data.read(index, scratch)
        header = read_header(encoded)
        box = stored_box(decoder.crop.window(*header.size, draws).box, header)
        parts.append(bytes(splice(encoded, box)[0]))
    return parts


def _on_threads(workers: int, parts: Sequence[bytes]) -> float:
    """Seconds that decoding takes, each thread with memory of its own."""

    def decode(some: Sequence[bytes]) -> None:
        room = bytearray(64 << 20)
        for part in some:
            simplejpeg.decode_jpeg(part, "RGB", strict=True, buffer=room)

    threads = [threading.Thread(target=decode, args=(parts[i::workers],)) for i in range(workers)]
    return _timed(lambda: ([t.start() for t in threads], [t.join() for t in threads]))


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _gil(
    args: argparse.Namespace, data: Dataset, decoder: ImageDecoder, shared: dict[str, Any], console: Console
) -> None:
    sampler = Sampler()
    rows = []
    loaders = {w: Loader(data, decoder, LoaderConfig(batch_size=args.batch_size, workers=w)) for w in args.workers}
    found: dict[int, list[tuple[float, float, int]]] = {workers: [] for workers in loaders}
    for number in range(1 + args.repeats):
        for workers, loader in loaders.items():
            share, samples, seconds = sampler.share(lambda loader=loader: sum(batch.samples for batch in loader))
            if number:
                found[workers].append((share * seconds / len(data) * 1e6, len(data) / seconds, samples))
    for workers, values in found.items():
        loaders[workers].close()
        held, speed = Spread.of([v[0] for v in values]), Spread.of([v[1] for v in values])
        row: dict[str, Any] = {"benchmark": "loader gil", "workers": workers}
        looks = {"looks": sum(v[2] for v in values), "calibration": sampler.calibration}
        fields = {**held.fields("gil_microseconds"), **speed.fields("images_per_second")}
        measure.append(args.out, {**shared, **row, **fields, **looks})
        rows.append({"workers": workers, **held.columns("us with the GIL"), "img/s": round(speed.median), **looks})
    for row in rows:
        del row["calibration"]
    known = ", ".join(f"{name} {share:.3f}" for name, share in sampler.calibration.items())
    measure.show(console, f"time per image with the GIL held, the whole loader (known programs read as: {known})", rows)
