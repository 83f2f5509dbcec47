"""A few of the mutations of `benchmarks/fuzz_files.py`: the files beside samples are read rightly, or refused."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ("fidx", "fcol", "ffld", "ftil", "fdci", "dataset", "config", "metrics")


def test_mutated_files_are_refused_or_read_rightly(tmp_path: Path) -> None:
    """In a process of its own, as it limits its memory and keeps nothing."""
    command = [sys.executable, ROOT / "benchmarks/fuzz_files.py", "--count", "40", "--seed", "1"]
    command += ["--out", tmp_path / "results.jsonl", "--folder", tmp_path / "files"]
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    ended = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert tuple(record["kind"] for record in ended) == KINDS
    assert all(record["count"] == 40 for record in ended)
