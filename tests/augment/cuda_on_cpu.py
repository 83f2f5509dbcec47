"""statistics.cu compiled by g++ under `cuda_on_cpu.hpp`, with a launch that executes it on tensors of the CPU."""

import ctypes
import importlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
counting = importlib.import_module("fastimg.augment.fused.counting")

_RUN = """
static struct { %s } given;
extern "C" int run(int blocks, %s) {
    given = {%s};
    return run_blocks(blocks, [] { statistics(%s); });
}
"""
_CPP = {ctypes.c_longlong: "long long", ctypes.c_int: "int"}
_POINTERS = ["Count*", "const Level*", "const int*", "const int*", "const Level*"]


class CounterOnCPU:
    """A `counting.LevelCounter` for tensors on the CPU; `launches` are the blocks and values that it was given."""

    missing = None
    words = "C++ on the CPU"

    def __init__(self, run: Callable[..., int]) -> None:
        self._run = run
        self.launches: list[tuple[int, tuple[int, ...]]] = []

    def launch(self, blocks: int, values: Sequence[int]) -> None:
        self.launches.append((blocks, tuple(values)))
        assert self._run(blocks, *values) == 1, "threads of a block disagree about barriers"


def counter_on_cpu() -> CounterOnCPU:
    """Compile the kernel; skips the test where there is no g++."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++, to execute CUDA C++ on the CPU")
    pointers = iter(_POINTERS)
    types = [_CPP[kind] if kind in _CPP else next(pointers) for kind in counting.TYPES]
    names = [f"a{number}" for number in range(len(types))]
    fields = " ".join(f"{kind} {name};" for kind, name in zip(types, names, strict=True))
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(types, names, strict=True))
    run = _RUN % (fields, parameters, ", ".join(names), ", ".join(f"given.{name}" for name in names))
    header = Path(__file__).with_name("cuda_on_cpu.hpp").read_text()
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "statistics.cpp"), Path(folder, "statistics.so")
        source.write_text(header + counting.SOURCE.read_text() + run)
        command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        compiled: Any = ctypes.CDLL(str(library)).run
    compiled.argtypes = (ctypes.c_int, *counting.TYPES)
    return CounterOnCPU(compiled)
