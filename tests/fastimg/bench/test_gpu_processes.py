"""The processes that the GPU benchmark starts: how it handles those that crash, hang or reach their time limit."""

import importlib
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from .gpu_runs import BENCHMARKS, records_of

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")


def child_of(tmp_path: Path, code: str, seconds: float = 60) -> Any:
    process = importlib.import_module("gpu_process")
    begun = "import os, signal, sys, time\n" + code
    return process.Child([sys.executable, "-c", begun, str(tmp_path / "status")], tmp_path / "status", seconds)


ITEM = 'open(sys.argv[1], \'a\').write(\'{"item": "a", "seconds": %s, "fields": {"arch": "x"}}\\n\')\n'
FORKED = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\npid = os.fork()\nprint(end='')\n"


def test_a_process_that_hangs_is_ended_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores SIGTERM, and so does its child process."""
    monkeypatch.setattr(importlib.import_module("gpu_process"), "GRACE", 0.2)
    code = FORKED + "open(sys.argv[1] + str(bool(pid)), 'w').write(str(os.getpid()))\ntime.sleep(60)"
    child = child_of(tmp_path, code, seconds=100)
    said = [tmp_path / f"status{first}" for first in (True, False)]
    while not all(path.exists() and path.read_text() for path in said):
        assert not child.finished()
        time.sleep(0.01)
    ended = child.wait(at_most=0.4)
    assert (ended.code, ended.stopped, ended.item) == (-signal.SIGKILL, "stopped at its limit of 0 s", None)
    other = int((tmp_path / "statusFalse").read_text())
    for _ in range(100):  # it is another process's child now, which may not have reaped it yet
        try:
            state = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            break
        if state in "ZX":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the hanging process's own process is left")


def test_an_item_has_a_limit_of_its_own(tmp_path: Path) -> None:
    child = child_of(tmp_path, ITEM % 0.3 + "time.sleep(60)")
    ended = child.wait()
    assert ended.stopped == "stopped at the limit of 0 s for an item" and ended.item["fields"] == {"arch": "x"}
    assert ended.code == -signal.SIGTERM and child.begun() == ["a"]


def test_a_crash_says_where(tmp_path: Path) -> None:
    ended = child_of(tmp_path, ITEM % 60 + "os.kill(os.getpid(), signal.SIGSEGV)").wait()
    assert ended.words() == "killed by SIGSEGV" and ended.item["item"] == "a" and not ended.stopped
    ended = child_of(tmp_path, ITEM % 60).wait()
    assert (ended.code, ended.item) == (0, None)


def test_a_section_continues_after_the_item_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    """With the real process that runs sections, on a section whose second item kills the process."""
    gpu, plan = importlib.import_module("gpu"), importlib.import_module("gpu_plan")
    section = plan.Section(name="parity", function="crashing:crash", seconds=120, what="")
    (tmp_path / "crashing.py").write_text(
        "import os, runpy, signal, sys\n"
        "def crash(bench):\n"
        "    items = {name: (lambda name=name: bench.keep({'item': name})) for name in 'abc'}\n"
        "    items['b'] = lambda: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    bench.each(items, seconds=60, fields=lambda name: {'arch': name})\n"
        "if __name__ == '__main__':\n"
        f"    sys.path.insert(1, {str(BENCHMARKS)!r})\n"
        "    import gpu_plan\n"
        f"    gpu_plan.SECTIONS['parity'] = gpu_plan.{section!r}\n"
        "    del sys.argv[0]\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = tmp_path / "command"
    command.write_text(f"#!/bin/sh\nexec '{python}' '{tmp_path}/crashing.py' \"$@\"\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command))
    args = types.SimpleNamespace(device="cpu", quick=True, data=None, images=None, rows=None, cifar=None, verbose=False)
    benchmark = gpu.Benchmark(args, [section], tmp_path / "out.jsonl", "now", tmp_path)
    assert gpu._run(benchmark, section, 120) == 0
    records = records_of(tmp_path / "out.jsonl")
    told = [(r.get("item"), r.get("arch"), r.get("error")) for r in records]
    assert told == [("a", None, None), (None, "b", "killed by SIGSEGV"), ("c", None, None)]
    assert benchmark.failed == ["parity"] and records[1]["environment"]["torch"]


class StubChild:
    """A process that has ended, and the items that it had begun."""

    pid = 0

    def __init__(self, ended: Any, begun: list[str]) -> None:
        self.wait = lambda: ended
        self.begun = lambda: begun


@pytest.mark.parametrize("fills", [True, False])
def test_a_section_that_fills_its_time_may_be_stopped_at_its_limit(
    fills: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, plan, process = (importlib.import_module(name) for name in ("gpu", "gpu_plan", "gpu_process"))
    section = plan.Section(name="steps", function="", seconds=60, what="", fills=fills)
    args = types.SimpleNamespace(device="cpu", quick=True, data=None, images=None, rows=None, cifar=None, verbose=False)
    benchmark = gpu.Benchmark(args, [section], tmp_path / "out.jsonl", "now", tmp_path)
    item = {"item": "x", "seconds": 60, "behind": 1, "fields": {"arch": "x"}}
    stopped = process.Ended(128 + signal.SIGTERM, "stopped at its limit of 60 s", item)
    benchmark.start = lambda task: StubChild(stopped, ["x"])
    gpu._run(benchmark, section, seconds=0.0)
    assert benchmark.failed == ([] if fills else ["steps"])
    assert (tmp_path / "out.jsonl").exists() is not fills

    lost = [process.Ended(gpu.LOST, "", item), process.Ended(0, "", None)]  # the first one has recorded its error
    tasks = []
    benchmark.start = lambda task: tasks.append(task) or StubChild(lost[len(tasks) - 1], ["x"])
    (tmp_path / "out.jsonl").unlink(missing_ok=True)
    assert gpu._run(benchmark, section, seconds=60.0) == 0
    assert [task.skip for task in tasks] == [(), ("x",)] and "steps" in benchmark.failed
    assert not (tmp_path / "out.jsonl").exists() and "the device was lost in x" in benchmark.stopped[-1]
