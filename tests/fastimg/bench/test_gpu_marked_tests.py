"""The section of the GPU benchmark that runs the tests marked `gpu`: which files, their results, and its time limit."""

import importlib
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastimg.system import measurement

from .gpu_runs import BENCHMARKS

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")

MARKED = """
import pytest

pytestmark = pytest.mark.gpu

def test_good(): pass
def test_bad(): raise RuntimeError("at 54:8:\\n    image = 1\\n    ^\\n  out of range for int16")
def test_left_out(): pytest.skip("no reason")
"""


@pytest.fixture
def marked_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`marked_tests` on a folder of three tests marked `gpu`, and one that is not; gives its row."""
    checks = importlib.import_module("gpu_checks")
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_marked.py").write_text(MARKED)
    (folder / "test_other.py").write_text("def test_other(): assert False")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu")
    monkeypatch.setattr(checks.measure, "ROOT", tmp_path)
    rows: list[dict[str, Any]] = []
    bench = types.SimpleNamespace(
        need_cuda=lambda: None,
        left=lambda: 300.0,
        console=Console(quiet=True),
        report=lambda title, found: rows.extend(found),
        without_paths=lambda text: text,
        out=tmp_path / "out.jsonl",
        section="tests",
        environment={"gpu": "a", "commit": "b"},
    )
    bench.keep = lambda record: measurement.append(
        bench.out, {**record, "section": "tests", "environment": bench.environment}
    )

    def run() -> dict[str, Any]:
        checks.marked_tests(bench)
        return rows[-1]

    return run


def test_marked_tests_are_counted_and_failures_named(marked_tests: Any) -> None:
    row = marked_tests()
    assert [row[name] for name in ("tests", "passed", "failed", "skipped", "not_ended")] == [3, 1, 1, 1, 0]
    assert row["failures"] == "tests/test_marked.py::test_bad" and row["exit_status"] == 1 and row["ok"] is False
    assert row["reasons"] == "RuntimeError: at 54:8: image = 1 ^ out of range for int16"


def test_what_has_passed_is_not_run_again(marked_tests: Any) -> None:
    marked_tests()
    row = marked_tests()
    assert [row[name] for name in ("tests", "passed", "failed", "skipped", "left_out")] == [2, 0, 1, 1, 1]


def test_marked_tests_that_ended_before_time_was_up_count(marked_tests: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = importlib.import_module("gpu_checks")

    def stopped(command: list[str], env: dict[str, str], seconds: float) -> None:
        subprocess.run([*command, "-k", "good"], env=env, check=True)
        log = Path(env["FASTIMG_TEST_LOG"])
        began = '{"began": "tests/test_marked.py::test_bad"}\n'
        log.write_text(log.read_text().replace('"collected": 1', '"collected": 3') + began + '{"test": "tests/test_mar')

    monkeypatch.setattr(checks, "_run_tests", stopped)
    row = marked_tests()
    assert [row[name] for name in ("tests", "passed", "failed", "not_ended", "exit_status")] == [3, 1, 0, 2, None]
    assert row["running"] == "tests/test_marked.py::test_bad"


@pytest.mark.parametrize("heeds", [True, False], ids=["heeds the signal", "ignores it"])
def test_tests_that_take_too_long_are_interrupted(heeds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given time to say what has failed, and are killed if they do not end."""
    checks = importlib.import_module("gpu_checks")
    monkeypatch.setattr(checks, "_TELLING", 60.0 if heeds else 0.2)
    said = tmp_path / "said"
    ending = f"open({str(said)!r}, 'w').write('a failure'); sys.exit(2)" if heeds else "pass"
    script = "import signal, sys, time\n"
    script += f"def end(*_): {ending}\nsignal.signal(signal.SIGINT, end)\n"
    script += "while True: time.sleep(0.01)"
    began = time.monotonic()
    assert checks._run_tests([sys.executable, "-c", script], dict(os.environ), 8.0) is None
    assert time.monotonic() - began < 60
    assert said.exists() == heeds
    assert checks._run_tests([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ), 60.0) == 3


def test_marked_tests_of_training_come_first() -> None:
    checks = importlib.import_module("gpu_checks")
    tests = BENCHMARKS.parent / "tests"
    places = [path.relative_to(tests).as_posix() for path in checks.marked_files(tests)]
    assert places[0].startswith("fastimg/train/") and places[-1].startswith("augment/")
    assert {"fastimg/train/test_on_gpu.py", "loaders/backends/test_backends.py", "augment/test_fused.py"} < {*places}
