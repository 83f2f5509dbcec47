"""Launches of the Triton kernels: which are made, and what they become when compiled for an H200."""

import collections
import importlib
import itertools
import re

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, draw
from fastimg.augment.lines import line_of
from fastimg.augment.ops import STATISTICS
from fastimg.augment.reference import normalisation_table

from .fused_policies import COMPILED, DTYPES, INTERPRETED, NAMED, POLICIES, images

triton = pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
fused = importlib.import_module("fastimg.augment.fused.launches")
constants = importlib.import_module("fastimg.augment.fused.constants")


@pytest.fixture
def launches(monkeypatch):
    """Records launches instead of launching: [(kernel, grid, {argument: value})]."""
    found = []
    monkeypatch.setattr(fused, "_INTERPRETED", True)

    class Recorder:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            def launch(*arguments, **named):
                options = {name: named.pop(name) for name in fused.OPTIONS}
                pixels = self.kernel.fn.__name__ == "_pixels"
                assert options == (fused.PIXEL_OPTIONS if pixels else fused.OPTIONS)
                values = dict(zip(self.kernel.arg_names, arguments, strict=False)) | named
                assert set(values) == set(self.kernel.arg_names)
                found.append((self.kernel, grid, {name: values[name] for name in self.kernel.arg_names}))

            return launch

    for name in ("_tables", "_statistics", "_pixels"):
        monkeypatch.setattr(fused, name, Recorder(getattr(fused, name)))
    return found


def launch(launches, policy, ids, dtype=torch.bfloat16, shape=(224, 224), seed=0, lines=True, plan=None):
    launches.clear()
    plan = plan or (draw(policy, ids, seed, 0) if policy else None)
    policy = policy or Policy()
    line = line_of(policy, dtype) if lines else None
    fused.fused(plan, images(len(ids), *shape), normalisation_table(policy, dtype), dtype, None, line)
    return plan, [(kernel.fn.__name__, grid[0], values) for kernel, grid, values in launches]


@pytest.fixture(scope="module")
def already_compiled():
    """{kernel, types and constants of its arguments: Triton's compiled kernel}."""
    return {}


@pytest.fixture
def compiled(launches, already_compiled):
    """`compiled(policy, dtype, shape, lines)`: launches, compiled for an H200: [(name, values, {kind: text})]."""
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    kinds = {torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64"}

    def compiled(policy, dtype, shape, lines=True, plan=None):
        launch(launches, policy, np.arange(16), dtype, shape, lines=lines, plan=plan)
        results = []
        for kernel, _, values in launches:
            constants, signature, aligned = {}, {}, {}
            for position, (name, value) in enumerate(values.items()):
                if isinstance(value, torch.Tensor):
                    signature[name], aligned[(position,)] = kinds[value.dtype], [["tt.divisibility", 16]]
                elif kernel.params[position].is_constexpr or (isinstance(value, int) and value == 1):
                    signature[name], constants[(position,)] = "constexpr", value
                else:
                    signature[name] = "fp32" if isinstance(value, float) else "i32"
                    if signature[name] == "i32" and value % 16 == 0:
                        aligned[(position,)] = [["tt.divisibility", 16]]
            name = kernel.fn.__name__
            key = name, str(signature), str(constants), str(aligned)
            if key not in already_compiled:
                source = compiler.ASTSource(kernel, signature, constants, aligned)
                options = fused.PIXEL_OPTIONS if name == "_pixels" else fused.OPTIONS
                already_compiled[key] = triton.compile(source, target=target, options=options)
            results.append((name, values, already_compiled[key].asm))
        return results

    return compiled


def accesses(ptx, kind):
    """The number of accesses to device memory of each width, such as {'v4.b32': 3}."""
    return collections.Counter(re.findall(rf"\b{kind}\.global(?:\.L\w+)*\.((?:v\d\.)?b\d+)", ptx))


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_compile_for_an_h200(compiled, dtype):
    """Needs no device. Nothing is spilled, and additions are fused with multiplications where the kernels say so.

    Nothing is added in packed 16-bit numbers: where one of two is not used, ptxas 12.8 loses a constant that is added,
    which PTX does not show. Where compiling takes five seconds, policies and types are left out of which test_ptx.py
    compiles the same paths, and looks at them in the same way.
    """
    names = set()
    policies = ("evaluation", "flips", "trivial", "trivial, unerased", "jitter, trivial")
    there = {name for name, other, (_, width) in COMPILED if other == dtype and 3 * width % 8 == 0}
    there -= set(policies) if dtype in (torch.float32, torch.bfloat16) else {"flips"}
    whole = [(name, (224, 224)) for name in policies if name not in there]
    others = {torch.bfloat16: ("evaluation", "jitter, trivial"), torch.float32: ("flips", "trivial")}.get(dtype, ())
    for name, shape in whole + [(name, (37, 53)) for name in others]:
        for kernel, values, asm in compiled(POLICIES.get(name), dtype, shape):
            names.add(kernel)
            fused_ = re.findall(r"\bfma\.\S+", asm["ptx"])
            lined = kernel == "_pixels" and values["ENDING"] == constants.LINE.value
            sharp = kernel == "_pixels" and values["PATHS"] & constants.SHARP.value
            expected = {"fma.rn.f32": lined, "fma.rz.f32": sharp}
            assert set(fused_) == {one for one, there in expected.items() if there}, name
            assert not re.search(r"\b(add|sub|mul|mad|min|max)\.\w*16x2", asm["ptx"]), name
            assert lined == (kernel == "_pixels" and dtype in (torch.bfloat16, torch.float16))
            assert "st.local" not in asm["ptx"] and len(asm["cubin"]) > 1000
    assert names == {"_tables", "_statistics", "_pixels"}


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("name", ["rand", "colours"])
def test_kernels_of_named_policies_compile_for_an_h200(compiled, name):
    """Nothing is spilled or fused but in sharpening, and float32 divisions are rounded as IEEE 754 has it."""
    plan = draw(NAMED[name], np.arange(16), 0, 0)
    for stage in plan.stages[:1]:
        for _, _, asm in compiled(NAMED[name], torch.uint8, (224, 224), plan=stage):
            assert set(re.findall(r"\bfma\.\S+", asm["ptx"])) <= {"fma.rz.f32"} and "st.local" not in asm["ptx"]
            assert not re.search(r"div\.(full|approx)", asm["ptx"])


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_values_in_memory_order_are_moved_in_words(compiled, dtype):
    """No table and no shared memory: reads of 8 bytes, writes of 16, and two values rounded by one instruction."""
    [(_, _, asm)] = compiled(None, dtype, (224, 224))
    ptx = asm["ptx"]
    assert accesses(ptx, "ld") == {"b64": 6} and accesses(ptx, "st") == {"v4.b32": 6}
    assert ptx.count("fma.rn.f32") == 48 and "shared" not in ptx.replace(".extern .shared", "") and "shfl" not in ptx
    assert len(re.findall(rf"cvt\.rn\.{'bf16' if dtype == torch.bfloat16 else 'f16'}x2\.f32", ptx)) == 24
    [(_, _, asm)] = compiled(POLICIES["flips"], dtype, (224, 224))  # mirrored ones: in words as well
    found = accesses(asm["ptx"], "ld")
    assert found["b64"] == 16 and found["b8"] == 0 and set(accesses(asm["ptx"], "st")) == {"v4.b32"}
    for policy in (None, POLICIES["flips"], POLICIES["trivial"]):
        asm = compiled(policy, dtype, (224, 224))[-1][2]
        assert not re.search(r"\b(ld|st)\.shared|shfl|bar\.sync", asm["ptx"])
        assert set(accesses(asm["ptx"], "st")) == {"v4.b32"}


@pytest.mark.skipif(INTERPRETED, reason="compiles")
def test_the_table_is_used_if_no_line_gives_its_bits(compiled):
    for dtype, lines in ((torch.bfloat16, False), (torch.float32, True)):
        [(_, values, asm)] = compiled(None, dtype, (224, 224), lines)
        assert values["ENDING"] == constants.TABLE.value and "fma" not in asm["ptx"]
        looked = accesses(asm["ptx"], "ld")["b32" if dtype == torch.float32 else "b16"]
        assert looked >= 24 and set(accesses(asm["ptx"], "st")) == {"v4.b32"}


@pytest.mark.skipif(INTERPRETED, reason="counts launches")
def test_statistics_are_computed_only_for_images_that_need_them(launches):
    blocks = triton.cdiv(224 * 224, fused.COUNTED_BLOCK)
    for name, most in (
        ("flips", 0),
        ("saturation", 0),
        ("trivial", 1),
        ("contrast, trivial", 2),
        ("jitter, trivial", 2),
    ):
        plan, found = launch(launches, POLICIES[name], np.arange(64))
        passes = [(grid, values) for kernel, grid, values in found if kernel == "_statistics"]
        assert len(passes) == plan.passes <= most
        for grid, values in passes:
            needing = np.flatnonzero(np.isin(plan.ops[:, values["COLUMN"]].numpy(), list(STATISTICS)))
            assert grid == len(needing) * blocks
            listed = values["words"][: len(needing), 10 + 2 * values["COUNT"] + values["LIST"]]
            assert sorted(listed.tolist()) == needing.tolist()
        assert [kernel for kernel, _, _ in found].count("_pixels") == 1


@pytest.mark.skipif(INTERPRETED, reason="looks at launches")
def test_images_that_are_far_apart_are_copied(launches):
    """Positions within an image have 32 bits; positions of images have 64."""
    memory = torch.empty(2**31 + 64, dtype=torch.uint8)  # only three pages of it are touched
    table = normalisation_table(Policy(), torch.float32)
    for apart, strides in ((2**30, (12, 1, 6, 3)), (2**30 - 3, (16, 2**30 - 3, 4, 1))):
        batch = memory.as_strided((2, 3, 2, 2), (16, apart, 4, 1))
        fused.fused(None, batch, table, torch.float32)
        _, _, values = launches.pop()
        assert tuple(values[name] for name in ("s_n", "s_c", "s_h", "s_w")) == strides


@pytest.mark.skipif(INTERPRETED, reason="counts launches")
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_compiles_few_kernels(launches, name):
    """The kernels do not depend on the draws, so nothing compiles in the middle of a run."""
    found = set()
    for seed, batch in itertools.product(range(20), (1, 16)):
        for kernel, _, values in launch(launches, POLICIES[name], np.arange(batch), shape=(8, 8), seed=seed)[1]:
            constants = {key: value for key, value in values.items() if key.isupper()}
            found.add((kernel, str(constants)))
    assert len(found) <= 6 and len([kernel for kernel, _ in found if kernel == "_pixels"]) == 1
