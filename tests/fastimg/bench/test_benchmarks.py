"""The benchmark for GPUs, tried on a CPU."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
CHECKS = {"loader-parity", "ragged-parity", "augment-parity", "amp", "fp16", "compile", "fsdp2", "gpu-decode"}
MEASURES = {"loader", "overlap", "augment", "augment-share", "train"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--quick", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_every_section_runs_and_writes_records(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    done = run("--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert {r["section"] for r in records} == CHECKS | MEASURES
    assert {r["section"] for r in records if "skipped" in r and "title" not in r} == {"fp16", "ragged-parity"}
    assert all(r["environment"]["torch"] and r["environment"]["cores"] >= 1 for r in records)
    assert all(r.get("ok", True) for r in records)
    assert not [r for r in records if str(tmp_path) in json.dumps(r) or str(BENCHMARKS.parent) in json.dumps(r)]
    assert "fp16: skipped: needs CUDA" in done.stdout
    assert "real/synthetic" in done.stdout and "test_resnet" in done.stdout


@pytest.mark.slow
def test_a_section_that_fails_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "no-image.jpg").write_bytes(b"\xff\xd8 nothing")
    out = tmp_path / "results.jsonl"
    done = run("--data", str(tmp_path / "data"), "--only", "loader-parity,augment-parity", "--out", str(out))
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert done.returncode == 1
    assert "loader-parity: FAILED" in done.stdout and "failed: loader-parity" in done.stdout
    assert [r["ok"] for r in records if r["section"] == "loader-parity"] == [False]
    assert all(r["ok"] for r in records if r["section"] == "augment-parity")


def test_copies_under_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    measures = importlib.import_module("gpu_measures")

    def event(cat: str, name: str, ts: float, dur: float, stream: int, nbytes: int = 0) -> dict[str, object]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"stream": stream, "bytes": nbytes}}

    events = [
        {"ph": "M", "name": "process_name"},
        event("kernel", "conv", 10, 10, 7),
        event("kernel", "conv", 15, 10, 7),  # overlaps the one before: counted once
        event("kernel", "other work on the copy's stream", 30, 10, 20),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 5, 30, 20, 1000),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 50, 7, 8),  # a small one
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 0, 50, 20, 1000),
    ]
    found = measures.copies_under_compute(events, least=500)
    assert found["count"] == 1 and found["share_under_compute"] == 0.5 and found["milliseconds"] == 0.03
    events[1]["name"] = "_pixels"  # an augmentation's kernel; of the others, those of its own stream do not count
    found = measures.augmentation_under_compute([*events, event("kernel", "conv", 12, 4, 20)])
    assert found["count"] == 1 and found["share_under_compute"] == 0.4 and found["milliseconds"] == 0.01


@pytest.mark.slow
def test_techniques_are_measured_beside_the_plain_run(tmp_path: Path) -> None:
    out = tmp_path / "train.jsonl"
    small = ["--arch", "test_vit", "--size", "32", "--batch-size", "4", "--steps", "2", "--repeats", "1"]
    only = ["--images", "4", "--only", "EMA", "ghost norm, halves", "--out", str(out)]
    command = [sys.executable, "-W", "ignore", str(BENCHMARKS / "train.py"), *small, *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record["variant"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert records.keys() == {"plain", "EMA", "ghost norm, halves"}
    assert records["plain"]["ratio"] == 1 and records["plain"]["n"] == 1
    assert records["EMA"]["images_per_second"] > 0 and records["EMA"]["peak_mib"] > 100
    assert "no batch norm" in records["ghost norm, halves"]["skipped"]
    assert "skipped" in done.stdout
