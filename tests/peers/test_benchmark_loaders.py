"""The loaders that only `loaders.py` and `format_peers.py` of benchmarks compare: all images, of a shape, near ours.

Those of any format give the pixels of whole images, and crops with the mean of ours.
"""

import ctypes.util
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastimg.bench.peers.data import Sources, read_boxes, write_gradients
from fastimg.bench.peers.pipelines import PEERS as USUAL
from fastimg.bench.peers.pipelines import Workload, native

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SIZE, COUNT = 48, 20

sys.path.append(str(BENCHMARKS))  # stays, for the processes that loaders start
PEERS = importlib.import_module("loader_peers").PEERS
DECODERS = importlib.import_module("loader_peers.decoders")
BY_FORMAT = importlib.import_module("loader_peers.by_format").PEERS
FormatWork = importlib.import_module("loader_peers.format_work").FormatWork

TESTED = {one.open for one in USUAL.values()}  # in test_comparison.py
FURTHER = [name for name, peer in PEERS.items() if peer.open not in TESTED and peer.module != "ffcv"]
# Mean absolute differences from ours on 0-255: rounding where the decoder is libjpeg-turbo's and torchvision resizes.
# FFmpeg has an inverse DCT, colours and a resize of its own, and its crop begins at an even column and row.
BOUNDS = {"spdl": 6.0}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """20 smooth JPEGs in a folder."""
    root = tmp_path_factory.mktemp("loaders")
    for i in range(COUNT):
        drawn = np.random.default_rng(i).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(drawn).resize((90 + 5 * i, 200 - 3 * i), Image.Resampling.BICUBIC)
        image.save(root / f"{i:02d}.jpg", quality=92)
    return Sources(folder=root / "made", files=tuple(sorted(root.glob("*.jpg"))))


@pytest.fixture(autouse=True)
def threads():
    """Loaders set torch's threads for their process; here the process is the tests'."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _installed(name, peers=PEERS):
    """The peer, where its library is installed."""
    peer = peers[name]
    if not peer.installed():
        pytest.skip(f"{peer.module} is not installed: {peer.install}")
    if name == "spdl" and ctypes.util.find_library("avfilter") is None:
        pytest.skip("FFmpeg's libraries are not installed: benchmarks/README.md")
    return peer


def _images(peer, work):
    return np.concatenate([batch.permute(0, 2, 3, 1).numpy().copy() for batch in peer.open(work)()])


@pytest.mark.parametrize("name", FURTHER)
def test_images(name, sources):
    peer = _installed(name)
    if peer.make is not None:
        peer.make(sources)
    centre = Workload(sources=sources, crop="centre", batch_size=8, size=SIZE, workers=0)
    images = _images(peer, centre)
    assert images.shape == (COUNT, SIZE, SIZE, 3) and images.dtype == np.uint8
    ours = np.concatenate([batch.permute(0, 2, 3, 1).numpy().copy() for batch in native(centre)()])
    difference = np.abs(images.astype(np.int16) - ours).mean(axis=(1, 2, 3))
    assert difference.max() < BOUNDS.get(name, 0.5), difference


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FURTHER)
def test_random_crops(name, workers, tmp_path):
    peer = _installed(name)
    gradients = write_gradients(tmp_path / "drawn")
    sources = Sources(folder=tmp_path / "made", files=tuple(gradients * 16))
    if peer.make is not None:
        peer.make(sources)
    batches = peer.open(Workload(sources=sources, crop="random", batch_size=16, size=SIZE, workers=workers))
    epochs = [torch.cat([batch.clone() for batch in batches()]) for _ in range(2)]
    assert [tuple(epoch.shape) for epoch in epochs] == [(48, 3, SIZE, SIZE)] * 2
    assert not torch.equal(*epochs)
    area, _, _, _, mirrored = read_boxes(epochs[0].permute(0, 2, 3, 1).numpy()).T
    assert 0.04 < area.min() < 0.35 < area.max() <= 1.1  # of 48 from 0.08 to 1
    assert 0.2 < mirrored.mean() < 0.8


@pytest.mark.parametrize("name", list(DECODERS.DECODERS))
def test_decoders(name, sources):
    module, decode = DECODERS.DECODERS[name]
    pytest.importorskip(module)
    try:
        image = DECODERS.pixels(decode(sources.files[0]))
    except RuntimeError as error:  # it binds a library of the system's
        pytest.skip(f"{name}: {str(error).strip().splitlines()[0]}")
    expected = DECODERS.pixels(DECODERS.pillow(sources.files[0]))
    assert image.shape == expected.shape and image.dtype == torch.uint8
    assert (image.int() - expected.int()).abs().float().mean() < 1


@pytest.fixture
def squares(tmp_path):
    """20 BMPs of SIZE x SIZE in a folder."""
    (tmp_path / "files").mkdir()
    for i in range(COUNT):
        drawn = np.random.default_rng(i).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(drawn).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        image.save(tmp_path / "files" / f"{i:02d}.bmp")
    return Sources(folder=tmp_path / "made", files=tuple(sorted((tmp_path / "files").iterdir())))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", BY_FORMAT)
def test_images_of_any_format(name, whole, squares, monkeypatch):
    peer = _installed(name, BY_FORMAT)
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: None)  # it is the tests' process
    if peer.make is not None:
        peer.make(squares)
    size = SIZE if whole else SIZE // 2
    work = FormatWork(sources=squares, crop="random", batch_size=10, size=size, workers=1, whole=whole)
    batches = peer.open(work)
    if name == "turboloader":
        with pytest.raises((ValueError, RuntimeWarning), match="decode"):  # the latter is its own
            next(batches())
        return
    images = torch.cat([batch.clone() for batch in batches()])
    assert images.shape == (COUNT, 3, size, size) and images.dtype == peer.dtype
    levels = images.float() * (255 if peer.dtype.is_floating_point else 1)
    ours = torch.cat([batch.clone() for batch in BY_FORMAT["fastimg, files"].open(work)()]).float()
    if whole and peer.module != "ffcv":  # which may encode them
        sums = [sorted(one.round().sum((1, 2, 3)).tolist()) for one in (levels, ours)]
        assert sums[0] == sums[1]
    else:
        assert abs(float(levels.mean() - ours.mean())) < 12
