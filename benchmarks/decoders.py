"""Python's decoders of JPEGs: the files, from a warm page cache, to RGB tensors.

    build/peers/bin/python -W ignore benchmarks/decoders.py --data FOLDER

The list is imread-benchmark's, and TorchCodec. All decode every file once a round, in turn, in one process. The
processor time counts, which a busy machine disturbs little; results are medians of n. The pixels are compared
with Pillow's. The best of them stand in `loader_peers` with torch's DataLoader.
"""

import argparse
import time
from functools import partial
from pathlib import Path

import measure
import numpy as np
import torch
from images import list_images
from loader_peers import INSTALL_LOADERS, versions
from loader_peers.decoders import DECODERS, Decode, pillow, pixels
from rich.console import Console


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of JPEGs, flat or with subfolders")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "decoders.jsonl")
    args = parser.parse_args()
    console = Console(width=150)
    torch.set_num_threads(1)
    files = [args.data / name for name in list_images(args.data)]
    decoders: dict[str, Decode] = {}
    for name, (_, decode) in DECODERS.items():
        try:
            decode(files[0])
        except (ImportError, RuntimeError) as error:  # not installed, or without the library that it binds
            console.print(f"{name}: {str(error).strip().splitlines()[0]}; {INSTALL_LOADERS}", highlight=False)
        else:
            decoders[name] = decode
    difference = {name: _difference(decode, files) for name, decode in decoders.items()}
    variants = {name: partial(_rate, decode, files) for name, decode in decoders.items()}
    rows = []
    for name, speed in measure.interleaved(variants, args.repeats).items():
        rows.append({"decoder": name, **speed.columns("img/s"), "from Pillow's": f"{difference[name]:.3f}"})
        record = {"benchmark": "decoders", "decoder": name, "files": len(files), "data": args.data.resolve().name}
        record |= {**speed.fields("images_per_second"), "difference": round(difference[name], 4)}
        measure.append(args.out, {**record, "environment": measure.environment() | versions()})
    measure.show(
        console, f"{len(files)} JPEGs of {args.data.resolve().name} to RGB, images per second of processor time", rows
    )


def _rate(decode: Decode, files: list[Path]) -> float:
    """Images per second of processor time, in one round; pyvips decodes in threads of its own."""
    began = time.process_time()
    for file in files:
        decode(file)
    return len(files) / (time.process_time() - began)


def _difference(decode: Decode, files: list[Path]) -> float:
    """The median over the files of the mean absolute difference from Pillow's pixels, on 0-255."""
    found = []
    for file in files:
        ours, theirs = (pixels(one(file)).to(torch.int16) for one in (decode, pillow))
        if ours.shape == theirs.shape:  # else it has turned an image that has an EXIF orientation
            found.append(float((ours - theirs).abs().float().mean()))
    return float(np.median(found))


if __name__ == "__main__":
    main()
