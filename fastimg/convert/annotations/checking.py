"""What is wrong with the fields of a converted dataset: with their counts, and, sample by sample, with their values."""

from collections.abc import Iterator, Mapping

import numpy as np

from fastimg.loaders import DataError, Dataset
from fastimg.loaders.containers.fields import FieldColumn, StoredField
from fastimg.loaders.errors import ImageError, image_faults
from fastimg.loaders.opening import MAX_PIXELS, open_image
from fastimg.wording import plural

from .masks import mask_png


def missing_faults(columns: Mapping[str, FieldColumn], stated: Mapping[str, int]) -> Iterator[str]:
    """Fields that are missing in more or fewer samples than `stated`, or are not optional and missing."""
    for name, column in columns.items():
        missing = len(column.present) - int(np.count_nonzero(column.present))
        expected = stated.get(name, 0)
        if missing != expected:
            yield f"{plural(missing, 'sample')} without the field {name!r} where dataset.json says {expected:,}"


def sample_field_faults(dataset: Dataset, index: int, size: tuple[int, int]) -> Iterator[str]:
    """What is wrong with the fields of one sample, whose image has this upright size."""
    lengths: dict[str, int] = {}
    for name, schema in dataset.fields.items():
        try:
            value = dataset.read_field(name, index)
        except DataError as error:
            yield str(error)
            continue
        if isinstance(value, bytes):
            if fault := _file_fault(schema, value, size):
                yield f"{name}: {fault}"
            lengths[name] = len(value)
        elif value is not None and schema.kind == "ragged":
            lengths[name] = len(value)
            if schema.geometry == "box" and not (np.isfinite(value).all() and (value[:, 2:] >= value[:, :2]).all()):
                yield f"{name}: a box that is not finite, or has its second corner before its first one"
        if schema.longest and lengths.get(name, 0) > schema.longest:
            yield f"{name}: longer than the {schema.longest:,} that dataset.json states"
    for name, schema in dataset.fields.items():
        if schema.along is not None and lengths.get(name) != lengths.get(schema.along):
            yield f"{name}: {plural(lengths.get(name, 0), 'item')} along {lengths.get(schema.along, 0):,}"


def _file_fault(schema: StoredField, data: bytes, size: tuple[int, int]) -> str:
    """What is wrong with an encoded image; empty if nothing is, and for bytes."""
    if schema.kind != "image":
        return ""
    most = max(MAX_PIXELS, size[0] * size[1])
    try:
        if schema.geometry == "mask":
            mask_png(data, most=most)
        with image_faults(), open_image(data, most) as image:
            image.load()
            if schema.geometry == "mask" and image.size != size:
                return f"{image.size[0]} x {image.size[1]} pixels where the image has {size[0]} x {size[1]}"
    except (ValueError, ImageError) as error:
        return f"it cannot be decoded ({error})"
    return ""
