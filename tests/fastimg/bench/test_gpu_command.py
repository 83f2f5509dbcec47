"""The GPU benchmark as a command, on a CPU: its records, plan and summary, interruptions, and missing packages."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from .gpu_runs import BENCHMARKS, STEP, records_of

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")

FIRST = ["gates", "cifar", "steps", "training", "augment"]
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
LIMITS = "--limit", ",".join(f"{name}=300" for name in ("parity", "amp", *FIRST))  # generous, for a busy machine


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
    arguments = "--only", "steps,training", "--out", str(out)
    process = start(*arguments, *LIMITS, env=environment(tmp_path), cwd=tmp_path)
    said, _ = process.communicate(timeout=600)
    records = records_of(out)
    assert process.returncode == 0, said
    assert list(dict.fromkeys(r["section"] for r in records)) == ["steps", "training"]
    assert not [r for r in records if "error" in r or not r.get("ok", True)]
    assert (tmp_path / "new" / "folder" / "results-test_resnet.trace.json.gz").stat().st_size < 10 << 20
    first = said.splitlines()[0]
    assert first.startswith("wheels: missing") and "simplejpeg (" in first and "pip download" in first
    assert all(r["environment"]["torch"] and r["environment"]["cores"] >= 1 for r in records)
    assert not [r for r in records if str(tmp_path) in json.dumps(r) or str(BENCHMARKS.parent) in json.dumps(r)]
    steps = [r for r in records if r["section"] == "steps" and "skipped" not in r]
    assert steps and all(r.keys() >= STEP and r["images_per_second"] > 0 for r in steps)
    assert {r["arch"] for r in steps} == {"test_resnet"}
    lines = summary_of(said)
    assert len(lines) <= 10 and lines[0].startswith("test_resnet: ")
    assert [line for line in lines if line.startswith("real/synthetic test_resnet: files, eager")]
    assert "nothing failed" in lines[-1]


def test_a_killed_section_does_not_end_the_others(tmp_path: Path, python: str) -> None:
    out = tmp_path / "results.jsonl"
    environ = environment(tmp_path, forking(python))
    process = start("--only", "parity,amp", "--out", str(out), *LIMITS, env=environ)
    os.kill(pid_of(process, "parity"), signal.SIGKILL)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    parity, *others = records_of(out)
    assert (parity["section"], parity["error"], parity["ok"]) == ("parity", "killed by SIGKILL", False)
    assert others and all(r["section"] == "amp" and "error" not in r for r in others)
    assert "failed: parity; parity killed by SIGKILL" in "\n".join(summary_of(said))


def test_interrupted_it_keeps_its_records_and_prints_the_summary(tmp_path: Path, python: str) -> None:
    out = tmp_path / "results.jsonl"
    environ = environment(tmp_path, forking(python))
    process = start("--only", "parity,amp", "--out", str(out), *LIMITS, env=environ)
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
    assert "resnet18 fp16 256; resnet18 fp16 graphs 256; resnet18 bf16 default 256" in first.stdout
    second = subprocess.run([*command, "--second"], capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert "(skipped: needs msgspec, simplejpeg, xxhash)" in second.stdout
    plan = importlib.import_module("gpu_plan")
    for call in (plan.FIRST, plan.SECOND):  # a call may take ten minutes
        assert 500 < sum(plan.SECTIONS[name].seconds for name in call) < 560


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
