"""The benchmark of training techniques."""

import json
import subprocess
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.mark.slow
def test_techniques_are_measured_beside_the_plain_run(tmp_path: Path, python: str) -> None:
    out = tmp_path / "train.jsonl"
    small = ["--arch", "test_vit", "--size", "32", "--batch-size", "4", "--steps", "2", "--repeats", "1"]
    only = ["--images", "4", "--only", "EMA", "ghost norm, halves", "--out", str(out)]
    script = tmp_path / "forking.py"  # the benchmark's own processes are forks, too
    script.write_text(
        "import os, runpy, sys\n"
        f"sys.executable = {python!r}\n"
        "del sys.argv[0]\n"
        "sys.path[0] = os.path.dirname(sys.argv[0])\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [python, "-W", "ignore", str(script), str(BENCHMARKS / "train.py"), *small, *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record["variant"]: record for record in map(json.loads, out.read_text().splitlines())}
    assert records.keys() == {"plain", "EMA", "ghost norm, halves"}
    assert records["plain"]["ratio"] == 1 and records["plain"]["n"] == 1
    assert records["EMA"]["images_per_second"] > 0 and records["EMA"]["peak_mib"] > 100
    assert "no batch norm" in records["ghost norm, halves"]["skipped"]
    assert "skipped" in done.stdout
