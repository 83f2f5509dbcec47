"""Machine code that another process compiles while a loader reads: when it starts, ends, and what it leaves."""

import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba import njit
from PIL import Image

from fastimg.loaders import ImageDecoder, Loader, RandomResizedCrop, background
from fastimg.loaders.runtime import compiled
from fastimg.loaders.runtime.compiling_nothing import compiling_nothing

pytestmark = pytest.mark.usefixtures("watchdog")


class Given:
    """In the place of a loader: what the other process calls."""

    def __init__(self, kind, given):
        self.message = kind, given

    def for_compiling(self):
        return self.message


class Waiting(Given):
    """One whose batches have been waited for so long."""

    def __init__(self, kind, given, seconds):
        super().__init__(kind, given)
        self.waits = SimpleNamespace(seconds=seconds)


@pytest.fixture
def at_once(monkeypatch):
    """Nothing is waited for, and code is lacking."""
    monkeypatch.setenv("FASTIMG_BACKGROUND", "1")
    monkeypatch.setattr(background, "_AFTER", 0)
    monkeypatch.setattr(background, "_OFTEN", 0)
    monkeypatch.setattr(background, "lacks_code", lambda: True)
    monkeypatch.setattr(background, "has_to_load", lambda: False)
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        (tmp_path / "images" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / "ab"[number % 2] / f"{number}.png")
    return tmp_path / "images"


def started(loader):
    """A Background that has started the other process, if it starts one."""
    found = background.Background()
    found.look(loader)
    found.look(loader)
    return found


def test_another_process_compiles_and_then_the_cache_is_asked_again(folder, at_once, monkeypatch):
    """Images of 16 bits, for which there is nothing to compile: the process is over soon."""
    asked = []
    monkeypatch.setattr(background, "look_again", lambda: asked.append(None))
    with Loader(folder, ImageDecoder(RandomResizedCrop(size=8), depth=16), batch_size=2, seed=1, workers=1) as loader:
        epochs = []
        while not asked:
            loader.set_epoch(0)
            epochs.append(np.concatenate([batch.inputs.numpy() for batch in loader]))
            if loader._background.running:
                assert loader._background._process.poll() in (None, 0)
        assert all((epoch == epochs[0]).all() for epoch in epochs)


def test_it_starts_only_after_a_second_in_which_code_was_lacking(folder, monkeypatch):
    processes = []
    monkeypatch.setattr(background, "_started", lambda loader, makes_way: processes.append(loader))
    monkeypatch.setattr(background, "has_to_load", lambda: False)
    monkeypatch.setattr(background, "_OFTEN", 0)
    now = [10.0]
    monkeypatch.setattr(background.time, "perf_counter", lambda: now[0])
    found = background.Background()
    lacking = False
    monkeypatch.setattr(background, "lacks_code", lambda: lacking)
    for now[0] in (10.0, 10.9, 11.1):
        found.look(None)
    assert not processes
    lacking = True
    found.look(None)
    found.look(None)
    assert len(processes) == 1  # there was none to start, and none is tried again


@pytest.mark.parametrize(
    ("name", "value"),
    [("FASTIMG_BACKGROUND", "0"), ("LOCAL_RANK", "1"), ("SLURM_LOCALID", "1")],
    ids=["turned off", "another rank", "another rank of Slurm"],
)
def test_the_environment_can_say_that_none_is_started(name, value, at_once, monkeypatch):
    monkeypatch.setenv(name, value)
    assert started(Given(time.sleep, {}))._process is None


def test_a_loader_that_cannot_be_pickled_goes_on_without(at_once):
    assert started(Given(lambda: None, {}))._process is None


def test_a_process_that_fails_changes_nothing(at_once, monkeypatch):
    monkeypatch.setattr(background, "look_again", pytest.fail)
    found = started(Given(int, {"no such argument": 1}))
    assert found._process.wait(120) == 1
    found.look(None)
    assert not found.running


def niceness(process):
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[16])


@pytest.mark.skipif(sys.platform != "linux" or os.nice(0) == 19, reason="reads /proc, and cannot make way further")
@pytest.mark.parametrize(("waited", "gets_more"), [(6.0, True), (4.0, False)])
def test_it_makes_way_but_not_for_long_where_batches_are_waited_for(waited, gets_more, at_once, monkeypatch):
    now = [10.0]
    monkeypatch.setattr(background.time, "perf_counter", lambda: now[0])
    loader = Waiting(partial(time.sleep, 600), {}, waited)
    found = started(loader)
    first, own = found._process, os.nice(0)
    while niceness(first) == own:  # it has not begun
        time.sleep(0.01)
    assert niceness(first) == min(19, own + 10)
    for now[0] in (19.9, 20.1):
        found.look(loader)
    assert (found._process is not first) == gets_more == (first.poll() == -9)
    if gets_more:
        found.look(loader)
        assert niceness(found._process) == own and found.running
    background._stop(found._process)


def test_it_ends_with_the_loader(at_once):
    found = started(Given(partial(time.sleep, 600), {}))
    process = found._process
    assert found.running and process.poll() is None
    del found
    assert process.returncode == -9


def test_it_ends_with_a_process_that_is_killed():
    script = """
import os, sys, time
from functools import partial
from fastimg.loaders import background
background._AFTER = background._OFTEN = 0
background.lacks_code = lambda: True
background.has_to_load = lambda: False
class Given:
    def for_compiling(self):
        return partial(time.sleep, 600), {}
found = background.Background()
found.look(Given()); found.look(Given())
print(found._process.pid, flush=True)
time.sleep(600)
"""
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment | {"FASTIMG_BACKGROUND": "1"}, stdout=subprocess.PIPE, text=True
    ) as parent:
        other = int(parent.stdout.readline())
        parent.kill()
    while is_alive(other):
        time.sleep(0.05)


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_was_missed_is_asked_for_again_and_what_was_there_is_not(monkeypatch):
    here, lacking = njit(lambda: 1), njit(lambda: 2)
    answers = {here: True, lacking: False}
    asked = []
    monkeypatch.setattr(compiled, "_kept", {})
    monkeypatch.setattr(compiled, "_missed", set())
    monkeypatch.setattr(compiled, "is_kept", lambda function: asked.append(function) or answers[function])
    with compiling_nothing():
        assert compiled.may_call(here) and not compiled.may_call(lacking)
    assert asked == [here, lacking]
    assert compiled.lacks_code() and not compiled.has_to_load()
    compiled.look_again()
    assert not compiled.lacks_code()
    answers[lacking] = True
    with compiling_nothing(loading=False):
        assert not compiled.may_call(here) and not compiled.may_call(lacking)
    assert compiled.has_to_load() and not compiled.lacks_code()
    assert asked == [here, lacking, lacking]
    with compiling_nothing():
        assert compiled.may_call(lacking)
    for function in (here, lacking):
        function()  # compiles it
    with compiling_nothing(loading=False):
        assert compiled.may_call(here) and compiled.may_call(lacking)
    assert not compiled.has_to_load()


def test_what_no_image_needs_is_not_missed(tmp_path, monkeypatch):
    """Decoders of other kinds than the images' are asked for in their threads, too."""
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 30, 3), np.uint8)
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{number}.jpg", progressive=number == 5)
    with Loader(tmp_path, batch_size=2, crop=8, seed=1, workers=1, split="train") as loader:
        loader.compile()
        monkeypatch.setattr(compiled, "_missed", set())
        monkeypatch.setattr(compiled, "_kept", {})
        absent = {"_crop_tiled"}
        ready = compiled.is_ready
        monkeypatch.setattr(compiled, "is_ready", lambda one: one.__name__ not in absent and ready(one))
        for _ in loader:
            pass
        assert not compiled._missed
        absent.add("_crop_progressive")
        for _ in loader:
            pass
        assert {function.__name__ for function in compiled._missed} >= {"_crop_progressive"}


def test_no_thread_is_left_that_sends(at_once):
    found = started(Given(int, {}))
    found._process.wait(120)
    deadline = time.monotonic() + 60
    while any(thread.name.endswith("(_send)") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
