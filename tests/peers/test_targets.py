"""The real ffcv reads a .beton's targets as int, float and array fields; DALI and webdataset read them as JSON."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from ffcv.fields.basics import FloatDecoder, IntDecoder
from ffcv.fields.ndarray import NDArrayDecoder
from ffcv.loader import Loader as FfcvLibrary
from ffcv.loader import OrderOption
from ffcv.transforms import ToTensor
from nvidia.dali import fn, pipeline_def
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import CenterCrop, LoaderConfig, open_dataset
from fastimg.loaders.backends.ffcv import FfcvLoader
from fastimg.loaders.containers.betons.dataset import BetonDataset

COUNT = 8


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Photographs of one size, with a class, a number, labels, and a second class; each is missing somewhere."""
    with (tmp_path / "pets.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "breed", "age", "tags", "house"])
        for i in range(COUNT):
            Image.fromarray(np.full((32, 32, 3), 20 * i, np.uint8)).save(tmp_path / f"{i}.jpg")
            absent = i == COUNT - 1
            age, tags = ("", "") if absent else (i + 0.25, "|".join(["a", "b", "c"][: i % 4]) or "[]")
            rows.writerow([f"{i}.jpg", "" if absent else "xy"[i % 2], age, tags, "" if absent else "mn"[i // 4]])
    return tmp_path / "pets.csv"


def converted(table: Path, container: Any) -> Path:
    targets = ("breed", "age:number", "tags:multilabel", "house")
    flags = Convert(src=table, dst=table.parent / container, target=targets, format=container, no_shuffle=True)
    convert(flags, Console(quiet=True))
    return table.parent / container


def test_ffcv_reads_the_fields_of_targets(table: Path) -> None:
    folder = converted(table, "beton")
    decoders = {"label": IntDecoder, "age": FloatDecoder, "tags": NDArrayDecoder, "house": IntDecoder}
    loader = FfcvLibrary(
        str(folder / "train.beton"),
        batch_size=COUNT,
        num_workers=1,
        order=OrderOption.SEQUENTIAL,
        pipelines={"image": None, "json": None, **{name: [kind(), ToTensor()] for name, kind in decoders.items()}},
    )
    (batch,) = list(loader)
    found = dict(zip((name for name in loader.reader.field_names if name in decoders), batch, strict=True))
    breed, age, tags, house = open_dataset(folder).targets
    np.testing.assert_array_equal(found["label"].numpy().reshape(-1), breed.values)
    np.testing.assert_array_equal(found["age"].numpy().reshape(-1), age.values)
    np.testing.assert_array_equal(found["house"].numpy().reshape(-1), house.values)
    rows, present = tags.rows(np.arange(COUNT))
    np.testing.assert_array_equal(found["tags"].numpy()[present], rows[present])
    assert (found["tags"].numpy()[~present] == 255).all()
    assert math.isnan(age.values[-1])
    assert (breed.values[-1], house.values[-1], present[-1]) == (-1, -1, False)


def test_the_ffcv_backend_opens_a_beton_with_more_fields(table: Path) -> None:
    dataset = open_dataset(converted(table, "beton"))
    assert isinstance(dataset, BetonDataset)
    config = LoaderConfig(batch_size=COUNT, order="sequential", workers=1)
    loader = FfcvLoader(dataset, CenterCrop(size=32, resize=32), config, torch.device("cpu"))
    (batch,) = list(loader)
    assert batch.targets.tolist() == dataset.labels.tolist()
    loader.close()


@pipeline_def(batch_size=COUNT, num_threads=1, device_id=None)
def notes_pipeline(tar: str, index: str) -> Any:
    return fn.readers.webdataset(paths=[tar], index_paths=[index], ext=["json"])


def test_dali_and_webdataset_read_targets_as_json(table: Path) -> None:
    tar = converted(table, "tar") / "train-00000.tar"
    pipe = notes_pipeline(str(tar), str(tar.with_suffix(".idx")))
    pipe.build()
    (notes,) = pipe.run()
    by_dali = [json.loads(bytes(np.array(notes[i]))) for i in range(COUNT)]
    samples = list(webdataset.WebDataset(str(tar), shardshuffle=False))
    by_webdataset = [json.loads(sample["json"]) for sample in samples]
    assert by_dali == by_webdataset
    assert by_dali[3] == {"path": "3.jpg", "age": 3.25, "tags": ["a", "b", "c"], "house": "m"}
    assert by_dali[-1] == {"path": "7.jpg", "age": None, "tags": None, "house": None}
    assert ["cls" in sample for sample in samples] == [True] * (COUNT - 1) + [False]
