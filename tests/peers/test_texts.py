"""Texts in either container, compared with DALI, webdataset and ffcv; and a .beton of texts written by ffcv."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from ffcv.fields import BytesField, IntField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.bytes import BytesDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter
from nvidia.dali import fn, pipeline_def
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import open_dataset
from fastimg.loaders.runtime.scratch import Scratch

ROWS = [("a fine film", "pos"), ('drôle, "映画"', "neg"), ("x" * 5000, "pos"), ("dull\n", "neg")]
TEXTS = [text.encode() for text, _ in ROWS]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS))
    return path


@pipeline_def(batch_size=len(ROWS), num_threads=1, device_id=None)
def pipeline(tar: str, index: str) -> Any:
    text, label, note = fn.readers.webdataset(paths=[tar], index_paths=[index], ext=["txt", "cls", "json"])
    return text, label, note


def test_dali_and_webdataset_read_our_tars(manifest: Path, tmp_path: Path) -> None:
    convert(Convert(src=manifest, dst=tmp_path / "D", no_shuffle=True), Console(quiet=True))
    tar = tmp_path / "D/train-00000.tar"
    pipe = pipeline(str(tar), str(tar.with_suffix(".idx")))
    pipe.build()
    texts, labels, notes = pipe.run()
    found = list(itertools.islice(webdataset.WebDataset(str(tar), shardshuffle=False), len(ROWS) + 1))
    assert [sample["txt"] for sample in found] == TEXTS
    for i in range(len(ROWS)):
        assert np.array(texts[i]).tobytes() == TEXTS[i]
        assert int(np.array(labels[i]).tobytes()) == int(found[i]["cls"]) == (ROWS[i][1] == "pos")
        assert json.loads(np.array(notes[i]).tobytes()) == json.loads(found[i]["json"])


def test_ffcv_loads_our_betons(manifest: Path, tmp_path: Path) -> None:
    convert(Convert(src=manifest, dst=tmp_path / "D", format="beton", no_shuffle=True), Console(quiet=True))
    loader = Loader(
        str(tmp_path / "D/train.beton"),
        batch_size=2,
        num_workers=1,
        os_cache=False,
        order=OrderOption.SEQUENTIAL,
        drop_last=False,
        pipelines={"txt": [BytesDecoder(), ToTensor()], "label": [IntDecoder(), ToTensor()], "json": None},
    )
    found = [(t.numpy().tobytes(), int(y)) for batch in loader for t, y in zip(*batch[:2], strict=True)]
    for (row, label), text, (_, name) in zip(found, TEXTS, ROWS, strict=True):
        assert row.startswith(text) and label == (name == "pos")


def test_a_beton_of_texts_that_ffcv_wrote(tmp_path: Path) -> None:
    class Samples:
        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, i: int) -> tuple[Any, ...]:
            return np.frombuffer(TEXTS[i], np.uint8), i % 2

    fields = {"text": BytesField(), "label": IntField()}
    DatasetWriter(str(tmp_path / "theirs.beton"), fields, num_workers=1).from_indexed_dataset(
        Samples(), shuffle_indices=False
    )
    convert(Convert(src=tmp_path / "theirs.beton", dst=tmp_path / "D"), Console(quiet=True))
    for path in (tmp_path / "theirs.beton", tmp_path / "D"):
        dataset, scratch = open_dataset(path), Scratch()
        assert dataset.content == "text" and dataset.labels.tolist() == [0, 1, 0, 1]
        assert [bytes(dataset.read(i, scratch)) for i in range(len(ROWS))] == TEXTS
        dataset.close()
