"""Turns of a loader's threads: with small samples only, and not while reads wait for a disk."""

import threading

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders import Loader, RandomResizedCrop
from fastimg.loaders.pool import Pool
from fastimg.loaders.runtime import turns
from fastimg.loaders.runtime.stopping import Cancelled
from fastimg.loaders.runtime.turns import Turns


def counted(allowed=True, **last):
    found = Turns(allowed)
    found.count(**{"reads": 16, "nbytes": 16 * 2000, "seconds": 16 * 1e-3, "in_turn": False} | last)
    return found


@pytest.mark.parametrize(
    ("last", "taken"),
    [
        ({}, True),
        ({"allowed": False}, False),
        ({"nbytes": 16 * 4096}, False),
        ({"reads": 0, "nbytes": 0}, False),
        ({"reads": 40, "seconds": 40 * 99e-6, "in_turn": True}, True),
        ({"reads": 40, "seconds": 40 * 101e-6, "in_turn": True}, False),
        ({"reads": 16, "seconds": 16 * 101e-6, "in_turn": True}, True),  # too few to tell
    ],
)
def test_when_turns_are_taken(last, taken):
    assert counted(**last).taken == taken


def test_one_thread_at_a_time_has_its_turn():
    found = counted()
    with found.turn(bool) as in_turn:
        assert in_turn
        entered = threading.Event()

        def other():
            with found.turn(bool):
                entered.set()

        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()


def test_a_thread_that_waits_for_its_turn_can_be_cancelled():
    """By the one whose turn it is: the garbage collector may close the iteration there."""
    found = counted()
    cancelled, ended = threading.Event(), threading.Event()

    def other():
        with pytest.raises(Cancelled), found.turn(cancelled.is_set):
            pytest.fail("had its turn")
        ended.set()

    thread = threading.Thread(target=other)
    with found.turn(bool):
        thread.start()
        cancelled.set()
        thread.join()
    assert ended.is_set()


def test_without_turns_threads_do_not_wait():
    found = Turns(False)
    with found.turn(bool) as first, found.turn(bool) as second:
        assert not first and not second


@pytest.mark.parametrize("side", [12, 200])
def test_a_loader_takes_turns_with_small_images_only(side, tmp_path, monkeypatch):
    """Without machine code; noise of 200 x 200 pixels takes more than 4 KB."""
    from fastimg.loaders.runtime import compiled

    monkeypatch.setattr(compiled, "is_ready", lambda function: False)
    monkeypatch.setattr(turns, "_SLOW", 60.0)  # seconds: reads of a busy machine are fast, too
    jobs = []
    begin = Pool.begin
    monkeypatch.setattr(Pool, "begin", lambda self, *arguments: jobs.append(begin(self, *arguments)) or jobs[-1])
    (tmp_path / "images" / "a").mkdir(parents=True)
    for number in range(40):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / "a" / f"{number}.jpg")
    with Loader(tmp_path / "images", crop=RandomResizedCrop(size=8), batch_size=8, seed=1, workers=2) as loader:
        assert sum(batch.samples for batch in loader) == 40
    assert jobs[0].turns.taken == (side == 12)
