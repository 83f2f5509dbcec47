"""The adapter of nvImageCodec with its CPU backend: accepted and refused images, memory reuse, and a whole loader."""

import ctypes
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("nvidia.nvimgcodec", reason="needs the extra gpu")
from fastimg.loaders import CenterCrop, FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders.backends.gpu_decode import DeviceDecode
from fastimg.loaders.backends.nvcodec import NvCodec, installed
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.jpeg.rewriting.splice import splice
from fastimg.loaders.jpeg.rewriting.tiles import tile

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def encoded(number, size, orientation=1, **options):
    """A JPEG with structure and noise."""
    y, x = np.mgrid[: size[1], : size[0]]
    noise = np.random.default_rng(number).integers(0, 60, x.shape)
    pixels = np.stack([x * 3 % 256, y * 5 % 256, (x * y + noise) % 256], axis=2).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90, exif=exif, **options)
    return buffer.getvalue()


def pixels_of(image):
    """The data at the address that the codec returns."""
    across, down, channel = image.strides
    assert (across, channel) == (3, 1) and down >= 3 * image.width
    flat = (ctypes.c_uint8 * (down * image.height)).from_address(image.address)
    rows = np.frombuffer(flat, np.uint8).reshape(image.height, down)
    return rows[:, : 3 * image.width].reshape(image.height, image.width, 3).copy()


@pytest.fixture
def codec():
    return NvCodec(torch.device("cpu"), engine="cpu", threads=1)


def stored(jpeg):
    header = read_header(jpeg)
    return decode(jpeg, header.__class__(header.format, header.width, header.height, 1, header.turbo, header.restarts))


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
class TestAdapter:
    def test_pixels_as_stored(self, codec):
        assert installed()
        jpegs = [encoded(i, (60 + 7 * i, 40 + i), 1 + i % 8, subsampling=i % 3) for i in range(9)]
        jpegs += [tile(encoded(20, (300, 200))).jpeg, encoded(21, (80, 60), progressive=True), encoded(22, (1, 1))]
        jpegs.append(bytes(splice(jpegs[9], (100, 60, 50, 50))[0]))
        for found, jpeg in zip(codec.decode([codec.parse(j) for j in jpegs], 0), jpegs, strict=True):
            assert (found.height, found.width) == stored(jpeg).shape[:2]
            np.testing.assert_array_equal(pixels_of(found), stored(jpeg))

    def test_refused_images(self, codec):
        for broken in (b"", b"nothing", b"\xff\xd8\xff", encoded(1, (50, 40))[:100]):
            assert codec.parse(broken) is None
        whole = encoded(2, (50, 40))
        found = codec.decode([codec.parse(j) for j in (whole, whole[: len(whole) // 2], whole)], 0)
        assert found[1] is None and np.array_equal(pixels_of(found[0]), pixels_of(found[2]))
        assert codec.decode([], 0) == []

    def test_memory_of_the_set_before_is_reused(self, codec):
        """Two sets take turns: the images of the last call stay as they are."""
        jpegs = [encoded(i, (90, 70)) for i in range(4)]
        all_of_them = [codec.decode([codec.parse(j) for j in jpegs], 0) for _ in range(2)]
        for number, turn in enumerate(([3, 2, 1, 0], [1], [0, 1, 2, 3, 0], [2, 2], [3], [0, 1])):  # fewer, then more
            all_of_them.append(codec.decode([codec.parse(jpegs[i]) for i in turn], 0))
            for image, i in zip(all_of_them[-1], turn, strict=True):
                np.testing.assert_array_equal(pixels_of(image), stored(jpegs[i]))
            assert all_of_them[-1][0].address == all_of_them[number][0].address != all_of_them[-2][0].address
        np.testing.assert_array_equal(pixels_of(all_of_them[-2][0]), stored(jpegs[3]))
        assert [len(images) for images in codec._sets] == [1, 2]

    def test_large_images_are_not_kept(self, codec, monkeypatch):
        monkeypatch.setattr("fastimg.loaders.backends.nvcodec._KEPT_BYTES", 50 * 50 * 3)
        for _ in range(2):
            codec.decode([codec.parse(encoded(i, size)) for i, size in enumerate([(40, 40), (400, 400)])], 0)
        for _ in range(2):
            codec.decode([codec.parse(encoded(3, (41, 41)))], 0)
        assert [[image.capacity < 50 * 50 * 3 for image in images] for images in codec._sets] == [[True], [True]]


class TestInterpreted:
    __test__ = INTERPRETED

    @pytest.mark.parametrize(
        ("crop", "order"), [(RandomResizedCrop(size=16), "random"), (CenterCrop(size=16, resize=18), "sequential")]
    )
    def test_a_loader_gives_the_cpus_bits(self, tmp_path, crop, order):
        """nvImageCodec's CPU backend is also libjpeg-turbo. The last image is truncated."""
        contents = [tile(encoded(i, (66 + 3 * i, 40 + i), 1 + i)).jpeg for i in range(8)]
        contents.append(encoded(9, (60, 50))[:700])
        for i, content in enumerate(contents):
            (tmp_path / f"{i}.jpg").write_bytes(content)
        data = FilesDataset(tmp_path, [f"{i}.jpg" for i in range(len(contents))], ("a",), [0] * len(contents))
        images, found = ImageDecoder(crop), []
        for decoder in (images, DeviceDecode(images, NvCodec(torch.device("cpu"), engine="cpu"))):
            loader = Loader(data, decoder, LoaderConfig(batch_size=3, workers=2, order=order))
            found.append([(b.inputs.clone(), b.weight.clone(), b.ids) for b in loader])
            loader.close()
            assert list(loader.unreadable) == [8]
        assert list(loader.rerouted) == [8]
        for expected, got in zip(*found, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_under_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, f"{Path(__file__)}::TestInterpreted"], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"\b2 passed", done.stdout) and "skipped" not in done.stdout
