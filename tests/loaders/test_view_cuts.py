"""Several crops of PNG, BMP and PPM files and of stored pixels: the rows that Pillow and torch make of them."""

from dataclasses import replace

import numpy as np
import pytest
import simplejpeg
import torch

from fastimg.loaders import CenterCrop, Letterbox, View, ViewDecoder
from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.watch import FileWatch
from fastimg.loaders.crop import RandomCrop
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.errors import ShardError
from fastimg.loaders.pictures.grouped_png import group_rows
from fastimg.loaders.runtime import compiled
from fastimg.loaders.runtime.scratch import Scratch

from .picture_files import KINDS, bmp, png, ppm
from .test_picture_queue import TAKEN, odd_files

FEW = (View(crop=32, n=2, scale=(0.4, 1)), View(crop=(9, 12), n=3, scale=(0.05, 0.4), interpolation="bicubic"))
MANY = (
    *FEW,
    View(crop=CenterCrop(size=16, resize=16)),
    View(crop=CenterCrop(size=(20, 30), resize=(20, 30))),
    View(crop=RandomCrop(size=16, padding=4)),
)


def filled(decoder, dataset, epoch=0):
    """The rows, what failed, and how many images Pillow decoded."""
    count = len(dataset)
    rows = {field.name: np.full((count, *field.shape), 77, field.dtype) for field in decoder.fields}
    others = []
    with pytest.MonkeyPatch.context() as patch:
        own = ViewDecoder._decode
        patch.setattr(ViewDecoder, "_decode", lambda *args: (others.append(args[1]), own(*args))[1])
        draws = decoder.draw(1, epoch, np.arange(count))
        failures = decoder.fill(SampleReader(dataset), list(range(count)), draws, rows, Scratch())
    return rows, sorted((place, str(error)) for place, error in failures), len(others)


def assert_as_pillow(decoder, dataset, epoch=0):
    """The rows of both paths are the same; returns what failed, and what was left to Pillow."""
    rows, failures, others = filled(decoder, dataset, epoch)
    expected, told, _ = filled(replace(decoder, compiled=False), dataset, epoch)
    assert failures == told
    kept = np.setdiff1d(np.arange(len(dataset)), [place for place, _ in failures])
    for name, array in expected.items():
        assert torch.equal(torch.from_numpy(rows[name][kept]), torch.from_numpy(array[kept])), name
    return failures, others


@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_every_kind_of_pixels(colour, depth, folder):
    rng = np.random.default_rng(colour * 100 + depth)
    sizes = [*((w, h) for w in (1, 2, 17) for h in (1, 4, 9)), *rng.integers(1, 70, (30, 2)).tolist()]
    files = [png(rng, w, h, colour, depth, smooth=i % 2 == 0, parts=1 + i % 3) for i, (w, h) in enumerate(sizes)]
    dataset = folder(files)
    for channels in (3, 1):
        assert assert_as_pillow(ViewDecoder(FEW, channels=channels), dataset) == ([], 0)
        assert assert_as_pillow(ViewDecoder(MANY, channels=channels), dataset)[0] == []


def test_rows_in_groups_and_other_formats(folder):
    rng = np.random.default_rng(1)
    files = [group_rows(png(rng, 90, 120, colour, 8, smooth=True), 16, 10).png for colour in (0, 2, 3, 6)]
    for w, h in ((1, 1), (5, 30), (40, 33)):
        files += [
            bmp(rng, w, h),
            bmp(rng, w, h, 32, down=True),
            bmp(rng, w, h, 8),
            ppm(rng, w, h),
            ppm(rng, w, h, True),
        ]
    dataset = folder(files)
    for channels in (3, 1):
        for epoch in range(3):
            assert assert_as_pillow(ViewDecoder(FEW, channels=channels), dataset, epoch) == ([], 0)


@pytest.mark.parametrize("scale", [(0.02, 0.1), (0.4, 1)])
def test_odd_files_are_as_pillow_has_them(scale, folder):
    files = odd_files()
    dataset = folder(files.values())
    for epoch in range(3):
        views = (View(crop=8, n=2, scale=scale), View(crop=(5, 9), scale=(0.02, 0.05)))
        failures, others = assert_as_pillow(ViewDecoder(views), dataset, epoch)
        assert len(failures) > 20 and len(files) - others >= len(TAKEN)


def test_too_many_pixels_are_told_as_before(folder):
    rng = np.random.default_rng(2)
    dataset = folder([png(rng, 40, 40), png(rng, 20, 20), png(rng, 1, 500), bmp(rng, 60, 60)])
    crop = CenterCrop(size=8, resize=8)
    failures, _ = assert_as_pillow(ViewDecoder((View(crop=8), View(crop=crop)), max_pixels=1000), dataset)
    assert [place for place, _ in failures] == [0, 2, 3]


def test_other_rules_are_left_to_pillow(folder):
    dataset = folder([png(np.random.default_rng(3), 20, 20)])
    assert assert_as_pillow(ViewDecoder((View(crop=8), View(crop=Letterbox(size=8)))), dataset) == ([], 1)


def test_without_machine_code_the_batches_are_the_same(folder, build, monkeypatch):
    rng = np.random.default_rng(4)
    dataset = folder([png(rng, 30, 40) for _ in range(9)])

    def batches():
        with build(dataset, ViewDecoder(FEW), seed=1) as loader:
            return [view.clone() for batch in loader for view in batch.views]

    monkeypatch.setattr("fastimg.loaders.loader.compile_ahead", lambda *_: False)
    expected = batches()
    monkeypatch.setattr(compiled, "is_ready", lambda function: False)
    assert all(torch.equal(a, b) for a, b in zip(batches(), expected, strict=True))


@pytest.fixture
def stored(tmp_path):
    """Stored pixels of all sizes, some of them JPEGs."""
    rng = np.random.default_rng(5)
    shapes = [*((h, w) for h in (1, 2, 7, 32) for w in (1, 8, 32)), *rng.integers(1, 90, (40, 2)).tolist(), (300, 500)]
    path = tmp_path / "stored.beton"
    with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, len(shapes)) as beton:
        for number, (height, width) in enumerate(shapes):
            image = rng.integers(0, 256, (height, width, 3), np.uint8)
            beton.add({"image": simplejpeg.encode_jpeg(image) if number % 9 == 5 else image, "label": number % 3})
    return BetonDataset(path)


def test_stored_pixels(stored):
    for epoch in range(3):  # from the second on they are in memory
        for channels in (3, 1):
            assert assert_as_pillow(ViewDecoder(FEW, channels=channels), stored, epoch)[0] == []
            assert assert_as_pillow(ViewDecoder(MANY, channels=channels), stored, epoch)[0] == []
    assert ViewDecoder(FEW).cuts_pixels(stored) and not ViewDecoder((View(crop=Letterbox(size=8)),)).cuts_pixels(stored)
    failures, _ = assert_as_pillow(ViewDecoder(FEW, max_pixels=1024), stored)
    assert len(failures) > 5


def test_each_view_has_the_bits_of_its_crop_alone(stored):
    rows, _, _ = filled(ViewDecoder((View(crop=9), View(crop=32, n=2))), stored)
    alone, _, _ = filled(ViewDecoder((View(crop=9),)), stored)
    np.testing.assert_array_equal(rows["inputs"], alone["inputs"])


def test_a_file_that_shrinks_is_told(stored, monkeypatch):
    with stored.files()[0].open("r+b") as file:
        file.truncate(int(stored.reader.extents("image")[0][30]))
    with pytest.raises(ShardError, match="shrank"):
        filled(ViewDecoder(FEW), stored)
    monkeypatch.setattr(FileWatch, "read_group", lambda *_: None)  # which looks only from time to time
    rows, failures, _ = filled(ViewDecoder(FEW), stored)
    assert len(failures) == 1 and "shrank" in failures[0][1]
    pixels = [number for number in range(30) if number % 9 != 5]  # the JPEGs of a group are read after them
    assert (rows["inputs"][pixels] != 77).any(axis=(1, 2, 3, 4)).all()


def test_stored_pixels_need_nothing_else(tmp_path, monkeypatch):
    rng = np.random.default_rng(6)
    path = tmp_path / "alike.beton"
    with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, 30) as beton:
        for _ in range(30):
            beton.add({"image": rng.integers(0, 256, (12, 10, 3), np.uint8), "label": 0})
    monkeypatch.setattr(ViewDecoder, "_fill_group", lambda *_: pytest.fail("decoded"))
    for _ in range(3):
        filled(ViewDecoder(FEW), BetonDataset(path))
