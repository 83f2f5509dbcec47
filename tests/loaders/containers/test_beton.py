"""The .beton container: bytes made by hand, round trips, and damaged files. tests/peers compares with ffcv itself."""

import hashlib
import io
import json
import os
import re
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.betons.files import BetonFile, BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField, jpeg_fault
from fastimg.loaders.decode import decode
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.runtime.scratch import Scratch

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


RECORD = 80  # bytes of metadata of a sample of ALL


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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(["rgb", "int", "float", "bytes", "json", "ndarray", "tensor"])
DTYPES = hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.boolean_dtypes() | hnp.complex_number_dtypes()
VALUES = {
    "rgb": st.builds(jpeg, st.tuples(st.integers(1, 20), st.integers(1, 20)))
    | hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=50),
    "json": JSON,
}


@st.composite
def tables(draw):
    """Fields in any order, and a few samples of them."""
    fields, values = {}, {}
    for number, kind in enumerate(draw(st.lists(KINDS, min_size=1, max_size=6))):
        name = f"{kind}{number}"
        if kind in ("ndarray", "tensor"):
            field = BetonField(kind, draw(DTYPES), draw(hnp.array_shapes(max_dims=4, max_side=3)))
            elements = {"allow_nan": False} if field.dtype.kind in "fc" else None
            fields[name], values[name] = field, hnp.arrays(field.dtype, field.shape, elements=elements)
        else:
            fields[name], values[name] = BetonField(kind), VALUES[kind]
    return fields, draw(st.lists(st.fixed_dictionaries(values), max_size=4))


@settings(deadline=None, max_examples=60)
@given(tables())
def test_round_trip(tmp_path_factory, table):
    fields, samples = table
    path = tmp_path_factory.mktemp("beton") / "a.beton"
    write(path, fields, samples)
    with BetonFile(path) as reader:
        assert reader.fields == fields and reader.custom == () and len(reader) == len(samples)
        for number, sample in enumerate(samples):
            assert same(reader.sample(number), sample)
    path.unlink()


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


EXIF = Image.Exif()
EXIF[0x0112] = 6


def png():
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": b""}, "image: the file is empty"),
        ({"image": b"what"}, "image: not an image"),
        ({"image": png()}, "image: png, not JPEG"),
        ({"image": jpeg(mode="CMYK")}, "image: a JPEG that is neither grayscale nor 8-bit YCbCr"),
        ({"image": jpeg(exif=EXIF)}, "image: it has an EXIF orientation"),
        ({"image": np.zeros((2, 2), np.uint8)}, r"image: pixels must be uint8 \[H, W, 3\], not uint8 \[2, 2\]"),
        ({"image": np.zeros((2, 2, 3))}, "image: pixels must be uint8"),
        (
            {"image": np.zeros((65536, 1, 3), np.uint8)},
            "image: an image must have 1 to 65535 pixels per side, not 1 x 65536",
        ),
        ({"image": np.zeros((0, 1, 3), np.uint8)}, "image: an image must have 1 to 65535 pixels"),
        ({"label": 1.5}, "label: "),
        ({"label": 2**63}, "label: "),
        ({"weight": "heavy"}, "weight: "),
        ({"text": "text"}, "text: "),
        ({"about": {1, 2}}, "about: "),
        ({"about": b"{"}, "about: "),
        ({"about": "{}".encode("utf-16")}, "about: "),
        ({"box": np.zeros((2, 2))}, r"box: expected float32 \[2, 2\], not float64 \[2, 2\]"),
        ({"box": np.zeros((4,), "f4")}, r"not float32 \[4\]"),
        (
            {"text": bytes(PAGE)},
            rf"a sample of \d+ bytes does not fit in a page of {PAGE}: give page_size={2 * PAGE}",
        ),
        ({"other": 1}, "expected image, text"),
    ],
)
def test_values_that_cannot_be_are_left_out(tmp_path, change, message):
    """A refused sample leaves no trace: the file is the same as without it."""
    with BetonWriter(tmp_path / "a.beton", ALL, page_size=PAGE) as beton:
        beton.add(one(0))
        with pytest.raises(ValueError, match=message):
            beton.add(one(2) | change)
        beton.add(one(1))
    write(tmp_path / "b.beton", ALL, [one(0), one(1)])
    assert (tmp_path / "a.beton").read_bytes() == (tmp_path / "b.beton").read_bytes()


def test_jpegs_that_fit(tmp_path):
    kinds = [{}, {"mode": "L"}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 1}]
    assert [jpeg_fault(jpeg(**kind)) for kind in kinds] == [""] * 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_failed_write_leaves_no_file(tmp_path, error):
    with pytest.raises((KeyboardInterrupt, OSError)), BetonWriter(tmp_path / "a.beton", ALL) as beton:
        beton.add(one(0))
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_of_the_end_leaves_no_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), BetonWriter(tmp_path / "a.beton", ALL) as beton:
        beton.add(one(0))
        monkeypatch.setattr("os.fsync", full)
    assert list(tmp_path.iterdir()) == []


def test_files_without_pages(tmp_path):
    for samples in ([], [{"label": 3}]):
        write(tmp_path / "a.beton", {"label": BetonField("int")}, samples)
        with BetonFile(tmp_path / "a.beton") as reader:
            assert [reader.sample(n) for n in range(len(reader))] == samples
    write(tmp_path / "a.beton", ALL, [])
    with BetonFile(tmp_path / "a.beton") as reader:
        assert len(reader) == 0 and reader.fields == ALL


# Files that are damaged.


@pytest.fixture
def damaged(tmp_path):
    """A small file of all kinds, its samples, and `damaged(edits)`: open and read it with (offset, bytes) changed."""
    path = tmp_path / "a.beton"
    samples = [one(number) for number in range(7)]
    write(path, ALL, samples)

    def read(*edits, size=None):
        whole = path.stat().st_size
        with path.open("r+b") as file:
            undo = []
            for at, content in edits:
                undo.append((at, os.pread(file.fileno(), len(content), at)))
                os.pwrite(file.fileno(), content, at)
        cut = b""
        if size is not None:
            cut = path.read_bytes()[size:]
            os.truncate(path, size)
        try:
            with BetonFile(path) as reader:
                return [reader.sample(number) for number in range(len(reader))]
        finally:
            with path.open("r+b") as file:
                if cut:
                    os.pwrite(file.fileno(), cut, size)
                for at, content in reversed(undo):
                    os.pwrite(file.fileno(), content, at)
            os.truncate(path, whole)

    read.path, read.samples, read.table = path, samples, 2 * PAGE
    read.metadata = 24 + 1041 * len(ALL)
    return read


def u64(number):
    return struct.pack("<Q", number)


@pytest.mark.parametrize("value", [0, 1, 23, 2**31, 2**62, 2**63, 2**64 - 1, 2**64 // 88 + 1, 2**64 // 24 + 1])
@pytest.mark.parametrize(
    "where", ["samples", "table", "data_ptr", "text_ptr", "text_size", "box_ptr", "region", "region_size"]
)
def test_numbers_that_claim_too_much(damaged, where, value):
    table = damaged.table
    at = {"samples": 8, "table": 16, "data_ptr": damaged.metadata + 5, "text_ptr": damaged.metadata + RECORD + 13}
    at |= {
        "text_size": damaged.metadata + RECORD + 21,
        "box_ptr": damaged.metadata + 56,
        "region": table + 8,
        "region_size": table + 16,
    }
    assert damaged() is not None
    tracemalloc.start()
    try:
        samples = damaged((at[where], u64(value)))
    except ShardError as error:
        assert str(damaged.path) in str(error)
    else:  # an empty text, or a truncated JPEG, which its decoder will report
        assert (where, value) == ("text_size", 0) or (where == "region_size" and len(samples[0]["image"]) == value)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 300_000


def test_counts_that_claim_too_much(damaged):
    versions, fields, pages = (b"\1\0", b"\3\0"), (b"\0\0", b"\6\0", b"\xff\xff"), (bytes(4), b"\1\0\0\0")
    for at, contents in ((0, versions), (2, fields), (4, pages)):
        for content in contents:
            with pytest.raises(ShardError, match=re.escape(str(damaged.path))):
                damaged((at, content))


@pytest.mark.parametrize(
    "described",
    [
        b'[["", "|O"]]',
        b'[["", "<f3"]]',
        b'[["", "<f4"], ["", "<f4"]]',
        b'[["", ["<f4", 2]]]',
        b'[["", "<U999999999"]]',
        b'[["", "|V0"]]',
        b'[["", "<M8[lightyear]"]]',
        b"[" * 700,
        b"{}",
        b"1",
        b"\xff",
        b"",
    ],
)
def test_arrays_that_are_not_described(damaged, described):
    at = 24 + 1041 * 4 + 17
    with pytest.raises(ShardError, match=r"field box has no valid description of an array|box of sample 0"):
        damaged((at + 256, u64(len(described)) + described))


def test_shapes_that_claim_too_much(damaged):
    at = 24 + 1041 * 4 + 17
    for shape in ((2**63, 2), (2**64 - 1,) * 32, (1000, 1000), (0, 2), (0, 0)):
        with pytest.raises(ShardError, match="box"):
            damaged((at, b"".join(map(u64, shape))))


def test_unknown_fields(damaged):
    with pytest.raises(ShardError, match="field label has the unknown type 9"):
        damaged((24 + 1041 * 2, b"\x09"))
    with pytest.raises(ShardError, match="two fields have the same name"):
        damaged((24 + 1041 * 2 + 1, b"image"))


def test_a_file_that_was_cut(damaged):
    """At every boundary, and one byte before and after."""
    size = damaged.path.stat().st_size
    cuts = {0, 24, *(24 + 1041 * n for n in range(8)), *(damaged.metadata + RECORD * n for n in range(8))}
    cuts |= {PAGE, 2 * PAGE, *range(2 * PAGE, size, 24), size}
    with BetonFile(damaged.path) as reader:
        for name in ("image", "text", "about"):
            cuts |= set(reader.extents(name)[0].tolist())
    for cut in sorted({at + off for at in cuts for off in (-1, 0, 1) if 0 <= at + off < size}):
        with pytest.raises(ShardError, match=re.escape(str(damaged.path))):
            damaged(size=cut)
    with damaged.path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ShardError, match="allocation table is not where"):
        damaged()


def test_mutations(damaged):
    """Seeded: 3,000 files with one to three changes each. The result is an error or samples, with bounded memory."""
    rng = np.random.default_rng(3)
    size = damaged.path.stat().st_size
    content = damaged.path.read_bytes()
    areas = [(0, 24), (24, damaged.metadata), (damaged.metadata, damaged.metadata + RECORD * 7)]
    areas += [(PAGE, PAGE + 2000), (2 * PAGE, size)]
    refused = 0
    tracemalloc.start()
    for _ in range(3000):
        edits = []
        for _ in range(rng.integers(1, 4)):
            start, end = areas[rng.integers(len(areas))]
            at = int(rng.integers(start, end))
            kind = rng.integers(4)
            new = rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes()
            if kind == 1:  # one bit
                new = bytes([content[at] ^ 1 << int(rng.integers(8))])
            elif kind == 2:  # moved data
                other = int(rng.integers(start, end))
                new = content[other : other + 8]
            elif kind == 3:
                new = u64(int(rng.choice(np.array([0, 1, PAGE, 2 * PAGE, 2**32, 2**63, 2**64 - 1], np.uint64))))
            edits.append((at, new[: end - at]))
        try:
            samples = damaged(*edits)
        except ShardError as error:
            assert str(damaged.path) in str(error)
            refused += 1
        else:
            assert len(samples) == 7
    assert tracemalloc.get_traced_memory()[1] < 2 * size  # pages interpreted as metadata or as a table
    tracemalloc.stop()
    assert 1000 < refused < 3000
    assert all(same(sample, other) for sample, other in zip(damaged(), damaged.samples, strict=True))


def test_a_file_that_shrinks_while_it_is_open(damaged):
    with BetonFile(damaged.path) as reader:
        os.truncate(damaged.path, PAGE + 10)
        with pytest.raises(ShardError, match="shrank while it was in use"):
            reader.sample(6)


def test_invalid_json(damaged):
    with BetonFile(damaged.path) as reader:
        at = int(reader.extents("about")[0][2])
    with pytest.raises(ShardError, match="about of sample 2 is not JSON"):
        damaged((at, b"}"))


def test_paths_that_are_not_files(tmp_path):
    for path, message in ((tmp_path, "not a file"), (tmp_path / "nowhere", "no such file")):
        with pytest.raises(ShardError, match=message):
            BetonFile(path)


# As a dataset.


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "a.beton", ALL, [one(number) for number in range(7)])
    dataset = BetonDataset(tmp_path / "a.beton")
    yield dataset
    dataset.close()


def test_samples_labels_and_names(dataset, tmp_path):
    scratch = Scratch()
    assert len(dataset) == 7 and dataset.labels.tolist() == [-1, 0, 1, 2, 3, 4, 5] and dataset.labels.dtype == np.int64
    assert dataset.classes == ("0", "1", "2", "3", "4", "5")
    assert dataset.sample_name(3) == f"{tmp_path}/a.beton: sample 3 (é/3.jpg)"
    dataset.will_need(np.array([0, 5, 3]))
    for number in (6, 0, 1, 4, 4):
        image = one(number)["image"]
        if isinstance(image, bytes):
            assert bytes(dataset.read(number, scratch)) == image
        else:
            assert (decode(dataset.read(number, scratch)) == image).all()


@pytest.mark.parametrize("value", [ord("#"), ord("\n"), ord("1"), 0, 255])
def test_raw_pixels_that_look_like_a_header(tmp_path, value):
    pixels = np.full((1, 3, 3), value, np.uint8)
    write(tmp_path / "a.beton", {"image": BetonField("rgb")}, [{"image": pixels}])
    dataset = BetonDataset(tmp_path / "a.beton")
    assert (decode(dataset.read(0, Scratch())) == pixels).all()
    assert dataset.labels.tolist() == [-1] and dataset.classes == () and dataset.sample_name(0).endswith(": sample 0")
    dataset.close()


def test_given_classes_and_checksums(tmp_path):
    path = tmp_path / "a.beton"
    write(path, IMAGES, [{"image": jpeg(), "label": n} for n in range(3)])
    dataset = BetonDataset(path, ["a", "b", "c"], checksum="1")
    assert dataset.classes == ("a", "b", "c")
    dataset.close()
    others = [BetonDataset(path, checksum=checksum) for checksum in (None, "1", "2")]
    assert len({other.fingerprint for other in others}) == 3 and others[1].fingerprint == dataset.fingerprint
    for other in others:
        other.close()
    with pytest.raises(ShardError, match="the numbers in label, up to 2, are not all among its 2 classes"):
        BetonDataset(path, ["a", "b"])


@pytest.mark.parametrize("label", [-2, 1 << 20, 2**63 - 1])
def test_numbers_that_are_not_labels(tmp_path, label):
    write(tmp_path / "a.beton", IMAGES, [{"image": jpeg(), "label": label}])
    with pytest.raises(ShardError, match=r"the numbers in label, up to .* are not class indices"):
        BetonDataset(tmp_path / "a.beton")


def test_which_field_is_used(tmp_path):
    fields = {
        "left": BetonField("rgb"),
        "Image": BetonField("rgb"),
        "id": BetonField("int"),
        "label": BetonField("int"),
    }
    sample = {"left": jpeg(seed=1), "Image": jpeg(seed=2), "id": 7, "label": 1}
    write(tmp_path / "a.beton", fields, [sample])
    dataset = BetonDataset(tmp_path / "a.beton")
    assert bytes(dataset.read(0, Scratch())) == sample["Image"] and dataset.labels.tolist() == [1]
    dataset.close()
    write(tmp_path / "a.beton", {"a": BetonField("rgb"), "b": BetonField("rgb")}, [{"a": jpeg(), "b": jpeg()}])
    with pytest.raises(DataError, match="a, b are all rgb fields; name the one to train on image"):
        BetonDataset(tmp_path / "a.beton")
    write(tmp_path / "a.beton", {"y": BetonField("int")}, [{"y": 1}])
    with pytest.raises(DataError, match=r"none of its fields \(y\) holds images"):
        BetonDataset(tmp_path / "a.beton")


# # Custom fields.


@pytest.mark.parametrize("kind", ["int", "bytes", "json", "ndarray", "rgb"])
def test_custom_fields_are_skipped(tmp_path, kind):
    fields = {"mine": ALL[{"int": "label", "bytes": "text", "json": "about", "ndarray": "box", "rgb": "image"}[kind]]}
    mine = {"int": 3, "bytes": b"mine", "json": [1], "ndarray": np.zeros((2, 2), "f4"), "rgb": jpeg()}[kind]
    samples = [{"mine": mine, "image": jpeg(seed=n), "label": n} for n in range(100)]
    path = tmp_path / "a.beton"
    write(path, fields | IMAGES, samples)
    with path.open("r+b") as file:
        file.seek(24)
        file.write(b"\xff")
    with BetonFile(path) as reader:
        assert reader.custom == ("mine",)
        assert [reader.sample(n) for n in range(100)] == [{"image": s["image"], "label": s["label"]} for s in samples]


def test_a_custom_field_that_hides_the_others(tmp_path):
    path = tmp_path / "a.beton"
    write(path, {"mine": BetonField("int"), "label": BetonField("int")}, [{"mine": 1, "label": 2}])
    with path.open("r+b") as file:
        file.seek(24)
        file.write(b"\xff")
    with pytest.raises(ShardError, match="only the code that wrote mine knows its size"):
        BetonFile(path)


def test_json_bytes_are_unchanged(tmp_path):
    text = json.dumps({"é": 1}, ensure_ascii=False, indent=1).encode()
    write(tmp_path / "a.beton", {"about": BetonField("json")}, [{"about": text}])
    with BetonFile(tmp_path / "a.beton") as reader:
        assert reader.sample(0) == {"about": {"é": 1}}
        assert reader.extents("about")[1].tolist() == [len(text) + 1]
