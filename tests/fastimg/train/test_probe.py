"""What a thread of the native loader would do with a run's samples: by its own work, whatever else the cores do."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from fastimg.loaders import CenterCrop, DataError, ImageDecoder, open_dataset
from fastimg.train.probe import given_up, probe

IMAGES = ImageDecoder(CenterCrop(size=32, resize=36))


class Machine:
    """A clock and a processor's, and how often the thread has waited."""

    def __init__(self, dataset, seconds, work, waits):
        self.now = self.worked = 0.0
        self.count = 0
        self.dataset, self.seconds, self.work, self.waits = dataset, seconds, work, waits
        self.indices = None

    def __len__(self):
        return len(self.dataset)

    def read(self, index, scratch):
        self.now, self.worked, self.count = self.now + self.seconds, self.worked + self.work, self.count + self.waits
        return self.dataset.read(index, scratch)


def probed(folder, seconds, work, waits):
    machine = Machine(open_dataset(folder), seconds, work, waits)

    def processor():
        machine.worked += 0.001  # each look: two of a sample's three lie around its reading, one after its header
        return machine.worked

    loader = SimpleNamespace(dataset=machine, indices=None)
    return probe(loader, IMAGES, 0, lambda: machine.now, processor, lambda: machine.count)


def test_reading_that_waits_is_reading(image_folder):
    slow = probed(image_folder, seconds=0.1, work=0.001, waits=1)
    assert slow.reading > 0.9 and slow.rate == pytest.approx(10, rel=0.1)


def test_a_core_that_others_take_is_no_reading(image_folder):
    """0.1 s by the clock, and the thread never waited: it was made to leave its core."""
    busy, calm = (probed(image_folder, seconds, work=0.001, waits=0) for seconds in (0.1, 0.002))
    assert busy.reading == pytest.approx(calm.reading, abs=0.1) and busy.reading < 0.75  # 3 samples, and 64
    assert busy.rate == pytest.approx(calm.rate, rel=0.2)


def test_a_thread_that_sleeps_has_given_up_its_core():
    before = given_up()
    time.sleep(0.01)
    assert given_up() > before


def test_what_cannot_be_read_is_no_probe(image_folder):
    class Damaged(Machine):
        def read(self, index, scratch):
            raise DataError("gone")

    loader = SimpleNamespace(dataset=Damaged(open_dataset(image_folder), 0, 0, 0), indices=np.arange(3))
    assert probe(loader, IMAGES, 0) is None


def test_files_in_memory_are_read_at_once(image_folder):
    found = probe(SimpleNamespace(dataset=open_dataset(image_folder), indices=None), IMAGES, 0)
    assert 0 < found.reading < 1 and found.rate > 50 and found.tiled == 0
