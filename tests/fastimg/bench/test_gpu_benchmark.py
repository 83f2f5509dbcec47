"""The GPU benchmark, run on a CPU: its sections, and its handling of processes that crash or hang."""

import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fastimg.doctor import torch_facts
from fastimg.system import disks

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
FIRST = ["versions", "parity", "steps", "loader", "augment", "overlap"]
STEP = {"section", "arch", "dtype", "compile", "batch", "images_per_second", "ms", "n", "memory_mib", "gpu", "torch"}
# Blocks packages in every Python process that finds this file on its path.
REFUSING = """
import os, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["REFUSED"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
"""
BARE = "msgspec simplejpeg shtab kornia xxhash"
LIMITS = "--limit", ",".join(f"{name}=300" for name in FIRST)  # generous, for a busy machine


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def environment(tmp_path: Path, site: str = REFUSING, refused: str = BARE) -> dict[str, str]:
    """In which Python runs `site` first."""
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(site)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "REFUSED": refused, "OMP_WAIT_POLICY": "passive"}
    return {name: value for name, value in environ.items() if not name.startswith("COV_")}


def forking(python: str) -> str:
    """Lets gpu.py start its sections with the command `python`: as forks, which lack no package."""
    return f"{REFUSING}\nsys.executable = {python!r}\n"


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--device", "cpu", "--quick", "--verbose", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary_of(said: str) -> list[str]:
    return said.rstrip().partition("\nSummary\n")[2].splitlines()


def pid_of(process: subprocess.Popen[str], section: str) -> int:
    """The id of a section's process, once it has started."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"{section}: process "):
            return int(line.split()[2].rstrip(","))
    raise AssertionError(f"{section} did not start")


@pytest.mark.slow
def test_training_is_measured_without_what_a_bare_machine_lacks(tmp_path: Path, compiled_decoder: None) -> None:
    out = tmp_path / "new" / "folder" / "results.jsonl"
    arguments = "--only", "steps,loader", "--out", str(out)
    process = start(*arguments, *LIMITS, env=environment(tmp_path), cwd=tmp_path)
    said, _ = process.communicate(timeout=600)
    records = records_of(out)
    assert process.returncode == 0, said
    assert list(dict.fromkeys(r["section"] for r in records)) == ["steps", "loader"]
    assert not [r for r in records if "error" in r or not r.get("ok", True)]
    first = said.splitlines()[0]
    assert first.startswith("wheels: missing") and "simplejpeg (" in first and "pip download" in first
    assert all(r["environment"]["torch"] and r["environment"]["cores"] >= 1 for r in records)
    assert not [r for r in records if str(tmp_path) in json.dumps(r) or str(BENCHMARKS.parent) in json.dumps(r)]
    steps = [r for r in records if r["section"] == "steps"]
    assert steps and all(r.keys() >= STEP and r["images_per_second"] > 0 for r in steps)
    assert {r["arch"] for r in steps} == {"test_resnet", "test_vit"}
    lines = summary_of(said)
    assert len(lines) <= 10 and lines[0].startswith("test_resnet: ")
    assert [line for line in lines if line.startswith("real/synthetic: test_resnet")]
    assert "nothing failed" in lines[-1]


def test_a_killed_section_does_not_end_the_others(tmp_path: Path, python: str) -> None:
    out = tmp_path / "results.jsonl"
    environ = environment(tmp_path, forking(python))
    process = start("--only", "parity,augment", "--out", str(out), *LIMITS, env=environ)
    os.kill(pid_of(process, "parity"), signal.SIGKILL)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    parity, *others = records_of(out)
    assert (parity["section"], parity["error"], parity["ok"]) == ("parity", "killed by SIGKILL", False)
    assert others and all(r["section"] == "augment" and "error" not in r for r in others)
    assert "failed: parity; parity killed by SIGKILL" in "\n".join(summary_of(said))


def test_interrupted_it_keeps_its_records_and_prints_the_summary(tmp_path: Path, python: str) -> None:
    out = tmp_path / "results.jsonl"
    environ = environment(tmp_path, forking(python))
    process = start("--only", "parity,augment", "--out", str(out), *LIMITS, env=environ)
    pid = pid_of(process, "parity")
    while not out.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    records = records_of(out)
    assert records and {r["section"] for r in records} == {"parity"}
    lines = summary_of(said)
    assert lines[0].startswith("parity: ok, ") and [line for line in lines if "interrupted by SIGTERM" in line]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_plan_needs_neither_torch_nor_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--plan"]
    environ = environment(tmp_path, refused=f"torch numpy rich numba {BARE}")
    first = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert [line.split()[1] for line in first.stdout.splitlines() if line[:2].strip().isdigit()] == FIRST
    assert "at most 440 s together" in first.stdout and "resnet50 bf16 256; resnet18 bf16 256" in first.stdout
    second = subprocess.run([*command, "--second"], capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert "(skipped: needs msgspec, simplejpeg, xxhash)" in second.stdout
    total = int(second.stdout.split("at most ")[1].split()[0])
    assert 300 < total < 580  # a call may take ten minutes


def test_wheels_are_unpacked_and_used(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, place in (
        ("msgspec-9-py3-none-any", "msgspec"),
        ("simplejpeg-9-py3-none-any", "simplejpeg-9.data/purelib/simplejpeg"),
    ):
        with zipfile.ZipFile(folder / f"{name}.whl", "w") as wheel:
            wheel.writestr(f"{place}/__init__.py", "")
    gpu = importlib.import_module("gpu")
    path, environ = list(sys.path), os.environ.get("PYTHONPATH")
    try:
        for _ in range(2):  # the second time they are already unpacked
            gpu._add_wheels(folder)
        assert [Path(place).relative_to(folder).as_posix() for place in sys.path[1:4]] == [
            *("unpacked/msgspec-9-py3-none-any", "unpacked/simplejpeg-9-py3-none-any"),
            "unpacked/simplejpeg-9-py3-none-any/simplejpeg-9.data/purelib",
        ]
        assert os.environ["PYTHONPATH"].startswith(sys.path[1])
    finally:
        sys.path[:] = path
        os.environ["PYTHONPATH"] = environ or ""
        if environ is None:
            del os.environ["PYTHONPATH"]
    with pytest.raises(FileNotFoundError, match="no wheels"):
        gpu._add_wheels(tmp_path)


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
    args = types.SimpleNamespace(device="cpu", quick=True, data=None, images=None, verbose=False)
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
    args = types.SimpleNamespace(device="cpu", quick=True, data=None, images=None, verbose=False)
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


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("photographs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        importlib.import_module("images").write_photographs(folder, 12, (160, 120), 2)
        yield folder


def bench_of(folder: Path, tmp_path: Path, section: str = "section", deadline: float = 600) -> Any:
    bench = importlib.import_module("bench")
    cpu = torch.device("cpu")
    (tmp_path / "status").touch()
    return bench.Bench(
        device=cpu,
        sizes=bench.Sizes.choose(cpu, True),
        quick=True,
        folder=folder,
        data_name=bench.MADE,
        out=tmp_path / "out.jsonl",
        console=Console(file=io.StringIO()),
        environment=importlib.import_module("gpu_section").environment(),
        section=section,
        run="now",
        status=tmp_path / "status",
        deadline=time.monotonic() + deadline,
    )


SECTIONS = {
    "loader-parity": ("gpu_parity:loader_parity", "batches, bit for bit"),
    "augment-parity": ("gpu_parity:augment_parity", "augmentation = reference, bit for bit"),
    "amp": ("gpu_checks:amp", "loss within 2 %, cosine of gradients above 0.9"),
    "compile": ("gpu_checks:compiled", "compiled against eager, 3 steps"),
    "fsdp2": ("gpu_checks:fsdp2", "sharded against plain, 3 steps"),
    "gpu-decode": ("gpu_checks:gpu_decode", "levels of 0-255, against fastimg's decoder"),
    "overlap": ("gpu_measures:overlap", "test_resnet, batch 8, 1 threads"),
    "parity": ("gpu_parity:parity", "augmentation = reference, bit for bit"),
    "versions": ("gpu_versions:versions", "seconds per import, in this order"),
    "augment-peers": ("gpu_augment:augment_peers", "8x3x64x64 uint8 -> bf16, by the clock, random crops"),
}


def not_asked() -> None:
    raise RuntimeError("not asked in this test: a process that imports torch")


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision:DeprecationWarning")
@pytest.mark.parametrize("name", SECTIONS)
def test_sections(name: str, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_facts, "_ask", not_asked)
    monkeypatch.setattr(disks, "FILE", 1 << 20)
    function, title = SECTIONS[name]
    assert importlib.import_module("gpu_plan").SECTIONS[name].function == function
    module, _, attribute = function.partition(":")
    bench = bench_of(photographs, tmp_path, name)
    getattr(importlib.import_module(module), attribute)(bench)
    records = records_of(tmp_path / "out.jsonl")
    assert [r for r in records if r.get("title", "").startswith(title)]
    assert not bench.failed and not [r for r in records if "error" in r or r.get("ok") is False]
    assert str(BENCHMARKS.parent) not in json.dumps(records)


def test_functions_of_sections_exist() -> None:
    for section in importlib.import_module("gpu_plan").SECTIONS.values():
        module, _, attribute = section.function.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_images_that_cannot_be_read_fail_their_item_only(tmp_path: Path) -> None:
    (tmp_path / "no-image.jpg").write_bytes(b"\xff\xd8 nothing")
    parity = importlib.import_module("gpu_parity")
    bench = bench_of(tmp_path, tmp_path, "parity")
    items = {"loader": lambda: parity.loader_parity(bench), "all": lambda: bench.keep({"item": "all"})}
    bench.each(items, seconds=60)
    failed, passed = records_of(tmp_path / "out.jsonl")
    assert failed["item"] == "loader" and "images could not be read" in failed["error"] and failed["ok"] is False
    assert passed["item"] == "all" and bench.failed == ["parity"]
    assert str(tmp_path) not in json.dumps(failed)


def test_items_that_are_not_reached_are_recorded(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, tmp_path, deadline=10)
    least = {"a": 1.0, "b": 60.0, "c": 1.0}
    bench.each({name: (lambda name=name: bench.keep({"item": name})) for name in least}, 60, least.__getitem__)
    told = [(r.get("item"), r.get("not_reached")) for r in records_of(tmp_path / "out.jsonl")]
    assert told == [("a", None), ("c", None), (None, ["b"])]


def test_steps_where_memory_runs_out_or_a_model_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, plan = importlib.import_module("gpu_steps"), importlib.import_module("gpu_plan")
    faults = {"a": torch.OutOfMemoryError("CUDA out of memory"), "b": RuntimeError("illegal\nmore")}

    def rate(bench: Any, variant: Any) -> dict[str, Any]:
        if variant.arch in faults:
            raise faults[variant.arch]
        return {"images_per_second": 1.0, "ms": 2.0, "n": 3, "memory_mib": 4}

    monkeypatch.setattr(steps, "_rate", rate)
    bench = bench_of(tmp_path, tmp_path, "steps")
    steps._measure(bench, [plan.Variant(arch, "bf16", "default", 8) for arch in "abc"])
    a, b, c = records_of(tmp_path / "out.jsonl")
    assert a["error"] == "out of memory" and "ok" not in a and a["compile"] == "default"
    assert b["error"] == "RuntimeError: illegal" and b["ok"] is False and b["torch"] and "gpu" in b
    assert c.keys() >= STEP and bench.failed == ["steps"]
    measured = steps.measured(importlib.import_module("gpu_summary").read(bench.out), bench.environment)
    assert measured == {plan.Variant("c", "bf16", "default", 8)}
    assert not steps.measured([{**c, "gpu": "another"}], bench.environment)


def test_the_grid_begins_with_the_most_informative_rows() -> None:
    plan = importlib.import_module("gpu_plan")
    grid = plan.grid(("resnet50", "resnet18"), (256, 1024), "cuda")
    assert [v.text() for v in grid[:5]] == [
        *("resnet50 bf16 256", "resnet18 bf16 256", "resnet50 fp16 256", "resnet18 fp16 256", "resnet50 bf16 1024")
    ]
    assert len(grid) == len(set(grid)) == 2 * 2 * 2 + 2 * 3 * 2
    assert [bool(v.compile) for v in grid] == sorted(bool(v.compile) for v in grid)
    assert {v.compile for v in grid} == {None, "default", "reduce-overhead", "max-autotune-no-cudagraphs"}
    assert plan.more(("resnet50",), (256,), "cuda")[0] == plan.Variant("resnet50", "float32", None, 256)


def test_the_summary_has_ten_lines_best_first(tmp_path: Path) -> None:
    module = importlib.import_module("gpu_summary")
    step = {"section": "steps", "run": "now", "dtype": "bf16", "batch": 256, "ms": 50.0}
    records = [
        {**step, "arch": arch, "compile": compiled, "images_per_second": rate}
        for arch in "abcdef"
        for compiled, rate in ((None, 1000.0), ("default", 2000.0))
    ]
    records += [{**step, "arch": "a", "compile": None, "dtype": "fp16", "images_per_second": 1500.0}]
    records += [{**step, "arch": "a", "compile": None, "batch": 1024, "error": "out of memory"}]
    records += [{"section": "loader", "threads": n, "images_per_second": 100.0 * n, "per_thread": 1} for n in (8, 16)]
    records += [{"section": "parity", "check": "flip", "ok": False}, {"section": "parity", "check": "all", "ok": True}]
    records += [{"section": "steps", "not_reached": ["a bf16 8", "b bf16 8"]}]
    lines = module.summary(records, ["failed: parity", "done"])
    assert len(lines) == 10
    assert lines[0].startswith("a: 2,000 img/s (bf16 default, batch 256, 50 ms); not compiled 1,500 img/s (fp16,")
    assert lines[0].endswith("; bf16 1,000, fp16 1,500")
    assert [line[:2] for line in lines[:6]] == [f"{arch}:" for arch in "abcdef"]
    assert lines[-4:-2] == ["parity: FAILED, 1 of 2: flip", "no time for: steps 2 (a bf16 8, ...)"]
    assert lines[-2:] == ["failed: parity", "done"]
    file = tmp_path / "out.jsonl"
    file.write_text(json.dumps(records[0]) + "\n" + json.dumps({"section": "steps", "run": "other"}) + '\n{"sec')
    assert module.read(file, "now") == [records[0]] and len(module.read(file)) == 2


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


MARKED = """
import pytest

pytestmark = pytest.mark.gpu

def test_good(): pass
def test_bad(): assert False
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
    monkeypatch.setattr(checks, "available_cpus", lambda: 2)
    rows: list[dict[str, Any]] = []
    bench = types.SimpleNamespace(
        need_cuda=lambda: None,
        left=lambda: 300.0,
        console=Console(quiet=True),
        report=lambda title, found: rows.extend(found),
    )

    def run() -> dict[str, Any]:
        checks.marked_tests(bench)
        return rows[-1]

    return run


def test_marked_tests_are_counted_and_failures_named(marked_tests: Any) -> None:
    row = marked_tests()
    assert [row[name] for name in ("tests", "passed", "failed", "skipped", "not_ended")] == [3, 1, 1, 1, 0]
    assert row["failures"] == "tests/test_marked.py::test_bad" and row["exit_status"] == 1 and row["ok"] is False


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
    measures = importlib.import_module("gpu_measures")

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
