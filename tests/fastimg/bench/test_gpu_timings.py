"""How the GPU benchmark times work on a device, reads its clocks, and finds copies that overlap computation."""

import importlib
import time
import types

import pytest
import torch

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")


class FakeEvent:
    """A device that runs nothing until its sleep is over."""

    awake = False

    def __init__(self, enable_timing: bool) -> None:
        pass

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return FakeEvent.awake

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "FakeEvent") -> float:
        return 5.0


@pytest.mark.parametrize("needed", [1, 4, 64])
def test_calls_are_enqueued_during_a_long_enough_sleep(needed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    augment = importlib.import_module("gpu_augment")
    slept: list[int] = []

    def sleep(cycles: int) -> None:
        slept.append(cycles // augment._CYCLES)
        FakeEvent.awake = slept[-1] < needed

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    calls: list[int] = []
    found = augment.enqueued(lambda: calls.append(1), torch.device("cuda"), calls=10)
    assert slept == [1, 4, 16][: 1 + (needed > 1) + (needed > 4)] and len(calls) == 10 * len(slept)
    assert found.milliseconds == 0.5 and found.host_ahead is (needed <= 16) and found.host_microseconds > 0


def test_steps_on_a_device_are_timed_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = importlib.import_module("gpu_steps")
    done: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(steps, "optimiser_step", lambda run, source, count, stream: done.append(count))
    monkeypatch.setattr(steps, "AugmentStream", lambda device, stream: None)
    config = types.SimpleNamespace(augment_stream="auto", grad_accum_steps=1)
    rig = types.SimpleNamespace(run=None, loader=[], config=config, device=torch.device("cuda"))
    times, seconds = steps.step_times(rig, least=0.0)
    assert times == [5.0] * 10 and seconds > 0 and len(done) == steps._WARM + 2 + 10


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_is_measured_and_not_python() -> None:
    """A call that takes 1 ms on the host, and much less on the device."""
    device = torch.device("cuda")
    values = torch.ones(1024, device=device)

    def call() -> None:
        values.add_(1)
        time.sleep(0.001)

    augment = importlib.import_module("gpu_augment")
    augment.enqueued(call, device)
    found = augment.enqueued(call, device)
    assert found.host_ahead and found.host_microseconds > 1000 and found.milliseconds < 0.5
    waiting = augment.enqueued(lambda: torch.cuda.synchronize(device), device)
    assert not waiting.host_ahead


def test_clocks_unknown_to_nvidia_smi_are_left_out() -> None:
    clocks = importlib.import_module("gpu_clocks")
    assert clocks.parsed("1980, 3201, [N/A], 41\n") == {"sm_mhz": 1980, "memory_mhz": 3201, "celsius": 41}
    assert clocks.parsed("") == {} and clocks.clocks(torch.device("cpu")) == {}


def test_copies_under_compute() -> None:
    measures = importlib.import_module("gpu_traces")

    def event(cat: str, name: str, ts: float, dur: float, stream: int, nbytes: int = 0) -> dict[str, object]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"stream": stream, "bytes": nbytes}}

    events = [
        {"ph": "M", "name": "process_name"},
        event("kernel", "conv", 10, 10, 7),
        event("kernel", "conv", 15, 10, 7),  # overlaps the previous one: counted once
        event("kernel", "other work on the copy's stream", 30, 10, 20),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 5, 30, 20, 1000),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 50, 7, 8),  # a small one
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 0, 50, 20, 1000),
    ]
    found = measures.copies_under_compute(events, least=500)
    assert found["count"] == 1 and found["share_under_compute"] == 0.5 and found["milliseconds"] == 0.03
    events[1]["name"] = "_pixels"  # an augmentation kernel; other kernels in its own stream do not count
    found = measures.augmentation_under_compute([*events, event("kernel", "conv", 12, 4, 20)], {"_pixels"})
    assert found["count"] == 1 and found["share_under_compute"] == 0.4 and found["milliseconds"] == 0.01
