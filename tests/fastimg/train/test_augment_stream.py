"""Augmentation beside the step: the order of streams on a device, and no change on a CPU."""

import contextlib

import pytest
import torch

from fastimg.loaders import Batch
from fastimg.train import augment_stream
from fastimg.train.augment_stream import AugmentStream


def batch_of(ready):
    pixels, numbers = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2)
    return Batch(pixels, numbers.long(), numbers.long(), numbers, samples=2, ready=ready)


class Recorder:
    """A stream that records its calls."""

    device = torch.device("cuda", 0)

    def __init__(self, name, said):
        self.name, self.said = name, said

    def wait_event(self, event):
        self.said.append(f"{self.name} waits for {event}")

    def wait_stream(self, other):
        self.said.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def said(monkeypatch):
    found = []
    step = Recorder("step", found)

    @contextlib.contextmanager
    def entered(stream):
        found.append(f"on {stream.name}")
        yield
        found.append("on step")

    augment_stream._side_stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Recorder("side", found))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: step)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: found.append(f"kept by {stream.name}"))
    yield found
    augment_stream._side_stream.cache_clear()


def test_the_side_waits_for_the_batch_and_the_step_for_the_side(said):
    stream, batch = AugmentStream(torch.device("cuda", 0)), batch_of("the copy")
    with stream.step(batch):
        said.append("augment")
    stream.keep(batch, batch.inputs, batch.targets)
    order = ["side waits for the copy", "on side", "augment", "on step", "step waits for side"]
    assert said == [*order, "kept by step", "kept by step"]


def test_every_epoch_has_the_same_stream(said):
    """torch keeps freed memory for the stream that it was allocated on: another stream would allocate anew."""
    first, second, other = (AugmentStream(torch.device("cuda", index)) for index in (0, 0, 1))
    assert first._stream is second._stream is not other._stream


@pytest.mark.parametrize(("device", "ready"), [("cpu", None), ("cuda", None), ("cpu", "the copy")])
def test_without_a_device_nothing_changes(said, device, ready):
    stream, batch = AugmentStream(torch.device(device)), batch_of(ready)
    with stream.step(batch):
        said.append("augment")
    stream.keep(batch, batch.inputs)
    assert said == ["augment"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_the_bits_are_the_same():
    """With a late copy, a slow step, and reused memory."""
    device = torch.device("cuda")
    stream, copies = AugmentStream(device), torch.cuda.Stream(device)
    host = [torch.full((64, 3, 64, 64), i, dtype=torch.uint8).pin_memory() for i in range(20)]
    found = []
    for source in host:
        with torch.cuda.stream(copies):
            torch.cuda._sleep(2_000_000)
            pixels = source.to(device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(copies)
        torch.cuda.current_stream(device).wait_event(ready)
        pixels.record_stream(torch.cuda.current_stream(device))
        numbers = torch.zeros(64)
        batch = Batch(pixels, numbers.long(), numbers.long(), numbers, samples=64, ready=ready)
        with stream.step(batch):
            made = pixels.float() * 2
        stream.keep(batch, made)
        torch.cuda._sleep(5_000_000)
        found.append(made.mean())
        del made, pixels, batch
    assert [float(mean) for mean in found] == [2.0 * i for i in range(20)]
