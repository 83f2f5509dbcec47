"""What a training crop costs by the format that images are stored in: PNG, WebP, TIFF, BMP, and JPEG, flat and tiled.

    python benchmarks/sources.py --data FOLDER                 # of photographs
    python benchmarks/sources.py --content screenshots
    python benchmarks/sources.py --content diagrams
    python benchmarks/sources.py --content sprites
    python benchmarks/sources.py --data FOLDER --groups        # PNGs as they are, and with their rows in groups

The same pixels are encoded in every format, and the same random crops of 224 pixels are cut from each: milliseconds of
one thread's processor time for a crop of a file, and images per second of the whole loader with two threads, with
formats interleaved, and the size of an image. For lossy formats the peak signal-to-noise ratio is stated.
`recompressed` is what `convert --recompress lossless` makes of the PNGs. Screenshots and sprites are drawn here: text,
boxes and lines, and small shapes; diagrams are screenshots of at most 64 colours.
"""

import argparse
import io
import itertools
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import measure
import numpy as np
import simplejpeg
import torch
from images import list_images
from PIL import Image, ImageDraw
from rich.console import Console

from fastimg.convert.recompression.facts import psnr
from fastimg.convert.recompression.lossless import losslessly
from fastimg.loaders import FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders.decode import Pixels, decode, read_header
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.pictures.grouped_png import group_rows
from fastimg.loaders.runtime.scratch import Scratch

WORDS = ("open", "save", "edit", "view", "224", "3.14", "total", "error", "loading", "user", "cancel", "2026", "value")


# By content: how many images are encoded, and how many an epoch of the loader has.
CONTENTS = {"photographs": (64, 256), "screenshots": (24, 96), "diagrams": (8, 32), "sprites": (256, 1024)}


def pillow(pixels: Pixels, kind: str, **options: object) -> bytes:
    """Encoded by Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def plain_png(pixels: Pixels) -> bytes:
    """A PNG whose rows are not filtered, deflated at level 1 (PNG, 3rd edition, 9 and 10)."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    packed = (struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c)) for name, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def jpeg(pixels: Pixels, sampling: str = "444") -> bytes:
    """A baseline JPEG of quality 95."""
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 95, "RGB", sampling)


def recompressed(pixels: Pixels) -> bytes:
    """What `convert --recompress lossless` makes of a PNG."""
    png = pillow(pixels, "PNG")
    smaller = losslessly(png, read_header(png), pixels, in_groups=True)
    return group_rows(png).png if isinstance(smaller, str) else smaller.image


FORMATS: dict[str, tuple[str, Callable[[Pixels], bytes]]] = {
    "png": ("png", partial(pillow, kind="PNG")),
    "png, optimised": ("png", partial(pillow, kind="PNG", optimize=True)),
    "png, level 1": ("png", partial(pillow, kind="PNG", compress_level=1)),
    "png, level 1, no filters": ("png", plain_png),
    "recompressed": ("png", recompressed),
    "webp, lossless": ("webp", partial(pillow, kind="WEBP", lossless=True, exact=True)),
    "webp, lossless, method 1": ("webp", partial(pillow, kind="WEBP", lossless=True, exact=True, method=1)),
    "webp, lossy 90": ("webp", partial(pillow, kind="WEBP", quality=90)),
    "tiff": ("tif", partial(pillow, kind="TIFF")),
    "tiff, deflate": ("tif", partial(pillow, kind="TIFF", compression="tiff_adobe_deflate")),
    "bmp": ("bmp", partial(pillow, kind="BMP")),
    "jpeg 95, flat": ("jpg", jpeg),
    "jpeg 95, tiled": ("jpg", lambda pixels: tile(jpeg(pixels)).jpeg),
    "jpeg 95 4:2:0, tiled": ("jpg", lambda pixels: tile(jpeg(pixels, "420")).jpeg),
}


def screenshot(seed: int, size: tuple[int, int] = (1280, 800)) -> Pixels:
    """A window of text, boxes, lines and buttons, as RGB [H, W, 3]."""
    rng = np.random.default_rng(seed)
    width, height = size
    image = Image.new("RGB", size, tuple(rng.integers(225, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)

    def colour() -> tuple[int, ...]:
        return tuple(rng.integers(0, 256, 3).tolist())

    draw.rectangle((0, 0, width, 40), fill=colour())
    for _ in range(12):
        x, y = int(rng.integers(0, width - 100)), int(rng.integers(40, height - 60))
        corner = (x + int(rng.integers(60, 500)), y + int(rng.integers(30, 250)))
        draw.rounded_rectangle((x, y, *corner), 8, fill=colour(), outline=colour(), width=2)
    for line in range(44, height - 16, 18):
        words = " ".join(rng.choice(WORDS, int(rng.integers(3, 24))))
        draw.text((int(rng.integers(4, 300)), line), words, fill=colour())
    for _ in range(6):
        draw.line([tuple(rng.integers(0, size).tolist()) for _ in range(5)], fill=colour(), width=1)
    return np.asarray(image)


def diagram(seed: int) -> Pixels:
    """A screenshot of at most 64 colours."""
    return np.asarray(Image.fromarray(screenshot(seed)).quantize(64, dither=Image.Dither.NONE).convert("RGB"))


def sprite(seed: int, side: int = 64) -> Pixels:
    """A small figure of a few flat colours on one background, as RGB [H, W, 3]."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (side, side), tuple(rng.integers(0, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        x, y, wide, high = rng.integers(2, side // 2, 4).tolist()
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((x, y, x + wide, y + high), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return np.asarray(image)


def written(encoded: dict[str, list[bytes]], folder: Path) -> dict[str, list[str]]:
    """Write files; their names by format."""
    names = {}
    for number, (name, images) in enumerate(encoded.items()):
        names[name] = [f"{number:02d}-{i:05d}.{FORMATS[name][0]}" for i in range(len(images))]
        for path, data in zip(names[name], images, strict=True):
            (folder / path).write_bytes(data)
    return names


def crop_costs(
    names: dict[str, list[str]], folder: Path, crop: RandomResizedCrop, repeats: int
) -> dict[str, measure.Spread]:
    """Milliseconds of one thread's processor time for a crop of a file, with reading it, by format, interleaved."""
    decoder = ImageDecoder(crop)
    scratch = Scratch()

    def timed(files: list[str]) -> Callable[[], float]:
        epochs = iter(range(1 + repeats))
        dataset = FilesDataset(folder, files)
        ids = np.arange(len(files), dtype=np.int64)
        rows = {"inputs": np.zeros((len(files), *decoder.fields[0].shape), np.uint8)}

        def run() -> float:
            draws = decoder.draw(0, next(epochs), ids)
            began = time.thread_time()
            failures = decoder.fill(SampleReader(dataset), ids.tolist(), draws, rows, scratch)
            seconds = time.thread_time() - began
            assert not failures
            return 1e3 * seconds / len(files)

        return run

    return measure.interleaved({name: timed(files) for name, files in names.items()}, repeats)


def loader_rates(
    names: dict[str, list[str]], folder: Path, size: int, repeats: int, workers: int, epoch: int
) -> dict[str, measure.Spread]:
    """Images per second of the loader on files, which the page cache holds, by format, interleaved."""
    loaders = {}
    for name, files in names.items():
        repeated = list(itertools.islice(itertools.cycle(files), epoch))
        config = LoaderConfig(batch_size=32, workers=workers, on_error="fail")
        loaders[name] = Loader(FilesDataset(folder, repeated), ImageDecoder(RandomResizedCrop(size=size)), config)
        loaders[name].compile()

    def timed(loader: Loader) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            samples = sum(batch.samples for batch in loader)
            return samples / (time.perf_counter() - began)

        return run

    return measure.interleaved({name: timed(loader) for name, loader in loaders.items()}, repeats)


def group_contents(data: Path) -> dict[str, list[bytes]]:
    """PNGs by what they show: photographs, mosaics of eight, screenshots, and gray scans of 16 bits."""
    photographs = [decode((data / name).read_bytes()) for name in list_images(data)[:16]]
    mosaics = []
    for pixels in photographs[:4]:
        row = np.concatenate([pixels, pixels[:, ::-1]] * 2, axis=1)
        mosaics.append(np.concatenate([row, row[::-1]]))
    scans = []
    for number, pixels in enumerate(photographs[:4]):
        large = np.asarray(Image.fromarray(pixels[..., 1]).resize((1500, 1200), Image.Resampling.BICUBIC))
        noise = np.random.default_rng(number).integers(0, 64, large.shape)
        scans.append((large.astype(np.uint32) * 200 + noise).astype(np.uint16))
    screenshots = [screenshot(seed) for seed in range(8)]
    shown = {"photographs": photographs, "mosaics": mosaics, "screenshots": screenshots, "scans of 16 bits": scans}
    return {name: [pillow(pixels, "PNG") for pixels in images] for name, images in shown.items()}


def measure_groups(args: argparse.Namespace) -> None:
    """What groups of rows give: milliseconds for a crop of PNGs with and without them, by content and crop."""
    crops = {"random": RandomResizedCrop(size=160), "small": RandomResizedCrop(size=160, scale=(0.02, 0.1))}
    rows = []
    for name, images in group_contents(args.data).items():
        group_rows(images[0])  # compiled
        began = time.thread_time()
        made = [group_rows(data) for data in images]
        encoding = 1e3 * (time.thread_time() - began) / len(images)
        row: dict[str, object] = {
            "content": name,
            "images": len(images),
            "bytes_per_image": round(sum(map(len, images)) / len(images)),
            "bytes_over_before": round(sum(len(each.png) for each in made) / sum(map(len, images)), 4),
            "rewritten": sum(each.kept is None for each in made),
            "encode_milliseconds": round(encoding, 1),
        }
        with tempfile.TemporaryDirectory(prefix="fastimg-sources-") as folder:
            files = {"before": images, "groups": [each.png for each in made]}
            names = {}
            for kind, encoded in files.items():
                names[kind] = [f"{kind}-{i:03}.png" for i in range(len(encoded))]
                for path, data in zip(names[kind], encoded, strict=True):
                    (Path(folder) / path).write_bytes(data)
            for label, crop in crops.items():
                costs = crop_costs(names, Path(folder), crop, args.repeats)
                for kind, cost in costs.items():
                    row |= cost.fields(f"{label}_{kind}_milliseconds")
        about = {"n": args.repeats, "environment": measure.environment()}
        measure.append(args.out, {"benchmark": "sources", "part": "groups", **row, **about})
        rows.append({key: value for key, value in row.items() if not key.endswith(("_low", "_high"))})
    measure.show(Console(width=200), "PNGs as they are, and in groups of rows", rows)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--content", choices=tuple(CONTENTS), default="photographs")
    parser.add_argument("--data", type=Path, help="folder of photographs, for --content photographs")
    parser.add_argument("--images", type=int, default=None, help="default: by content")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--groups", action="store_true", help="instead: PNGs with their rows in groups")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "sources.jsonl")
    args = parser.parse_args()
    if args.groups:
        if args.data is None:
            parser.error("--groups needs --data")
        measure_groups(args)
        return
    count, epoch = CONTENTS[args.content]
    count = args.images or count
    if args.content == "photographs":
        if args.data is None:
            parser.error("--content photographs needs --data")
        originals = [decode((args.data / name).read_bytes()) for name in list_images(args.data)[:count]]
    else:
        draw = {"screenshots": screenshot, "diagrams": diagram, "sprites": sprite}[args.content]
        originals = [draw(seed) for seed in range(count)]
    torch.set_num_threads(1)  # so that only the requested threads compute
    encoded: dict[str, list[bytes]] = {}
    encoding: dict[str, float] = {}
    for name, (_, encode) in FORMATS.items():
        began = time.thread_time()
        encoded[name] = [encode(pixels) for pixels in originals]
        encoding[name] = 1e3 * (time.thread_time() - began) / len(originals)
    with tempfile.TemporaryDirectory(prefix="fastimg-sources-") as folder:
        names = written(encoded, Path(folder))
        costs = crop_costs(names, Path(folder), RandomResizedCrop(size=args.size), args.repeats)
        rates = loader_rates(names, Path(folder), args.size, args.repeats, args.workers, epoch)
    environment = measure.environment()
    rows = []
    for name, images in encoded.items():
        ratios = [psnr(pixels, decode(data)) for pixels, data in zip(originals, images, strict=True)]
        finite = [ratio for ratio in ratios if ratio is not None]
        exact = not finite
        record = {
            "benchmark": "sources",
            "content": args.content,
            "data": args.data.resolve().name if args.data else None,
            "format": name,
            "images": len(images),
            "mean_pixels": round(sum(pixels[..., 0].size for pixels in originals) / len(originals)),
            "bytes_per_image": round(sum(map(len, images)) / len(images)),
            "lossless": exact,
            "psnr_mean": None if exact else round(sum(finite) / len(finite), 2),
            "psnr_worst": None if exact else round(min(finite), 2),
            "encode_milliseconds": round(encoding[name], 2),
            "size": args.size,
            "workers": args.workers,
            **costs[name].fields("crop_milliseconds"),
            **rates[name].fields("images_per_second"),
            "environment": environment,
        }
        measure.append(args.out, record)
        shown = ("bytes_per_image", "crop_milliseconds", "images_per_second", "psnr_mean", "psnr_worst")
        rows.append({"format": name} | {key: record[key] for key in (*shown, "encode_milliseconds")})
    measure.show(Console(width=150), f"{len(originals)} {args.content}, crops to {args.size}", rows)


if __name__ == "__main__":
    main()
