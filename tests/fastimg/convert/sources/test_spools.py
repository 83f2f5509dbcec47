"""Reading a spooled source: in any order, from any thread, in bounded memory, with nothing left on the disk."""

import errno
import os
import pickle
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.samples import SourceEntry
from fastimg.convert.sources.spools import Spool, SpoolReader
from fastimg.convert.sources.streams import read_parquets
from fastimg.loaders.errors import DataError

from .parquets import IMAGE, contents, pictures, write, write_pets


def test_reading_in_any_order_from_any_thread(tmp_path, read):
    images = [bytes([i % 256]) * (1 + i % 50) for i in range(2000)]
    extra = [b"x" * (i % 5) for i in range(2000)]
    columns = {"image": pictures(images), "label": [i % 7 for i in range(2000)], "extra": extra}
    source = read(write(tmp_path / "set.parquet", columns, row_group_size=300))
    entries = source.splits["train"]
    assert [source.read(entry).image for entry in reversed(entries)] == images[::-1]
    with ThreadPoolExecutor(8) as pool:
        order = np.random.default_rng(0).permutation(2000).tolist()
        got = list(pool.map(lambda i: source.read(entries[i]), order))
    assert [original.image for original in got] == [images[i] for i in order]
    assert [original.fields["extra"] for original in got] == [extra[i] for i in order]


def test_memory_is_bounded(tmp_path, read):
    count, size = 20_000, 1500
    data = np.random.default_rng(0).bytes(count + size)
    file = tmp_path / "many.parquet"
    schema = pa.schema({"image": IMAGE, "label": pa.int64(), "vector": pa.list_(pa.float64())})
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, count, 5000):
            images = pictures([data[i : i + size] for i in range(start, start + 5000)])
            columns = {"image": images, "label": [i % 10 for i in range(5000)], "vector": [[0.25] * 9] * 5000}
            writer.write_table(pa.table(columns, schema))
    del images, columns
    tracemalloc.start()
    source = read(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(source.splits["train"]) == count
    assert most < 150 * count + (8 << 20), f"{most:,} bytes for {size * count:,} bytes of images"
    assert contents(source)[-1] == data[count - 1 : count - 1 + size]


def test_tick_counts_images(tmp_path, jpegs):
    seen = []
    src = write_pets(tmp_path / "pets.parquet", jpegs)
    read_parquets(src, {"train": [src]}, Columns(), tmp_path, seen.append).close()
    assert seen == [1, 1, 1]


@pytest.mark.parametrize("nameless", [True, False])
def test_spool_leaves_no_file(tmp_path, monkeypatch, nameless):
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE")
    spool = Spool(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    large = os.urandom(3 << 20)
    places = [spool.add(image, {}, {})[0] for image in (b"one", large, b"three")]
    spool.flush()
    assert (spool.read(places[0], 3), spool.read(places[1], 3 << 20), spool.read(places[2], 5)) == (
        b"one",
        large,
        b"three",
    )
    with pytest.raises(DataError, match="truncated"):
        spool.read(places[2], 5000)
    spool.close()
    spool.close()


@pytest.mark.parametrize("nameless", [True, False])
def test_another_process_reads_a_spool_that_is_shared(tmp_path, monkeypatch, nameless):
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE")
        monkeypatch.setattr("fastimg.convert.sources.spools._COPIED_BYTES", 1000)
    spool = Spool(tmp_path)
    images = [os.urandom(size) for size in (1, 4000, 70)]
    reader = SpoolReader(spool, "set")
    entries = [reader.add(SourceEntry(f"{n}.jpg", 0, 0), image, {"n": n}, {}) for n, image in enumerate(images)]
    spool.flush()
    (tmp_path / "shared").write_bytes(b"of a conversion that was killed")
    assert spool.share(tmp_path / "shared") is not nameless
    assert len(pickle.dumps(reader)) < 500
    read = "reader, entries = load(stdin.buffer); stdout.buffer.write(dumps([reader.read(each) for each in entries]))"
    code = f"from pickle import dumps, load; from sys import stdin, stdout; {read}"
    sent = pickle.dumps((reader, entries))
    there = pickle.loads(subprocess.run([sys.executable, "-c", code], input=sent, stdout=PIPE, check=True).stdout)
    assert [original.image for original in there] == images
    assert there == [reader.read(entry) for entry in entries]
    assert list(tmp_path.iterdir()) == [tmp_path / "shared"]
    spool.close()


def test_full_disk_is_raised_and_leaves_nothing_open(tmp_path, jpegs, monkeypatch, read):
    src = write_pets(tmp_path / "pets.parquet", jpegs)
    before = len(os.listdir("/proc/self/fd"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        read(src)
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before


def test_reader_names_samples_without_rows(tmp_path):
    spool = Spool(tmp_path)
    reader = SpoolReader(spool, "torchvision:X")
    assert reader.name(SourceEntry("train/000001", 0, 1)) == "torchvision:X: train/000001"
    reader.close()
