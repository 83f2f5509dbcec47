"""A loader changes its image size: the same boxes, memory and workers, and the bits of a loader made with that size."""

import contextlib
import dataclasses
import io
import multiprocessing
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from fastimg.loaders import CenterCrop, FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
from fastimg.loaders.batch import Field
from fastimg.loaders.crop import Window, sized
from fastimg.loaders.decoder import Decoder
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.random import uniforms

N, LARGE = 14, 48
RANDOM, CENTRE = RandomResizedCrop(size=LARGE), CenterCrop(size=LARGE, resize=55)
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left")


def encoded(seed, size, kind="JPEG"):
    small = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def files(tmp_path):
    """Tiled JPEGs, ordinary ones, PNGs, and a broken one."""
    for i in range(N):
        content = encoded(i, (90 + 20 * i, 300 - 15 * i), "PNG" if i % 5 == 4 else "JPEG")
        content = tile(content).jpeg if i % 5 < 3 else content
        (tmp_path / f"{i:02d}.img").write_bytes(b"nothing" if i == 8 else content)
    return FilesDataset(tmp_path, [f"{i:02d}.img" for i in range(N)], ("a", "b"), [i % 2 for i in range(N)])


@pytest.fixture
def read_alone(open_loader, read):
    """An epoch of a loader made with the crop."""

    def run(dataset, crop, epoch, backend="native", **options):
        with contextlib.closing(open_loader(backend, dataset, crop, **options)) as loader:
            loader.set_epoch(epoch)
            return read(loader)

    return run


# Crops


@pytest.mark.parametrize("crop", [RANDOM, CENTRE], ids=["random", "centre"])
def test_boxes_do_not_depend_on_the_size(crop):
    for draws in uniforms(1, 0, np.arange(50), 1, 22).tolist():
        for width, height in ((500, 375), (60, 400), (31, 30)):
            boxes = {sized(crop, size).window(width, height, draws).box for size in (16, 17, 32, LARGE)}
            assert len(boxes) == 1


def test_a_centre_crop_keeps_its_share_of_the_image():
    crop = CenterCrop(size=224, resize=256, interpolation="bicubic")
    assert sized(crop, 160) == CenterCrop(size=160, resize=183, interpolation="bicubic")
    whole = CenterCrop(size=224, resize=224)
    assert all(sized(whole, size).resize == size for size in range(1, 225))
    assert sized(crop, 224) is crop


# The native loader


def idents():
    return {t.ident for t in threading.enumerate() if t.name.startswith("fastimg-loader")}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("crop", [RANDOM, CENTRE], ids=["random", "centre"])
def test_batches_equal_those_of_a_loader_with_that_size(files, crop, workers, open_loader, read, read_alone):
    loader = open_loader("native", files, crop, workers=workers)
    threads, before = None, [slot.buffer.data_ptr() for slot in loader._slots]
    memory = loader.slot_bytes
    for epoch, size in enumerate((LARGE, 16, 33, 16, LARGE)):
        loader.set_size(size)
        got = read(loader)
        assert got == read_alone(files, sized(crop, size), epoch) and len(got[0].inputs) == 4 * 3 * size * size
        threads = threads or idents()
        assert idents() == threads and len(threads) == workers
    assert [slot.buffer.data_ptr() for slot in loader._slots] == before and loader.slot_bytes == memory
    assert memory == sum(slot.buffer.numel() for slot in loader._slots) // len(loader._slots)
    assert list(loader.unreadable) == [8]
    loader.close()


def test_dct_scaling_follows_the_size(files, read):
    crop = RandomResizedCrop(size=LARGE, scale=(0.8, 1.0))
    decoder = ImageDecoder(crop, dct_scaling=True)
    config = LoaderConfig(batch_size=N, workers=1)
    with Loader(files, decoder, config) as loader:
        loader.set_size(20)
        got = read(loader)
    for scaling, equal in ((True, True), (False, False)):
        with Loader(files, dataclasses.replace(decoder, crop=sized(crop, 20), dct_scaling=scaling), config) as alone:
            assert (got == read(alone)) == equal


def test_a_size_set_during_an_epoch_applies_to_the_next(files, open_loader, read_alone, frozen, read):
    loader, alone = (
        open_loader("native", files, RANDOM),
        [read_alone(files, sized(RANDOM, size), epoch) for epoch, size in ((0, 48), (1, 20))],
    )
    batches = iter(loader)
    got = [frozen(next(batches))]
    loader.set_size(20)
    assert got + [frozen(batch) for batch in batches] == alone[0]
    assert read(loader) == alone[1]
    loader.close()


def test_a_size_set_after_an_abandoned_epoch(files, open_loader, frozen, read_alone, read):
    loader = open_loader("native", files, RANDOM)
    for epoch, size in enumerate((20, LARGE, 20, LARGE)):
        loader.set_size(size)
        left = iter(loader)
        assert frozen(next(left)) == read_alone(files, sized(RANDOM, size), epoch)[0]
    loader.set_size(16)
    other = iter(loader)
    next(other)
    with pytest.raises(RuntimeError, match="this iteration is over"):
        next(left)
    assert [next(other).inputs.shape[2] for _ in range(3)] == [16] * 3
    loader.close()
    assert read(loader) == read_alone(files, sized(RANDOM, 16), 5)  # new threads, the same size
    loader.close()


@pytest.mark.parametrize("crop", [RANDOM, CENTRE], ids=["random", "centre"])
def test_sizes_may_grow(crop, files, open_loader, read, read_alone):
    """From the smallest on; memory and threads are new only for an epoch of larger images than any before."""
    small = sized(crop, 16)
    loader = open_loader("native", files, small)
    largest = []
    for epoch, size in enumerate((16, LARGE, 16, LARGE)):
        loader.set_size(size)
        assert read(loader) == read_alone(files, sized(small, size), epoch)
        largest.append([slot.buffer.data_ptr() for slot in loader._slots])
    assert largest[1] == largest[2] == largest[3]
    assert loader.slot_bytes == loader._slots[0].buffer.numel()
    batches = iter(loader)
    next(batches)
    loader.set_size(2 * LARGE)
    assert next(batches).inputs.shape[2] == LARGE  # of this epoch
    assert next(iter(loader)).inputs.shape[2] == 2 * LARGE
    with pytest.raises(RuntimeError, match="this iteration is over"):
        list(batches)
    loader.close()


@pytest.mark.parametrize("backend", ["native", "torch", "synthetic"])
def test_invalid_sizes(files, backend, open_loader):
    words = {0: "give the side of a square", -3: "give the side of a square"}
    if backend != "native":
        words[LARGE + 1] = f"give at most {LARGE}, or make the loader with a larger crop"
    with contextlib.closing(open_loader(backend, files, RANDOM)) as loader:
        loader.set_size(20)
        for size, said in words.items():
            with pytest.raises(ValueError, match=f"size {size}: {said}"):
                loader.set_size(size)
        assert next(iter(loader)).inputs.shape[2:] == (20, 20)  # as before


class Corner:
    """A custom crop."""

    size, interpolation, draws = 8, "bilinear", 0

    def window(self, width, height, draws):
        return Window((0, 0, 16, 16), (8, 8), (0, 0))


class Black(Decoder):
    """A custom decoder."""

    fields = (Field("inputs", (1, 1, 3), np.dtype(np.uint8)),)

    def fill_row(self, data, draws, row, scratch):
        row["inputs"][...] = 0


def test_custom_crops_and_decoders_have_a_fixed_size(files, open_loader, read):
    for backend in ("native", "torch"):
        with contextlib.closing(open_loader(backend, files, Corner())) as loader:
            loader.set_size(8)
            assert next(iter(loader)).inputs.shape[2] == 8
            with pytest.raises(TypeError, match="Corner has one size; give a RandomResizedCrop or a CenterCrop"):
                loader.set_size(4)
    with Loader(files, Black(), LoaderConfig(batch_size=4)) as loader:
        assert len(read(loader)) == len(loader)
        with pytest.raises(TypeError, match="Black has one size; give a decoder with a method `sized`"):
            loader.set_size(1)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_states_do_not_contain_sizes(files, backend, open_loader, frozen, read, read_alone):
    states, got = [], []
    for size in (LARGE, 20):
        with contextlib.closing(open_loader(backend, files, RANDOM)) as loader:
            loader.set_size(size)
            batches = iter(loader)
            got = [frozen(next(batches)) for _ in range(2)]
            states.append(loader.state_dict())
    assert states[0] == states[1]
    rest = open_loader(backend, files, RANDOM, workers=1)
    rest.load_state_dict(states[0])
    rest.set_size(20)
    assert got + read(rest) == read_alone(files, sized(RANDOM, 20), 0, backend=backend)
    rest.close()


# The others


def test_torchs_processes_are_kept(files, open_loader, read, read_alone):
    processes = None
    with contextlib.closing(open_loader("torch", files, RANDOM)) as loader:
        for epoch, size in enumerate((LARGE, 16, LARGE)):
            loader.set_size(size)
            assert read(loader) == read_alone(files, sized(RANDOM, size), epoch, backend="torch", workers=1)
            processes = processes or {child.pid for child in multiprocessing.active_children()}
            assert {child.pid for child in multiprocessing.active_children()} == processes
        batches = iter(loader)
        first = next(batches).inputs.shape
        loader.set_size(16)
        assert {batch.inputs.shape for batch in batches} == {first}
        assert {batch.inputs.shape[2] for batch in loader} == {16}


def test_synthetic_pixels_of_a_size(files, open_loader):
    with contextlib.closing(open_loader("synthetic", files, RANDOM, order="sequential")) as loader:
        places = set()
        for size in (LARGE, 16, LARGE, 20):
            loader.set_size(size)
            batches = list(loader)
            for batch in batches:
                assert batch.inputs.shape == (4, 3, size, size)
                assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
            places.add(batches[0].inputs.data_ptr())
            assert batches[0].inputs.unique().numel() == 256 and not batches[-1].inputs[2:].any()
        assert len(places) == 1
