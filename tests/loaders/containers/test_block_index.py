"""`<split>.ftil`: the index of large photographs is kept beside the shards, and changes no pixel."""

import fcntl
import io
import os
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

from fastimg.config.commands import Convert, Inspect, Verify
from fastimg.convert.pipeline import convert
from fastimg.convert.verify import verify
from fastimg.inspect.images import inspect_data
from fastimg.loaders import (
    FieldsDecoder,
    FieldSelection,
    ImageDecoder,
    Loader,
    LoaderConfig,
    RandomResizedCrop,
    View,
    ViewDecoder,
    open_dataset,
)
from fastimg.loaders import loader as loader_module
from fastimg.loaders.compiling_ahead import compile_for
from fastimg.loaders.containers import datasets
from fastimg.loaders.containers.derived import block_index, dc_images
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders import large
from fastimg.loaders.errors import ImageError
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.runtime.stopping import Cancelled

from ..jpeg.test_crops import encoded

SIDE = 200
KEPT = ("train.ftil", "train.fdci")


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Convert six images, of which all but one are large; `make(container)` returns the folder."""
    monkeypatch.setattr(loader_module, "compile_ahead", lambda *_: False)
    for module in (block_index, dc_images):
        monkeypatch.setattr(module, "MIN_PIXELS", SIDE * SIDE)
    for i in range(6):
        file = tmp_path / "source" / "ab"[i % 2] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(SIDE + 40 * i if i else 90, SIDE, "420", seed=i))

    def make(container):
        folder = tmp_path / container
        convert(Convert(src=tmp_path / "source", dst=folder, format=container, workers="1"), Console(quiet=True))
        return folder

    return make


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """Convert 40 images, of which three are large; `make(container)` returns the folder."""
    for module in (block_index, dc_images):
        monkeypatch.setattr(module, "MIN_PIXELS", SIDE * SIDE)
    for i in range(40):
        file = tmp_path / "source" / "ab"[i % 2] / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        side = SIDE if i in (3, 17, 18) else 40 + i
        file.write_bytes(encoded(side, side, "420", seed=i))

    def make(container):
        folder = tmp_path / container
        convert(Convert(src=tmp_path / "source", dst=folder, format=container, workers="1"), Console(quiet=True))
        return folder

    return make


class OwnCrop(RandomResizedCrop):
    """A rule that compiled code does not know: its JPEGs are read in groups, and queued one by one."""


def compile_here(folder):
    """Compile what reads parts of files, which a loader's threads would do without."""
    dataset = open_dataset(folder)
    for scaling in (False, True, "low"):
        compile_for(ImageDecoder(RandomResizedCrop(size=12), dct_scaling=scaling), dataset, None)
    dataset.close()


def pixels_of(dataset, scaling, index=True):
    if not index:
        dataset.blocks = None
    decoder = ImageDecoder(RandomResizedCrop(size=12, scale=(0.1, 0.5)), dct_scaling=scaling)
    with Loader(dataset, decoder, LoaderConfig(batch_size=6, workers=1, order="sequential", on_error="fail")) as loader:
        return [batch.inputs.numpy().copy() for _ in range(3) for batch in loader]


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_batches_are_those_without_it(shards, container, monkeypatch):
    folder = shards(container)
    assert all((folder / name).is_file() for name in KEPT)
    compile_here(folder)
    dataset = open_dataset(folder)
    whole = set()
    read, read_group = dataset.read, dataset.read_group
    monkeypatch.setattr(dataset, "read", lambda i, *args: whole.add(i) or read(i, *args))
    monkeypatch.setattr(dataset, "read_group", lambda ids, *args: whole.update(ids) or read_group(ids, *args))
    (small,) = (i for i in range(6) if dataset.blocks.entry(i) is None)
    for scaling in (False, True, "low"):
        plain = pixels_of(open_dataset(folder), scaling, index=False)
        whole.clear()
        assert np.array_equal(plain, pixels_of(dataset, scaling))
        assert small in whole
        assert scaling != "low" or whole == {small}  # of others images of whose rows most are decoded are read, too


@pytest.mark.parametrize("container", ["tar", "beton"])
@pytest.mark.parametrize("crop", [RandomResizedCrop(size=12, scale=(0.1, 0.5)), OwnCrop(size=12, scale=(0.1, 0.5))])
def test_images_that_are_read_whole_are_read_in_groups(mixed, container, crop, monkeypatch):
    """Small ones, and large ones of whose rows a crop needs most; the index is asked only for large ones."""
    folder = mixed(container)
    decoder, ids = ImageDecoder(crop), np.arange(40)
    filled = []
    for index in (True, False):
        dataset = open_dataset(folder)
        large_ones = dataset.blocks.places(ids)
        assert len(large_ones) == 3
        parts, asked, entry = [], [], dataset.blocks.entry
        start = dataset.read_start
        monkeypatch.setattr(dataset, "read_start", lambda i, *args: parts.append(i) or start(i, *args))  # noqa: B023
        monkeypatch.setattr(dataset.blocks, "entry", lambda i: asked.append(i) or entry(i))  # noqa: B023
        if not index:
            dataset.blocks = None
        out = np.zeros((40, 12, 12, 3), np.uint8)
        reader, scratch = SampleReader(dataset), Scratch()
        for epoch in range(4):
            assert not decoder.fill(reader, ids.tolist(), decoder.draw(0, epoch, ids), {"inputs": out}, scratch)
            filled.append(out.copy())
        assert reader.reads == 0
        assert set(asked) == (set(large_ones) if index else set())
        assert 4 * 37 <= reader.grouped < 4 * 40 if index else reader.grouped == 4 * 40
        assert set(parts) == (set(large_ones) if index else set())
    assert np.array_equal(filled[:4], filled[4:])


def test_views_are_read_in_groups(mixed):
    dataset = open_dataset(mixed("tar"))
    decoder, ids = ViewDecoder((View(crop=12, n=2),)), np.arange(40)
    reader = SampleReader(dataset)
    rows = {"inputs": np.zeros((40, 2, 12, 12, 3), np.uint8)}
    assert not decoder.fill(reader, ids.tolist(), decoder.draw(0, 0, ids), rows, Scratch())
    assert (reader.grouped, reader.reads) == (40, 0)


def test_a_photograph_of_which_a_part_cannot_be_read_fails_alone(mixed, monkeypatch):
    dataset = open_dataset(mixed("tar"))
    decoder, ids = ImageDecoder(RandomResizedCrop(size=12, scale=(0.1, 0.5))), np.arange(40)
    draws, rows = decoder.draw(0, 0, ids), {"inputs": np.zeros((40, 12, 12, 3), np.uint8)}
    _, lost, _ = dataset.blocks.places(ids)

    def lacking(index, *args):
        if index == lost:
            raise MemoryError
        return start(index, *args)

    start = dataset.read_start
    monkeypatch.setattr(dataset, "read_start", lacking)
    ((place, error),) = decoder.fill(SampleReader(dataset), ids.tolist(), draws, rows, Scratch())
    assert place == lost and isinstance(error, ImageError)
    assert not rows["inputs"][lost].any() and all(rows["inputs"][i].any() for i in ids if i != lost)


def test_read_ahead_asks_for_small_images_together(mixed, monkeypatch):
    dataset = open_dataset(mixed("tar"))
    large_ones = dataset.blocks.places(np.arange(40))
    asked, drawn = [], []
    monkeypatch.setattr(dataset, "will_need", lambda ids: asked.append(ids.tolist()))
    monkeypatch.setattr(dataset.blocks, "entry", lambda i: pytest.fail(f"{i} has no index"))
    decoder = ImageDecoder(RandomResizedCrop(size=12))
    small = np.setdiff1d(np.arange(40), large_ones)
    decoder.read_ahead(dataset, small, lambda ids: drawn.append(ids))
    assert asked == [small.tolist()] and not drawn


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_with_fields_images_are_read_whole(shards, container):
    folder = shards(container)
    made = []
    for index in (True, False):
        dataset = open_dataset(folder)
        if not index:
            dataset.blocks = None
        crop = RandomResizedCrop(size=12, scale=(0.02, 0.03))  # of few rows of tiles
        with Loader(dataset, crop=crop, fields=[], batch_size=6, workers=1, seed=1, on_error="fail") as loader:
            made.append([(batch.ids, batch.inputs.clone(), batch.boxes_of_crop.clone()) for batch in loader])
    for found, expected in zip(*made, strict=True):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_groups_that_are_read_for_fields_are_timed_and_can_be_cancelled(shards):
    dataset = open_dataset(shards("tar"))
    decoder = FieldsDecoder.of(ImageDecoder(RandomResizedCrop(size=12)), FieldSelection(names=[]), dataset)
    ids = np.arange(6)
    rows = {field.name: np.zeros((6, *field.shape), field.dtype) for field in decoder.fields}
    reader = SampleReader(dataset)
    assert decoder.fill(reader, ids.tolist(), decoder.draw(0, 0, ids), rows, Scratch()) == []
    assert reader.seconds > 0
    with pytest.raises(Cancelled):
        decoder.fill(SampleReader(dataset, lambda: True), ids.tolist(), decoder.draw(0, 0, ids), rows, Scratch())


@pytest.mark.parametrize("name", KEPT)
def test_it_is_made_again_where_it_is_missing_or_stale(shards, name):
    folder = shards("tar")
    made = (folder / name).read_bytes()
    for spoilt in (None, made[:100], made[:90] + bytes([made[90] ^ 1]) + made[91:]):
        (folder / name).unlink()
        if spoilt is not None:
            (folder / name).write_bytes(spoilt)
        dataset = open_dataset(folder)
        assert dataset.blocks.dc_images is not None and not dataset.notes
        assert (folder / name).read_bytes() == made
    assert sorted(path.name for path in folder.iterdir() if ".part" in path.name) == []


@pytest.mark.parametrize("name", KEPT)
def test_one_that_does_not_fit_is_noted(shards, name):
    folder = shards("tar")
    made = bytearray((folder / name).read_bytes())
    made[-2000:] = bytes(2000)  # of the last samples; only what is kept in memory has a checksum
    (folder / name).write_bytes(bytes(made))
    dataset = open_dataset(folder)
    if name == "train.ftil":  # otherwise crops at 1/8 would not read it
        dataset.blocks.dc_images = None
    for scaling in (True, "low"):
        assert np.array_equal(pixels_of(dataset, scaling), pixels_of(open_dataset(folder), scaling, index=False))
    (note,) = dataset.notes
    assert f"{name}: does not fit sample" in note


def test_without_images_at_an_eighth_crops_are_decoded(shards):
    folder = shards("tar")
    (folder / "train.fdci").unlink()
    (folder / "train.fdci").mkdir()  # so that no file can be put there, whoever runs this
    dataset = open_dataset(folder)
    assert dataset.blocks.dc_images is None and "no images at 1/8 can be kept" in dataset.notes[0]
    assert np.array_equal(pixels_of(dataset, "low"), pixels_of(open_dataset(folder), "low", index=False))


def open_in(folder):
    """How many descriptors of this process are of files in a folder."""
    numbers = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.path.exists(number) and os.readlink(number).startswith(f"{folder}/") for number in numbers)


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_closing_the_dataset_closes_what_is_kept(shards, container):
    folder = shards(container)
    dataset = open_dataset(folder)
    pixels_of(dataset, "low")
    assert open_in(folder) == 3
    dataset.close()
    assert open_in(folder) == 0


@pytest.mark.parametrize("replaced", [False, True])
def test_reading_opens_what_is_kept_again(shards, replaced):
    folder = shards("tar")
    dataset = open_dataset(folder)
    dataset.close()
    if replaced:  # by another one, which belongs to other entries
        for name in KEPT:
            (folder / name).rename(folder / f"earlier {name}")
            (folder / name).write_bytes((folder / f"earlier {name}").read_bytes())
    for scaling in (True, "low"):
        assert np.array_equal(pixels_of(dataset, scaling), pixels_of(open_dataset(folder), scaling, index=False))
    if not replaced:
        assert open_in(folder) >= 3 and not dataset.notes
    dataset.close()


def test_what_a_killed_process_left_is_removed(shards):
    folder = shards("tar")
    (folder / "train.ftil").unlink()
    left, held = folder / ".train.ftil.left.part", folder / ".train.ftil.held.part"
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    with held.open("wb") as file:
        os.utime(held, (0, 0))
        fcntl.flock(file, fcntl.LOCK_EX)  # as a process does that is making it
        assert open_dataset(folder).blocks is not None
    assert held.exists() and not left.exists()


def test_where_it_cannot_be_kept_images_are_read_whole(shards):
    folder = shards("tar")
    (folder / "train.ftil").unlink()
    (folder / "train.ftil").mkdir()  # so that no file can be put there, whoever runs this
    dataset = open_dataset(folder)
    assert dataset.blocks is None and "read whole" in dataset.notes[0]
    assert len(pixels_of(dataset, "low")) == 3


def test_of_many_it_is_not_made_by_the_way(shards, monkeypatch):
    monkeypatch.setattr(datasets, "MOST_AT_OPENING", SIDE * SIDE)
    folder = shards("tar")
    made = [(folder / name).read_bytes() for name in KEPT]  # converting makes both in any case
    (folder / "train.fdci").unlink()
    dataset = open_dataset(folder)
    (note,) = dataset.notes
    assert dataset.blocks.dc_images is None and "no images at 1/8 are kept: crops at 1/8 are decoded" in note
    (folder / "train.ftil").unlink()
    dataset = open_dataset(folder)
    (note,) = dataset.notes
    assert dataset.blocks is None and "5 large photographs of 0.0 gigapixels in all are read whole" in note
    assert not (folder / "train.ftil").exists()
    told = Console(file=io.StringIO(), width=200)
    assert verify(Verify(data=folder), Console(quiet=True), told) == 0
    assert "train: 5 large photographs: an index of 0.0 MB, 5 images at 1/8 of 0.0 MB" in told.file.getvalue()
    inspect_data(Inspect(data=folder, headers_only=True, no_pictures=True), told, told)
    assert told.file.getvalue().count("5 images at 1/8 of 0.0 MB") == 2
    assert [(folder / name).read_bytes() for name in KEPT] == made
    dataset = open_dataset(folder)
    assert dataset.blocks.dc_images is not None and not dataset.notes


def test_small_images_have_none(shards, monkeypatch):
    monkeypatch.setattr(block_index, "MIN_PIXELS", 10**9)
    folder = shards("tar")
    assert not (folder / "train.ftil").exists() and open_dataset(folder).blocks is None
    shutil.rmtree(folder)


@pytest.mark.parametrize("container", ["tar", "beton"])
@pytest.mark.parametrize("scaling", [False, True, "low"])
def test_what_crops_read_is_read_ahead(shards, container, scaling, monkeypatch):
    """Every byte that is read of large photographs was asked for, or is of those that are read whole."""
    folder = shards(container)
    compile_here(folder)
    dataset = open_dataset(folder)
    indexed = [i for i in range(6) if dataset.blocks.entry(i) is not None]
    asked, whole, read, partly = [], [], [], False
    monkeypatch.setattr(dataset, "will_need_parts", lambda *parts: asked.extend(zip(*map(list, parts), strict=True)))
    monkeypatch.setattr(dataset, "will_need", lambda ids: whole.extend(ids.tolist()))
    start, ranges = dataset.read_start, dataset.read_ranges
    monkeypatch.setattr(dataset, "read_start", lambda i, n, s: read.append((i, 0, n)) or start(i, n, s))
    monkeypatch.setattr(
        dataset, "read_ranges", lambda i, r, v: read.extend((i, begin, end) for begin, end in r) or ranges(i, r, v)
    )
    for size, scale in ((8, (0.02, 0.3)), (16, (0.1, 0.5))):
        decoder = ImageDecoder(RandomResizedCrop(size=size, scale=scale), dct_scaling=scaling)
        with Loader(dataset, decoder, LoaderConfig(batch_size=3, workers=1, seed=size)) as loader:
            for _ in range(3):
                asked.clear(), whole.clear(), read.clear()
                list(loader)
                assert set(whole) >= set(range(6)) - set(indexed)
                missing = [r for r in read if r[0] not in whole and not covered(r, asked)]
                assert not missing
                assert all(i in indexed for i, _, _ in asked)
                partly |= len(set(whole)) < 6
    assert partly


def test_a_message_before_waiting_for_a_compilation(shards, monkeypatch):
    dataset = open_dataset(shards("tar"))
    called = []
    for name in ("crop_known", "crop_planes"):
        kernel = getattr(large, name)
        monkeypatch.setattr(large, name, lambda *args, kernel=kernel: called.append(kernel) or kernel(*args))
    monkeypatch.setattr(large, "is_kept", lambda function: True)
    assert not large.will_compile_large(dataset)
    monkeypatch.setattr(large, "is_kept", lambda function: False)
    assert large.will_compile_large(dataset)
    large.compile_large(dataset)
    assert len(set(called)) == 2
    dataset.blocks = None
    assert not large.will_compile_large(dataset)


def covered(part, asked):
    index, begin, end = part
    return any(i == index and first <= max(begin - 2, 0) and end <= last for i, first, last in asked)
