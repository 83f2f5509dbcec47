"""Masks in compiled calls: the rows that Pillow and NumPy make of them."""

from dataclasses import replace

import numpy as np
import pytest

from fastimg.loaders import CenterCrop, FieldsDecoder, FieldSelection, ImageDecoder, Letterbox, RandomResizedCrop
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.crop import RandomCrop
from fastimg.loaders.decode import read_header
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders import fields
from fastimg.loaders.decoders.mask_queue import MaskQueue
from fastimg.loaders.decoders.picture_queue import find_sizes
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.loaders.pictures.grouped_png import group_rows
from fastimg.loaders.pictures.record import new_picture
from fastimg.loaders.runtime.scratch import Scratch, address_of

from .picture_files import KINDS, bmp, png, ppm
from .test_picture_queue import odd_files

CROPS = (
    *(RandomResizedCrop(size=size, scale=(0.05, 1)) for size in (5, 40, (90, 17))),
    CenterCrop(size=16, resize=16),
    CenterCrop(size=(20, 30), resize=(20, 30)),
    RandomCrop(size=24, padding=6),
    Letterbox(size=40),
)


class Masked(FilesDataset):
    """Images in memory, all of them gray, with a mask each."""

    fields = None
    masks = ()

    def read_field(self, name, index):
        return self.masks[index]


@pytest.fixture
def masked(tmp_path):
    """Makes a dataset of masks and the sizes of their images."""

    def make(masks, sizes, dtype):
        rng = np.random.default_rng(0)
        names = []
        for number, (width, height) in enumerate(sizes):
            names.append(f"{number:03}.png")
            (tmp_path / names[-1]).write_bytes(png(rng, width, height, 0, 8))
        dataset = Masked(tmp_path, names, ["a"], [0] * len(names))
        dataset.fields = {"mask": StoredField(name="mask", kind="image", dtype=dtype, geometry="mask")}
        dataset.masks = masks
        return dataset

    return make


def filled(dataset, crop, compiled, epoch=0):
    """The rows of the masks, what failed, and how many masks Pillow decoded."""
    decoder = FieldsDecoder.of(ImageDecoder(crop), FieldSelection(names=["mask"]), dataset)
    decoder = replace(decoder, images=replace(decoder.images, compiled=compiled))
    count = len(dataset)
    rows = {field.name: np.full((count, *field.shape), 77, field.dtype) for field in decoder.fields}
    draws = decoder.draw(1, epoch, np.arange(count))
    others = []
    with pytest.MonkeyPatch.context() as patch:
        own = fields._put_mask
        patch.setattr(fields, "_put_mask", lambda *args: (others.append(args), own(*args)))
        failures = decoder.fill(SampleReader(dataset), list(range(count)), draws, rows, Scratch())
    return rows["mask"], sorted((place, str(error)) for place, error in failures), len(others)


def assert_as_pillow(dataset, crop, epoch=0):
    """The rows of both paths are the same; returns what failed, and what was left to Pillow."""
    rows, failures, others = filled(dataset, crop, True, epoch)
    expected, told, _ = filled(dataset, crop, False, epoch)
    assert failures == told
    kept = np.setdiff1d(np.arange(len(dataset)), [place for place, _ in failures])
    np.testing.assert_array_equal(rows[kept], expected[kept])
    return failures, others


@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_every_kind_of_pixels(colour, depth, masked):
    rng = np.random.default_rng(colour * 100 + depth)
    sizes = [*((w, h) for w in (1, 2, 3, 17) for h in (1, 4, 9)), *rng.integers(1, 70, (40, 2)).tolist()]
    masks = [png(rng, w, h, colour, depth, smooth=i % 2 == 0, parts=1 + i % 3) for i, (w, h) in enumerate(sizes)]
    taken = colour in (0, 3)
    for dtype in ("uint8", "uint16"):
        dataset = masked(masks, sizes, dtype)
        for epoch, crop in enumerate(CROPS):
            failures, others = assert_as_pillow(dataset, crop, epoch)
            fits = taken and (depth < 16 or dtype == "uint16")
            assert len(failures) == (0 if fits else len(sizes))
            assert others == (0 if fits else len(sizes))


def test_rows_in_groups(masked):
    rng = np.random.default_rng(1)
    masks = [group_rows(png(rng, 90, 120, colour, 8, smooth=True), 16, 10).png for colour in (0, 3)]
    for epoch in range(4):
        dataset = masked(masks, [(90, 120)] * 2, "uint8")
        assert assert_as_pillow(dataset, RandomResizedCrop(size=20, scale=(0.05, 0.3)), epoch) == ([], 0)


def test_odd_files_are_as_pillow_has_them(masked):
    odd = [*odd_files().values(), b"", bmp(np.random.default_rng(0), 20, 30, 8)]
    rng = np.random.default_rng(2)
    cut, late = png(rng, 20, 30, 0, 8, smooth=True), bytearray(png(rng, 20, 30, 3, 8, parts=5))
    late[-40] ^= 1
    masks = [*odd, cut[:-30], cut[:-200], bytes(late), png(rng, 20, 30, 3, 4, colours=3)]
    dataset = masked(masks, [(20, 30)] * len(masks), "uint8")
    failed = set()
    for epoch in range(6):
        failures, _ = assert_as_pillow(dataset, RandomResizedCrop(size=9, scale=(0.05, 0.3)), epoch)
        failed.add(len(failures))
    assert len(failed) > 1  # what is damaged below a crop does not count


def test_a_mask_of_another_size_is_refused(masked):
    rng = np.random.default_rng(3)
    dataset = masked([png(rng, 20, 30, 0, 8), png(rng, 30, 20, 0, 8)], [(20, 30)] * 2, "uint8")
    failures, _ = assert_as_pillow(dataset, CROPS[0])
    assert failures == [(1, "mask: 30 x 20 pixels; the image has 20 x 30")]


def test_crops_beyond_the_image_are_left_to_others(masked):
    class Beyond(CenterCrop):
        def window(self, width, height, draws):
            return super().window(width, height, draws)._replace(box=(3, 3, width, height))

    rng = np.random.default_rng(4)
    dataset = masked([png(rng, 20, 30, 0, 8)], [(20, 30)], "uint8")
    others = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "_put_mask", lambda *args: others.append(args))
        filled(dataset, Beyond(size=8, resize=8), True)
    assert others


def test_many_masks_are_decoded_as_they_come(masked, monkeypatch):
    monkeypatch.setattr("fastimg.loaders.decoders.mask_queue._ENOUGH", 1)
    rng = np.random.default_rng(5)
    dataset = masked([png(rng, 20, 30, 0, 8) for _ in range(70)], [(20, 30)] * 70, "uint8")
    assert assert_as_pillow(dataset, CROPS[0]) == ([], 0)
    queue = MaskQueue()
    assert not queue.full and queue.run(Scratch()) == []


def test_sizes_are_those_of_headers():
    rng = np.random.default_rng(6)
    odd = odd_files()
    del odd["profile that inflates to 2 MiB"]  # refused when it is decoded
    files = [*odd.values(), *(png(rng, 9, 5, *kind) for kind in KINDS), bmp(rng, 7, 8), ppm(rng, 3, 4), b""]
    files += [bmp(rng, 7, 8, down=True), ppm(rng, 3, 4, gray=True)]
    spans = np.array([(address_of(np.frombuffer(data or b"-", np.uint8)), len(data)) for data in files])
    sizes = np.full((len(files), 2), 7)
    find_sizes(spans, new_picture(), 600, sizes)
    assert (sizes[:, 0] > 0).sum() > len(KINDS) + 10
    for data, size in zip(files, sizes.tolist(), strict=True):
        assert size == [0, 0] or tuple(size) == read_header(data, 600).size
