"""What must hold before numbers count: the machine's cores and clocks, equal bits with CUDA graphs, mended tests."""

import itertools
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from bench import Bench, SkippedError
from gpu_checks import run_tests
from gpu_clocks import clocks
from gpu_graphs import replaying
from gpu_plan import Variant
from gpu_steps import config_of
from gpu_summary import read

from fastimg.bench.rig import build
from fastimg.loaders import FilesDataset
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.choices.batch_size import batches
from fastimg.train.step import optimiser_step
from fastimg.train.wrapping import compile_ahead

_CPUS = Path("/sys/devices/system/cpu")


def gates(bench: Bench) -> None:
    """The machine, then the equal bits, then the tests."""
    items = {"machine": partial(_machine, bench)}
    for dtype in ("fp16", "bf16") if bench.device.type == "cuda" else ("float32",):
        items[f"graphs = eager, {dtype}"] = partial(_equal_bits, bench, dtype)
    items["mended tests"] = partial(_mended, bench)
    bench.each(items, seconds=60)


def _machine(bench: Bench) -> None:
    """Whether the cores that there are share cores of the processor, and the GPU's clocks."""
    row: dict[str, Any] = {"cores": available_cpus(), "threads_of_a_core": _siblings()}
    row["cpu_mhz"] = _number(_CPUS / "cpu0/cpufreq/scaling_cur_freq", 1000)
    if bench.device.type == "cuda":
        facts = torch.cuda.get_device_properties(bench.device)
        row |= {"gpu": facts.name, "memory_mib": facts.total_memory >> 20, **clocks(bench.device)}
    bench.report("machine", [row])


def _siblings() -> int | None:
    """How many of this process's processors are threads of one core, at most; None where that is not told."""
    groups: dict[str, int] = {}
    for cpu in os.sched_getaffinity(0):
        try:
            name = (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            return None
        groups[name] = groups.get(name, 0) + 1
    return max(groups.values())


def _number(file: Path, scale: int) -> int | None:
    try:
        return int(file.read_text()) // scale
    except (OSError, ValueError):
        return None


def _equal_bits(bench: Bench, dtype: str) -> None:
    """The weights after some steps on the same batches: as CUDA graphs, and eager twice, with deterministic kernels."""
    eager = Variant(bench.sizes.check_archs[0], dtype, None, bench.sizes.check_batch)  # type: ignore[arg-type]
    expected = _weights(bench, eager)
    for name, variant in (("eager again", eager), ("graphs", replace(eager, cuda_graphs=True))):
        found = _weights(bench, variant)
        equal = all(torch.equal(found[key], expected[key]) for key in expected)
        row = {"check": f"{name} = eager, {dtype}", "steps": bench.sizes.gate_steps, "ok": equal}
        bench.report("weights after training, bit for bit", [row])


def _weights(bench: Bench, variant: Variant) -> dict[str, torch.Tensor]:
    """The state of the model after some steps, from the same random weights."""
    torch.manual_seed(0)
    samples = variant.batch * bench.sizes.gate_steps
    classes = tuple(f"class {number}" for number in range(10))
    nothing = FilesDataset(Path("synthetic"), [""] * samples, classes, [i % 10 for i in range(samples)])
    config = config_of(bench, variant, deterministic=True, lr=1e-3)
    rig = build(config, nothing, np.arange(samples), bench.ranks)
    source, stream = batches(rig.loader), AugmentStream(rig.device, rig.config.augment_stream)
    try:
        compile_ahead(rig.run, lambda words: None)
        with replaying(variant.cuda_graphs):
            for _ in itertools.repeat(None, bench.sizes.gate_steps):
                optimiser_step(rig.run, source, rig.config.grad_accum_steps, stream)
        measure.synchronise(rig.device)
        return {name: value.detach().clone() for name, value in rig.run.setup.model.module.state_dict().items()}
    finally:
        source.close()  # type: ignore[attr-defined]  # a generator
        rig.close()


def _mended(bench: Bench) -> None:
    """The tests that failed in the last call whose results are kept."""
    bench.need_cuda()
    kept = [r for r in read(measure.RESULTS / "gpu.jsonl") if r["section"] == "tests" and r.get("failures")]
    failed = kept[-1]["failures"].split() if kept else []
    there = [name for name in failed if _has_test(name)]
    if not there:
        raise SkippedError("no test that failed is there any more")
    run_tests(bench, there, processes=min(4, len(there)), title="tests that failed in the last call")


def _has_test(name: str) -> bool:
    """Whether the file of a test, FILE::CLASS::FUNCTION[CASE], still has that function."""
    file, _, place = name.partition("::")
    function = place.partition("[")[0].rpartition("::")[2]
    path = measure.ROOT / file
    return path.is_file() and f"def {function}(" in path.read_text(encoding="utf-8")
