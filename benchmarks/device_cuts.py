"""What the host does for JPEGs that a device decodes: headers, windows, tables and tiles, in groups and one by one.

    python benchmarks/device_cuts.py --data FOLDER             # a codec that takes all without looking at it
    python benchmarks/device_cuts.py --data FOLDER --codec     # nvImageCodec, which parses each (the extra `gpu`)

JPEGs of FOLDER are tiled and read from a warm page cache. The processor time of one thread counts, which a busy machine
disturbs little; how long the interpreter's lock is held meanwhile is sampled. Both take turns, and ratios are medians
over the rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gil
import measure
import numpy as np
import torch
from images import dataset, list_images, write_tiled
from rich.console import Console

from fastimg.loaders import FilesDataset, ImageDecoder, RandomResizedCrop
from fastimg.loaders.backends.gpu_decode import DeviceDecode
from fastimg.loaders.backends.nvcodec import BatchDecoder, DecodedImage, NvCodec
from fastimg.loaders.decoder import Decoder, SampleReader
from fastimg.loaders.runtime.scratch import Scratch

_WAYS = {"one by one": Decoder.fill, "groups": DeviceDecode.fill}


class _Any:
    """A codec for measuring what is done before it."""

    def parse(self, jpeg: bytes | memoryview) -> object | None:
        return jpeg

    def decode(self, parsed: Sequence[object], stream: int) -> list[DecodedImage | None]:
        raise NotImplementedError


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of JPEGs, flat or with subfolders")
    parser.add_argument("--codec", action="store_true", help="with nvImageCodec's parsing, of its CPU backend")
    parser.add_argument("--size", type=int, default=224, help="of the crops")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "device_cuts.jsonl")
    args = parser.parse_args()
    codec: BatchDecoder = NvCodec(torch.device("cpu"), engine="cpu", threads=1) if args.codec else _Any()
    with tempfile.TemporaryDirectory() as folder:
        tiled = Path(folder) / "tiled"
        write_tiled(args.data, tiled, 1 << 30)
        data = dataset(tiled, len(list_images(tiled)))
        decoder = DeviceDecode(ImageDecoder(RandomResizedCrop(size=args.size)), codec, threads=1)
        passes = {way: _Pass(fill, decoder, data) for way, fill in _WAYS.items()}
        sampler = gil.Sampler()
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
        for turn in range(2 + args.repeats):
            for way, one in passes.items():
                began = time.thread_time()
                share = sampler.share(one.run)[0]
                if turn >= 2:  # what is compiled is ready
                    spent = 1e6 * (time.thread_time() - began) / len(data)
                    taken[way].append((spent, share * spent))
    ratios = [_ratio(taken, column) for column in (0, 1)]
    shown = []
    for way, each in taken.items():
        spent, locked = (measure.Spread.of(list(column)) for column in zip(*each, strict=True))
        common = {"benchmark": "device_cuts", "way": way, "images": len(data), "data": args.data.resolve().name}
        common |= {"codec": "nvImageCodec" if args.codec else "none", "size": args.size}
        record = {**common, **spent.fields("microseconds"), **locked.fields("locked_microseconds")}
        record |= {"groups_to_one_by_one": ratios[0], "locked_groups_to_one_by_one": ratios[1]}
        measure.append(args.out, {**record, "environment": measure.environment()})
        shown.append({"way": way, "us an image": spent.text(), "with the lock held": locked.text()})
    title = f"the host's part: groups take {ratios[0]:.2f} of the time, {ratios[1]:.2f} with Python's lock held"
    measure.show(Console(width=110), title, shown)


class _Pass:
    """All images once, with other crops each time, by one thread that keeps its memory."""

    def __init__(self, fill: Any, decoder: DeviceDecode, data: FilesDataset) -> None:
        self._fill, self._decoder, self._data = fill, decoder, data
        self._scratch, self._turn = Scratch(), 0
        self._rows = {field.name: np.zeros((len(data), *field.shape), field.dtype) for field in decoder.fields}

    def run(self) -> None:
        """Cut all of them."""
        self._turn += 1
        ids = np.arange(len(self._data))
        draws = self._decoder.draw(self._turn, 0, ids)
        failed = self._fill(self._decoder, SampleReader(self._data), ids.tolist(), draws, self._rows, self._scratch)
        if failed:
            raise SystemExit(f"{len(failed)} images failed: {failed[0][1]}")


def _ratio(taken: dict[str, list[tuple[float, float]]], column: int) -> float:
    pairs = zip(taken["groups"], taken["one by one"], strict=True)
    return round(statistics.median(ours[column] / theirs[column] for ours, theirs in pairs), 3)


if __name__ == "__main__":
    main()
