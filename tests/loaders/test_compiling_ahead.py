"""What a loader compiles, and when: before its threads start, if ever; they do without what is not ready."""

import io
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from numba import njit
from PIL import Image

from fastimg.loaders import FilesDataset, ImageDecoder, Loader, RandomResizedCrop, View
from fastimg.loaders import compiling_ahead as ahead
from fastimg.loaders import loader as loader_module
from fastimg.loaders.decode import read_header
from fastimg.loaders.decoders.views import ViewDecoder
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime import compiled
from fastimg.loaders.runtime.compiled import may_call, saying_what_is_compiled
from fastimg.loaders.runtime.compiling_nothing import compiling_nothing
from fastimg.loaders.runtime.scratch import GROUP

from .conftest import Numbers, Stamp

pytestmark = pytest.mark.usefixtures("watchdog")


def saved(kind: str, number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (11, 9, 3), np.uint8)
    image = Image.fromarray(pixels).resize((70 + number, 50), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 1 + number % 8
    options = {"progressive": kind == "progressive", "exif": exif if kind == "turned" else b""}
    image.convert("L" if kind == "gray" else "RGB").save(buffer, "PNG" if kind == "png" else "JPEG", **options)
    return tile(buffer.getvalue(), width_px=32).jpeg if kind == "tiled" else buffer.getvalue()


KINDS = ("baseline", "progressive", "gray", "tiled", "turned", "png")


@pytest.fixture
def files(tmp_path):
    """A dataset of images of all kinds; one of them is cut short."""
    names = []
    for number in range(36):
        content = saved(KINDS[number % 6], number)
        names.append(f"{number:02}")
        (tmp_path / names[-1]).write_bytes(content[: 300 if number == 12 else None])
    return FilesDataset(tmp_path, names)


@pytest.mark.parametrize("scaling", [False, True, "low"])
@pytest.mark.parametrize("views", [False, True])
def test_threads_without_machine_code_give_the_same_batches(views, scaling, files, build, monkeypatch):
    """Scaled crops of tiled JPEGs, which need it, too: threads compile their decoder."""

    def batches(scaling):
        crop = RandomResizedCrop(size=6)
        several = (View(crop=6, n=2), View(crop=12))
        decoder = ViewDecoder(several, dct_scaling=scaling) if views else ImageDecoder(crop, dct_scaling=scaling)
        with build(files, decoder, seed=1) as loader:
            found = [[batch.inputs.clone(), *map(torch.clone, batch.views), batch.weight] for batch in loader]
            assert list(loader.unreadable) == [12]
        return found

    def same(batches, others):
        pairs = zip(batches, others, strict=True)
        return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))

    expected = batches(scaling)
    assert same(expected, batches(False)) == (scaling is False)
    monkeypatch.setattr(loader_module, "compile_ahead", lambda *_: False)
    monkeypatch.setattr(compiled, "is_ready", lambda function: False)
    assert same(batches(scaling), expected)


@pytest.mark.parametrize(
    ("scaling", "kind", "looked_at"), [(True, "tiled", [5]), (True, "png", []), (False, "tiled", [])]
)
def test_scaled_tiles_are_compiled_for_ahead(scaling, kind, looked_at, tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(saved(kind, number))
    files = FilesDataset(tmp_path, [f"{number}" for number in range(5)])
    found = []
    monkeypatch.setattr(ahead, "compile_path", lambda decoder, dataset, ids, say: found.append(len(ids)))
    decoder = ImageDecoder(RandomResizedCrop(size=6), dct_scaling=scaling)
    assert ahead.compile_ahead(decoder, files, None, 1, 1) == bool(looked_at)
    assert found == looked_at


COLD = """
import sys
from numba.core import event
from fastimg.loaders import Loader

compiled = []

class Listener(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event):
        pass

event.register("numba:compile", Listener())
loader = Loader(sys.argv[1], batch_size=8, crop=24, workers=2).tuples()
print(sum(len(targets) for _ in range(2) for _, targets in loader), compiled)
"""


def test_a_small_folder_compiles_nothing(tmp_path, monkeypatch):
    for number in range(36):
        folder = tmp_path / "data" / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.img").with_suffix(".png" if number % 6 == 5 else ".jpg").write_bytes(
            saved(KINDS[number % 6], number)
        )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cold"))
    command = [sys.executable, "-W", "ignore", "-c", COLD, str(tmp_path / "data")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("72 []\n", "")


WARM = """
import json, sys, threading
from numba.core import event
from fastimg.loaders import Loader, background
from fastimg.loaders.decoders.picture_queue import _decode
from fastimg.loaders.jpeg.decoding.crops import _crop_progressive
from fastimg.loaders.runtime import compiled

background._OFTEN = 0
epoch, events = 0, []

def note(function):
    events.append((epoch, threading.current_thread().name.rstrip("-0123456789"), function.__name__))

class Listener(event.Listener):
    def on_start(self, event):
        note(event.data["dispatcher"].py_func)
    def on_end(self, event):
        pass

event.register("numba:compile", Listener())
load = compiled._load_kept

def load_and_note(cache, *given):
    note(cache._py_func)
    return load(cache, *given)

compiled._load_kept = load_and_note
with Loader(sys.argv[1], batch_size=4, crop=24, workers=2, prefetch=2, order="sequential") as loader:
    if sys.argv[2] == "compile":
        loader.compile()
    else:
        after = 0
        while after < 2:
            for batch in loader:
                pass
            epoch += 1
            after += compiled.is_compiled(_crop_progressive) and compiled.is_compiled(_decode)
        print(json.dumps(events))
"""


def test_threads_load_and_compile_nothing_after_the_first_batch(tmp_path):
    """Machine code of another process is loaded in the first batch, and after it by a thread that fills no batches."""
    for number in range(36):
        folder = tmp_path / ("a" if number < 24 else "b")
        folder.mkdir(exist_ok=True)
        kind = "baseline" if number < 24 else ("png", "progressive")[number % 2]
        (folder / f"{number}").with_suffix(".png" if kind == "png" else ".jpg").write_bytes(saved(kind, number))
    for task in ("compile", "read"):
        command = [sys.executable, "-W", "ignore", "-c", WARM, str(tmp_path), task]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    events = json.loads(ran.stdout)
    loaded = {thread: {name for _, other, name in events if other == thread} for _, thread, _ in events}
    assert loaded.keys() == {"fastimg-loader", "fastimg-loading"}
    assert "_crop_untiled" in loaded["fastimg-loader"]
    assert {"_crop_progressive", "_decode"} <= loaded["fastimg-loading"]
    assert not loaded["fastimg-loader"] & loaded["fastimg-loading"]
    assert {epoch for epoch, thread, _ in events if thread == "fastimg-loader"} == {0}


class Cropped(Stamp):
    def __init__(self, random: bool) -> None:
        self.random = random

    def draw(self, seed, epoch, ids):
        return super().draw(seed, epoch, ids)[:, : None if self.random else 0]

    def fill(self, reader, ids, draws, rows, scratch):
        return []


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize(("threads", "ranks"), [(1, 1), (4, 1), (2, 2)])
def test_it_compiles_where_that_is_made_up_for(threads, ranks, random, monkeypatch):
    """Random crops are read for three epochs, others once; more threads need more samples."""
    least = ranks * -(-threads * 50_000 // (3 if random else 1))
    for samples, expected in ((least - ranks, []), (least, [GROUP])):
        looked_at = []
        monkeypatch.setattr(ahead, "compile_path", lambda decoder, dataset, ids, say, n=looked_at: n.append(len(ids)))
        ahead.compile_ahead(Cropped(random), Numbers(samples), None, ranks, threads)
        assert looked_at == expected


def test_it_compiles_before_a_later_epoch_once_so_much_was_read(files, build, monkeypatch):
    monkeypatch.setattr(ahead, "_WORTH", 60)  # for each of two threads: 36 samples, in 9 batches of 4
    looked_at = []
    monkeypatch.setattr(ahead, "compile_path", lambda decoder, dataset, ids, say: looked_at.append(len(ids)))
    with build(files, ImageDecoder(RandomResizedCrop(size=8))) as loader:
        found = []
        for _ in range(6):
            next(iter(loader))  # a few are read, most are not
            found.append(len(looked_at))
            for _ in loader:
                pass
        assert found == [0, 0, 0, 1, 1, 1] and looked_at == [GROUP]
        loader.compile()
        assert looked_at == [GROUP, GROUP]


def test_it_compiles_before_threads_start_and_once_for_each_size(build, monkeypatch):
    seen = []

    def note(decoder, dataset, indices, ranks, threads, read):
        seen.append((threads, sum(each.name.startswith("fastimg-loader") for each in threading.enumerate()) - running))
        return True

    running = sum(each.name.startswith("fastimg-loader") for each in threading.enumerate())
    monkeypatch.setattr("fastimg.loaders.loader.compile_ahead", note)
    with build(Numbers(8)) as loader:
        for _ in range(2):
            for _ in loader:
                pass
    assert seen == [(2, 0)]


def test_compiling_is_said_with_its_duration():
    said = []
    new = njit(lambda: 3)

    class Compiling(Cropped):
        def fill(self, *given):
            assert new() == 3
            return super().fill(*given)

    for _ in range(2):
        ahead.compile_path(Compiling(random=True), Numbers(4), np.arange(2), said.append)
    assert len(said) == 2
    assert said[0] == "compiling the reading of images, once per machine"
    assert said[1].startswith("compiled    the reading of images in ") and said[1].endswith(" s")
    with saying_what_is_compiled("nothing", said.append):
        pass
    assert len(said) == 2


def test_reading_ahead_is_compiled_too(monkeypatch):
    asked = []
    monkeypatch.setattr(Numbers, "will_need", lambda self, ids: asked.extend(ids.tolist()))
    ahead.compile_path(Cropped(random=True), Numbers(4), np.arange(2), lambda words: None)
    assert asked == [0, 1]


def test_a_loader_says_so_by_logging(files, build, monkeypatch, caplog):
    monkeypatch.setattr(ahead, "_WORTH", 1)
    monkeypatch.setattr(ahead, "compile_path", lambda decoder, dataset, ids, say: say(f"compiling for {len(ids)}"))
    with build(files, ImageDecoder(RandomResizedCrop(size=8))) as loader:
        for _ in loader:
            pass
    assert [(record.name, record.message) for record in caplog.records] == [
        ("fastimg.loaders", f"compiling for {GROUP}")
    ]


def test_only_threads_that_compile_nothing_do_without():
    new = njit(lambda: 3)
    assert may_call(new)
    with compiling_nothing():
        assert not may_call(new)
        with compiling_nothing():
            pass
        assert not may_call(new)
        new()
        assert may_call(new)
    assert may_call(njit(lambda: 4))


def test_a_loader_over_a_path_of_few_images_is_as_before(image_folder, monkeypatch):
    """Headers that plain Python reads are those that compiled code reads."""
    with Loader(str(image_folder), batch_size=12, crop=16, seed=1) as loader:
        expected = [batch.inputs.clone() for batch in loader]
    monkeypatch.setattr(compiled, "is_ready", lambda function: False)
    with Loader(str(image_folder), batch_size=12, crop=16, seed=1) as loader:
        assert all(torch.equal(batch.inputs, each) for batch, each in zip(loader, expected, strict=True))


def headers(content: bytes) -> list[object]:
    found: list[object] = []
    for plain in (False, True):
        try:
            if plain:
                with pytest.MonkeyPatch.context() as patch, compiling_nothing():
                    patch.setattr(compiled, "is_ready", lambda function: False)
                    found.append(read_header(content))
            else:
                found.append(read_header(content))
        except Exception as error:  # noqa: BLE001 - the same one has to come
            found.append(str(error))
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "png"])
def test_plain_headers_are_those_of_compiled_code(kind):
    for number in range(8):
        content = saved(kind, number)
        one, other = headers(content)
        assert one == other
    for size in range(2, content.index(b"\xff\xda") + 20):
        one, other = headers(content[:size])
        assert one == other, size
    random = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[random.integers(2, content.index(b"\xff\xda") + 14)] = random.integers(256)
        one, other = headers(bytes(damaged))
        assert one == other
