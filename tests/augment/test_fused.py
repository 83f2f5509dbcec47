"""The Triton path equals the reference bit for bit: interpreted on the CPU, compiled for an H200, and run on a GPU.

Triton decides on import whether to interpret kernels, so `TestInterpreted` runs in its own process.
"""

import collections
import dataclasses
import importlib
import itertools
import os
import re
import warnings

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, apply, draw
from fastimg.augment.lines import LevelLine, line_of
from fastimg.augment.ops import BINS, STATISTICS, TRIVIAL, Op, trivial_table
from fastimg.augment.reference import augment, normalisation_table

from .cuda_on_cpu import counter_on_cpu

triton = pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
fused = importlib.import_module("fastimg.augment.fused.launches")
constants = importlib.import_module("fastimg.augment.fused.constants")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]
JITTER = {"brightness": (0.5, 1.7), "contrast": (0.3, 2.0), "saturation": (0.0, 2.5)}
POLICIES = {
    "nothing": Policy(),
    "flips": Policy(hflip=0.5, vflip=0.5),
    "rotate": Policy(rotate=30, hflip=0.5),
    "brightness": Policy(brightness=(0.0, 2.0), vflip=0.5),
    "contrast": Policy(contrast=(0.0, 2.0), rotate=180),
    "saturation": Policy(saturation=(0.0, 3.0), hflip=0.5),
    "trivial": Policy(trivial=True, hflip=0.5, erase=0.5, erase_value=(0.5, -1.0, 2.0)),
    "contrast, trivial": Policy(contrast=(0.3, 2.0), trivial=True),
    "jitter": Policy(**JITTER, rotate=10),
    "jitter, trivial": Policy(**JITTER, trivial=True, rotate=45, hflip=0.5, vflip=0.5, erase=0.5),
}


def images(batch, height, width, seed=0):
    """uint8 [B, 3, H, W], channels-last: noise, few levels, one level, and gradients, alternating."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (batch, height, width, 3), dtype=np.uint8)
    pixels[1::4] = pixels[1::4] % 3 * 50 + 20
    pixels[2::4] = pixels[2::4, :1, :1]
    pixels[3::4] = (np.arange(height)[:, None, None] * 5 + np.arange(width)[:, None] * 3 + np.arange(3) * 40) % 256
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def check(plan, batch, policy=None, dtype=torch.bfloat16, by_table=False):
    """Normalise by a line if the policy's table is one, else by the table; with `by_table`, both ways."""
    table = normalisation_table(policy or Policy(), dtype).to(batch.device)
    before, expected, line = batch.clone(), augment(plan, batch, table), line_of(policy or Policy(), dtype)
    assert (line is None) == (dtype in (torch.float32, torch.uint8))
    for how in (line, None) if line and by_table else (line,):
        got = fused.fused(plan, batch, table, dtype, None, how)
        assert got.dtype == dtype and got.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(got, expected) and torch.equal(batch, before)


def plan_of_columns(*columns):
    """A plan without warps: columns of (op, magnitude) per image."""
    plan = draw(Policy(hflip=0.5), np.arange(len(columns[0])), 0, 0)
    ops, magnitudes = (torch.tensor([[pair[i] for pair in column] for column in columns]).T for i in (0, 1))
    return dataclasses.replace(plan, ops=ops.to(torch.int32), magnitudes=magnitudes.to(torch.float32))


def magnitudes(op):
    """A few magnitudes for each operation, including the extremes."""
    if op in (Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS):
        return [0.0, 0.01, 0.505, 1.0, 1.33, 1.99, 7.3]
    amounts = {
        Op.POSTERIZE: [2.0, 5.0, 8.0],
        Op.SOLARIZE: [0.0, 1.0, 128.0, 255.0],
        Op.SOLARIZE_ADD: [0.0, 77.0, 128.0],
    }
    return {**amounts, Op.HUE: [0.0, 25.0, 255.0]}.get(op, [0.0])


NAMED = {
    "rand": Policy(named="rand-m9-mstd0.5-inc1-p1", hflip=0.5, erase=0.5),
    "three": Policy(named="3aug", brightness=(0.7, 1.3), hflip=0.5),
    "auto": Policy(named="v0", rotate=10),
    "colours": Policy(contrast=(0.5, 1.5), hue=0.3, grayscale=0.3, solarize=0.5),
    "after trivial": Policy(trivial=True, hue=0.2, grayscale=0.3, blur=0.5, solarize=0.5),
}


class TestInterpreted:
    __test__ = INTERPRETED

    @pytest.mark.parametrize("name", NAMED)
    def test_plans_of_several_stages(self, name):
        for count, shape, dtype in ((10, (13, 24), torch.bfloat16), (4, (7, 5), torch.float32)):
            plan, batch = draw(NAMED[name], np.arange(count), 1, 2), images(count, *shape)
            expected = apply(plan, batch, dtype=dtype, backend="reference")
            assert torch.equal(apply(plan, batch, dtype=dtype, backend="fused"), expected)

    def test_any_colour_and_any_hue(self):
        policy = Policy(hue=0.5)
        batch = torch.cartesian_prod(*[torch.arange(0, 256, 15, dtype=torch.uint8)] * 3)[:4896].view(1, 72, 68, 3)
        check(draw(policy, np.arange(3), 0, 0), batch.permute(0, 3, 1, 2).expand(3, -1, -1, -1), policy)

    def test_blurs_of_either_box(self):
        plan = draw(Policy(blur=1.0), np.arange(8), 0, 0)
        assert plan.blur.radius.min() < 1.4 < plan.blur.radius.max()  # boxes of one pixel and of three
        for shape in ((1, 1), (2, 3), (9, 14)):
            expected = apply(plan, images(8, *shape), dtype=torch.uint8, backend="reference")
            assert torch.equal(apply(plan, images(8, *shape), dtype=torch.uint8, backend="fused"), expected)

    def test_one_channel(self):
        policy = Policy(trivial="gray", contrast=(0.3, 2.0), hflip=0.5, erase=0.5, mean=(0.4,), std=(0.3,))
        plan, batch = draw(policy, np.arange(12), 0, 0), images(12, 29, 22)[:, 1:2]
        expected = apply(plan, batch, dtype=torch.bfloat16, backend="reference")
        assert torch.equal(apply(plan, batch, dtype=torch.bfloat16, backend="fused"), expected)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", POLICIES)
    def test_policies_and_types(self, name, dtype):
        """Pairs of policy, type and size, and of policy and way to normalise; not every combination of them."""
        policy, number = POLICIES[name], list(POLICIES).index(name)
        batch = 6 if name.endswith("trivial") else 4
        by_table = dtype == (torch.bfloat16, torch.float16)[number % 2]
        check(draw(policy, np.arange(batch), 0, 0), images(batch, 29, 22), policy, dtype, by_table)
        if dtype == DTYPES[number % 4]:
            check(draw(policy, np.arange(batch), 1, 0), images(batch, 1, 1), policy, dtype, by_table=True)

    @pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 2), (2, 7), (3, 3), (37, 53), (64, 64), (65, 64)])
    @pytest.mark.parametrize("name", ["flips", "jitter, trivial"])
    def test_sizes_and_one_image(self, name, shape):
        for batch in (1, 4):
            check(draw(POLICIES[name], np.arange(batch) + 7, 1, 2), images(batch, *shape), POLICIES[name])

    @pytest.mark.parametrize(
        ("policy", "bins"),
        [(Policy(trivial=True), (0, 6, 15, 23, 30)), (Policy(trivial=True, saturation=(0, 2)), (6, 30))],
    )
    def test_trivial_augment(self, policy, bins):
        """Each operation at five magnitudes of both signs, and at two magnitudes after another operation."""
        rows = [(o * BINS + b) * 2 + s for o in range(len(TRIVIAL)) for b in bins for s in (0, 1)]
        plan = draw(policy, np.arange(len(rows)), 0, 0)
        ops, amounts = plan.ops.clone(), plan.magnitudes.clone()
        ops[:, -1] = torch.from_numpy(trivial_table().ops[rows])
        amounts[:, -1] = torch.from_numpy(trivial_table().magnitudes[rows])
        plan = dataclasses.replace(plan, trivial=torch.tensor(rows), ops=ops, magnitudes=amounts)
        assert plan.columns[-1] == set(TRIVIAL.values())
        check(plan, images(len(rows), 23, 41))

    @pytest.mark.parametrize("op", Op)
    def test_a_column_of_one_operation(self, op):
        column = [(op, magnitude) for magnitude in magnitudes(op) for _ in range(4)]
        check(plan_of_columns(column), images(len(column), 11, 13))

    @pytest.mark.parametrize("count", range(5))
    def test_columns_that_no_policy_draws(self, count):
        """Any operation at any place: statistics in every column, and sharpness before others."""
        rng = np.random.default_rng(count)
        columns = [
            [(op, float(rng.choice(magnitudes(op)))) for op in map(Op, rng.integers(0, len(Op), 12))]
            for _ in range(count)
        ]
        plan = plan_of_columns(*columns) if count else draw(Policy(rotate=9), np.arange(12), 0, 0)
        assert plan.passes == count
        check(plan, images(12, 9, 14))

    def test_two_statistics_passes(self):
        contrast, images_ = [(Op.CONTRAST, 0.3), (Op.CONTRAST, 1.9)] * 4, images(8, 33, 20)
        for op in STATISTICS:
            plan = plan_of_columns(contrast, [(op, 1.5)] * 5 + [(Op.IDENTITY, 0.0)] * 3)
            assert plan.passes == 2
            check(plan, images_)

    @pytest.mark.parametrize(
        "policy",
        [
            Policy(trivial=True, hflip=0.5),
            Policy(contrast=(0.3, 2.0), trivial=True, vflip=0.5),
            Policy(contrast=(0.3, 2.0), trivial=True, rotate=20),
            Policy(saturation=(0.0, 2.0), trivial=True),
        ],
        ids=["trivial", "contrast, trivial", "rotated", "coloured"],
    )
    def test_statistics_in_cuda_cpp(self, policy, monkeypatch):
        """What statistics.cu counts, executed on the CPU, with the Triton pass for images that it leaves."""
        counter = counter_on_cpu()
        monkeypatch.setattr(fused, "counter_of", lambda device: counter)
        plan = draw(policy, np.arange(24), 0, 0)
        if policy.rotate:
            plan = dataclasses.replace(plan, angle=plan.angle * (torch.arange(24) % 2))  # every other one
        for shape in ((13, 24), (11, 9)):
            for batch in (images(24, *shape), images(24, *shape).contiguous()):
                check(plan, batch, policy)
        assert bool(counter.launches) == (policy.saturation == (1.0, 1.0))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_erasing(self, dtype):
        policy = Policy(erase=1.0, erase_value=(1.0, -2.0, 0.5), hflip=0.5)
        for shape in ((30, 20), (2, 3), (64, 65)):
            plan = draw(policy, np.arange(6), 0, 0)
            assert plan.sized(*shape).box.any() or shape == (2, 3)
            check(plan, images(6, *shape), policy, dtype)

    @pytest.mark.parametrize("name", ["nothing", "flips", "jitter, trivial"])
    def test_strides(self, name):
        policy, plan = POLICIES[name], draw(POLICIES[name], np.arange(2), 3, 0)
        whole = images(5, 20, 30)
        for batch in (
            whole[:2].contiguous(),
            whole[1::2],
            whole[:2, :, 3:17, 5:24],
            whole[:2, :, ::2, ::3],
            whole[:2].flip(1).transpose(2, 3),
            whole[:1].expand(2, -1, -1, -1),
            whole[:2].permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
            torch.cat([whole[:2], whole[2:4]], dim=1)[:, 1::2],
        ):
            check(plan, batch, policy)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", ["flips", "rotate", "jitter", "trivial"])
    def test_rows_of_whole_words(self, name, dtype):
        """Widths that are multiples of 8: values in memory order, mirrored or not; sharpness by columns."""
        policy = POLICIES[name]
        batch = 5 if name == "trivial" else 3
        check(draw(policy, np.arange(batch), 0, 0), images(batch, 6, 24), policy, dtype, by_table=True)
        if dtype in (torch.bfloat16, torch.uint8):
            check(draw(policy, np.arange(batch), 1, 0), images(batch, 1, 8), policy, dtype)

    @pytest.mark.parametrize("shape", [(1040, 8), (130, 64), (66, 68)])
    @pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)), ids=str)
    def test_each_flip_over_several_programs(self, shape, flips):
        """The last program's block is not full."""
        assert shape[0] * shape[1] > (8 if shape[1] % 8 else 16) * fused.THREADS
        plan = draw(Policy(), np.arange(3), 0, 0)
        chosen = (torch.tensor([False, True, True]) & flip for flip in flips)
        plan = dataclasses.replace(plan, **dict(zip(("hflip", "vflip"), chosen, strict=True)))
        check(plan, images(3, *shape))
        check(plan, images(3, *shape), dtype=torch.uint8)

    @pytest.mark.parametrize("op", Op)
    def test_an_operation_on_rows_of_whole_words(self, op):
        """Alone in its column, and among others, on flipped and on rotated images."""
        column = [(op, magnitude) for magnitude in magnitudes(op)[:3:2] for _ in range(2)]
        plan = plan_of_columns(column)
        check(plan, images(len(column), 5, 16))
        rotated = dataclasses.replace(plan, angle=torch.arange(len(column), dtype=torch.float64) % 2 * 10)
        check(rotated, images(len(column), 5, 16))
        check(plan_of_columns([(Op.SOLARIZE, 99.0)] * len(column), column), images(len(column), 5, 16))

    def test_strides_of_rows_of_whole_words(self):
        whole = images(5, 20, 32)
        for name in ("flips", "trivial"):
            policy, plan = POLICIES[name], draw(POLICIES[name], np.arange(2), 3, 0)
            for batch in (
                whole[1::2],
                whole[:2, :, 2:18, 8:24],
                whole[:2, :, ::2, ::2],
                whole[:2].flip(1),
                whole[:1].expand(2, -1, -1, -1),
                torch.cat([whole[:2], whole[2:4]], dim=1)[:, 1::2],
            ):
                check(plan, batch, policy)
            moved = torch.zeros(2 * 20 * 32 * 3 + 1, dtype=torch.uint8)[1:].view(2, 20, 32, 3)  # at an odd address
            check(plan, moved.copy_(whole[:2].permute(0, 2, 3, 1)).permute(0, 3, 1, 2), policy)

    def test_the_path_of_each_image(self):
        """Images in memory order together with rotated, coloured, sharpened and erased ones in one batch."""
        policy = POLICIES["trivial"]
        plan = draw(policy, np.arange(40), 0, 0)
        words = fused._words(plan, plan.sized(16, 16), [], fused._columns(plan), fused._still(plan))[:, -1]
        assert set(words.tolist()) == {0, 1, 2, 3}
        check(plan, images(40, 16, 16), policy)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_evaluation(self, dtype):
        for shape in ((37, 53), (65, 64), (1, 1)):
            check(None, images(3, *shape), None, dtype)

    def test_an_empty_batch(self):
        for policy in POLICIES.values():
            check(draw(policy, np.arange(0), 0, 0), images(0, 5, 7), policy)

    def test_a_given_result_tensor(self):
        policy, batch = POLICIES["jitter, trivial"], images(4, 13, 9)
        plan, table = draw(policy, np.arange(4), 0, 0), normalisation_table(policy, torch.float16)
        out = torch.empty(4, 13, 9, 3, dtype=torch.float16).permute(0, 3, 1, 2)
        assert fused.fused(plan, batch, table, torch.float16, out) is out
        assert torch.equal(out, augment(plan, batch, table))

    def test_a_given_result_tensor_for_rows_of_whole_words(self):
        policy = Policy(hflip=0.5, vflip=0.5)
        plan, table, batch = (
            draw(policy, np.arange(4), 0, 0),
            normalisation_table(policy, torch.bfloat16),
            images(4, 6, 16),
        )
        around = torch.full((6, 6, 16, 3), 7.0, dtype=torch.bfloat16)
        out = around[1:5].permute(0, 3, 1, 2)
        assert fused.fused(plan, batch, table, torch.bfloat16, out, line_of(policy, torch.bfloat16)) is out
        assert torch.equal(out, augment(plan, batch, table))
        assert (around[0] == 7.0).all() and (around[5] == 7.0).all()

    def test_the_line_is_used(self):
        """A different line gives different values, so the table is not used."""
        line, table = LevelLine((1.0, 2.0, 4.0), (0.0, 0.5, -1.0)), normalisation_table(Policy(), torch.float32)
        for shape in ((4, 8), (3, 5)):
            batch = images(2, *shape)
            got = fused.fused(None, batch, table, torch.float32, None, line)
            scales, biases = (torch.tensor(three).view(3, 1, 1) for three in (line.scales, line.biases))
            assert torch.equal(got, batch * scales + biases)


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_under_the_interpreter(interpreted):
    interpreted(__file__)


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="needs a process that cannot run Triton")
def test_images_on_the_cpu_are_refused():
    with pytest.raises(ValueError, match="the fused backend needs images on a GPU; they are on cpu"):
        fused.fused(None, images(1, 2, 2), normalisation_table(Policy(), torch.float32), torch.float32)


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
def compiled(launches, already_compiled, tmp_path, monkeypatch):
    """`compiled(policy, dtype, shape, lines)`: launches, compiled for an H200: [(name, values, {kind: text})]."""
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
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
    """Needs no device. Nothing is spilled, and only the line's multiplication is fused with an addition."""
    names = set()
    whole = [(name, (224, 224)) for name in ("evaluation", "flips", "trivial", "jitter, trivial")]
    others = {torch.bfloat16: ("evaluation", "jitter, trivial"), torch.float32: ("flips", "trivial")}.get(dtype, ())
    for name, shape in whole + [(name, (37, 53)) for name in others]:
        for kernel, values, asm in compiled(POLICIES.get(name), dtype, shape):
            names.add(kernel)
            fused_ = re.findall(r"\bfma\.\S+", asm["ptx"])
            lined = kernel == "_pixels" and values["ENDING"] == constants.LINE.value
            assert set(fused_) == ({"fma.rn.f32"} if lined else set()), name
            assert lined == (kernel == "_pixels" and dtype in (torch.bfloat16, torch.float16))
            assert "st.local" not in asm["ptx"] and len(asm["cubin"]) > 1000
    assert names == {"_tables", "_statistics", "_pixels"}


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("name", ["rand", "colours"])
def test_kernels_of_named_policies_compile_for_an_h200(compiled, name):
    """Nothing is spilled, no multiplication is fused, and float32 divisions are rounded as IEEE 754 has it."""
    plan = draw(NAMED[name], np.arange(16), 0, 0)
    for stage in plan.stages[:1]:
        for _, _, asm in compiled(NAMED[name], torch.uint8, (224, 224), plan=stage):
            assert "fma" not in asm["ptx"] and "st.local" not in asm["ptx"]
            assert not re.search(r"div\.(full|approx)", asm["ptx"])


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_values_in_memory_order_are_moved_in_words(compiled, dtype):
    """No table and no shared memory: reads of 8 bytes, writes of 16, and two values rounded by one instruction."""
    [(_, _, asm)] = compiled(None, dtype, (224, 224))
    ptx = asm["ptx"]
    assert accesses(ptx, "ld") == {"v2.b32": 6} and accesses(ptx, "st") == {"v4.b32": 6}
    assert ptx.count("fma.rn.f32") == 48 and "shared" not in ptx.replace(".extern .shared", "") and "shfl" not in ptx
    assert len(re.findall(rf"cvt\.rn\.{'bf16' if dtype == torch.bfloat16 else 'f16'}x2\.f32", ptx)) == 24
    [(_, _, asm)] = compiled(POLICIES["flips"], dtype, (224, 224))  # mirrored ones: in words as well
    found = accesses(asm["ptx"], "ld")
    assert found["v2.b32"] == 12 and found["b8"] == 0 and accesses(asm["ptx"], "st") == {"v4.b32": 12}
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


def test_torchs_warning_about_its_debug_mode_is_ignored(sync_debug_mode, monkeypatch):
    said = []

    def choose(mode):
        said.append(mode)
        text = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
        warnings.warn(text, UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", choose)
    with pytest.raises(RuntimeError, match="called a synchronizing"), sync_debug_mode("error"):
        raise RuntimeError("called a synchronizing CUDA operation")
    assert said == ["error", "default"]


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGPU:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", POLICIES)
    def test_policies_and_types(self, name, dtype):
        for batch, shape in ((64, (224, 224)), (5, (37, 53)), (1, (1, 1))):
            plan = draw(POLICIES[name], np.arange(batch), 5, 0)
            check(plan, images(batch, *shape).cuda(), POLICIES[name], dtype)
            check(plan, images(batch, *shape).contiguous().cuda(), POLICIES[name], dtype)

    @pytest.mark.parametrize("name", NAMED)
    def test_plans_of_several_stages(self, name):
        for shape in ((224, 224), (37, 53)):
            plan, batch = draw(NAMED[name], np.arange(32), 1, 2), images(32, *shape).cuda()
            expected = apply(plan, batch, dtype=torch.bfloat16, backend="reference")
            assert torch.equal(apply(plan, batch, dtype=torch.bfloat16, backend="fused"), expected)

    @pytest.mark.parametrize("name", POLICIES)
    def test_no_synchronisation(self, name, sync_debug_mode):
        policy, batch = POLICIES[name], images(32, 224, 224).cuda()
        table = normalisation_table(policy, torch.bfloat16).cuda()
        expected = []
        for seed in range(3):  # the last one in the steady state
            plan = draw(policy, np.arange(32), seed, 0)
            torch.cuda.synchronize()
            with sync_debug_mode("error" if seed == 2 else "default"):
                got = fused.fused(plan, batch, table, torch.bfloat16)
            expected.append(torch.equal(got, augment(plan, batch, table)))
        assert all(expected)
