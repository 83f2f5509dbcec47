"""The machine code analysed by benchmarks/kernels.py, and the device time measured by benchmarks/augment.py."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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
    assert pixels["spills"] == pixels["shared_bytes"] == pixels["shuffles"] == 0 and pixels["registers"] <= 64
    assert pixels["stores"] == "128 x 12" and pixels["loads"].startswith("64 x 12, 32 x ")
    assert pixels["bytes_ms"] == 0.1075 and 4 < pixels["instructions_per_value"] < 12
    assert whole["low_ms"] == max(pixels["bytes_ms"], pixels["issue_ms"]) < whole["high_ms"]
    assert "flips" in done.stdout and str(tmp_path) not in out.read_text()


def test_instructions_are_counted_along_paths(kernels):
    """A branch around a load, then a loop of nine iterations, then an exit; code after the exit is not reached."""
    lines = [
        "S2R R0",
        "@P0 BRA 0x40",
        "LDG.E.U8 R1",
        "NOP.X",
        "FADD R2",
        "@!P1 BRA 0x40",
        "STG.E.128 R3",
        "EXIT",
        "BRA 0x80",
    ]
    code = tuple((16 * number, text) for number, text in enumerate(lines))
    found = {kernels.total(path): path for path in kernels.paths(kernels.Compiled(code, 32, 0, 9))}
    assert set(found) == {2 + 9 * 2 + 2, 4 + 9 * 2 + 2}
    assert found[24]["LDG.E.U8"] == 1 and found[22]["LDG.E.U8"] == 0 and found[22]["FADD"] == 9
    assert kernels.widths(code, "LDG") == "8 x 1" and kernels.widths(code, "STG") == "128 x 1"


def test_the_loop_of_the_statistics_pass(kernels):
    """statistics.cu: contrast, autocontrast and equalize are told apart; its loop counts by the mean of the threads."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings, which torch brings with CUDA")
    given = {"pixels": 50176, "width": 224, "groups": 3136, "blocks": 4, "contrast": 3, "equalize": 8}
    costs = {}
    for op in (kernels.Op.CONTRAST, kernels.Op.AUTOCONTRAST, kernels.Op.EQUALIZE):
        plan = SimpleNamespace(ops=torch.full((6, 1), int(op)))
        row = kernels.counting_row(kernels.Launch(kernels.Counting, 24, given, {"num_warps": 8}), plan)
        assert row["spills"] == 0 and row["bytes_ms"] == round(1e3 * 6 * 150528 / kernels.MOVED, 4)
        costs[op] = row["instructions_per_value"]
    assert 2 < costs[kernels.Op.CONTRAST] < 6 and 2 < costs[kernels.Op.AUTOCONTRAST] < 6
    assert costs[kernels.Op.AUTOCONTRAST] < costs[kernels.Op.EQUALIZE] < 8


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
