"""Parquet files of images, as tests write and read them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

ANIMALS = ["cat", "dog", "owl"]
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def features(**columns):
    """Hugging Face's metadata: name columns are ClassLabels, None is an Image."""
    told = {
        name: {"_type": "Image"} if names is None else {"_type": "ClassLabel", "names": names}
        for name, names in columns.items()
    }
    return {"huggingface": json.dumps({"info": {"features": told}})}


def write(file, columns, types=None, metadata=None, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    types = {"image": IMAGE} | (types or {})
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    pq.write_table(pa.table(arrays).replace_schema_metadata(metadata), file, **options)
    return file


def pictures(images, names=None):
    return [{"bytes": data, "path": names and names[i]} for i, data in enumerate(images)]


def write_pets(file, images, labels=(0, 2, 1), **options):
    names = [f"{i}.jpg" for i in range(len(images))]
    columns = {"image": pictures(images, names), "label": list(labels)}
    return write(file, columns, {"label": pa.int64()}, metadata=features(image=None, label=ANIMALS), **options)


def contents(source, split="train"):
    return [source.read(entry).image for entry in source.splits[split]]
