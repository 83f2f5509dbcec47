"""The Triton path equals the reference bit for bit: interpreted on the CPU, and run on a GPU.

Triton decides on import whether to interpret kernels, so `TestInterpreted` runs in its own process.
"""

import dataclasses
import importlib
import itertools
import warnings

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, ahead, apply, draw
from fastimg.augment.lines import LevelLine, line_of
from fastimg.augment.ops import BINS, STATISTICS, TRIVIAL, Op, trivial_table
from fastimg.augment.reference import augment, normalisation_table

from .cuda_on_cpu import counter_on_cpu
from .fused_policies import DTYPES, INTERPRETED, NAMED, POLICIES, images

pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
fused = importlib.import_module("fastimg.augment.fused.launches")
constants = importlib.import_module("fastimg.augment.fused.constants")


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


class TestInterpreted:
    __test__ = INTERPRETED

    @pytest.mark.parametrize("name", NAMED)
    def test_plans_of_several_stages(self, name):
        for count, shape, dtype in ((10, (13, 24), torch.bfloat16), (4, (7, 5), torch.float32)):
            plan, batch = draw(NAMED[name], np.arange(count), 1, 2), images(count, *shape)
            expected = apply(plan, batch, dtype=dtype, backend="reference")
            assert torch.equal(apply(plan, batch, dtype=dtype, backend="fused"), expected)

    @pytest.mark.parametrize("name", [*NAMED, "trivial", "jitter, trivial", "flips"])
    def test_a_plan_whose_words_have_come_with_the_batch(self, name, monkeypatch):
        """None are sent; kernels read them where they are."""
        policy, batch = (POLICIES | NAMED)[name], images(9, 13, 24)
        plan = draw(policy, np.arange(9), 1, 2)
        expected = apply(plan, batch, dtype=torch.bfloat16, backend="reference")
        monkeypatch.setattr(ahead, "backend_of", lambda device: "fused")
        known = ahead.work_out(plan, 13, 24, batch.device)
        words = np.zeros(ahead.count_words(known), np.int32)
        ahead.write(known, words)
        monkeypatch.setattr(fused, "to_device", None)
        assert torch.equal(
            apply(ahead.sent(known, torch.from_numpy(words)), batch, dtype=torch.bfloat16, backend="fused"), expected
        )

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

    @pytest.mark.parametrize("width", [4, 8, 12, 20, 28, 40])
    def test_mirrored_rows_of_any_number_of_words(self, width):
        """float32 takes rows of words of 4 bytes, any other type those of 8."""
        plan = dataclasses.replace(draw(Policy(hflip=0.5, vflip=0.5), np.arange(8), 1, 0), hflip=torch.ones(8).bool())
        for dtype in DTYPES:
            check(plan, images(8, 7, width), None, dtype)

    @pytest.mark.parametrize("shape", [(1, 8), (2, 8), (3, 16), (5, 24), (9, 40), (33, 64)])
    @pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)), ids=str)
    def test_sharpness_of_rows_of_whole_words(self, shape, flips):
        hflip, vflip = (torch.full((4,), flip) for flip in flips)
        plan = plan_of_columns([(Op.SHARPNESS, factor) for factor in (0.01, 1.99, 1.0, 1.33)])
        plan = dataclasses.replace(plan, hflip=hflip, vflip=vflip)
        words = fused._words(plan, plan.sized(*shape), [], fused._columns(plan), fused._still(plan))[:, -1]
        assert set(words.tolist()) == {constants.SHARP.value}
        for dtype in DTYPES:
            check(plan, images(4, *shape), None, dtype)

    @pytest.mark.parametrize("shape", [(1, 8), (9, 8), (8, 32), (23, 40), (70, 64), (64, 72), (1360, 8)])
    def test_rotations_of_rows_of_whole_words(self, shape):
        """Tiles of 8 rows and 4 runs, of which some lie outside of the image."""
        plan = draw(POLICIES["rotate"], np.arange(5), 0, 0)
        for dtype in DTYPES:
            check(plan, images(5, *shape), POLICIES["rotate"], dtype)

    def test_memory_that_is_not_in_whole_words(self):
        """Images and results at any address."""
        plan, whole = draw(POLICIES["trivial"], np.arange(3), 0, 0), images(3, 9, 16)
        table = normalisation_table(POLICIES["trivial"], torch.bfloat16)
        line, expected = line_of(POLICIES["trivial"], torch.bfloat16), augment(plan, whole, table)
        for shift in (0, 1, 2, 4, 8):
            memory = torch.zeros(3 * 9 * 16 * 3 + 8, dtype=torch.uint8)[shift:][: 3 * 9 * 16 * 3].view(3, 9, 16, 3)
            moved = memory.copy_(whole.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            space = torch.full((3 * 9 * 16 * 3 + 16,), 7.0, dtype=torch.bfloat16)
            out = space[shift:][: 3 * 9 * 16 * 3].view(3, 9, 16, 3).permute(0, 3, 1, 2)
            assert fused.fused(plan, moved, table, torch.bfloat16, out, line) is out
            assert torch.equal(out, expected)
            assert (space[:shift] == 7).all() and (space[shift + 3 * 9 * 16 * 3 :] == 7).all()

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
        """Images in memory order together with moved, rotated, coloured, sharpened and erased ones in one batch."""
        policy = POLICIES["trivial"]
        plan = draw(policy, np.arange(40), 0, 0)
        words = fused._words(plan, plan.sized(16, 16), [], fused._columns(plan), fused._still(plan))[:, -1]
        assert set(words.tolist()) == {0, 1, 2, 3, 4, 17}
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
        for batch, shape in ((64, (224, 224)), (5, (37, 53)), (5, (30, 28)), (5, (33, 40)), (1, (1, 1))):
            plan = draw(POLICIES[name], np.arange(batch), 5, 0)
            check(plan, images(batch, *shape).cuda(), POLICIES[name], dtype)
            check(plan, images(batch, *shape).contiguous().cuda(), POLICIES[name], dtype)

    @pytest.mark.parametrize("name", NAMED)
    def test_plans_of_several_stages(self, name):
        for shape in ((224, 224), (37, 53)):
            plan, batch = draw(NAMED[name], np.arange(32), 1, 2), images(32, *shape).cuda()
            expected = apply(plan, batch, dtype=torch.bfloat16, backend="reference")
            assert torch.equal(apply(plan, batch, dtype=torch.bfloat16, backend="fused"), expected)

    @pytest.mark.parametrize("name", POLICIES | NAMED)
    def test_words_that_have_come_with_the_batch(self, name):
        policy, batch = (POLICIES | NAMED)[name], images(32, 100, 88).cuda()
        plan = draw(policy, np.arange(32), 1, 2)
        expected = apply(plan, batch, dtype=torch.bfloat16)
        known = ahead.work_out(plan, 100, 88, batch.device)
        words = np.zeros(ahead.count_words(known), np.int32)
        ahead.write(known, words)
        there = ahead.sent(known, torch.from_numpy(words).cuda())
        assert torch.equal(apply(there, batch, dtype=torch.bfloat16), expected)

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
