"""Every loader behind one interface: the same ids, weights and order as the native one, and nearly its pixels."""

import contextlib
import dataclasses
import gc
import importlib
import inspect
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import types
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastimg.loaders import (
    CenterCrop,
    DataError,
    FilesDataset,
    ImageDecoder,
    Loader,
    LoaderConfig,
    RandomResizedCrop,
    ShardError,
    WorkerError,
    open_dataset,
)
from fastimg.loaders.backends import selection as backends
from fastimg.loaders.backends import torch_loader
from fastimg.loaders.backends.selection import MissingBackend
from fastimg.loaders.crop import Window
from fastimg.loaders.extras import install

from ...backend_promises import CENTRE, RANDOM, SIZE, OfEveryBackend

N = 22
OURS = ("torch", "synthetic")  # dali and ffcv: tests/peers
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left")


@pytest.fixture
def files(tmp_path, encode):
    """JPEGs and PNGs of several sizes, one rotated by EXIF, one in CMYK, one gray."""
    names = []
    for i in range(N):
        kind = "PNG" if i % 4 == 3 else "JPEG"
        names.append(f"{i:02d}.{kind.lower()}")
        (tmp_path / names[-1]).write_bytes(encode((10 * i, 90, 200 - 5 * i), (40 + i, 60 - i), seed=i, kind=kind))
    with Image.open(tmp_path / names[0]) as image:
        turned = Image.Exif()
        turned[0x0112] = 6
        image.save(tmp_path / names[0], exif=turned)
    for name, mode in ((names[1], "CMYK"), (names[2], "L")):
        with Image.open(tmp_path / name) as image:
            image.convert(mode).save(tmp_path / name)
    return FilesDataset(tmp_path, names, ("a", "b", "c"), [i % 3 for i in range(N)])


def config(**options):
    return LoaderConfig(**({"batch_size": 4, "workers": 2} | options))


# A batch of two decoders


@pytest.fixture
def dali(monkeypatch):
    """The module of DALI's backend, beside a stand-in for DALI: what it does with DALI's images needs none."""
    name = "fastimg.loaders.backends.dali"
    stand_in = types.ModuleType("nvidia.dali")
    stand_in.Pipeline = stand_in.fn = None
    stand_in.types = types.SimpleNamespace(INTERP_LINEAR=0, INTERP_CUBIC=1)
    monkeypatch.setitem(sys.modules, "nvidia.dali", stand_in)
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    yield module
    sys.modules.pop(name)


def test_rows_of_dali_and_of_fastimg_go_to_the_device_without_a_wait(dali):
    """Row numbers, and all of fastimg's pixels together, go there by `_moved`: pinned, and not waited for."""
    by_dali, ours = torch.full((2, SIZE, SIZE, 3), 7, dtype=torch.uint8), np.full((SIZE, SIZE, 3), 9, np.uint8)
    rows = types.SimpleNamespace(ids=np.arange(6))
    read = dali._Read(rows, [], encoded={3: b"", 1: b""}, others={0: ours, 4: ours + 1})
    by_dali[1] = 8
    moved = []

    def record(tensor):
        moved.append(tensor)
        return tensor

    loader = types.SimpleNamespace(crop=CENTRE, device=torch.device("cpu"), _moved=record)
    whole = dali.DaliLoader._whole(loader, read, by_dali)
    assert whole[:, 0, 0, 0].tolist() == [9, 8, 0, 7, 10, 0] and (whole == whole[:, :1, :1, :1]).all()
    assert [tensor.tolist() if tensor.ndim == 1 else len(tensor) for tensor in moved] == [[3, 1], 2, [0, 4]]
    assert dali.DaliLoader._whole(loader, read, None)[:, 0, 0, 0].tolist() == [9, 0, 0, 0, 10, 0]


# The same batches


class TestEveryBackend(OfEveryBackend):
    @pytest.fixture(params=OURS)
    def backend(self, request):
        return request.param

    @pytest.fixture
    def data(self, files):
        return files

    @pytest.fixture
    def bound(self, backend):
        return {"torch": 0.05, "synthetic": None}[backend]


def test_batches_are_channels_last(files, open_loader):
    for backend in ("native", *OURS):
        with contextlib.closing(open_loader(backend, files)) as loader:
            batch = next(iter(loader))
            assert batch.inputs.shape == (4, 3, SIZE, SIZE)
            assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
            assert (batch.targets.dtype, batch.ids.dtype, batch.weight.dtype) == (
                *(torch.int64, torch.int64),
                torch.float32,
            )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_torch_shows_the_native_loaders_boxes_and_pixels(
    files, order, interpolation, open_loader, read_pixels, difference
):
    """Random boxes too: fastimg draws them. Pillow's libjpeg and fastimg's may differ by one level in places."""
    crop = dataclasses.replace(RANDOM if order == "random" else CENTRE, interpolation=interpolation)
    batches = []
    for backend in ("native", "torch"):
        with contextlib.closing(open_loader(backend, files, crop, order=order)) as loader:
            batches.append(read_pixels(loader) + read_pixels(loader))
    assert difference(*batches) <= 0.05
    other = [(*batch[:4], batch[4].flip(2)) for batch in batches[1]]
    assert difference(batches[0], other) > 1  # with these images a wrong box would be visible


@pytest.mark.parametrize("backend", ["native", "torch", "resident"])
def test_crops_of_the_first_epochs_in_turn(files, backend, open_loader):
    """With two crop epochs, epoch 2 has the crops of epoch 0 in an order of its own, and epoch 1 others."""
    with contextlib.closing(open_loader(backend, files, RANDOM, crop_epochs=2)) as loader:
        epochs = [
            [(int(i), x) for batch in loader for i, x in zip(batch.ids, batch.inputs.clone(), strict=True)]
            for _ in range(3)
        ]
    first, second, third = map(dict, epochs)
    assert [i for i, _ in epochs[0]] != [i for i, _ in epochs[2]]
    assert all(torch.equal(first[i], third[i]) for i in range(N))
    assert not any(torch.equal(first[i], second[i]) for i in range(N))


def test_crop_epochs_are_counted():
    with pytest.raises(ValueError, match="crop_epochs must be 1 or more"):
        LoaderConfig(batch_size=1, crop_epochs=0)


def test_torch_reads_a_part_of_the_data_and_shards(files, tmp_path, open_loader, read_pixels):
    part = np.array([3, 1, 20, 8, 5])
    with contextlib.closing(open_loader("torch", files, indices=part, order="sequential")) as loader:
        assert [
            i for batch in read_pixels(loader) for i, w in zip(batch[0], batch[2], strict=True) if w
        ] == part.tolist()


# Faults


def test_torch_leaves_out_undecodable_images(files, spoil, open_loader, read_pixels, plain, difference):
    spoil(files, 4)
    Path(files.sample_name(17)).unlink()
    native, other = open_loader("native", files, batch_size=5), open_loader("torch", files, batch_size=5)
    expected, got = read_pixels(native), read_pixels(other)
    assert plain(got) == plain(expected) and difference(expected, got) <= 0.05
    assert other.unreadable == native.unreadable and sorted(other.unreadable) == [4, 17]
    for ids, _, weight, _, pixels in got:
        for bad in {4, 17} & set(ids):
            assert weight[ids.index(bad)] == 0.0 and not pixels[ids.index(bad)].any()
    native.close()
    other.close()


def test_a_strict_run_on_torch_names_the_image(files, spoil, open_loader, read_pixels):
    path = spoil(files, 4)
    with contextlib.closing(open_loader("torch", files, on_error="fail")) as loader:
        with pytest.raises(DataError, match=f"^{path}: .*; repair or remove it, or use on_error=skip"):
            read_pixels(loader)
        path.write_bytes(Path(files.sample_name(5)).read_bytes())
        assert len(read_pixels(loader)) == len(loader)


class Cut(FilesDataset):
    """A dataset that fails the run when sample 9 is read."""

    def read(self, index, scratch):
        if index == 9:
            raise ShardError("train-0.tar: shrank while it was in use")
        return super().read(index, scratch)


class Deadly(FilesDataset):
    """A dataset that ends the process that reads sample 9."""

    def read(self, index, scratch):
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index, scratch)


class Buggy(FilesDataset):
    """A dataset with an internal error."""

    def read(self, index, scratch):
        raise KeyError("oops")


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (Cut, ShardError, "^train-0.tar: shrank while it was in use$"),
        (Deadly, WorkerError, "a worker process of torch's DataLoader failed: .*exited unexpectedly|failed: .*killed"),
        (Buggy, WorkerError, "a worker process of torch's DataLoader failed: (?s:.*)oops"),
    ],
)
def test_a_worker_that_dies_ends_the_run_with_a_message(files, kind, error, words, open_loader, read_pixels):
    dataset = kind(files._root, files.paths, files.classes, files.labels)
    with contextlib.closing(open_loader("torch", dataset)) as loader, pytest.raises(error, match=words):
        read_pixels(loader)


def test_torchs_processes_live_as_long_as_the_loader(files, open_loader, read_pixels):
    loader = open_loader("torch", files)
    read_pixels(loader)
    first = {child.pid for child in multiprocessing.active_children()}
    read_pixels(loader)
    assert {child.pid for child in multiprocessing.active_children()} == first and len(first) == 2
    loader.close()
    for child in multiprocessing.active_children():
        child.join(10)
    assert multiprocessing.active_children() == []
    assert len(read_pixels(loader)) == len(loader)  # like the native one, it starts again
    loader.close()


@pytest.mark.parametrize("early", [False, True])
def test_torchs_processes_heed_a_second_sigterm_alone(files, open_loader, monkeypatch, early):
    """`timeout` and batch systems send the signal to every process; a run needs its data until it has saved."""
    if early:  # before the process could report that it ignores it
        start = torch_loader._leave_signals_to_the_parent
        killed = lambda worker: (os.kill(os.getpid(), signal.SIGTERM), start(worker))  # noqa: E731
        monkeypatch.setattr(torch_loader, "_leave_signals_to_the_parent", killed)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with contextlib.closing(open_loader("torch", files)) as loader:
        batches = iter(loader)
        count = next(batches).samples
        workers = multiprocessing.active_children()
        for worker in workers if not early else ():
            os.kill(worker.pid, signal.SIGTERM)
        assert len(workers) == 2 and count + sum(batch.samples for batch in batches) == N
        with contextlib.suppress(RuntimeError):  # torch reports it, unless the parent reaps the process first
            while workers[0].is_alive():  # two signals that arrive before it runs again count as one
                os.kill(workers[0].pid, signal.SIGTERM)
                workers[0].join(0.1)
        assert workers[1].is_alive()
    assert multiprocessing.active_children() == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == held


@pytest.mark.parametrize("ended", ["", "raise SystemExit(3)"])
def test_a_loader_that_is_left_in_a_global_lets_the_interpreter_end(image_folder, python, ended):
    script = f"""
from fastimg.loaders import LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.backends.selection import open_source
data, config = open_dataset({str(image_folder)!r}), LoaderConfig(batch_size=4, workers=2)
loader = open_source("torch", data, RandomResizedCrop(size=16), config)
batches = iter(loader)
next(batches)
{ended}
"""
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (3 if ended else 0, "")


@pytest.mark.parametrize("backend", ["native", *OURS])
def test_batches_that_are_made_in_inference_mode_may_be_trained_on(files, backend, open_loader):
    """And read by a loader that was made there; the consumer stays in its mode."""
    with torch.inference_mode():
        loader = open_loader(backend, files)
        batches = iter(loader)
        first = next(batches)
        assert torch.is_inference_mode_enabled()
    weights = torch.ones(3, requires_grad=True)
    for batch in (first, next(batches)):
        (batch.inputs.float().mean((2, 3)) * weights * batch.weight[:, None]).sum().backward()
        assert not any(tensor.is_inference() for tensor in (batch.inputs, batch.targets, batch.ids, batch.weight))
    assert weights.grad.any()
    loader.close()


def test_synthetic_reads_nothing(files, open_loader, read_pixels):
    dataset = Buggy(files._root, files.paths, files.classes, files.labels)
    loader = open_loader("synthetic", dataset, batch_size=8)
    batches = read_pixels(loader)
    assert all(torch.equal(batch[4], batches[0][4]) for batch in batches)
    levels = batches[0][4].float()
    assert 120 < levels.mean() < 135 and levels.min() == 0 and levels.max() == 255
    assert "nothing is read" in loader.describe()


# Missing backends and invalid arguments


def test_a_missing_backend_is_named_with_its_install_command(files, monkeypatch, open_loader):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    for backend, words in (("dali", install("dali")), ("ffcv", "libturbojpeg0-dev pkg-config")):
        with pytest.raises(MissingBackend, match=f"is not installed; .*{re.escape(words)}"):
            open_loader(backend, files)

    def no_nvidia(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(backends.importlib.util, "find_spec", no_nvidia)
    with pytest.raises(MissingBackend, match=r"nvidia\.dali is not installed"):
        open_loader("dali", files)


def test_ffcv_reads_only_betons(files, monkeypatch, open_loader):
    monkeypatch.setattr(backends, "check_installed", lambda backend: None)
    with pytest.raises(DataError, match=r"FFCV reads only \.beton files, and this is not one; convert"):
        open_loader("ffcv", files)


# The library's face


def test_a_path_is_enough(image_folder, read_pixels, plain, difference):
    dataset = open_dataset(image_folder)
    expected = Loader(dataset, ImageDecoder(RandomResizedCrop(size=20)), LoaderConfig(batch_size=5, seed=3, workers=2))
    with Loader(str(image_folder), batch_size=5, crop=20, seed=3, workers=2) as loader:
        assert len(loader) == len(expected) == 8
        ours, theirs = read_pixels(loader), read_pixels(expected)
        assert plain(ours) == plain(theirs) and difference(ours, theirs) == 0
    expected.close()


def test_a_crop_in_pixels_is_the_centre_where_the_order_is_sequential(image_folder, read_pixels, difference):
    dataset = open_dataset(image_folder)
    decoder = ImageDecoder(CenterCrop(size=28, resize=32))
    expected = read_pixels(Loader(dataset, decoder, LoaderConfig(batch_size=6, order="sequential")))
    for crop in (28, CenterCrop(size=28, resize=32)):
        with Loader(image_folder, batch_size=6, crop=crop, order="sequential") as loader:
            assert difference(read_pixels(loader), expected) == 0


class Corner:
    """A custom crop."""

    size, interpolation, draws = 8, "bilinear", 0

    def window(self, width, height, draws):
        return Window((0, 0, 16, 16), (8, 8), (0, 0))


def test_a_custom_crop_and_an_open_dataset(files, read_pixels):
    loader = Loader(files, batch_size=4, crop=Corner())
    assert next(iter(loader)).inputs.shape == (4, 3, 8, 8)
    loader.close()
    assert len(read_pixels(loader)) == len(loader)  # the dataset belongs to the caller, and stays open
    loader.close()


def test_a_split_is_opened_and_closed(trained_shards, read_pixels, open_files):
    gc.collect()
    before = open_files()
    loader = Loader(trained_shards, batch_size=4, crop=16, split="val", order="sequential")
    assert [i for batch in read_pixels(loader) for i in batch[0]] == list(range(len(loader.dataset)))
    loader.close()
    assert open_files() == before
    with pytest.raises(RuntimeError, match="the loader was closed, together with the data"):
        read_pixels(loader)
    forgotten = Loader(trained_shards, batch_size=4, crop=16)
    read_pixels(forgotten)
    assert open_files() != before
    del forgotten
    gc.collect()
    assert open_files() == before


@pytest.fixture
def trained_shards(tmp_path, encode):
    """Foreign tars, train and val."""
    import io
    import tarfile

    folder = tmp_path / "tars"
    folder.mkdir()
    for split, count in (("train", 9), ("val", 8)):
        with tarfile.open(folder / f"{split}-0.tar", "w") as archive:
            for i in range(count):
                for name, content in ((f"{i}.jpg", encode(seed=i)), (f"{i}.cls", b"%d" % (i % 2))):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 4}, "give crop, in pixels or as a crop object, or views, or a decoder"),
        ({"crop": 16}, "give batch_size, or a config"),
        ({"batchsize": 4, "crop": 16}, "unexpected keyword argument 'batchsize'"),
        (
            {"batch_size": 4, "crop": 16, "decoder": ImageDecoder(RANDOM)},
            "crop, views, max_pixels, channels and depth are the decoder's",
        ),
        ({"batch_size": 4, "crop": 16, "config": LoaderConfig(batch_size=4)}, "batch_size and a config were given"),
        ({"config": LoaderConfig(batch_size=4), "crop": 16, "seed": 1, "order": "sequential"}, "order, seed and a con"),
        ({"batch_size": 4, "crop": 16, "split": "val"}, "split='val' has no effect on a dataset that is open"),
    ],
)
def test_arguments_that_are_missing_unknown_or_contradict_each_other(files, arguments, words):
    with pytest.raises(TypeError, match=words):
        Loader(files, **arguments)


def test_invalid_values(files, tmp_path):
    with pytest.raises(ValueError, match="crop 0: give the side of a square in pixels, or"):
        Loader(files, batch_size=4, crop=0)
    with pytest.raises(DataError, match="no such folder"):
        Loader(tmp_path / "nowhere", batch_size=4, crop=16)


SAID_WITHIN = {"block", "window", "split", "cache_dir", "cache_limit", "storage_options"}  # the texts of others


def test_the_signature_is_that_of_the_config():
    """The output of `help(Loader)`: every field of LoaderConfig with its type and default, or None where it is open."""
    parameters, types = inspect.signature(Loader).parameters, typing.get_type_hints(Loader.__init__)
    stated = typing.get_type_hints(LoaderConfig)
    for field in dataclasses.fields(LoaderConfig):
        parameter = parameters[field.name]
        is_open = field.name in ("batch_size", "order", "block", "seed", "rank", "world_size")
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert types[field.name] == (stated[field.name] | None if is_open else stated[field.name])
        assert parameter.default == (None if is_open else field.default)
    names = [field.name for field in dataclasses.fields(LoaderConfig)]
    assert [name for name in parameters if name in names] == names
    catching = [name for name, each in parameters.items() if each.kind is inspect.Parameter.VAR_KEYWORD]
    assert [types[name] for name in catching] == [typing.Never]  # to refuse a DataLoader's, with what to give instead
    told = re.findall(r"^    ([a-z_, ]+):", inspect.getdoc(Loader).replace("\n", "\n    "), re.MULTILINE)
    assert {name for line in told for name in line.split(", ")} | SAID_WITHIN == {*parameters} - {*catching}


def test_every_keyword_reaches_the_config(files):
    """For each field, a value that is not the default; `sampling` goes with the random order alone."""
    other = {"batch_size": 3, "order": "sequential", "block": 2, "window": 9999, "together": 8, "padding": "zeros"}
    other |= {"seed": 5, "workers": 1, "prefetch": 4, "on_error": "fail", "rank": 1, "world_size": 2, "crop_epochs": 3}
    other |= {"drop_last": True}
    with Loader(files, crop=8, **other) as loader:
        assert dataclasses.asdict(loader.config) == other | {"sampling": None}


@pytest.mark.parametrize("crop", [(32, 48), [32, 48], np.array([32, 48]).tolist()])
def test_a_crop_of_height_and_width(files, crop, read_pixels, difference):
    for order, own in (
        ("random", RandomResizedCrop(size=(32, 48))),
        ("sequential", CenterCrop(size=(32, 48), resize=(37, 55))),
    ):
        with Loader(files, batch_size=4, crop=crop, order=order) as loader:
            ours = read_pixels(loader)
        with Loader(files, ImageDecoder(own), LoaderConfig(batch_size=4, order=order)) as loader:
            assert ours[0][4].shape == (4, 32, 48, 3) and difference(ours, read_pixels(loader)) == 0


def test_invalid_crops(files):
    for crop in ((32,), (32, 48, 3), (0, 48), 0, "a", 3.5):
        with pytest.raises(ValueError, match=r"crop .*: give the side of a square in pixels, or \(height, width\)"):
            Loader(files, batch_size=4, crop=crop)


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("crop", [RandomResizedCrop(size=(20, 30)), CenterCrop(size=(20, 30), resize=40)])
def test_rectangles_of_other_loaders(backend, crop, files, open_loader, read_pixels, difference):
    with contextlib.closing(open_loader("native", files, crop)) as loader:
        expected = read_pixels(loader)
    with contextlib.closing(open_loader(backend, files, crop)) as loader:
        got = read_pixels(loader)
        assert loader.slot_bytes in (0, 4 * (3 * 20 * 30 + 20))
        loader.set_size((10, 15))
        assert next(iter(loader)).inputs.shape == (4, 3, 10, 15)
    assert got[0][4].shape == expected[0][4].shape == (4, 20, 30, 3)
    assert backend == "synthetic" or difference(got, expected) < 1
