"""Manifests of texts, and the texts that come back."""

import csv
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq

from fastimg.loaders import open_dataset
from fastimg.loaders.runtime.scratch import Scratch

ROWS = [
    ("a fine film", "pos"),
    ('  "quoted", with a comma\tand a tab ', "neg"),
    ("drôle, 映画 🎬", "pos"),
    ('he said ""no""\nand left', "neg"),
    ("x" * 200_000, "pos"),
    ("dull", "neg"),
]


def said(console):
    return console.file.getvalue()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def manifest(folder, kind, rows=ROWS, names=("text", "label")):
    """One row per pair, with a further column `n`."""
    path = folder / f"set.{kind}"
    table = [dict(zip(names, row, strict=True)) | {"n": f"{i}"} for i, row in enumerate(rows)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(table), path)
    elif kind == "jsonl":
        write(path, "".join(json.dumps(row) + "\n" for row in table))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, (*names, "n"), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(table)
    return path


def texts(folder, split="train"):
    """(text, class) of every sample, as read by a loader."""
    dataset, scratch = open_dataset(folder, split), Scratch()
    assert dataset.content == "text"
    found = [
        (bytes(dataset.read(i, scratch)).decode(), dataset.classes[label]) for i, label in enumerate(dataset.labels)
    ]
    dataset.close()
    return found


def members(tar):
    """Contents by member name, as read by Python's tarfile."""
    with tarfile.open(tar) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive}


def text_folder(root, splits=("",)):
    for split in splits:
        for label in ("neg", "pos"):
            for i in range(4):
                write(root / split / label / f"{i}.txt", f"{label} text {i} of {split}\n")
    return root
