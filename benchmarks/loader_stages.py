"""The stages of the native loader: the cost of each on one thread, the minimum, and the time with the GIL held.

`crops.crop_tiled` does the last four stages in one call. Here they are called separately, on the samples of an epoch in
order, and their pixels must equal those of `ImageDecoder`. `others` is the wall time of the loader with one thread
beyond their sum. Rounds of all measurements are interleaved; results are medians of n.
"""

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import measure
import numpy as np
import simplejpeg
import torch
from gil import Sampler
from loader_peers.tiled import tiled
from measure import Spread
from rich.console import Console

from fastimg.bench.peers.data import Sources
from fastimg.loaders import Dataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.decode import read_header, stored_box
from fastimg.loaders.jpeg.decoding import baseline
from fastimg.loaders.jpeg.decoding.colour import to_columns
from fastimg.loaders.jpeg.decoding.crops import peek
from fastimg.loaders.jpeg.decoding.entropy import tiles
from fastimg.loaders.jpeg.decoding.frame import is_decodable, new_header, parse_header, view_of
from fastimg.loaders.jpeg.decoding.region import find_region, new_region, scaling_of
from fastimg.loaders.jpeg.decoding.turning import resize_upright
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.runtime.scratch import Scratch

# find: locate a window's region and copy its tiles' bits; decode copies them again, which is subtracted
STAGES = ("read", "header", "window", "find", "decode", "colour", "resize")
_ROOM = 64 << 20  # size of each buffer in bytes
MAX_PIXELS = 10_000_000  # largest picture in pixels that fits the buffers


def run(args: argparse.Namespace, sources: Sources, shared: dict[str, Any], console: Console) -> None:
    """Measure the stages, or the GIL, or both; print and record the results."""
    torch.set_num_threads(1)
    data = open_dataset(tiled(sources))
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
    parts = _parts(data, decoder, ids)
    encoded = [bytes(data.read(i, Scratch())) for i in ids.tolist()]
    loader = Loader(data, decoder, LoaderConfig(batch_size=args.batch_size, workers=1), indices=ids)
    turbo = replace(decoder, compiled=False)
    bench = _Bench(decoder)
    calls: dict[str, Callable[[int], float]] = {
        "loader, 1 thread": lambda _: _timed(lambda: sum(batch.samples for batch in loader)),
        "read and fill": lambda n: _timed(lambda: _fill(data, decoder, ids, n)),
        "read and fill by libjpeg-turbo": lambda n: _timed(lambda: _fill(data, turbo, ids, n)),
    }
    draws = decoder.draw(0, 0, ids).tolist()
    floors: dict[tuple[str, int], Callable[[], float]] = {}
    for workers in args.workers:
        floors["ImageDecoder.fill_row from memory", workers] = lambda w=workers: _on_threads(
            w, list(zip(encoded, draws, strict=True)), lambda: _filler(decoder)
        )
        floors["simplejpeg on spliced parts", workers] = lambda w=workers: _on_threads(w, parts, _turbo)
    found: dict[Any, list[float]] = {name: [] for name in (*STAGES, *calls, *floors)}
    for number in range(1 + args.repeats):
        spent = bench.one_by_one(data, ids, number, check=number == 0)
        values = {name: seconds / len(ids) * 1e6 for name, seconds in spent.items()}
        values |= {name: call(number) / len(ids) * 1e6 for name, call in calls.items()}
        rates = {key: len(ids) / call() for key, call in floors.items()}
        if number:
            for key, value in (*values.items(), *rates.items()):
                found[key].append(value)
    loader.close()
    spreads = {key: Spread.of(values) for key, values in found.items()}
    total = sum(spreads[name].median for name in STAGES)
    others = spreads["loader, 1 thread"].median - total
    rows = [{"stage": name, **spreads[name].columns("us/image")} for name in STAGES]
    rows += [{"stage": "sum of the stages", "us/image": f"{total:.4g}"}]
    rows += [{"stage": name, **spreads[name].columns("us/image")} for name in calls]
    rows += [{"stage": "others", "us/image": f"{others:.4g}"}]
    measure.show(console, f"native loader, one thread, {len(ids)} tiled JPEGs, microseconds an image", rows)
    floor_rows = [{"floor": key[0], "threads": key[1], **spreads[key].columns("img/s")} for key in floors]
    measure.show(console, "without the loader", floor_rows)
    fields = {name: spreads[name].fields("microseconds") for name in (*STAGES, *calls)}
    record = {"samples": len(ids), "stages": fields, "sum": round(total, 1), "others": round(others, 1)}
    kept = [{"floor": name, "threads": w, **spreads[name, w].fields("images_per_second")} for name, w in floors]
    measure.append(args.out, {**shared, "benchmark": "loader stages", **record, "floors": kept})


def _tiled(data: Dataset) -> np.ndarray:
    """Ids of samples that the compiled decoder handles, in random order; other samples have other stages."""
    scratch = Scratch()
    headers = new_header()

    def takes(index: int) -> bool:
        known = parse_header(view_of(data.read(index, scratch)), headers) and is_decodable(headers)
        header = headers[0]
        return known and header["orientation"] == 1 and header["width"] * header["height"] < MAX_PIXELS

    ids = np.flatnonzero([takes(i) for i in range(len(data))])
    if not len(ids):
        raise SystemExit("no tiled JPEG among the images: no stages to measure")
    return np.random.default_rng(0).permutation(ids)


class _Bench:
    """The buffers of one thread."""

    def __init__(self, decoder: ImageDecoder) -> None:
        self.decoder = decoder
        self.scratch = Scratch()
        self.header = new_header()
        self.region = new_region()
        self.bits, self.planes, self.columns, self.work = (np.empty(_ROOM, np.uint8) for _ in range(4))
        self.bounds = np.empty(1 << 20, np.int64)
        self.tables = np.empty(baseline.SCRATCH, np.int64)
        self.sums = np.empty(_ROOM // 2, np.uint16)
        self.out = np.empty(decoder.fields[0].shape, np.uint8)

    def one_by_one(self, data: Dataset, ids: np.ndarray, epoch: int, check: bool) -> dict[str, float]:
        """Seconds of each stage, over all images. Raises RuntimeError if `check` finds different pixels."""
        decoder = self.decoder
        crop = self.decoder.crop
        clock = time.perf_counter
        header = self.header
        region = self.region
        bicubic = crop.interpolation == "bicubic"
        spent = dict.fromkeys(STAGES, 0.0)
        for index, draws in zip(ids.tolist(), decoder.draw(0, epoch, ids).tolist(), strict=True):
            t0 = clock()
            encoded = data.read(index, self.scratch)
            t1 = clock()
            view = view_of(encoded)
            width, height, _, _ = peek(view, header)
            t2 = clock()
            window = crop.window(width, height, draws)
            t3 = clock()
            find_region(header, *window, (crop.size, crop.size), bicubic, scaling_of(decoder.dct_scaling), region)
            t4 = clock()
            tiles.collect(view, header, region, self.bits, self.bounds)
            t5 = clock()
            baseline.decode_tiles(view, header, region, self.bits, self.bounds, self.tables, self.planes)
            t6 = clock()
            to_columns(self.planes, header, region, self.sums, self.columns)
            t7 = clock()
            resize_upright(self.columns, region, bicubic, self.work, self.out)
            t8 = clock()
            found = (t1 - t0, t2 - t1, t3 - t2, t5 - t3, (t6 - t5) - (t5 - t4), t7 - t6, t8 - t7)
            for name, seconds in zip(STAGES, found, strict=True):
                spent[name] += seconds
            if check:
                whole = np.empty_like(self.out)
                decoder.fill_row(encoded, draws, {"inputs": whole}, self.scratch)
                if not np.array_equal(whole, self.out):
                    raise RuntimeError("the stages differ from the decoder: their pixels are not equal")
        return spent


def _fill(data: Dataset, decoder: ImageDecoder, ids: np.ndarray, epoch: int) -> None:
    """The work of a loader thread, without the loader."""
    scratch = Scratch()
    row = {field.name: np.empty(field.shape, field.dtype) for field in decoder.fields}
    for index, draws in zip(ids.tolist(), decoder.draw(0, epoch, ids).tolist(), strict=True):
        decoder.fill_row(data.read(index, scratch), draws, row, scratch)


def _filler(decoder: ImageDecoder) -> Callable[[Any], object]:
    scratch, row = Scratch(), {field.name: np.empty(field.shape, field.dtype) for field in decoder.fields}
    return lambda item: decoder.fill_row(item[0], item[1], row, scratch)


def _turbo() -> Callable[[Any], object]:
    room = bytearray(_ROOM)
    return lambda part: simplejpeg.decode_jpeg(part, "RGB", strict=True, buffer=room)


def _parts(data: Dataset, decoder: ImageDecoder, ids: np.ndarray) -> list[bytes]:
    """The spliced JPEGs of an epoch: the minimum that a loader based on libjpeg-turbo would have to decode."""
    scratch = Scratch()
    parts = []
    for index, draws in zip(ids.tolist(), decoder.draw(0, 0, ids).tolist(), strict=True):
        encoded = data.read(index, scratch)
        header = read_header(encoded)
        box = stored_box(decoder.crop.window(*header.size, draws).box, header)
        parts.append(bytes(splice(encoded, box)[0]))
    return parts


def _on_threads(workers: int, items: Sequence[Any], make: Callable[[], Callable[[Any], object]]) -> float:
    """Seconds that this number of threads takes for all items, each thread with its own buffers."""
    ready = threading.Barrier(workers + 1)

    def each(some: Sequence[Any]) -> None:
        call = make()
        call(some[0])
        ready.wait()
        for item in some:
            call(item)

    threads = [threading.Thread(target=each, args=(items[i::workers],)) for i in range(workers)]
    for thread in threads:
        thread.start()
    ready.wait()
    return _timed(lambda: [thread.join() for thread in threads])


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
            share, looks, seconds = sampler.share(lambda loader=loader: sum(batch.samples for batch in loader))
            if number:
                found[workers].append((share * seconds / len(data) * 1e6, len(data) / seconds, looks))
    for workers, values in found.items():
        loaders[workers].close()
        held = Spread.of([v[0] for v in values])
        speed = Spread.of([v[1] for v in values])
        row: dict[str, Any] = {"benchmark": "loader gil", "workers": workers}
        counted = {"looks": sum(v[2] for v in values)}
        fields = {**held.fields("gil_microseconds"), **speed.fields("images_per_second")}
        measure.append(args.out, {**shared, **row, **fields, **counted, "calibration": sampler.calibration})
        rows.append({"workers": workers, **held.columns("us with the GIL"), "img/s": round(speed.median), **counted})
    known = ", ".join(f"{name} {share:.3f}" for name, share in sampler.calibration.items())
    measure.show(console, f"time per image with the GIL held, the whole loader (known programs read as: {known})", rows)
