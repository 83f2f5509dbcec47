"""The machine code analysed by benchmarks/kernels.py, and the device time measured by benchmarks/augment.py."""

import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from fastimg.augment.ops import STATISTICS, Op

from .fused_policies import images

pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def kernels(monkeypatch):
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("compiles")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("kernels")


def test_the_quick_option(tmp_path):
    out = tmp_path / "kernels.jsonl"
    command = [sys.executable, str(BENCHMARKS / "kernels.py"), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pixels, whole = map(json.loads, out.read_text().splitlines())
    assert (pixels["kernel"], whole["kernel"], pixels["policy"], pixels["dtype"]) == ("_pixels", "all", "flips", "bf16")
    assert pixels["spills"] == pixels["shared_bytes"] == 0 and pixels["registers"] <= 64
    assert pixels["stores"].startswith("128 x ") and pixels["loads"].startswith("64 x ")
    assert pixels["bytes_ms"] == 0.1075 and 4 < pixels["instructions_per_value"] < 12
    assert pixels["written"] == 1.0 and 20 < pixels["lines_per_256_pixels"] < 50  # all of four images are mirrored
    times = [pixels[name] for name in ("issue_ms", "lines_ms", "bytes_ms")]
    assert whole["low_ms"] == max(times) and whole["high_ms"] == pytest.approx(sum(times), abs=2e-4)
    assert "flips" in done.stdout and str(tmp_path) not in out.read_text()


@pytest.mark.parametrize("flag", ["--before", "--python"])
def test_what_is_missing_is_named(kernels, flag, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--quick", flag, "nowhere/python"])
    with pytest.raises(SystemExit) as ended:
        kernels.main()
    assert ended.value.code == 2 and f"{flag} nowhere/python: n" in capsys.readouterr().err


def test_instructions_count_as_those_of_machine_code(kernels):
    costs = {"add.s32": 1, "fma.f32": 1, "add.s64": 2, "mov.b64": 0, "cvt.u64": 0, "cvt.f32": 1, "ld.b64": 1, "bra": 0}
    assert {name: kernels.cost(name) for name in costs} == costs


def test_both_statistics_passes_are_executed(kernels):
    """On whole images of which some need each kind of statistics; CUDA C++ reads in pieces of 16 bytes."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings, which torch brings with CUDA")
    policy, size = kernels.POLICIES["trivial"], 48
    plan = kernels.draw(policy, np.arange(48), 0, 0)
    assert {Op.CONTRAST, Op.AUTOCONTRAST, Op.EQUALIZE} <= set(plan.ops.ravel().tolist())
    found = {}
    for counts in kernels.COUNTS:
        launches = kernels.executed(plan, images(48, size, size), policy, torch.bfloat16, counts)
        found[counts] = {one.name: one.row(48, size * size, 48) for one in launches}
        assert launches[0].moved == 3 * size * size * np.isin(plan.ops.numpy(), list(STATISTICS)).sum()
    assert list(found["CUDA C++"]) == ["statistics.cu", "_tables", "_pixels"]
    assert list(found["Triton"]) == ["_statistics", "_tables", "_pixels"]
    cpp, by_triton = found["CUDA C++"]["statistics.cu"], found["Triton"]["_statistics"]
    assert cpp["loads"].startswith("128 x ") and cpp["instructions_per_value"] < by_triton["instructions_per_value"]
    assert found["CUDA C++"]["_pixels"] == found["Triton"]["_pixels"]


def test_the_device_is_timed_behind_a_wait(monkeypatch):
    """With a fake device that only records what is enqueued."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    augment = importlib.import_module("augment")
    noted, late = [], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            noted.append("event")

        def query(self):
            return bool(late)

        def synchronize(self):
            noted.append("wait")

        def elapsed_time(self, other):
            return 0.25

    monkeypatch.setattr(augment.torch.cuda, "Event", Event)
    monkeypatch.setattr(augment.torch.cuda, "_sleep", lambda cycles: noted.append(cycles))
    assert augment.device_seconds(lambda: noted.append("call")) == 0.25e-3
    assert noted == [40_000_000, "event", "call", "event", "wait"]
    late.append(True)
    with pytest.raises(RuntimeError, match="the host took more than 20"):
        augment.device_seconds(lambda: None)


def test_the_pass_over_the_pixels_is_launched_in_other_ways(monkeypatch):
    """Blocks, threads and registers follow the way; images are counted from the launch that it replaces."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tuning, launches = importlib.import_module("gpu_tuning"), importlib.import_module("fastimg.augment.fused.launches")
    found = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **named: found.append((grid, named)) or types.SimpleNamespace(n_regs=40, n_spills=0)

    monkeypatch.setattr(launches, "_pixels", Kernel())
    launched = tuning.Launched(tuning.Way(64, 8, 40))
    assert launches._pixels is launched
    own = {"HEIGHT": 224, "WIDTH": 224, "EACH": 16, "THREADS": 128, "num_warps": 4}
    launched[(3 * 25,)]("out", **own)
    launched.way = tuning.Way(128, 32)
    launched[(3 * 25,)]("out", **own)
    (first, named), (second, other) = found
    assert first == (3 * 98,) and second == (3 * 13,)
    assert named == {**own, "EACH": 8, "THREADS": 64, "num_warps": 2, "maxnreg": 40}
    assert other == {**own, "EACH": 32}
    assert list(launched.compiled) == [tuning.Way(64, 8, 40), tuning.Way(128, 32)]
    assert launched.compiled[launched.way] == {"registers": 40, "spills": 0}
