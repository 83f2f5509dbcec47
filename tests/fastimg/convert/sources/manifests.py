"""Manifests of images, as tests write and read them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from fastimg.convert.sources import resolve as sources


def read_source(src, columns):
    return sources.read_source(src, columns, src.parent)


ROWS = [
    {"path": "b/1.jpg", "label": "dog", "split": "train", "photographer": "Ann"},
    {"path": "a/2.jpg", "label": "cat", "split": "train", "photographer": "Bo, Jr."},
    {"path": "a/1.jpg", "label": "cat", "split": "validation", "photographer": ""},
]


def quoted(value):
    return f'"{value}"' if "," in value else value


def write_manifest(folder, kind, rows=ROWS):
    src = folder / f"set.{kind}"
    if kind == "jsonl":
        src.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), src)
    else:
        separator = "\t" if kind == "tsv" else ","
        lines = [list(rows[0]), *([quoted(str(value)) for value in row.values()] for row in rows)]
        src.write_text("".join(separator.join(line) + "\n" for line in lines))
    return src


def write_csv(folder, *lines):
    src = folder / "set.csv"
    src.write_text("\n".join(lines) + "\n")
    return src
