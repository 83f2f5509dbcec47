"""Images that stay on the device: the native loader's batches, bit for bit, and every image is read only once.

Triton decides on import whether to interpret kernels, so `TestInterpreted` runs in its own process.
"""

import contextlib
import importlib.util
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from fastimg.loaders import (
    CenterCrop,
    DataError,
    FilesDataset,
    ImageDecoder,
    LoaderConfig,
    RandomCrop,
    RandomResizedCrop,
)
from fastimg.loaders.backends import cuts, resident
from fastimg.loaders.backends.resident import ResidentImages, ResidentLoader
from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.crop import shape_of
from fastimg.loaders.resample import resample

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
N = 23
CROPS = {
    "padded": RandomCrop(size=32, padding=4),
    "widest padding": RandomCrop(size=(24, 28), padding=23),
    "unpadded": RandomCrop(size=20, padding=0, interpolation="bicubic"),
    "centre": CenterCrop(size=32, resize=36),
    "resized": RandomResizedCrop(size=32),
    "resized rectangle": RandomResizedCrop(size=(16, 24), interpolation="bicubic"),
}
pytestmark = pytest.mark.usefixtures("watchdog")


def write(folder, sizes):
    names = []
    for i, (width, height) in enumerate(sizes):
        pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
        names.append(f"{i:02d}.{'png' if i % 3 else 'jpg'}")
        Image.fromarray(pixels).save(folder / names[-1])
    return FilesDataset(folder, names, ("a", "b"), [i % 2 for i in range(len(names))])


@pytest.fixture
def files(tmp_path):
    """PNGs and JPEGs of several shapes, every other one of 32 x 32 pixels, and one rotated by EXIF."""
    dataset = write(tmp_path, [(32, 32) if i % 2 else (30 + 3 * i, 50 - i) for i in range(N)])
    with Image.open(tmp_path / "00.jpg") as image:
        turned = Image.Exif()
        turned[0x0112] = 6
        image.save(tmp_path / "00.jpg", exif=turned)
    return dataset


@pytest.mark.parametrize("name", CROPS)
@pytest.mark.parametrize(
    "options",
    [{}, {"order": "sequential"}, {"rank": 1, "world_size": 2, "seed": 3}, {"order": "sequential", "batch_size": 50}],
    ids=["random", "sequential", "rank", "padding"],
)
def test_batches_are_the_native_loaders(files, name, options, open_loader, read_pixels, plain):
    part = np.array([4, 3, 22, 0, 17, 9, 12, 1, 20])
    native = open_loader("native", files, CROPS[name], part, **options)
    kept = open_loader("resident", files, CROPS[name], part, **options)
    seen = []
    for _ in range(3):
        expected, got = read_pixels(native), read_pixels(kept)
        assert plain(got) == plain(expected) and len(got) == len(kept)
        assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(expected, got, strict=True))
        seen.append(torch.cat([batch.pixels for batch in got]))
    if options.get("order") == "sequential":
        assert torch.equal(seen[0], seen[1]) == (CROPS[name].draws == 0)  # every epoch has new draws
    native.close()
    kept.close()


@pytest.mark.parametrize("name", CROPS)
@pytest.mark.parametrize("alike", [True, False])
def test_stored_pixels_are_the_native_loaders(name, alike, tmp_path, open_loader, read_pixels):
    rng = np.random.default_rng(0)
    path = tmp_path / "stored.beton"
    with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, N) as beton:
        for i in range(N):
            height, width = (32, 40) if alike else rng.integers(20, 60, 2)
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            beton.add({"image": simplejpeg.encode_jpeg(pixels) if i % 7 == 3 else pixels, "label": i % 2})
    dataset = BetonDataset(path)
    expected = read_pixels(open_loader("native", dataset, CROPS[name]))
    got = read_pixels(open_loader("resident", dataset, CROPS[name]))
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(expected, got, strict=True))


def test_batches_are_channels_last_and_typed(files, open_loader):
    for crop in CROPS.values():
        with contextlib.closing(open_loader("resident", files, crop)) as loader:
            batch = next(iter(loader))
            assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
            assert batch.inputs.shape == (4, 3, *shape_of(crop)) and batch.inputs.dtype == torch.uint8


def test_states_are_exchangeable_with_the_native_loader(files, open_loader, read_pixels):
    crop = CROPS["padded"]
    expected = read_pixels(open_loader("native", files, crop))
    for first, second in (("native", "resident"), ("resident", "native"), ("resident", "resident")):
        begun = open_loader(first, files, crop)
        batches = iter(begun)
        head = [next(batches).ids.tolist() for _ in range(2)]
        rest = open_loader(second, files, crop)
        rest.load_state_dict(begun.state_dict())
        tail = read_pixels(rest)
        assert head + [batch.ids for batch in tail] == [batch.ids for batch in expected]
        assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(tail, expected[2:], strict=True))
        begun.close()
        rest.close()


def test_files_are_read_once(files, open_loader, read_pixels):
    """The sizes of all images are read first, then their pixels; after that the files are not needed."""
    loader = open_loader("resident", files, CROPS["padded"])
    first = read_pixels(loader)
    for index in range(N):
        Path(files.sample_name(index)).unlink()
    loader.set_epoch(0)
    again = read_pixels(loader)
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(first, again, strict=True)) and not loader.unreadable


@pytest.mark.parametrize("name", ["padded", "centre", "resized"])
def test_undecodable_images_are_left_out_and_named(files, name, open_loader, read_pixels, plain):
    Path(files.sample_name(4)).write_bytes(b"no image")
    whole = Path(files.sample_name(7)).read_bytes()
    Path(files.sample_name(7)).write_bytes(whole[: len(whole) // 2])  # its header is valid
    native, kept = (open_loader(backend, files, CROPS[name]) for backend in ("native", "resident"))
    expected, got = read_pixels(native), read_pixels(kept)
    assert plain(got) == plain(expected) and kept.unreadable == native.unreadable and sorted(kept.unreadable) == [4, 7]
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(expected, got, strict=True))
    with pytest.raises(DataError, match=r"repair or remove it, or use on_error=skip"):
        read_pixels(open_loader("resident", files, CROPS[name], on_error="fail"))


def test_only_unreadable_images(tmp_path, open_loader, read_pixels):
    dataset = write(tmp_path, [(8, 8)] * 3)
    for index in range(3):
        Path(dataset.sample_name(index)).write_bytes(b"no image")
    for crop in CROPS.values():
        (batch,) = read_pixels(open_loader("resident", dataset, crop))
        assert batch.samples == 0 and not batch.pixels.any()


def test_an_image_that_grows_while_it_is_read_ends_the_reading(files):
    images = ResidentImages(files, CROPS["resized"])
    Image.new("RGB", (99, 99)).save(files.sample_name(5))
    with pytest.raises(DataError, match="changed while it was read"):
        images.load()


def test_it_reports_its_memory_before_it_decodes(files, monkeypatch):
    images = ResidentImages(files, CROPS["centre"])
    assert images.nbytes == N * 32 * 32 * 3 and images.pixels is None
    assert images.describe() == f"resident, {N} images, 0.1 MiB on cpu"
    padded = ResidentImages(files, CROPS["padded"])
    assert padded.nbytes == sum(3 * w * h for w, h in padded.sizes.tolist()) and (padded.sizes >= 32).all()
    assert len(padded.load()) == padded.nbytes // 3
    monkeypatch.setattr(ResidentImages, "_read", None)
    assert padded.load() is padded.pixels  # nothing is read again


def test_images_are_kept_for_one_crop(files):
    images = ResidentImages(files, CROPS["padded"])
    config = LoaderConfig(batch_size=4)
    with pytest.raises(ValueError, match="the images were kept for RandomCrop"):
        ResidentLoader(images, CROPS["centre"], config)
    with pytest.raises(TypeError, match="kept for crops of 32, which cannot change"):
        ResidentLoader(images, CROPS["padded"], config).set_size(24)


def test_whole_images_allow_smaller_crops_later(files, open_loader, read_pixels):
    batches = []
    for backend in ("native", "resident"):
        loader = open_loader(backend, files, CROPS["resized"])
        loader.set_size(20)
        batches.append(read_pixels(loader))
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(*batches, strict=True))


@pytest.mark.parametrize("name", ["padded", "widest padding", "unpadded", "centre"])
def test_what_a_gpu_cuts_is_what_the_cpu_cuts(files, name):
    """`cut` runs on any device, `cut_rows` only on the CPU. Their jobs are the crop's windows."""
    crop = CROPS[name]
    images = ResidentImages(files, crop)
    pixels = images.load()
    images.sizes[3] = 0  # as for an image that cannot be decoded
    ids = np.arange(N)
    draws = ImageDecoder(crop).draw(1, 2, ids)
    jobs = resident.jobs_of(images, ids, draws)
    if crop.draws:
        windows = [crop.window(w, h, d) for (w, h), d in zip(images.sizes.tolist(), draws.tolist(), strict=True) if w]
        assert jobs[jobs[:, 1] > 0, 3:].tolist() == [list(window.at) for window in windows]
    out = torch.zeros(N, *shape_of(crop), 3, dtype=torch.uint8)
    cuts.cut_rows(pixels.numpy(), jobs, out.numpy())
    found = cuts.cut(pixels, torch.from_numpy(jobs), shape_of(crop))
    assert torch.equal(found, out) and found.dtype == torch.uint8 and not found[3].any() and found[4].any()


@pytest.mark.parametrize("name", ["padded", "widest padding", "unpadded", "centre"])
@pytest.mark.parametrize("alike", [True, False], ids=["one size", "several"])
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_an_epoch_that_torch_cuts_is_the_compiled_one(tmp_path, files, name, alike, order, read_pixels, plain):
    """As on a GPU: images of one size by a table, others without. 23 images in batches of 2 are two stretches."""
    dataset = write(tmp_path, [(36, 36)] * N) if alike else files
    crop = CROPS[name]
    images = ResidentImages(dataset, crop)
    config = LoaderConfig(batch_size=2, order=order)
    loader, by_torch = ResidentLoader(images, crop, config), ResidentLoader(images, crop, config)
    by_torch._compiled = False
    for _ in range(2):
        expected, got = read_pixels(loader), read_pixels(by_torch)
        assert plain(got) == plain(expected) and len(got) == 12
        assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(expected, got, strict=True))
    assert (by_torch._table is not None) == (alike or name == "centre")


def test_a_table_that_would_be_too_large_is_not_made():
    assert cuts.shift_table((32, 32), (32, 32), 2).shape == (25, 1024)
    assert cuts.shift_table((256, 256), (224, 224), 0) is None


def test_an_image_that_cannot_be_read_has_no_table(tmp_path, read_pixels, plain):
    dataset = write(tmp_path, [(32, 32)] * N)
    Path(dataset.sample_name(4)).write_bytes(b"no image")
    images = ResidentImages(dataset, CROPS["padded"])
    loader, by_torch = (ResidentLoader(images, CROPS["padded"], LoaderConfig(batch_size=3)) for _ in range(2))
    by_torch._compiled = False
    expected, got = read_pixels(loader), read_pixels(by_torch)
    assert plain(got) == plain(expected) and by_torch._table is None and by_torch.unreadable.keys() == {4}
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(expected, got, strict=True))
    rows = [(batch.ids == 4, batch.weight == 0) for batch in by_torch]
    assert all(torch.equal(*row) for row in rows[:-1]) and any(unread.any() for unread, _ in rows)


def test_what_a_gpus_resize_takes_is_made_by_a_thread_one_batch_ahead(files, monkeypatch):
    made, one_more = [], threading.Semaphore(0)

    def record(images, numbers, windows, crop):
        made.append((threading.current_thread().name, numbers.tolist(), windows))
        one_more.release()

    monkeypatch.setattr(resident, "resize_jobs", record)  # gives None: nothing to resize
    crop = CROPS["resized"]
    loader = ResidentLoader(ResidentImages(files, crop), crop, LoaderConfig(batch_size=4, order="sequential"))
    loader._compiled = False
    batches = iter(loader)
    for step in range(1, 7):
        batch = next(batches)
        assert batch.ids.tolist()[: batch.samples] == list(range(4 * step - 4, min(4 * step, N)))
        for _ in range((step == 1) + (step < 6)):
            assert one_more.acquire(timeout=20)
        assert len(made) == min(step + 1, 6)
    assert next(batches, None) is None
    assert {thread for thread, *_ in made} == {"fastimg-loader-resident_0"}
    assert [number for _, numbers, _ in made for number in numbers] == list(range(N))
    draws = ImageDecoder(crop).draw(loader.config.seed, 0, np.arange(N)).tolist()
    sizes = ResidentImages(files, crop).sizes.tolist()
    assert [window for *_, windows in made for window in windows] == [
        crop.window(*size, row) for size, row in zip(sizes, draws, strict=True)
    ]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which torch brings on Linux")
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_what_a_resize_takes_is_made_at_once_as_one_by_one(files, interpolation):
    from fastimg.loaders.backends import ragged

    crop = RandomResizedCrop(size=11, interpolation=interpolation)
    images = ResidentImages(files, crop)
    begin = images.load().data_ptr()
    numbers = np.arange(N)[::-1].copy()
    draws = ImageDecoder(crop).draw(1, 2, numbers).tolist()
    windows = [crop.window(*size, row) for size, row in zip(images.sizes[numbers].tolist(), draws, strict=True)]
    windows[5] = None
    places, tables = resident.resize_jobs(images, numbers, windows, crop)
    for number, window, place, table in zip(numbers.tolist(), windows, places.tolist(), tables.numpy(), strict=True):
        alone = np.zeros_like(table)
        if window is None:
            assert place == [0] * 4 and not table.any()
            continue
        assert ragged.fill_table(window, 11, interpolation, alone)
        used = ragged.table_words(11, int(alone[:2].sum()))
        assert np.array_equal(table[:used], alone[:used])
        first, width = 3 * int(images.first[number]), int(images.sizes[number, 0])
        assert tuple(place) == ragged.place(begin + first, (3, 3 * width, 1), window.box, 1)
    assert resident.resize_jobs(images, numbers[:2], [None, None], crop) is None


def by_kernel(files, crop, device="cpu", count=N):
    """The windows of images, and of one that cannot be decoded, by Triton's kernel and by `resample`."""
    images = ResidentImages(files, crop, device)
    pixels = images.load()
    draws = ImageDecoder(crop).draw(1, 2, np.arange(count))
    sizes = images.sizes[:count].tolist()
    windows = [crop.window(w, h, d) for (w, h), d in zip(sizes, draws.tolist(), strict=True)]
    side = shape_of(crop)[0]
    out = torch.zeros(count + 2, side, side, 3, dtype=torch.uint8, device=device)  # two rows of padding
    resident.resize_on_device(resident.resize_jobs(images, np.arange(count), [*windows[:-1], None], crop), out)
    expected = np.zeros(out.shape, np.uint8)
    host = pixels.cpu().numpy()
    for row, window in enumerate(windows[:-1]):
        resample(images.image(host, row), window, crop.interpolation, expected[row])
    return out.cpu(), torch.from_numpy(expected)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which torch brings on Linux")
def test_the_kernel_under_tritons_interpreter(interpreted, compiled_decoder):
    interpreted(__file__, loops=True)


@pytest.mark.skipif(not INTERPRETED, reason="run by test_the_kernel_under_tritons_interpreter")
class TestInterpreted:
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    @pytest.mark.parametrize("size", [5, 7, 9, 12, 16])
    def test_random_boxes(self, files, size, interpolation):
        assert torch.equal(*by_kernel(files, RandomResizedCrop(size=size, interpolation=interpolation), count=4))

    def test_an_epoch(self, files, read_pixels, plain):
        crop = RandomResizedCrop(size=5)
        images = ResidentImages(files, crop, indices=np.array([7, 2, 4, 11, 1]))
        loader, by_kernel = (ResidentLoader(images, crop, LoaderConfig(batch_size=2)) for _ in range(2))
        by_kernel._compiled = False
        expected, got = read_pixels(loader), read_pixels(by_kernel)
        assert plain(got) == plain(expected) and len(got) == 3
        assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(expected, got, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda:
    @pytest.mark.parametrize("name", ["padded", "widest padding", "unpadded", "centre", "resized"])
    def test_batches_are_the_native_loaders(self, files, name):
        crop = CROPS[name]
        config = LoaderConfig(batch_size=4, workers=2)
        images = ResidentImages(files, crop, "cuda")
        expected = ResidentLoader(ResidentImages(files, crop), crop, config)
        found = ResidentLoader(images, crop, config)
        for _ in range(2):
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.inputs.device.type == ours.targets.device.type == ours.weight.device.type == "cuda"
                assert torch.equal(ours.inputs.cpu(), theirs.inputs) and torch.equal(ours.ids, theirs.ids)
                assert torch.equal(ours.targets.cpu(), theirs.targets)
        assert found.describe().endswith("on cuda")

    def test_the_kernel(self, files):
        assert torch.equal(*by_kernel(files, RandomResizedCrop(size=32), "cuda"))

    def test_undecodable_images_are_black(self, files):
        Path(files.sample_name(4)).write_bytes(b"no image")
        for name in ("padded", "resized"):
            images = ResidentImages(files, CROPS[name], "cuda")
            batches = ResidentLoader(images, CROPS[name], LoaderConfig(batch_size=N, workers=2))
            (batch,) = list(batches)
            row = batch.ids.tolist().index(4)
            assert not batch.inputs[row].any() and batch.weight[row] == 0 and batch.samples == N - 1
