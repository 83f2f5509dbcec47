"""The .beton container: bytes made by hand, pages and fields. tests/peers compares with ffcv itself."""

import hashlib
import struct
import tracemalloc

import numpy as np
import pytest

from fastimg.loaders.containers.betons.files import BetonFile, BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField

from .beton_samples import IMAGES, PAGE, jpeg, same, write


def test_the_bytes_of_a_small_file(tmp_path):
    """All parts of the format, written out."""
    photo, pixels = jpeg((3, 2)), np.arange(12, dtype=np.uint8).reshape(1, 4, 3)
    fields = {
        "image": BetonField("rgb"),
        "note": BetonField("bytes"),
        "y": BetonField("int"),
        "a": BetonField("ndarray", np.dtype(">u2"), (1, 2)),
    }
    samples = [
        {"image": photo, "note": b"hello", "y": -2, "a": np.array([[1, 2]], ">u2")},
        {"image": pixels, "note": b"", "y": 7, "a": np.array([[3, 4]], ">u2")},
    ]
    beton = write(tmp_path / "a.beton", fields, samples)

    first, n = PAGE, len(photo)
    described = b'[["", ">u2"]]'
    arguments = struct.pack("<32QQ", 1, 2, *[0] * 30, len(described)) + described
    expected = struct.pack("<HHIQQ", 2, 4, PAGE, 2, 2 * PAGE)
    for kind, name, of in ((2, b"image", b""), (3, b"note", b""), (1, b"y", b""), (4, b"a", arguments)):
        expected += bytes([kind]) + name.ljust(16, b"\0") + of.ljust(1024, b"\0")
    # mode, width, height, ptr | ptr, size | 3 bytes of padding | int | ptr
    expected += struct.pack("<BHHQQQ3xqQ", 0, 3, 2, first, first + n, 5, -2, first + n + 5)
    expected += struct.pack("<BHHQQQ3xqQ", 1, 4, 1, first + n + 9, first + n + 21, 0, 7, first + n + 22)
    expected = expected.ljust(PAGE, b"\0")
    expected += photo + b"hello" + b"\0\1\0\2" + pixels.tobytes() + b"\0" + b"\0\3\0\4"
    expected = expected.ljust(2 * PAGE, b"\0")
    at = first
    for sample, sizes in ((0, (n, 5, 4)), (1, (12, 1, 4))):
        for size in sizes:
            expected += struct.pack("<3Q", sample, at, size)
            at += size
    assert (tmp_path / "a.beton").read_bytes() == expected
    assert (beton.samples, beton.bytes) == (2, len(expected))


def test_pages(tmp_path):
    """No region crosses a page, and all regions of a sample are in one page."""
    sizes = [PAGE // 2, PAGE // 4, PAGE // 4 - 1, 1, 1, PAGE - 1, 2, 1, PAGE - 10]
    fields = {"a": BetonField("bytes"), "b": BetonField("bytes")}
    samples = [{"a": bytes([n]) * size, "b": b"b"} for n, size in enumerate(sizes)]
    write(tmp_path / "a.beton", fields, samples)
    with BetonFile(tmp_path / "a.beton") as reader:
        (a, a_sizes), (b, b_sizes) = reader.extents("a"), reader.extents("b")
        assert ((a // PAGE) == (b + b_sizes - 1) // PAGE).all()
        assert (a_sizes == sizes).all() and (a % PAGE).tolist()[5:7] == [0, 0]
        assert all(same(reader.sample(n), sample) for n, sample in enumerate(samples))
    assert (tmp_path / "a.beton").stat().st_size % PAGE == 24 * 2 * len(sizes)


def test_bytes_do_not_depend_on_the_expected_number(tmp_path):
    """The metadata has two pages; if a different number was expected, the data is moved."""
    number = 70_000
    fields = {"a": BetonField("bytes"), "pad": BetonField("ndarray", np.dtype("u1"), (30,)), "label": BetonField("int")}
    pads = np.random.default_rng(0).integers(0, 256, (number, 30), dtype=np.uint8)
    digests = set()
    for expected in (number, 0, 1, 200_000, 400_000):
        samples = ({"a": b"x" * (n % 7), "pad": pads[n], "label": n} for n in range(number))
        beton = write(tmp_path / "a.beton", fields, samples, num_samples=expected)
        digests.add(hashlib.sha256((tmp_path / "a.beton").read_bytes()).hexdigest())
        assert digests == {beton.sha256}
    with BetonFile(tmp_path / "a.beton") as reader:
        assert reader.extents("a")[0][0] == 2 * PAGE and (reader.column("label") == np.arange(number)).all()
        for n in (0, 1, 40_000, number - 1):
            assert same(reader.sample(n), {"a": b"x" * (n % 7), "pad": pads[n], "label": n})


def test_memory_of_the_writer_matches_its_estimate(tmp_path):
    tracemalloc.start()
    try:
        with BetonWriter(tmp_path / "a.beton", IMAGES, page_size=PAGE) as beton:
            photo = jpeg()
            for label in range(2000):
                beton.add({"image": photo, "label": label})
            assert len(beton._metadata) + len(beton._table) == 48 * 2000
            assert tracemalloc.get_traced_memory()[0] < 2 * 48 * 2000 + 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "at least one field"),
        ({"": BetonField("int")}, "1 to 16 ASCII"),
        ({"a" * 17: BetonField("int")}, "1 to 16 ASCII"),
        ({"é": BetonField("int")}, "1 to 16 ASCII"),
        ({"a": BetonField("text")}, "'text' is not one of float, int, rgb"),
        ({"a": BetonField("custom")}, "'custom' is not one of"),
        ({"a": BetonField("ndarray")}, "needs a dtype and a shape"),
        ({"a": BetonField("ndarray", np.dtype("<f4"), ())}, "no elements"),
        ({"a": BetonField("ndarray", np.dtype("<f4"), (2, 0))}, "at least one element"),
        ({"a": BetonField("ndarray", np.dtype("<f4"), (0, 2))}, "no elements"),
        ({"a": BetonField("ndarray", np.dtype("<f4"), (1,) * 33)}, "1 to 32 dimensions"),
        ({"a": BetonField("ndarray", np.dtype("O"), (1,))}, "plain dtype"),
        ({"a": BetonField("ndarray", np.dtype([("x", "i4"), ("y", "i4")]), (1,))}, "plain dtype"),
    ],
)
def test_invalid_fields(tmp_path, fields, message):
    with pytest.raises(ValueError, match=message):
        BetonWriter(tmp_path / "a.beton", fields)
    assert list(tmp_path.iterdir()) == []


def test_invalid_page_sizes(tmp_path):
    for page in (0, PAGE // 2, PAGE + 1, 1 << 32):
        with pytest.raises(ValueError, match="a power of two from 2097152 to 2147483648"):
            BetonWriter(tmp_path / "a.beton", IMAGES, page_size=page)
