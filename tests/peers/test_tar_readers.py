"""DALI and webdataset read fastimg's shards: the same samples, and tiled JPEGs have the originals' pixels."""

import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import webdataset
from nvidia.dali import fn, pipeline_def
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.decode import decode
from fastimg.loaders.runtime.scratch import Scratch

COUNT = 12


@pytest.fixture(params=["off", "auto"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A shard of photograph-like JPEGs, untiled and tiled."""
    draws = np.random.default_rng(1)
    for i in range(COUNT):
        y, x = np.mgrid[: 160 + 9 * i, : 210 + 7 * i]
        pixels = np.stack([120 + 80 * np.sin(x / 11), draws.integers(0, 50, y.shape) + y / 2, (x + y) % 256], axis=2)
        folder = tmp_path / "images" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.jpg", quality=90, subsampling=i % 3)
    convert(Convert(src=tmp_path / "images", dst=tmp_path / "D", tile=request.param), Console(quiet=True))
    return tmp_path / "D/train-00000.tar"


@pipeline_def(batch_size=COUNT, num_threads=2, device_id=None)
def pipeline(tar: str, index: str) -> Any:
    jpeg, label, note = fn.readers.webdataset(
        paths=[tar], index_paths=[index], ext=["jpg", "cls", "json"], missing_component_behavior="error"
    )
    return jpeg, fn.decoders.image(jpeg, device="cpu"), label, note


def original(shard: Path, note: bytes) -> np.ndarray[Any, Any]:
    with Image.open(shard.parent.parent / "images" / json.loads(note)["path"]) as image:
        return np.asarray(image.convert("RGB"))


def test_dali_reads_the_shard_and_its_index(shard: Path) -> None:
    pipe = pipeline(str(shard), str(shard.with_suffix(".idx")))
    pipe.build()
    jpegs, images, labels, notes = pipe.run()
    dataset, scratch = open_dataset(shard.parent), Scratch()
    for i in range(COUNT):
        assert bytes(np.array(jpegs[i])) == bytes(dataset.read(i, scratch))
        assert int(bytes(np.array(labels[i]))) == dataset.labels[i]
        np.testing.assert_array_equal(np.array(images[i]), original(shard, bytes(np.array(notes[i]))))
    dataset.close()


def test_dalis_own_index_of_the_shard_equals_ours(shard: Path, tmp_path: Path) -> None:
    tool = Path(sys.executable).parent / "wds2idx"
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, str(tool), str(shard), str(tmp_path / "own.idx")], check=True, env=environment)
    assert (tmp_path / "own.idx").read_text() == shard.with_suffix(".idx").read_text()


def test_webdataset_iterates_the_shard(shard: Path) -> None:
    samples = list(itertools.islice(webdataset.WebDataset(str(shard), shardshuffle=False), COUNT + 1))
    dataset = open_dataset(shard.parent)
    assert len(samples) == COUNT
    assert [int(sample["cls"]) for sample in samples] == dataset.labels.tolist()
    for sample in samples:
        with Image.open(io.BytesIO(sample["jpg"])) as image:
            np.testing.assert_array_equal(np.asarray(image.convert("RGB")), original(shard, sample["json"]))
    dataset.close()


@pytest.mark.parametrize("value", ["lossless", "jpeg:95"])
def test_what_is_recompressed_is_read_by_both(value: str, tmp_path: Path) -> None:
    """PNGs of three channels, with a palette and gray ones, and JPEGs, in place of BMPs."""
    y, x = np.mgrid[:150, :200]
    photo = Image.fromarray(
        np.stack([120 + 80 * np.sin(x / 11), y, (x + y) % 256], axis=2).clip(0, 255).astype(np.uint8)
    )
    (tmp_path / "images/a").mkdir(parents=True)
    kinds = {"many": photo, "few": photo.quantize(40).convert("RGB"), "gray": photo.convert("L").convert("RGB")}
    for name, image in kinds.items():
        image.save(tmp_path / f"images/a/{name}.bmp")
    convert(
        Convert(src=tmp_path / "images", dst=tmp_path / "D", recompress=value, no_shuffle=True), Console(quiet=True)
    )
    tar = tmp_path / "D/train-00000.tar"

    @pipeline_def(batch_size=len(kinds), num_threads=1, device_id=None)
    def images() -> Any:
        extensions = ["jpg;png;webp"]
        data = fn.readers.webdataset(paths=[str(tar)], index_paths=[str(tar.with_suffix(".idx"))], ext=extensions)
        return fn.decoders.image(data, device="cpu")

    pipe = images()
    pipe.build()
    (read,) = pipe.run()
    samples = list(webdataset.WebDataset(str(tar), shardshuffle=False).decode("rgb8"))
    dataset, scratch = open_dataset(tmp_path / "D"), Scratch()
    stored = set()
    for i, sample in enumerate(samples):
        (kind,) = sample.keys() & {"jpg", "png", "webp"}
        stored.add(kind)
        expected = decode(bytes(dataset.read(i, scratch)))
        np.testing.assert_array_equal(np.array(read[i]), expected)
        np.testing.assert_array_equal(sample[kind], expected)
        opencv = cv2.imdecode(np.frombuffer(dataset.read(i, scratch), np.uint8), cv2.IMREAD_COLOR)  # FFCV's reader
        np.testing.assert_array_equal(opencv[:, :, ::-1], expected)
    assert stored == ({"png"} if value == "lossless" else {"jpg"}) and len(samples) == len(kinds)
    dataset.close()


def test_pngs_in_groups_of_rows_are_read_by_all(tmp_path: Path) -> None:
    y, x = np.mgrid[:300, :200]
    waves = np.stack([120 + 80 * np.sin(x / 11), y % 200, (x + y) % 200], axis=2)
    noise = np.random.default_rng(2).integers(0, 50, waves.shape)  # without it, groups would cost too much
    photo = Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))
    (tmp_path / "images/a").mkdir(parents=True)
    kinds = {"many": photo, "few": photo.quantize(40), "gray": photo.convert("L"), "alpha": photo.convert("RGBA")}
    for name, image in kinds.items():
        image.save(tmp_path / f"images/a/{name}.png")
    convert(Convert(src=tmp_path / "images", dst=tmp_path / "D", no_shuffle=True), Console(quiet=True))
    tar = tmp_path / "D/train-00000.tar"

    @pipeline_def(batch_size=len(kinds), num_threads=1, device_id=None)
    def images() -> Any:
        data = fn.readers.webdataset(paths=[str(tar)], index_paths=[str(tar.with_suffix(".idx"))], ext=["png"])
        return fn.decoders.image(data, device="cpu")

    pipe = images()
    pipe.build()
    (read,) = pipe.run()
    samples = list(webdataset.WebDataset(str(tar), shardshuffle=False).decode("rgb8"))
    dataset, scratch, grouped = open_dataset(tmp_path / "D"), Scratch(), 0
    for i, sample in enumerate(samples):
        data = bytes(dataset.read(i, scratch))
        grouped += b"fgRP" in data  # but the palette's, perhaps: groups must not cost more than 3 %
        expected = original_png(tmp_path / "images/a", dataset.sample_name(i))
        np.testing.assert_array_equal(decode(data), expected)
        np.testing.assert_array_equal(np.array(read[i]), expected)
        np.testing.assert_array_equal(sample["png"], expected)
        opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_array_equal(opencv[:, :, ::-1], expected)
    assert len(samples) == len(kinds) and grouped >= 3
    dataset.close()


def original_png(folder: Path, name: str) -> npt.NDArray[np.uint8]:
    """The pixels of the file that a sample was, by its name."""
    (file,) = (each for each in folder.iterdir() if each.stem in name)
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))
