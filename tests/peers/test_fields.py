"""webdataset and DALI read a tar's fields as members, and the real ffcv a .beton's as float, int, array and bytes."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from ffcv.fields.basics import FloatDecoder, IntDecoder
from ffcv.fields.bytes import BytesDecoder
from ffcv.fields.ndarray import NDArrayDecoder
from ffcv.loader import Loader as FfcvLibrary
from ffcv.loader import OrderOption
from ffcv.transforms import ToTensor
from nvidia.dali import fn, pipeline_def
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import open_dataset

COUNT = 6
ASKED = ("boxes:box", "names:labels@boxes", "age:number", "weight:number", "vector:array", "mask:mask")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Photographs of one size with a mask, boxes and numbers."""
    rows = []
    for i in range(COUNT):
        Image.fromarray(np.full((24, 32, 3), 20 * i, np.uint8)).save(tmp_path / f"{i}.jpg")
        Image.fromarray(np.full((24, 32), i, np.uint8)).save(tmp_path / f"{i}.png")
        boxes = [[k, 1, k + 5.5, 9] for k in range(i)]
        row = {"path": f"{i}.jpg", "boxes": boxes, "names": ["cat"] * i, "age": i, "weight": i + 0.5}
        rows.append(row | {"vector": [i, 0.5, -i], "mask": f"{i}.png"})
    (tmp_path / "pets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "pets.jsonl"


def converted(table: Path, container: Any) -> Path:
    flags = Convert(src=table, dst=table.parent / container, field=ASKED, format=container, no_shuffle=True)
    convert(flags, Console(quiet=True))
    return table.parent / container


def test_webdataset_decodes_masks_and_arrays(table: Path) -> None:
    folder = converted(table, "tar")
    samples = webdataset.WebDataset(str(folder / "train-00000.tar"), shardshuffle=False)
    found = list(samples.decode("pil").to_tuple("jpg", "mask.png", "boxes.npy", "names.npy", "json"))
    dataset = open_dataset(folder)
    assert len(found) == COUNT
    for i, (image, mask, boxes, names, note) in enumerate(found):
        assert image.size == mask.size == (32, 24)
        assert (np.asarray(mask) == i).all()
        np.testing.assert_array_equal(boxes, dataset.read_field("boxes", i))
        assert boxes.shape == (i, 4) and boxes.dtype == np.float32
        assert names.tolist() == [0] * i
        assert (note["age"], note["weight"]) == (i, i + 0.5)
    dataset.close()


@pipeline_def(batch_size=COUNT, num_threads=1, device_id=None)
def members(tar: str, index: str) -> Any:
    masks, boxes = fn.readers.webdataset(paths=[tar], index_paths=[index], ext=["mask.png", "boxes.npy"])
    return masks, boxes


def test_dali_reads_the_members(table: Path) -> None:
    tar = converted(table, "tar") / "train-00000.tar"
    pipe = members(str(tar), str(tar.with_suffix(".idx")))
    pipe.build()
    masks, boxes = pipe.run()
    for i in range(COUNT):
        with Image.open(io.BytesIO(bytes(np.array(masks[i])))) as mask:
            assert (np.asarray(mask) == i).all()
        assert np.load(io.BytesIO(bytes(np.array(boxes[i])))).shape == (i, 4)


def test_ffcv_reads_the_fields(table: Path) -> None:
    folder = converted(table, "beton")
    decoders = {
        "boxes": BytesDecoder,
        "names": BytesDecoder,
        "mask": BytesDecoder,
        "age": IntDecoder,
        "weight": FloatDecoder,
        "vector": NDArrayDecoder,
    }
    loader = FfcvLibrary(
        str(folder / "train.beton"),
        batch_size=COUNT,
        num_workers=1,
        order=OrderOption.SEQUENTIAL,
        pipelines={
            "image": None,
            "label": None,
            "json": None,
            **{name: [kind(), ToTensor()] for name, kind in decoders.items()},
        },
    )
    (batch,) = list(loader)
    found = dict(zip((name for name in loader.reader.field_names if name in decoders), batch, strict=True))
    dataset = open_dataset(folder)
    assert found["age"].numpy().reshape(-1).tolist() == list(range(COUNT))
    assert found["weight"].numpy().reshape(-1).tolist() == [i + 0.5 for i in range(COUNT)]
    for i in range(COUNT):
        np.testing.assert_array_equal(found["vector"][i].numpy(), dataset.read_field("vector", i))
        boxes = found["boxes"][i].numpy()[: 16 * i].view(np.float32).reshape(-1, 4)  # padded to the longest
        np.testing.assert_array_equal(boxes, dataset.read_field("boxes", i))
        with Image.open(io.BytesIO(found["mask"][i].numpy().tobytes())) as mask:
            assert (np.asarray(mask) == i).all()
    dataset.close()
