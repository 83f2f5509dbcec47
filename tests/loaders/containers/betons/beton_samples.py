"""What the tests of the container share: its fields, small samples, and how they are written."""

import io

import numpy as np
from PIL import Image

from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField

PAGE = 1 << 21
IMAGES = {"image": BetonField("rgb"), "label": BetonField("int")}
ALL = {
    "image": BetonField("rgb"),
    "text": BetonField("bytes"),
    "label": BetonField("int"),
    "about": BetonField("json"),
    "box": BetonField("ndarray", np.dtype("<f4"), (2, 2)),
    "tokens": BetonField("tensor", np.dtype("<i8"), (3,)),
    "weight": BetonField("float"),
}


def write(path, fields, samples, **options):
    with BetonWriter(path, fields, page_size=PAGE, **options) as beton:
        for sample in samples:
            beton.add(sample)
    return beton


def jpeg(size=(9, 7), seed=0, **options):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(options.pop("mode", "RGB")).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def one(number):
    """A sample of ALL."""
    raw = np.random.default_rng(number).integers(0, 256, (5 + number, 4, 3), dtype=np.uint8)
    return {
        "image": raw if number % 3 == 1 else jpeg(seed=number),
        "text": b"word " * (number % 4),
        "label": number - 1,
        "about": {"path": f"é/{number}.jpg"},
        "box": np.full((2, 2), number, "<f4"),
        "tokens": np.arange(3) * number,
        "weight": number / 3,
    }


def same(sample, other):
    if sample.keys() != other.keys():
        return False
    for name, value in sample.items():
        if not isinstance(value, np.ndarray):
            if value != other[name]:
                return False
        elif value.dtype != other[name].dtype or not np.array_equal(value, other[name]):
            return False
    return True
