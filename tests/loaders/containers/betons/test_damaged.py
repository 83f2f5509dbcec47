"""Damaged, cut and foreign .beton files: refused with one sentence, or read as they were."""

import os
import re
import struct
import tracemalloc

import numpy as np
import pytest

from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.errors import ShardError

from .beton_samples import ALL, PAGE, one, same, write

RECORD = 80  # bytes of metadata of a sample of ALL


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
