"""The sections of the GPU benchmark, run on a CPU: what they record, in which order they measure, and their summary."""

import importlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from fastimg.doctor import torch_facts
from fastimg.loaders.jpeg.rewriting.splice import can_splice
from fastimg.system import disks

from .gpu_runs import BENCHMARKS, STEP, records_of

pytestmark = pytest.mark.usefixtures("benchmarks_on_path")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("photographs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        images = importlib.import_module("images")
        untiled = images.untiled_beside(folder)
        untiled.mkdir()
        images.write_photographs(folder, 12, (160, 120), 2, untiled)
        images.write_shard(folder, folder.with_name("shards"))
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
        shards=folder.with_name("shards"),
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
    "training": ("gpu_training:training", "training, batch 8, 64 px, epochs of 16 batches"),
    "gates": ("gpu_gates:gates", "machine"),
    "steps": ("gpu_steps:steps", ""),
    "overlap": ("gpu_training:overlap", "test_resnet, batch 8, 1 threads"),
    "parity": ("gpu_parity:parity", "augmentation = reference, bit for bit"),
    "versions": ("gpu_versions:versions", "seconds per import, in this order"),
    "augment-operations": ("gpu_augment:operations", "an operation for all of 8 images of 64 pixels"),
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


def test_photographs_that_travel_are_tiled_and_few_enough(photographs: Path, tmp_path: Path) -> None:
    images = importlib.import_module("images")
    sizes = [path.stat().st_size for path in sorted(photographs.iterdir())]
    count, total = images.write_tiled(photographs, tmp_path / "all", 10 * sum(sizes))
    assert count == len(sizes) and total == sum(path.stat().st_size for path in (tmp_path / "all").iterdir())
    count, total = images.write_tiled(photographs, tmp_path / "half", sum(sizes) // 2)
    assert 0 < count <= len(sizes) // 2 and total <= sum(sizes) // 2
    assert all(can_splice(path.read_bytes()) for path in (tmp_path / "half").iterdir())


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
    assert not steps.measured([{**c, "gpu": "another"}, {**c, "note": "beside others"}], bench.environment)
    assert steps.fastest_measured(bench, "c") == plan.Variant("c", "bf16", "default", 8)


def test_the_rows_begin_with_the_most_informative() -> None:
    plan = importlib.import_module("gpu_plan")
    rows = plan.fastest(("resnet18", "resnet50"), 256, "cuda")
    assert [row.text() for row in rows[:5]] == [
        *("resnet18 fp16 256", "resnet18 fp16 graphs 256", "resnet18 bf16 default 256"),
        *("resnet18 bf16 default graphs 256", "resnet50 fp16 256"),
    ]
    grid = plan.grid(("resnet50", "resnet18"), (256, 1024), "cuda")
    assert len(grid) == len(set(grid)) == 2 * 2 * 2 + 2 * 3 * 2
    assert [bool(v.compile) for v in grid] == sorted(bool(v.compile) for v in grid)
    assert {v.compile for v in grid} == {None, "default", "reduce-overhead", "max-autotune-no-cudagraphs"}
    assert plan.more(("resnet50",), (256,), "cuda")[-1] == plan.Variant("resnet50", "float32", None, 256)


def test_rows_as_graphs_say_so_where_nothing_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line: the section does not fail."""
    graphs, steps = importlib.import_module("gpu_graphs"), importlib.import_module("gpu_steps")
    plan = importlib.import_module("gpu_plan")
    bench = bench_of(tmp_path, tmp_path, "steps")
    row = plan.Variant("test_resnet", "float32", None, 8, True)
    steps._measure(bench, [row])
    (record,) = records_of(bench.out)
    assert record["skipped"] == "CUDA graphs need CUDA" and record["cuda_graphs"] is True and not bench.failed
    replayed: list[str] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (), {"replay": lambda graph: replayed.append("")}))
    graphs._count_replays.cache_clear()
    graphs.graphs_setting(False, torch.device("cuda"))
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(graphs.SkippedError, match="ran eagerly"), graphs.replaying(expected=True):
        pass
    with graphs.replaying(expected=True):
        graph.replay()
    assert replayed == [""]
    graphs._count_replays.cache_clear()


def test_tests_that_failed_in_the_last_call_are_looked_up() -> None:
    gates = importlib.import_module("gpu_gates")
    file = "tests/fastimg/bench/test_gpu_sections.py"
    assert gates._has_test(f"{file}::test_tests_that_failed_in_the_last_call_are_looked_up[case]")
    assert not gates._has_test(f"{file}::TestClass::test_of_before") and not gates._has_test("tests/none.py::test")


def test_a_trace_is_as_long_as_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = importlib.import_module("gpu_traces")
    bench = bench_of(tmp_path, tmp_path, "training")
    monkeypatch.setattr(traces, "_traced", lambda rig, steps: bytes(1000 * steps))
    monkeypatch.setattr(traces.gzip, "compress", lambda text, mtime: text)
    monkeypatch.setattr(traces, "_MOST", 3000)
    traces.keep_trace(bench, None, "resnet18")
    assert len((tmp_path / "out-resnet18.trace.json.gz").read_bytes()) == 2000
    monkeypatch.setattr(traces, "_MOST", 10)
    with pytest.raises(RuntimeError, match="a trace of one step takes 1,000 bytes"):
        traces.keep_trace(bench, None, "resnet18")


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
    loaded = {"section": "training", "source": "files"}
    records += [{**loaded, "threads": n, "images_per_second": 100.0 * n, "per_thread": 1} for n in (8, 16)]
    records += [{"section": "parity", "check": "flip", "ok": False}, {"section": "parity", "check": "all", "ok": True}]
    records += [{"section": "steps", "not_reached": ["a bf16 8", "b bf16 8"]}]
    lines = module.summary(records, ["failed: parity", "done"])
    assert len(lines) == 10
    assert lines[0].startswith("a: 2,000 img/s (bf16 default, batch 256, 50 ms); eager 1,500 img/s (fp16,")
    assert lines[0].endswith("; bf16 1,000, fp16 1,500")
    assert [line[:2] for line in lines[:6]] == [f"{arch}:" for arch in "abcdef"]
    assert lines[-4:-2] == ["parity: FAILED, 1 of 2: flip", "no time for: steps 2 (a bf16 8, ...)"]
    assert lines[-2:] == ["failed: parity", "done"]
    file = tmp_path / "out.jsonl"
    file.write_text(json.dumps(records[0]) + "\n" + json.dumps({"section": "steps", "run": "other"}) + '\n{"sec')
    assert module.read(file, "now") == [records[0]] and len(module.read(file)) == 2


def test_rows_that_are_named_are_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, plan = importlib.import_module("gpu_steps"), importlib.import_module("gpu_plan")
    grid = plan.grid(("resnet50", "resnet18"), (256, 1024), "cuda")
    grid += plan.fastest(("resnet18", "resnet50"), 256, "cuda")
    assert [plan.variant(row.text()) for row in grid] == grid
    for text in (
        "resnet50",
        "resnet50 bf16",
        "resnet50 int8 256",
        "resnet50 bf16 fastest 256",
        "resnet50 bf16 graphs default 256",
        "a bf16 default 256 more",
    ):
        with pytest.raises(ValueError, match="write a model, a type"):
            plan.variant(text)
    measured: list[str] = []
    monkeypatch.setattr(steps, "_measure", lambda bench, rows: measured.extend(row.text() for row in rows))
    bench = bench_of(tmp_path, tmp_path, "steps")
    steps.steps(bench)
    assert measured == ["test_resnet float32 8", "test_resnet float32 graphs 8"]
    bench.rows = ("resnet18 fp16 reduce-overhead 64", "test_vit float32 8")
    measured.clear()
    steps.steps(bench)
    assert measured == list(bench.rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--only", "steps", "--rows", "resnet50 bf16 fast 256"],
            "write a model, a type, a mode or nothing, graphs or nothing, and a batch",
        ),
        (["--only", "augment", "--rows", "resnet50 bf16 256"], "--rows has no effect without the section steps"),
    ],
)
def test_rows_that_cannot_be_measured(arguments: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, str(BENCHMARKS / "gpu.py"), *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
