"""The kernels as compiled for an H200, executed as PTX on the CPU by benchmarks/ptx.py, equal the reference."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fastimg.augment import draw
from fastimg.augment.reference import blur

from .fused_policies import COMPILED, INTERPRETED, NAMED, POLICIES, images

pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="compiles")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEADER = """
.version 8.0
.target sm_90
.visible .entry some(
\t.param .u64 some_param_0,
\t.param .u64 some_param_1,
\t.param .u32 some_param_2
)
{
"""


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("kernels")


@pytest.fixture
def run(monkeypatch):
    """`run(body, grid, threads, *values)`: the program, after executing it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    ptx = importlib.import_module("ptx")

    def run(body, grid, threads, *values, shared=0):
        program = ptx.Program(HEADER + body + "\n}\n")
        program.run((grid,), threads, values, shared)
        return ptx.totals(program.traffic)

    return run


@pytest.mark.parametrize(("name", "dtype", "shape"), COMPILED, ids=str)
def test_compiled_kernels_equal_the_reference(kernels, name, dtype, shape):
    """`executed` compares, and no access lies outside of a tensor or at an address that its size does not divide.

    Of what test_launches.py looks at in the machine code of large images, nothing depends on their size.
    """
    policy, count = POLICIES[name], 24
    plan = None if name == "nothing" else draw(policy, np.arange(count), 3, 1)
    for counts in kernels.COUNTS if plan is not None and plan.passes else [""]:
        found = kernels.executed(plan, images(count, *shape), policy, dtype, counts)
        stores = kernels.ptx.totals(found[-1].program.traffic)["st"]
        assert stores.moved == count * 3 * shape[0] * shape[1] * dtype.itemsize  # every value, once
        for one in found:
            lined = one.name == "_pixels" and dtype in (torch.bfloat16, torch.float16)
            fused = set(re.findall(r"\bfma\.\S+", one.compiled.text)) - {"fma.rz.f32"}  # sharpness has that one
            assert fused == ({"fma.rn.f32"} if lined else set()), one.name
            assert not re.search(r"\b(add|sub|mul|mad|min|max)\.\w*16x2|\bst\.local", one.compiled.text), one.name


@pytest.mark.parametrize("name", ["rand", "colours"])
def test_compiled_stages_equal_the_reference(kernels, name):
    plan = draw(NAMED[name], np.arange(16), 0, 0)
    for stage in plan.stages[:2]:
        kernels.executed(stage, images(16, 16, 24), NAMED[name], torch.uint8, kernels.COUNTS[1])


def test_a_compiled_blur(kernels, monkeypatch):
    blurs = importlib.import_module("fastimg.augment.fused.blurs")
    plan = draw(NAMED["after trivial"], np.arange(12), 0, 0)
    [blurring] = [stage.blur for stage in plan.stages if stage.blur is not None]
    batch = images(12, 19, 14)
    expected = blur(blurring, batch.clone())
    monkeypatch.setattr(blurs, "_box", kernels.Executing(blurs._box))
    assert not torch.equal(expected, batch)
    assert torch.equal(blurs.blur(blurring, batch), expected)


def test_images_of_any_strides(kernels):
    """Planes, which are read byte by byte."""
    plan, policy = draw(POLICIES["trivial"], np.arange(24), 0, 0), POLICIES["trivial"]
    kernels.executed(plan, images(24, 16, 24).contiguous(), policy, torch.bfloat16, kernels.COUNTS[1])


def test_what_the_pass_over_the_pixels_moves(kernels):
    """Whole sectors are written, each once; and few lines are read, however an image is turned."""
    size, policy = 224, kernels.POLICIES["trivial"]
    plan = draw(policy, np.arange(28), 0, 0)
    [pixels] = [
        one
        for one in kernels.executed(plan, images(28, size, size), policy, torch.bfloat16, "Triton")
        if one.name == "_pixels"
    ]
    row = pixels.row(28, size * size, 28)
    assert row["written"] == 1.0 and row["spills"] == row["shared_bytes"] == 0 and row["registers"] <= 64
    assert row["lines_per_256_pixels"] < 140 and row["instructions_per_value"] < 26


def test_registers_and_memory(run):
    """x[i] * 3 + n, for i < 40 of 64 threads in two blocks; the others read and write nothing."""
    x, y = torch.arange(40, dtype=torch.int32), torch.zeros(40, dtype=torch.int32)
    body = """
    ld.param.u64 %rd1, [some_param_0];
    ld.param.u64 %rd2, [some_param_1];
    ld.param.u32 %r1, [some_param_2];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    shl.b32 %r4, %r2, 5;
    or.b32 %r5, %r4, %r3;
    setp.lt.s32 %p1, %r5, 40;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    mov.u32 %r6, 0x0;
    @%p1 ld.global.b32 { %r6 }, [ %rd4 + 0 ];
    mad.lo.s32 %r7, %r6, 3, %r1;
    @%p1 st.global.b32 [ %rd5 + 0 ], { %r7 };
    ret;"""
    moved = run(body, 2, 32, x, y, 5)
    assert torch.equal(y, x * 3 + 5)
    assert (moved["ld"].warps, moved["ld"].moved, moved["ld"].lines, moved["ld"].sectors) == (2, 160, 2, 5)
    with pytest.raises(IndexError, match="40 accesses lie outside of every tensor"):
        run(body.replace("[ %rd4 + 0 ]", "[ %rd4 + 0x10000000000 ]"), 2, 32, x, y, 5)
    with pytest.raises(IndexError, match="an address is not a multiple of 4"):
        run(body.replace("[ %rd4 + 0 ]", "[ %rd4 + 1 ]").replace("%r5, 40", "%r5, 8"), 2, 32, x, y, 5)


def test_threads_that_branch_apart(run):
    """Each thread takes as many turns as its number; then all meet at a sum over the warp."""
    y = torch.zeros(64, dtype=torch.int32)
    body = """
    ld.param.u64 %rd1, [some_param_0];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, 0;
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra $after;
$loop:
    add.s32 %r2, %r2, 1;
    setp.lt.s32 %p2, %r2, %r1;
    @%p2 bra $loop;
$after:
    redux.sync.add.s32 %r3, %r2, -1;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], %r3;
    ret;"""
    run(body, 1, 64, y, y, 0)
    assert y.tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32


def test_an_instruction_that_is_not_known(run):
    with pytest.raises(NotImplementedError, match="sin"):
        run("mov.b32 %r1, 0;\n sin.approx.f32 %r2, %r1;\n ret;", 1, 32, torch.zeros(1), torch.zeros(1), 0)
