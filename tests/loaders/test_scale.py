"""No Python loop over the samples of a large dataset; memory, threads and files are constant after the first epochs."""

import contextlib
import gc
import hashlib
import json
import os
import sys
import threading
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fastimg.loaders import CenterCrop, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders import loader as loader_module
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.tars.shards import ShardWriter, index_path
from fastimg.loaders.pool import Pool

DECODER = ImageDecoder(RandomResizedCrop(size=16))
ORDERS = ("random", "quasi-random", "sequential")


def shards(folder, image, samples):
    """A converted dataset of `samples` in 8 shards: each index names the 5 images of one tar repeatedly."""
    folder.mkdir()
    first = folder / "train-00000.tar"
    with ShardWriter(first) as writer:
        for i in range(5):
            writer.add(f"{i:09d}", {"jpg": image, "cls": str(i).encode()})
    lines = index_path(first).read_text().splitlines(keepends=True)[1:]
    index = f"v1.2 {samples // 8}\n" + "".join(lines) * (samples // 40)
    entries = []
    for number in range(8):
        shard = folder / f"train-{number:05d}.tar"
        if number:
            os.link(first, shard)
        index_path(shard).write_text(index)
        entry = {"name": shard.name, "samples": samples // 8, "bytes": writer.bytes, "sha256": writer.sha256}
        sha256 = hashlib.sha256(index.encode()).hexdigest()
        entries.append({**entry, "index_bytes": len(index), "index_sha256": sha256})
    description = {"format": "fastimg dataset", "version": 1, "container": "tar", "classes": list("abcde")}
    description["splits"] = {"train": {"samples": samples, "shards": entries}}
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


def beton(path, samples):
    with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, samples) as writer:
        for i in range(samples):
            writer.add({"image": np.full((2, 2, 3), i % 256, np.uint8), "label": i % 5})
    return path


def first_batch(path, order="random", part=False):
    """Open, and read one batch. Returns the number of samples."""
    dataset = open_dataset(path)
    indices = np.flatnonzero(np.arange(len(dataset)) % 10) if part else None
    loader = Loader(dataset, DECODER, LoaderConfig(batch_size=16, order=order, workers=1), indices=indices)
    batch = next(iter(loader))
    assert batch.samples == 16 and not loader.unreadable
    loader.state_dict()
    loader.close()
    dataset.close()
    return len(dataset)


def lines_executed(call):
    """The number of lines of Python that this thread runs; loops count every iteration, as do comprehensions."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_the_lines_of_a_loop_are_counted():
    few, many = (lines_executed(lambda n=n: sum([2 * i for i in range(n)])) for n in (100, 1100))
    assert many - few >= 1000


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_no_python_loop_over_samples_before_the_first_batch(tmp_path, encode, container, monkeypatch):
    monkeypatch.setattr(loader_module, "compile_ahead", lambda *_: False)  # which it does for many samples
    monkeypatch.setattr(Pool, "_fill_instead", lambda *_: False)  # how many rows this thread would fill is chance
    small, large = 2_000, 40_000
    make = {"tar": lambda path, n: shards(path, encode(), n), "beton": lambda path, n: beton(path, n)}[container]
    paths = {n: make(tmp_path / f"{n}.beton", n) for n in (small, large)}
    for n, path in paths.items():
        assert first_batch(path) == n  # derives the compact index
        assert container == "beton" or (path / "train.fidx").stat().st_size < 33 * n + 1000
    for order in ORDERS:
        for part in (False, True):
            lines = [lines_executed(partial(first_batch, path, order, part)) for path in paths.values()]
            assert lines[1] - lines[0] < 500, (order, part, lines)  # for 38,000 additional samples


@pytest.fixture
def images(tmp_path, encode):
    """60 images in a tar."""
    with ShardWriter(tmp_path / "train-00000.tar") as writer:
        for i in range(60):
            writer.add(f"{i:09d}", {"jpg": encode(size=(40 + i, 90 - i), seed=i), "cls": b"1"})
    return tmp_path


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left():
    """The number of loaders' threads, and of open files of theirs; servers of earlier tests still end connections."""
    files = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it ended
            link = os.readlink(f"/proc/self/fd/{descriptor}")
            files += not link.startswith(("socket:", "/proc/"))
    return sum(thread.name.startswith("fastimg-") for thread in threading.enumerate()), files


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.parametrize("order", ORDERS)
def test_twenty_epochs_use_no_more_than_three(images, order):
    dataset = open_dataset(images)
    loader = Loader(
        dataset, ImageDecoder(RandomResizedCrop(size=64)), LoaderConfig(batch_size=8, order=order, workers=2)
    )
    loader.compile()  # or code may be loaded in the middle
    held, running = [], []
    gc.collect()  # what earlier tests have left
    for _ in range(20):
        for batch in loader:
            del batch
        held.append(resident())
        running.append(left())
    loader.close()
    dataset.close()
    assert max(held) - held[2] < 2_000_000  # an epoch decodes 60 x 12 KB; a slot is 100 KB
    threads, files = zip(*running, strict=True)
    assert len(set(threads)) == 1 and threads[0] and max(files) == files[0]


def test_twenty_epochs_leave_no_object(images):
    """Nor blocks of more than 512 bytes; smaller ones may be tuples that the interpreter keeps, 2000 of each size."""
    dataset = open_dataset(images)
    same = ImageDecoder(CenterCrop(size=64, resize=64))  # random crops take more memory, the larger they are
    loader = Loader(dataset, same, LoaderConfig(batch_size=8, workers=2))
    loader.compile()  # or code may be loaded in the middle
    objects, large = [], []
    gc.collect()
    tracemalloc.start()
    try:
        for epoch in range(20):
            for batch in loader:
                del batch
            if epoch in (4, 19):
                gc.collect()
                objects.append(len(gc.get_objects()))
                large.append(sum(t.size for t in tracemalloc.take_snapshot().traces if t.size > 512))
    finally:
        tracemalloc.stop()
        loader.close()
        dataset.close()
    assert objects[1] - objects[0] < 15  # not one per epoch; those of earlier tests may end
    assert large[1] - large[0] < 15 * 512


def test_repeatedly_made_loaders_leave_nothing(images):
    def once():
        dataset = open_dataset(images)
        loader = Loader(dataset, ImageDecoder(CenterCrop(size=64, resize=64)), LoaderConfig(batch_size=8, workers=2))
        for batch in loader:
            del batch
        loader.close()
        dataset.close()

    for _ in range(3):
        once()
    gc.collect()
    before, resident_before = left(), resident()
    for _ in range(20):
        once()
    gc.collect()
    assert all(now <= then for now, then in zip(left(), before, strict=True))
    assert resident() - resident_before < 4_000_000  # 20 loaders have slots of 6 MB and the same amount of scratch
