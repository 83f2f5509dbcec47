"""Pillow, simplejpeg, OpenCV and DALI decode a tiled JPEG to the same pixels as they decode the original."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from nvidia.dali import fn, pipeline_def
from PIL import Image

from fastimg.loaders.containers.tars.shards import ShardWriter, index_path
from fastimg.loaders.jpeg.rewriting.tiles import tile

Pixels = npt.NDArray[np.uint8]

SAMPLINGS = ("444", "422", "420", "440", "411")
SIZES = (  # (width, height): odd, thin, of whole MCUs, and MCU rows and columns of prime numbers
    *((255, 127), (64, 64), (321, 9), (9, 321), (641, 33)),
    *((16 * 13, 16 * 7), (16 * 31 - 5, 16 * 11 - 3), (32 * 17, 8 * 23), (8 * 59 - 1, 8 * 29 - 1)),
)


def picture(size: tuple[int, int], seed: int) -> Pixels:
    """Smooth colours with edges and noise [H, W, 3], for which tiling is worth its cost."""
    draws = np.random.default_rng(seed)
    small = draws.integers(0, 256, (size[1] // 8 + 2, size[0] // 8 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    noise: npt.NDArray[np.int16] = draws.integers(-20, 21, smooth.shape, dtype=np.int16)
    return (smooth + noise).clip(0, 255).astype(np.uint8)


def saved(pixels: Pixels, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def originals() -> Iterator[tuple[str, bytes]]:
    """(description, JPEG): every subsampling, gray, progressive, optimised and with restarts, in every size."""
    exif = Image.Exif()
    exif[0x0112] = 1
    for number, size in enumerate(SIZES):
        pixels = picture(size, number)
        name = f"{size[0]} x {size[1]}"
        for sampling in SAMPLINGS:
            yield f"{name} {sampling}", simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)
        yield f"{name} gray", saved(pixels, "L", quality=90)
        yield f"{name} gray progressive", saved(pixels, "L", quality=90, progressive=True)
        for subsampling in range(3):
            yield (
                f"{name} progressive {subsampling}",
                saved(pixels, subsampling=subsampling, progressive=True, quality=92),
            )
        yield f"{name} optimised", saved(pixels, quality=85, optimize=True, exif=exif, icc_profile=b"profile" * 99)
        yield f"{name} with restarts", saved(pixels, quality=85, restart_marker_blocks=3, comment=b"a comment")


def cases() -> list[tuple[str, bytes, bytes]]:
    """(description, original, tiled) of those that are tiled: nearly all."""
    found = [(name, data, tile(data, width)) for name, data in originals() for width in (16, 32)]
    tiled = [(name, data, made.jpeg) for name, data, made in found if made.kept is None]
    assert len(tiled) > 0.8 * len(found), [(name, made.kept) for name, _, made in found if made.kept]
    return tiled


@pytest.fixture(scope="module")
def tiled() -> list[tuple[str, bytes, bytes]]:
    return cases()


def by_pillow(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def by_simplejpeg(data: bytes) -> Pixels:
    pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
    return pixels


def by_opencv(data: bytes) -> Pixels:
    pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return np.asarray(pixels)


@pytest.mark.parametrize("decode", [by_pillow, by_simplejpeg, by_opencv])
def test_decoders(tiled: list[tuple[str, bytes, bytes]], decode: Callable[[bytes], Pixels]) -> None:
    for name, original, made in tiled:
        np.testing.assert_array_equal(decode(made), decode(original), name)


@pipeline_def(batch_size=64, num_threads=2, device_id=None)
def from_memory(jpegs: list[npt.NDArray[np.uint8]]) -> Any:
    return fn.decoders.image(fn.external_source(lambda: jpegs, batch=True), device="cpu")


def by_dali(jpegs: list[bytes]) -> list[Pixels]:
    found: list[Pixels] = []
    for at in range(0, len(jpegs), 64):
        pipe = from_memory([np.frombuffer(data, np.uint8) for data in jpegs[at : at + 64]])
        pipe.build()
        (images,) = pipe.run()
        found += [np.array(images[i]) for i in range(len(images))]
    return found


def test_dali(tiled: list[tuple[str, bytes, bytes]]) -> None:
    before, after = by_dali([data for _, data, _ in tiled]), by_dali([made for *_, made in tiled])
    for (name, *_), theirs, ours in zip(tiled, before, after, strict=True):
        np.testing.assert_array_equal(ours, theirs, name)


@pipeline_def(batch_size=16, num_threads=2, device_id=None)
def from_shard(tar: str, index: str) -> Any:
    jpeg, number = fn.readers.webdataset(
        paths=[tar], index_paths=[index], ext=["jpg", "cls"], missing_component_behavior="error", pad_last_batch=True
    )
    return fn.decoders.image(jpeg, device="cpu"), number


def test_dali_from_a_shard(tiled: list[tuple[str, bytes, bytes]], tmp_path: Path) -> None:
    """By fastimg's index: the n-th sample decodes to the n-th original."""
    shard = tmp_path / "train-00000.tar"
    with ShardWriter(shard) as writer:
        for i, (_, _, made) in enumerate(tiled):
            writer.add(f"{i:09d}", {"jpg": made, "cls": b"%d" % i})
    originals = by_dali([data for _, data, _ in tiled])
    pipe = from_shard(str(shard), str(index_path(shard)))
    pipe.build()
    seen = 0
    while seen < len(tiled):
        images, numbers = pipe.run()
        for i in range(min(len(images), len(tiled) - seen)):
            assert int(bytes(np.array(numbers[i]))) == seen
            np.testing.assert_array_equal(np.array(images[i]), originals[seen], tiled[seen][0])
            seen += 1
    assert seen == len(tiled)
