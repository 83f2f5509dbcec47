"""The compiled decoder of tiled JPEGs against another checkout's, part by part, in turn in one process.

    python benchmarks/decoding.py --before ../older --data FOLDER

Both take the same random crops of the same photographs, tiled in memory; the pixels must be equal. The processor time
of the thread is counted, either decoder goes first in every second round over all crops, and a ratio is the median over
the rounds: so a busy machine disturbs it little. Of the other checkout only `loaders/jpeg/decoding` is used.
"""

import argparse
import atexit
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numba
import numpy as np
from images import list_images
from measure import Spread
from rich.console import Console

from fastimg.loaders import ImageDecoder, RandomResizedCrop
from fastimg.loaders.jpeg.decoding.frame import is_decodable, new_header, parse_header, view_of
from fastimg.loaders.jpeg.decoding.region import find_region, new_region
from fastimg.loaders.jpeg.rewriting.tiles import tile

PARTS = ("find", "decode", "colour", "resize", "in one call")  # the last is all of them, as a loader calls it
_ROOM = 64 << 20  # size of each buffer in bytes
_HERE, _BEFORE = "fastimg.loaders.jpeg.decoding", "before"  # packages of the two decoders


class Decoding:
    """The parts of one checkout's decoder, with buffers of their own."""

    def __init__(self, package: str) -> None:
        names = ("baseline", "colour", "filters")
        self.baseline, self.colour, self.filters = (importlib.import_module(f"{package}.{name}") for name in names)
        self.entropy = _either(f"{package}.entropy.tiles", f"{package}.entropy")
        self.crops = _either(f"{package}.crops", f"{package}.tiled")
        self.bits, self.planes, self.columns, self.work = (np.empty(_ROOM, np.uint8) for _ in range(4))
        self.bounds = np.empty(1 << 20, np.int64)
        self.tables = np.empty(self.baseline.SCRATCH, np.int64)
        self.sums = np.empty(_ROOM // 2, np.uint16)

    def seconds(self, crop: tuple[Any, Any, Any], out: np.ndarray) -> list[float]:
        """Decode a crop to `out`; the seconds of each part."""
        data, header, region = crop
        clock = time.thread_time
        t0 = clock()
        self.entropy.collect(data, header, region, self.bits, self.bounds)
        t1 = clock()
        self.baseline.decode_tiles(data, header, region, self.bits, self.bounds, self.tables, self.planes)
        t2 = clock()
        self.colour.to_columns(self.planes, header, region, self.sums, self.columns)
        t3 = clock()
        self.filters.resize_columns(self.columns, region, False, self.work, out)
        t4 = clock()
        self.crops.crop_tiled(data, header, region, False, self.work, out)
        t5 = clock()
        return [t1 - t0, (t2 - t1) - (t1 - t0), t3 - t2, t4 - t3, t5 - t4]  # decoding finds the tiles again


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="another checkout")
    parser.add_argument("--data", type=Path, required=True, help="folder of images, flat or with subfolders")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "decoding.jsonl")
    args = parser.parse_args()
    both = [_before(args.before), Decoding(_HERE)]
    crops = _crops(args.data, args.size)
    pixels = np.zeros((2, len(crops), args.size, args.size, 3), np.uint8)
    rounds: list[list[list[float]]] = []  # [round, checkout, part]
    for number in range(1 + args.repeats):
        spent = np.zeros((2, len(PARTS)))
        for i in (0, 1) if number % 2 else (1, 0):
            for crop, out in zip(crops, pixels[i], strict=True):
                spent[i] += both[i].seconds(crop, out)
        if not np.array_equal(pixels[0], pixels[1]):
            raise RuntimeError("the pixels of the two checkouts differ")
        if number:
            rounds.append((spent / len(crops) * 1e6).tolist())
    found = np.array(rounds)
    rows = []
    for part, name in enumerate((*PARTS, "sum")):
        times = found[:, :, part] if name != "sum" else found[:, :, :-1].sum(axis=2)
        before, after = (Spread.of(times[:, i].tolist()) for i in range(2))
        ratio = Spread.of((times[:, 0] / times[:, 1]).tolist())
        shared = {"benchmark": "decoding", "part": name, "crops": len(crops), "size": args.size}
        fields = {**before.fields("before_microseconds"), **after.fields("after_microseconds"), **ratio.fields("ratio")}
        commits = {"before": _commit(args.before), "environment": measure.environment()}
        measure.append(args.out, {**shared, **fields, **commits, "data": args.data.resolve().name})
        times_shown = {"before": f"{before.median:.1f}", "after": f"{after.median:.1f}"}
        rows.append({"part": name, **times_shown, **ratio.columns("ratio")})
    measure.show(Console(width=150), f"{len(crops)} crops to {args.size}, microseconds of one thread", rows)


def _either(name: str, earlier: str) -> Any:
    """A module, or what it was called in an earlier checkout."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return importlib.import_module(earlier)


def _commit(checkout: Path) -> str:
    """The commit that a checkout is at."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _before(checkout: Path) -> Decoding:
    """The decoder of another checkout, which compiles into a folder that is deleted at the end.

    Beside the other checkout's sources its machine code could be taken for that of those alone, as modules that it
    takes from this checkout are not looked at by older versions.
    """
    folder = tempfile.mkdtemp(prefix="fastimg-before-")
    atexit.register(shutil.rmtree, folder)
    usual = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder
    try:
        return Decoding(_imported(checkout))
    finally:
        numba.config.CACHE_DIR = usual


class _Renamed(importlib.machinery.SourceFileLoader):
    """A module of the other checkout, which finds the others of its package under their new name."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        source = self.get_data(path).replace(_HERE.encode(), _BEFORE.encode())
        return self.source_to_code(source, path)  # not kept on disk, where the other checkout keeps its own


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the decoder of another checkout under the name `_BEFORE`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        first, *parts = name.split(".")
        if first != _BEFORE:
            return None
        place = self._folder.joinpath(*parts)
        if place.is_dir():
            loader = _Renamed(name, str(place / "__init__.py"))
            return importlib.util.spec_from_loader(name, loader, is_package=True)
        return importlib.util.spec_from_loader(name, _Renamed(name, f"{place}.py"))


def _imported(checkout: Path) -> str:
    """The decoder of another checkout, as a package of its own."""
    sys.meta_path.insert(0, _Finder(checkout.resolve() / "loaders" / "jpeg" / "decoding"))
    return _BEFORE


def _crops(folder: Path, size: int) -> list[tuple[Any, Any, Any]]:
    """Data, header and region of a random crop of each upright photograph that the decoder takes."""
    decoder = ImageDecoder(RandomResizedCrop(size=size))
    crops = []
    for number, name in enumerate(list_images(folder)):
        header, region = new_header(), new_region()
        data = view_of(tile((folder / name).read_bytes()).jpeg)
        if not parse_header(data, header) or not is_decodable(header) or header["orientation"][0] != 1:
            continue
        draws = decoder.draw(0, 0, np.array([number]))[0].tolist()
        window = decoder.crop.window(int(header["width"][0]), int(header["height"][0]), draws)
        if find_region(header, *window, (size, size), False, False, region):
            crops.append((data, header, region))
    return crops


if __name__ == "__main__":
    main()
