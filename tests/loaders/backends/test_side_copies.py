"""Batches of other libraries on a GPU: copied beside the consumer's stream, and ready for other streams then."""

import contextlib

import pytest
import torch

from fastimg.loaders import CenterCrop, FilesDataset, LoaderConfig
from fastimg.loaders.backends.adapter import DecodedBatch, LoaderAdapter, SideCopies
from fastimg.loaders.backends.synthetic import SyntheticLoader

CPU = torch.device("cpu")


class Stream:
    def __init__(self, name, said):
        self.name, self.said = name, said

    def wait_stream(self, other):
        self.said.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.said.append(f"{self.name} waits for the copies of {event.stream.name}")


class Event:
    def record(self, stream):
        self.stream = stream


@pytest.fixture
def said(monkeypatch):
    """What a device is told, in order."""
    found = []
    consumer = Stream("consumer", found)

    @contextlib.contextmanager
    def entered(stream):
        found.append(f"on {stream.name}")
        yield
        found.append("on consumer")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side", found))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: consumer)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: found.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: found.append(f"kept by {stream.name}"))
    return found


COPY = ["on side", "pinned", "on consumer", "kept by consumer"]
READY = "consumer waits for the copies of side"


class Plain(LoaderAdapter):
    """Batches of zeros, on the host or as if a library had put them on the device."""

    on_device = complete = False

    def describe(self):
        return "plain"

    def _decode(self, plan):
        for step in range(plan.steps):
            ids, weight, _ = plan.rows(step)
            images = torch.zeros(len(ids), 4, 4, 3, dtype=torch.uint8)
            if self.on_device:
                images = images.to("meta")
                yield DecodedBatch(images, targets=ids_like(ids), weight=ids_like(weight), complete=self.complete)
            else:
                yield DecodedBatch(images)


def ids_like(values):
    return torch.from_numpy(values).to("meta")


@pytest.fixture
def loader(said, tmp_path):
    """A loader whose device is `meta`: tensors there are neither on the host nor real."""
    data = FilesDataset(tmp_path, ["0.jpg", "1.jpg"], ("a",), [0, 0])
    made = Plain(data, CenterCrop(size=4, resize=4), LoaderConfig(batch_size=2), torch.device("meta"), None, 1)
    made._copies = SideCopies(torch.device("meta"))
    return made


def test_what_is_on_the_host_is_copied_beside_the_step(loader, said):
    (batch,) = list(loader)
    assert said == ["side waits for consumer", *3 * COPY, READY]
    assert batch.ready.stream.name == "side" and batch.inputs.device.type == "meta"


@pytest.mark.parametrize("complete", [False, True])
def test_what_a_library_put_there_is_ready_for_the_consumer_alone(loader, said, complete):
    """Unless nothing writes it any more: other streams need not wait for the consumer's work then."""
    loader.on_device, loader.complete = True, complete
    (batch,) = list(loader)
    assert said == ["side waits for consumer", READY] and (batch.ready is not None) == complete


@pytest.mark.parametrize("count", [2, 3])
def test_synthetic_batches_are_complete_until_rows_are_made_zero(count, tmp_path):
    data = FilesDataset(tmp_path, [f"{i}.jpg" for i in range(count)], ("a",), [0] * count)
    config = LoaderConfig(batch_size=2, order="sequential")
    synthetic = SyntheticLoader(data, CenterCrop(size=4, resize=4), config, CPU)
    plan = synthetic.begin()
    assert [made.complete for made in synthetic._decode(plan)] == [True, False][: count - 1]
    assert all(batch.ready is None for batch in synthetic)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_memory_is_reused_only_after_the_step(tmp_path):
    """Each batch's targets are read late, when later ones have been copied."""
    data = FilesDataset(tmp_path, [f"{i}.jpg" for i in range(64)], tuple("abcd"), [i % 4 for i in range(64)])
    config = LoaderConfig(batch_size=4, order="sequential")
    device = torch.device("cuda")
    found = []
    for batch in SyntheticLoader(data, CenterCrop(size=4, resize=4), config, device):
        torch.cuda._sleep(2_000_000)
        found.append(batch.targets + 1)
        assert batch.ready is not None
        del batch
    assert torch.cat(found).tolist() == [1 + i % 4 for i in range(64)]
