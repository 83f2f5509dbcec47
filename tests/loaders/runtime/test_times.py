"""A loader's times: those of its threads, its consumer and its stream."""

import time

import pytest
import torch

from fastimg.loaders import FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.decoders.picture_queue import PictureQueue
from fastimg.loaders.jpeg.decoding import crops
from fastimg.loaders.runtime import times
from fastimg.loaders.runtime.times import Backlog, Spans, Waits

gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
NAP = 0.02


def epoch(folder, workers=2):
    """Times spent in an epoch, its duration, and its images."""
    loader = Loader(
        open_dataset(folder, "train"),
        ImageDecoder(RandomResizedCrop(size=16)),
        LoaderConfig(batch_size=6, workers=workers),
    )
    before = loader.spent()
    assert (before.wait, before.copy, before.read, before.busy) == (0.0, 0.0, 0.0, 0.0)
    began, count = time.perf_counter(), 0
    for batch in loader:
        count += batch.samples
    seconds, spent = time.perf_counter() - began, loader.spent()
    loader.close()
    assert loader.spent() == spent  # kept after the threads have ended
    assert 0 < spent.wait <= seconds and spent.wait == loader.wait_seconds and spent.copy == 0.0
    assert 0 < spent.read <= spent.busy <= workers * seconds
    return spent, seconds, count


def asleep(method):
    def wrapped(*args):
        time.sleep(NAP)
        return method(*args)

    return wrapped


def test_reading_is_counted_separately(image_folder, monkeypatch):
    epoch(image_folder)  # a process's first decoding takes seconds
    monkeypatch.setattr(FilesDataset, "read", asleep(FilesDataset.read))
    spent, _, count = epoch(image_folder)
    assert spent.read >= NAP * count


def test_decoding_is_the_rest_of_the_threads_time(image_folder, monkeypatch):
    epoch(image_folder)
    monkeypatch.setattr(crops, "is_ready", lambda kind: False)  # JPEGs are decoded one by one
    monkeypatch.setattr(PictureQueue, "add_group", lambda self, encoded, places, *_: places)  # others, too
    monkeypatch.setattr(ImageDecoder, "_decode_to_queue", asleep(ImageDecoder._decode_to_queue))
    spent, _, count = epoch(image_folder)
    assert spent.busy - spent.read >= NAP * count


def test_unreadable_images_are_counted_too(image_folder, monkeypatch):
    (image_folder / "red" / "000.jpg").write_bytes(b"no image")
    spent, _, count = epoch(image_folder)
    assert count == 35 and spent.busy > 0


def test_threads_of_an_abandoned_epoch_are_still_counted(image_folder):
    loader = Loader(open_dataset(image_folder, "train"), batch_size=4, crop=16, workers=2)
    for _ in loader:
        break
    first = loader.spent()
    for _ in loader:
        pass
    second = loader.spent()
    loader.close()
    for _ in loader:  # with new threads
        pass
    third = loader.spent()
    loader.close()
    assert third.busy > second.busy > first.busy > 0 and second.wait >= first.wait


def test_other_loaders_count_only_waiting(image_folder, open_loader):
    loader = open_loader("synthetic", open_dataset(image_folder, "train"))
    for _ in loader:
        pass
    spent = loader.spent()
    assert spent.wait == loader.wait_seconds > 0
    assert (spent.copy, spent.read, spent.busy) == (0.0, None, None)


class Event:
    """An event of a device whose clock the test advances."""

    now, made = 0.0, 0

    def __init__(self, enable_timing=False):
        assert enable_timing
        self.at = None
        Event.made += 1

    def record(self, stream):
        self.at = stream.pop(0)

    def query(self):
        return Event.now >= self.at

    def elapsed_time(self, other):
        assert self.query() and other.query()
        return other.at - self.at


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now, Event.made = 0.0, 0


def test_intervals_are_counted_when_they_end(events):
    spans = Spans()
    spans.every = True
    for at in range(0, 100, 10):  # the device reaches it at these milliseconds
        assert spans.begin([at])
        spans.end([at + 3])
        Event.now = at - 5.0  # late by one interval
    assert spans.seconds == pytest.approx(0.003 * 8)
    Event.now = 1000.0
    spans.settle()
    assert spans.seconds == pytest.approx(0.03) and Event.made <= 8  # events are reused
    spans.begin([2000.0])  # and never ended
    spans.begin([3000.0])
    spans.end([3001.0])
    spans.end([3002.0])  # of nothing
    Event.now = 9999.0
    spans.settle()
    assert spans.seconds == pytest.approx(0.031)


def test_one_interval_in_seventeen_is_timed_and_stands_for_the_others(events):
    spans, timed, before = Spans(), [], 0.0
    for number in range(100):
        timed.append(spans.begin([10.0 * number]))
        Event.now = 10.0 * number + 9.0
        spans.end([10.0 * number + 3.0])
        assert before <= spans.seconds <= 0.003 * (number + 1) + 1e-9  # it never falls
        assert spans.seconds >= 0.003 * (number + 1 - 16) - 1e-9
        before = spans.seconds
    assert [number for number, one in enumerate(timed) if one] == [0, 17, 34, 51, 68, 85] and Event.made == 2
    assert spans.seconds == pytest.approx(0.003 * 86)  # the 14 after the last one are not counted yet


def test_an_interval_unlike_the_others_stands_for_itself(events):
    spans = Spans()
    for number in range(35):
        spans.begin([10_000.0 * number])
        Event.now = 10_000.0 * number + 9_000
        spans.end([10_000.0 * number + (5_000.0 if number == 17 else 3.0)], alone=number == 17)
    assert spans.seconds == pytest.approx(5.0 + 0.003 * 34)


def test_waits_of_a_gpus_stream(events, monkeypatch):
    """A stream that is idle for half of the host's wait: each long wait is counted once, by either clock."""
    clock = {"host": 0.0}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: [clock["host"] * 1000])
    monkeypatch.setattr(times, "time", type("Clock", (), {"perf_counter": staticmethod(lambda: clock["host"])}))
    waits = Waits(torch.device("cuda", 0))

    def wait(seconds, lag=0.0):
        Event.now = 1e9
        clock["host"] += lag
        waits.begin()
        clock["host"] += seconds
        waits.end()

    for _ in range(40):
        wait(0.0001)
    assert waits.seconds == pytest.approx(0.0001 * 35)  # of 0, 17 and 34
    wait(2.0)  # as at the start of an epoch: by the host's clock
    assert waits.seconds == pytest.approx(2.0 + 0.0001 * 35)
    for _ in range(5):
        wait(0.5)  # by the stream's
    assert waits.seconds == pytest.approx(4.5 + 0.0001 * 35) and waits._by_host == 2.0
    for _ in range(20):
        wait(0.0001)
    assert waits.seconds == pytest.approx(4.5 + 0.0001 * 59, abs=0.0001 * 17)
    assert waits.host == pytest.approx(4.5 + 0.0001 * 60)


@gpu
@needs_cuda
def test_on_a_gpu_waiting_is_the_streams_idle_time():
    device = torch.device("cuda")
    waits = Waits(device)
    torch.cuda.synchronize()
    waits.begin()
    time.sleep(0.1)
    waits.end()
    torch.cuda.synchronize()
    assert waits.host >= 0.1 and waits.seconds >= 0.09  # the device was idle
    idle = waits.seconds
    torch.cuda._sleep(2_000_000_000)  # about a second of work
    waits.begin()
    time.sleep(0.1)
    waits.end()
    torch.cuda.synchronize()
    assert waits.host >= 0.2 and waits.seconds - idle < 0.05  # it was computing all the time


def test_a_cpu_has_no_backlog():
    backlog = Backlog(torch.device("cpu"))
    backlog.mark()
    assert backlog.drained() is None


@gpu
@needs_cuda
def test_a_gpus_backlog():
    device = torch.device("cuda")
    backlog = Backlog(device)
    torch.cuda.synchronize()
    assert backlog.drained()  # nothing was enqueued
    torch.cuda._sleep(500_000_000)  # about a quarter of a second of work
    backlog.mark()
    assert backlog.drained() is False
    torch.cuda.synchronize()
    assert backlog.drained()


@gpu
@needs_cuda
def test_copies_to_a_gpu_are_timed(image_folder):
    with Loader(image_folder, batch_size=6, crop=224, workers=2, device="cuda") as loader:
        for _ in loader:
            pass
        torch.cuda.synchronize()
        spent = loader.spent()
    assert spent.copy is not None and 0 < spent.copy < 1 and spent.busy is not None and spent.busy > 0
