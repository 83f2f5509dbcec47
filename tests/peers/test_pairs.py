"""Shards of images with texts beside them, either of them missing: DALI, webdataset and ffcv read both."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from ffcv.fields.basics import IntDecoder
from ffcv.fields.bytes import BytesDecoder
from ffcv.fields.rgb_image import SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor
from nvidia.dali import fn, pipeline_def
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pairs import blank
from fastimg.convert.pipeline import convert

ROWS = [  # image, caption, label, in the order in which they are stored
    ("0.jpg", "a fine, red film", "pos"),
    ("1.jpg", "", "neg"),
    ("2.jpg", "dull", "neg"),
    ("", "drôle, 映画\nand two lines", "pos"),
]
TEXTS = [text.encode() for _, text, _ in ROWS]
LABELS = [int(label == "pos") for *_, label in ROWS]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Photographs of the size of the image that stands where one is missing."""
    for path, *_ in ROWS:
        if path:
            pixels = np.random.default_rng(int(path[0])).integers(0, 256, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(tmp_path / path)
    with (tmp_path / "posts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption", "label"), *ROWS])
    return tmp_path / "posts.csv"


def converted(manifest: Path, container: Any) -> Path:
    flags = {"format": container, "text_column": "caption", "no_shuffle": True}
    convert(Convert(src=manifest, dst=manifest.parent / "D", **flags), Console(quiet=True))
    return manifest.parent / "D"


def originals(folder: Path) -> list[np.ndarray[Any, Any]]:
    """The pixels of each row's image, as Pillow decodes it."""
    sources = [(folder / path).read_bytes() if path else blank() for path, *_ in ROWS]
    return [np.asarray(Image.open(io.BytesIO(source)).convert("RGB")) for source in sources]


@pipeline_def(batch_size=len(ROWS), num_threads=1, device_id=None)
def pipeline(tar: str, index: str) -> Any:
    jpeg, text, label, note = fn.readers.webdataset(
        paths=[tar], index_paths=[index], ext=["jpg", "txt", "cls", "json"], missing_component_behavior="empty"
    )
    return fn.decoders.image(jpeg, device="cpu"), text, label, note


def test_dali_and_webdataset_read_our_tars(manifest: Path) -> None:
    tar = converted(manifest, "tar") / "train-00000.tar"
    pipe = pipeline(str(tar), str(tar.with_suffix(".idx")))
    pipe.build()
    images, texts, labels, notes = pipe.run()
    found = list(webdataset.WebDataset(str(tar), shardshuffle=False))
    assert [sample.get("txt", b"") for sample in found] == TEXTS
    assert ["txt" in sample for sample in found] == [True, False, True, True]
    for i, pixels in enumerate(originals(manifest.parent)):
        np.testing.assert_array_equal(np.array(images[i]), pixels)
        with Image.open(io.BytesIO(found[i]["jpg"])) as image:
            np.testing.assert_array_equal(np.asarray(image.convert("RGB")), pixels)
        assert np.array(texts[i]).tobytes() == TEXTS[i]
        assert int(np.array(labels[i]).tobytes()) == int(found[i]["cls"]) == LABELS[i]
        assert json.loads(np.array(notes[i]).tobytes()) == json.loads(found[i]["json"])
    assert [json.loads(sample["json"]).get("missing") for sample in found] == [None, None, None, ["image"]]


def test_ffcv_loads_our_betons(manifest: Path) -> None:
    loader = Loader(
        str(converted(manifest, "beton") / "train.beton"),
        batch_size=len(ROWS),
        num_workers=1,
        os_cache=False,
        order=OrderOption.SEQUENTIAL,
        pipelines={
            "image": [SimpleRGBImageDecoder(), ToTensor()],
            "txt": [BytesDecoder(), ToTensor()],
            "label": [IntDecoder(), ToTensor()],
            "json": None,
        },
    )
    (batch,) = list(loader)
    names = [name for name in loader.reader.field_names if name != "json"]
    read = {name: values.numpy() for name, values in zip(names, batch, strict=True)}
    np.testing.assert_allclose(
        read["image"].astype(float), np.stack(originals(manifest.parent)), atol=4.0
    )  # another inverse DCT
    for row, text in zip(read["txt"], TEXTS, strict=True):  # ffcv pads to the longest, and writes nothing there
        assert row.tobytes().startswith(text)
    assert read["label"].ravel().tolist() == LABELS
