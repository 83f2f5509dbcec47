"""Comparing loaders: different work is shown, failing and missing loaders are named, and no processes are left."""

import importlib
import io
import json
import multiprocessing
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from fastimg.bench.peers import comparison
from fastimg.bench.peers import processes as peer_processes
from fastimg.bench.peers.comparison import Setting, compare, names
from fastimg.bench.peers.data import Sources
from fastimg.bench.peers.pipelines import PEERS, Peer, Workload, native, synthetic
from fastimg.bench.peers.processes import PeerError, Remote
from fastimg.bench.peers.samples import choose
from fastimg.bench.plots import check_file, plot_loaders
from fastimg.cli import run
from fastimg.errors import UsageError, UserError
from fastimg.loaders import DataError, FilesDataset, open_dataset

pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left", "forks")

KEYS = {
    *("name", "threads", "images_per_second", "spread", "n", "about", "cpu_microseconds"),
    *("parity", "parity_worst_image", "parity_exif_turned", "boxes", "boxes_limit"),
}
FAKES = """
import os

from fastimg.bench.peers.pipelines import native


def altered(work):
    batches = native(work)
    return lambda: (images ^ 1 for images in batches())


def broken(work):
    raise ValueError("first this\\nthen it failed: no light\\nin /tmp")


def fewer(work):
    batches = native(work)
    timed = work.sources.folder.name == "photographs" and work.crop == "random"
    return lambda: (images[1:] if timed else images for images in batches())


def dying(work):
    os._exit(3)
"""


@pytest.fixture(scope="module")
def forks(python):
    """The processes that are started import nothing."""
    multiprocessing.resource_tracker.ensure_running()  # outlives the server of forks
    before = multiprocessing.spawn.get_executable()
    multiprocessing.spawn.set_executable(python)
    yield
    multiprocessing.spawn.set_executable(before)


def quiet():
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """A module that separate processes can import."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "fake_loaders.py").write_text(FAKES)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return importlib.import_module("fake_loaders")


@pytest.fixture
def small(monkeypatch):
    """Use fewer boxes."""
    monkeypatch.setattr(comparison, "BOXES", 60)


def files_of(folder):
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    return FilesDataset(folder, paths)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", tuple(PEERS)),
        ("dali,torch", ("native", "torch", "dali")),
        (" ffcv , native,", ("native", "ffcv")),
        ("torch,all", tuple(PEERS)),
    ],
)
def test_names(text, expected):
    assert names(text) == expected


@pytest.mark.parametrize(
    ("text", "said"), [("", "from native, torch"), ("webdatset", "webdataset"), ("torch,tensorflowx", "tensorflowx")]
)
def test_invalid_names(text, said):
    with pytest.raises(UsageError, match=said):
        names(text)


def test_a_missing_loader_has_an_install_command():
    here = Peer(open=native, about="", module="fastimg.bench.peers.pipelines")
    gone = (Peer(open=native, about="", module=name) for name in ("no_such_module", "no_such_package.module"))
    assert here.installed() and PEERS["native"].installed() and not any(peer.installed() for peer in gone)
    assert all(peer.install for peer in PEERS.values() if peer.module)


def test_a_comparison(make_image_folder, fakes, small, tmp_path):
    peers = {
        "native": PEERS["native"],
        "altered": Peer(open=fakes.altered, about="flips a bit"),
        "broken": Peer(open=fakes.broken, about="raises"),
        "fewer": Peer(open=fakes.fewer, about="leaves one of a batch out"),
        "absent": Peer(open=native, about="", module="no_such_module", install="pip install it"),
    }
    folder, scratch = make_image_folder(5), tmp_path / "scratch"
    scratch.mkdir()
    (folder / "blue" / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    setting = Setting(batch_size=8, size=24, threads=(1, 2), repeats=2, images=20)
    found = compare(files_of(folder), folder, names("all", peers), setting, scratch, quiet(), peers=peers)
    assert found.missing == {"absent": "pip install it"}
    assert found.faults == {
        "broken": "ValueError: then it failed: no light",
        "fewer": "returned 14 images in an epoch of 16",
    }
    assert (found.images, found.samples) == (16, 15) and "bad.jpg" in "".join(found.left_out)
    records = found.records()
    assert [(r["name"], r["threads"]) for r in records] == [(n, t) for t in (1, 2) for n in ("native", "altered")]
    assert json.loads(json.dumps(records, allow_nan=False)) == records
    for record in records:
        assert record.keys() == KEYS and record["n"] == 2
        low, high = record["spread"]
        assert 0 < low <= record["images_per_second"] <= high
        assert record["boxes"] < record["boxes_limit"]
    assert [(r["parity"], r["parity_worst_image"]) for r in records[:2]] == [(0, 0), (1, 1)]
    console = quiet()
    found.show(console)
    said = console.file.getvalue()
    for text in (
        "1.000",
        "absent is not installed: pip install it",
        "broken failed: ValueError",
        "bad.jpg",
        "repeated",
    ):
        assert text in said
    assert list(scratch.iterdir()) == []


def test_one_image(encode, small, tmp_path):
    """Shards repeat it; the ceiling has no parity."""
    for i, split in enumerate(("train", "val")):
        (tmp_path / "images" / split / "a").mkdir(parents=True)
        (tmp_path / "images" / split / "a" / "a.png").write_bytes(encode(kind="PNG", seed=i))
    assert run(["convert", str(tmp_path / "images"), str(tmp_path / "shards")]) == 0
    dataset = open_dataset(tmp_path / "shards", "val")
    assert len(dataset) == 1
    setting = Setting(batch_size=4, size=16, repeats=1, images=1)
    found = compare(dataset, tmp_path / "shards", ("synthetic",), setting, None, quiet(), "val")
    dataset.close()
    assert (found.images, found.samples, found.faults) == (4, 1, {})
    ours, ceiling = found.records()
    assert ours["parity"] == 0 and ceiling["parity"] is ceiling["boxes"] is None
    assert "tar shards" in ours["about"] and "without images" in ceiling["about"]
    plot_loaders(found.records(), tmp_path / "one.png")


def test_data_without_an_image(tmp_path):
    folder, setting = tmp_path / "data", Setting(images=4)
    folder.mkdir()
    with pytest.raises(UserError, match="none of its 0 samples"):
        compare(files_of(folder), folder, ("native",), setting, tmp_path, quiet())
    (folder / "a.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"none of its 1 sample .*a\.jpg: not an image"):
        compare(files_of(folder), folder, ("native",), setting, tmp_path, quiet())
    with pytest.raises(UserError, match="contains texts"):
        compare(FilesDataset(folder, ["a"], content="text"), folder, ("native",), setting, tmp_path, quiet())
    with pytest.raises(UserError, match="--scratch"):
        compare(files_of(folder), folder, ("native",), setting, tmp_path / "nowhere", quiet())
    assert list(tmp_path.iterdir()) == [folder]


def test_an_interrupt_leaves_nothing(make_image_folder, monkeypatch, small, tmp_path):
    def strike(*_):
        (child,) = multiprocessing.active_children()
        assert child.is_alive()
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "check", strike)
    folder = make_image_folder(2)
    with pytest.raises(KeyboardInterrupt):
        compare(files_of(folder), folder, ("native",), Setting(images=4, batch_size=4), tmp_path, quiet())
    assert multiprocessing.active_children() == [] and list(tmp_path.iterdir()) == [folder]


def test_a_loader_that_dies_or_does_not_answer(fakes, tmp_path, monkeypatch):
    sources = Sources(folder=tmp_path, files=(tmp_path / "a.jpg",))
    work = Workload(sources=sources, crop="centre", batch_size=1, size=8, workers=1)
    before = os.environ.get("NUMBA_NUM_THREADS")
    remote = Remote("dying", Peer(open=fakes.dying, about=""), 64)
    assert os.environ.get("NUMBA_NUM_THREADS") == before
    with pytest.raises(PeerError, match=r"died \(status 3\)"):
        remote.epoch(work)
    remote.close()
    remote = Remote("slow", Peer(open=fakes.dying, about=""), 1)
    monkeypatch.setattr(peer_processes, "_TIMEOUT", 0)
    with pytest.raises(PeerError, match="no answer within 0 s"):
        remote.epoch(work)
    remote.close(0)
    assert remote._process.exitcode is not None
    remote.close()


def test_batches_of_the_wrong_kind_are_an_error():
    def epoch(*shape, dtype=torch.uint8):
        return lambda: iter([torch.zeros(shape, dtype=dtype)])

    assert peer_processes._epoch(epoch(2, 3, 8, 8), 8).images == 2
    for batches in (epoch(2, 3, 4, 4), epoch(2, 8, 8, 3), epoch(2, 3, 8, 8, dtype=torch.float32)):
        with pytest.raises(ValueError, match=r"not uint8 \[B, 3, 8, 8\]"):
            peer_processes._epoch(batches, 8)


@pytest.mark.parametrize("kind", ["tar", "beton"])
def test_samples_of_shards_are_written_as_files(kind, image_folder, small, tmp_path):
    """The native loader's centre crops of DATA equal those of the files given to the other loaders."""
    assert run(["convert", str(image_folder), str(tmp_path / kind), "--format", kind]) == 0
    dataset = open_dataset(tmp_path / kind)
    samples = choose(dataset, tmp_path / kind, "train", 7, 3, tmp_path / "files", quiet())
    suffixes = {file.suffix for file in samples.files}
    assert len(samples.files) == len(set(samples.files)) == 7 and suffixes <= {".jpg", ".png", ".ppm"}
    assert samples.original is not None and samples.left_out == {}
    again = choose(dataset, tmp_path / kind, "train", 7, 3, tmp_path / "again", quiet())
    assert again.original == samples.original
    sources = samples.sources(tmp_path / "sources", 10, 16)
    assert sources.files[7:] == sources.files[:3] and sources.original.ids[7:] == sources.original.ids[:3]

    def pixels(sources, crop="centre"):
        batches = native(Workload(sources=sources, crop=crop, batch_size=4, size=16, workers=1))
        return np.concatenate([batch.numpy().copy() for batch in batches()])

    files = Sources(folder=tmp_path, files=sources.files)
    assert np.array_equal(pixels(sources), pixels(files)) and pixels(sources).std() > 0
    assert pixels(sources, "random").shape == (10, 3, 16, 16)
    changed = Sources(
        folder=tmp_path,
        files=files.files,
        original=type(sources.original)(**vars(sources.original) | {"fingerprint": ""}),
    )
    with pytest.raises(DataError, match="changed while it was in use"):
        changed.open()
    dataset.close()


def test_the_ceiling_has_pixels_in_every_row(small, tmp_path):
    sources = Sources(folder=tmp_path, files=(tmp_path / "none.jpg",) * 10)
    batches = synthetic(Workload(sources=sources, crop="random", batch_size=4, size=16, workers=2))
    for _ in range(2):
        images = [batch.clone() for batch in batches()]
        assert sum(len(one) for one in images) == 10 and all(
            one.float().std() > 50 for batch in images for one in batch
        )


def record(name, threads, speed, n=3):
    return {"name": name, "threads": threads, "images_per_second": speed, "spread": [0.9 * speed, 1.1 * speed], "n": n}


@pytest.mark.parametrize(
    "records",
    [
        [record("native", 1, 900)],
        [record("native", 2, 900), record("torch", 2, 300)],
        [record("native", 2, 900), record("torch", 2, 300), record("synthetic", 2, 90000)],
        [record("native", t, 900 * t) for t in (1, 2, 4)],
        [record("dali", t, 900 * t) for t in (1, 2, 4)],
        [record(n, t, s * t) for t in (1, 2, 8) for n, s in (("native", 900), ("a_$b", 100), ("synthetic", 1e6))],
        [record("native", 1, 900), record("native", 2, 900), record("torch", 1, 300)],
        [record("synthetic", 1, 900)],
    ],
)
def test_plots(records, tmp_path):
    plot_loaders(records, tmp_path / "plot.png")
    Figure().savefig(tmp_path / "empty.png")
    with Image.open(tmp_path / "plot.png") as image:
        image.load()
        assert np.asarray(image.convert("L")).std() > 5
    assert (tmp_path / "plot.png").stat().st_size > 2 * (tmp_path / "empty.png").stat().st_size


def test_where_a_plot_can_be_written(tmp_path):
    check_file(tmp_path / "a.png")
    for name in ("a.jpg", "a", "no/a.png", "folder.png"):
        (tmp_path / "folder.png").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match="--output"):
            check_file(tmp_path / name)
