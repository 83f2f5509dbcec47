"""Results are read one batch late from a device (here as late as possible), and at once on the CPU."""

import numpy as np
import pytest
import torch

from fastimg.data import read_back as module
from fastimg.data.read_back import read_back


class Late:
    """A tensor on a GPU whose copy to the host is complete only after its event is waited for."""

    device = torch.device("cuda", 0)

    def __init__(self, said, number):
        self.said, self.number = said, number

    def to(self, device, non_blocking):
        assert (device, non_blocking) == ("cpu", True)
        self.said.append(f"copy {self.number}")
        self.host = torch.full((2,), -1)
        return self.host


@pytest.fixture
def device(monkeypatch):
    """(log of calls, tensors whose copies have no recorded event yet)"""
    said, late = [], []

    class Event:
        def __init__(self, blocking):
            self.mine = []

        def record(self, stream):
            assert stream == "the stream of cuda:0"
            self.mine, late[:] = [*late], []

        def synchronize(self):
            for tensor in self.mine:
                said.append(f"wait {tensor.number}")
                tensor.host.fill_(tensor.number)

    monkeypatch.setattr(module.torch.cuda, "Event", Event)
    monkeypatch.setattr(module.torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    return said, late


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_waiting_for_a_batch_when_the_next_is_enqueued(device, count):
    said, late = device

    def batches():
        for number in range(count):
            said.append(f"compute {number}")
            late.append(Late(said, number))
            yield f"batch {number}", [late[-1]]

    found = [(item, arrays[0].tolist()) for item, arrays in read_back(batches())]
    assert found == [(f"batch {number}", [number, number]) for number in range(count)]
    expected = []
    for number in range(count):
        expected += [f"compute {number}", f"copy {number}"] + [f"wait {number - 1}"] * (number > 0)
    assert said == expected + [f"wait {count - 1}"] * (count > 0)


def test_on_a_cpu_nothing_is_delayed():
    """A batch is a view of memory that the next batch overwrites."""
    memory = torch.zeros(3)

    def batches():
        for number in range(3):
            memory.fill_(number)
            yield number, [memory]

    for number, (array,) in read_back(batches()):
        assert array.tolist() == [number] * 3 and np.shares_memory(array, memory.numpy())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_from_a_gpu_are_pinned_and_asynchronous(sync_debug_mode):
    device = torch.device("cuda")
    numbers = torch.arange(8.0, device=device)
    torch.cuda.synchronize()

    def batches():
        for number in range(5):
            torch.cuda._sleep(5_000_000)
            yield number, [numbers * number, torch.full((3,), number, device=device)]

    with sync_debug_mode("error"):  # waiting for an event is not a synchronising operation
        found = [(number, [array.tolist() for array in arrays]) for number, arrays in read_back(batches())]
    assert found == [(number, [[i * number for i in range(8)], [number] * 3]) for number in range(5)]
    assert numbers.to("cpu", non_blocking=True).is_pinned()
