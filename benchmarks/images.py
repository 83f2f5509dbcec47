"""Images for benchmarks: a given folder, or generated JPEGs that cost as much to decode as photographs.

python benchmarks/images.py FOLDER OUT --megabytes 24    # JPEGs of FOLDER, tiled as by `convert`, to OUT
"""

import argparse
import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from fastimg.loaders import FilesDataset
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.jpeg.rewriting.tiles import tile

_CLASSES = 1000
# Noise as (cells across the image, amplitude in levels); 0 cells is per-pixel noise. About 100 KB at 500x375, q 87.
_OCTAVES = ((4, 60.0), (12, 35.0), (40, 22.0), (120, 20.0), (0, 19.0))


def photograph(seed: int, size: tuple[int, int] = (500, 375), quality: int = 87) -> bytes:
    """A JPEG (4:2:0) of smooth noise at several scales, (width, height) pixels. The same seed gives the same bytes."""
    rng = np.random.default_rng(seed)
    width, height = size
    pixels = np.full((height, width, 3), 120, np.float32)
    for cells, amplitude in _OCTAVES:
        grid = (height, width) if cells == 0 else (max(2, cells * height // width), cells)
        luma = rng.standard_normal((*grid, 1), np.float32)
        noise = luma if cells == 0 else luma + 0.5 * rng.standard_normal((*grid, 3), np.float32)
        pixels += amplitude * (noise if cells == 0 else _enlarged(noise, size))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _enlarged(noise: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    channels = [np.asarray(Image.fromarray(noise[..., c]).resize(size, Image.Resampling.BICUBIC)) for c in range(3)]
    return np.stack(channels, axis=-1)


def untiled_beside(folder: Path) -> Path:
    """Where the same JPEGs are without tiles, if they were written there."""
    return folder.with_name(folder.name + "-untiled")


def write_photographs(
    folder: Path,
    count: int,
    size: tuple[int, int] = (500, 375),
    threads: int | None = None,
    untiled: Path | None = None,
) -> None:
    """Write `count` JPEGs to `folder`, tiled as by `convert`; and as they were to `untiled`, if it is given.

    Sizes vary by a fifth, as those of photographs do.
    """

    def write(seed: int) -> None:
        scale = 1 + 0.2 * float(np.random.default_rng([seed, 1]).uniform(-1, 1))
        jpeg = photograph(seed, (round(size[0] * scale), round(size[1] * scale)))
        if untiled is not None:
            (untiled / f"{seed:06d}.jpg").write_bytes(jpeg)
        (folder / f"{seed:06d}.jpg").write_bytes(tile(jpeg).jpeg)

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        list(pool.map(write, range(count)))


def write_tiled(folder: Path, out: Path, most: int) -> tuple[int, int]:
    """Write JPEGs of a folder, tiled, to a new one, up to `most` bytes together: (images, bytes).

    They are every n-th of all, so that each class of a sorted folder is among them.
    """
    names = [name for name in list_images(folder) if (folder / name).read_bytes()[:2] == b"\xff\xd8"]
    stored = sum((folder / name).stat().st_size for name in names)
    step = max(1, -(-stored // most))
    out.mkdir(parents=True)
    count = total = 0
    for name in names[::step]:
        jpeg = tile((folder / name).read_bytes()).jpeg
        if total + len(jpeg) > most:
            break
        (out / f"{count:06d}.jpg").write_bytes(jpeg)
        count, total = count + 1, total + len(jpeg)
    return count, total


def write_shard(folder: Path, shards: Path) -> None:
    """Write a shard of a folder's images to `shards`: each once, and again until all classes of `dataset` are there."""
    from fastimg.loaders.containers.tars.shards import ShardWriter  # it needs xxhash

    samples = dataset(folder, max(_CLASSES, len(list_images(folder))))
    shards.mkdir()
    with ShardWriter(shards / "train-00000.tar") as shard:
        for number, label in enumerate(samples.labels.tolist()):
            image = Path(samples.sample_name(number)).read_bytes()
            shard.add(f"{number:09d}", {"jpg": image, "cls": str(label).encode()})


def list_images(folder: Path) -> list[str]:
    """Sorted relative paths of images below `folder`, flat or in subfolders. Raises ValueError if there are none."""
    extensions = image_extensions()
    found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.suffix.lower() in extensions)
    if not found:
        raise ValueError(f"{folder}: no images in it")
    return found


def dataset(folder: Path, count: int, classes: int = _CLASSES) -> FilesDataset:
    """`count` samples: the folder's images, repeated, with arbitrary labels."""
    paths = list_images(folder)
    paths = (paths * -(-count // len(paths)))[:count]
    names = tuple(f"class {number}" for number in range(classes))
    return FilesDataset(folder, paths, names, [i % classes for i in range(count)])


def main() -> None:
    """Write tiled JPEGs that travel with a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="photographs, flat or with subfolders")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--megabytes", type=int, default=24, help="at most, together")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} exists already; give a new folder")
    count, total = write_tiled(args.folder, args.out, args.megabytes * 10**6)
    print(f"{count} JPEGs, {total / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
