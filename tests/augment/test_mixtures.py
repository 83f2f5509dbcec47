"""Mixup and cutmix have the reference's bits: compiled for the CPU, and in Triton, interpreted and executed as PTX.

Triton decides on import whether to interpret kernels, so `TestInterpreted` runs in its own process.
"""

import importlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, draw, reference
from fastimg.augment.mixing import mix_images, words_of

from .fused_policies import INTERPRETED

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
POLICIES = [Policy(mixup=0.8), Policy(cutmix=1.0), Policy(mixup=0.5, cutmix=0.5)]
SHAPES = [(9, 3, 20, 30), (6, 3, 16, 16), (4, 1, 7, 5), (5, 6, 9, 11), (2, 3, 40, 64), (1, 3, 8, 8)]


def batch(shape, dtype, channels_last=True, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    images = (torch.randn(shape, generator=drawn) * 3).to(dtype)
    return images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def weights(size):
    weight = torch.ones(size)
    weight[1::3] = 0
    return weight


def check(mix, policy, shape, dtype, channels_last=True, weight=None):
    """Same bits, where NaN is NaN; the images stay as they are, and `out` is written."""
    images = batch(shape, dtype, channels_last)
    if shape[0] > 3:
        images[2, :, 1] = torch.nan
        images[3, :, 2] = torch.inf
    words = words_of(draw(policy, np.arange(shape[0]), 3, 1).mixing, *shape[2:])
    expected, kept = reference.mix(words, images, weight)
    before, out = images.clone(), torch.full_like(images, 7.0)
    for given in (None, out):
        got, share = mix(words, images, weight, given)
        form = torch.channels_last if channels_last else torch.contiguous_format
        assert got is given if given is not None else got.is_contiguous(memory_format=form)
        assert torch.equal(share, kept) and torch.equal(images.isnan(), before.isnan())
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.nan_to_num(nan=1.0), expected.nan_to_num(nan=1.0))
        if dtype != torch.float16:  # whose infinities in the reference come from the same roundings
            signs = (got.nan_to_num(nan=1.0) == 0) & (got.signbit() != expected.signbit())
            assert not signs.any()


def check_roundings(mix, dtype):
    """Values at the limits of a type: subnormal ones, the largest, and such as lie between two of the type."""
    drawn = np.random.default_rng(1)
    if dtype == torch.float32:
        images = torch.from_numpy(drawn.integers(0, 2**32, (2, 1, 64, 256), dtype=np.uint32).view(np.float32).copy())
    else:
        bits = drawn.permutation(2**16).astype(np.uint16)
        images = torch.from_numpy(np.stack([bits, drawn.permutation(bits)])).view(dtype).view(2, 1, 256, 256)
    mixing = draw(Policy(mixup=1.0), np.arange(2), 0, 0).mixing
    for share in (1 / 3, 0.5, 2**-16, 1 - 2**-16, 0.0):
        words = words_of(replace(mixing, share=torch.full((2,), share)), *images.shape[2:])
        with np.errstate(all="ignore"):  # NumPy, which interprets, warns of infinity times 0
            expected, got = reference.mix(words, images, None)[0], mix(words, images, None)[0]
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got[~got.isnan()], expected[~expected.isnan()])


def on_cpu(words, images, weight, out=None):
    return importlib.import_module("fastimg.augment.cpu").mix(words, images, weight, out)


def in_triton(words, images, weight, out=None):
    return importlib.import_module("fastimg.augment.fused").mix(words, images, weight, out)


@pytest.mark.skipif(INTERPRETED, reason="compiles for the CPU")
@pytest.mark.parametrize("policy", POLICIES, ids=["mixup", "cutmix", "both"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
def test_on_the_cpu(policy, dtype, channels_last):
    for shape in SHAPES:
        check(on_cpu, policy, shape, dtype, channels_last)
        check(on_cpu, policy, shape, dtype, channels_last, weights(shape[0]))


@pytest.mark.skipif(INTERPRETED, reason="compiles for the CPU")
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_roundings_on_the_cpu(dtype):
    check_roundings(on_cpu, dtype)


@pytest.mark.skipif(INTERPRETED, reason="uses the code for the CPU")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_any_type_and_any_strides(dtype):
    """What has no compiled code is mixed by plain torch; images that lie otherwise in memory are copied first."""
    plan = draw(Policy(mixup=0.5, cutmix=0.5), np.arange(8), 3, 1)
    images = batch((8, 3, 12, 20), dtype)[:, :, ::2, 1::3]
    dense = images.contiguous(memory_format=torch.channels_last)
    mixed, mixture = mix_images(plan, images)
    expected, share = reference.mix(words_of(plan.mixing, *images.shape[2:]), dense, None)
    assert torch.equal(mixed, expected) and torch.equal(mixture.share, share)
    assert torch.equal(mixture.partner, plan.mixing.partner)
    out = torch.empty_like(dense)
    assert mix_images(plan, dense, out=out)[0] is out and torch.equal(out, expected)
    assert mix_images(None, dense, out=out) == (out, None) and torch.equal(out, dense)


@pytest.mark.skipif(INTERPRETED, reason="uses the code for the CPU")
def test_gradients_flow_through_mixed_images():
    plan, images = draw(Policy(mixup=0.5), np.arange(4), 3, 1), batch((4, 3, 8, 8), torch.float32).requires_grad_()
    mix_images(plan, images)[0].sum().backward()
    share = plan.mixing.share
    expected = share + (1 - share)[plan.mixing.partner]
    torch.testing.assert_close(images.grad, expected[:, None, None, None].expand(4, 3, 8, 8))


def test_memory_that_cannot_be_written_to():
    plan, images = draw(Policy(mixup=0.5), np.arange(4), 3, 1), batch((4, 3, 8, 8), torch.float32)
    room = torch.empty(8, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    for out in (torch.empty(4, 3, 8, 8), torch.empty_like(images, dtype=torch.float64), room):
        with pytest.raises(ValueError, match=r"out must be as the images are, torch\.float32"):
            mix_images(plan, images, out=out)
    room[:4] = images
    for source, out in ((room[:4], room[:4]), (room[:4], room[3:7]), (room[3:7], room[:4])):
        with pytest.raises(ValueError, match="out must not share memory with the images"):
            mix_images(plan, source, out=out)
    assert torch.equal(mix_images(plan, room[:4], out=room[4:])[0], mix_images(plan, images)[0])


@pytest.mark.parametrize("partner", [4, -1])
def test_a_partner_outside_of_the_batch(partner):
    plan = draw(Policy(mixup=0.5), np.arange(4), 3, 1)
    strange = plan.mixing.partner.clone()
    strange[2] = partner
    with pytest.raises(ValueError, match="partners are positions in the batch, 0 to 3"):
        mix_images(replace(plan, mixing=replace(plan.mixing, partner=strange)), batch((4, 3, 8, 8), torch.float32))


class TestInterpreted:
    __test__ = INTERPRETED

    @pytest.mark.parametrize("policy", POLICIES, ids=["mixup", "cutmix", "both"])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("channels_last", [True, False])
    def test_same_bits(self, policy, dtype, channels_last):
        for shape in SHAPES:
            check(in_triton, policy, shape, dtype, channels_last)
            check(in_triton, policy, shape, dtype, channels_last, weights(shape[0]))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_roundings(self, dtype):
        check_roundings(in_triton, dtype)


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_under_the_interpreter(interpreted):
    pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
    interpreted(__file__)


@pytest.fixture
def launched(monkeypatch):
    """What is launched, after it was compiled for an H200 and executed as PTX on the CPU."""
    pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kernels, found = importlib.import_module("kernels"), []
    fused = importlib.import_module("fastimg.augment.fused.mixtures")
    executing = kernels.Executing(fused._mixtures, lambda one, grid, values: found.append(one))
    monkeypatch.setattr(fused, "_mixtures", executing)
    return found


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_for_an_h200(launched, dtype):
    """One launch for a batch; no access lies outside of a tensor, no value is spilled, and no addition is fused."""
    for shape, channels_last in (((4, 3, 16, 24), True), ((3, 3, 9, 11), True), ((4, 3, 16, 8), False)):
        for weight in (None, weights(shape[0])):
            launched.clear()
            check(in_triton, POLICIES[2], shape, dtype, channels_last, weight)
            assert len(launched) == 2  # with `out` and without
            text = launched[0].compiled.text
            assert not re.search(r"\bfma\.|\bst\.local|\b(add|sub|mul|mad|min|max)\.\w*16x2", text)


@pytest.mark.skipif(INTERPRETED, reason="compiles")
def test_what_it_moves(launched):
    """In bf16: each value is written once, in whole sectors, and a partner is read where its rows show."""
    for policy, reads in ((Policy(mixup=0.8), 2.0), (Policy(cutmix=1.0), 1.8)):
        launched.clear()
        images = batch((8, 3, 64, 64), torch.bfloat16)
        in_triton(words_of(draw(policy, np.arange(8), 0, 0).mixing, 64, 64), images, None)
        [one] = launched
        traffic = importlib.import_module("ptx").totals(one.program.traffic)
        words = 4 * 7 * 256 * 8 * 6  # of each thread of each program
        assert images.nbytes <= traffic["st"].moved <= images.nbytes * 1.01
        assert traffic["ld"].moved <= reads * images.nbytes + words
        assert one.row(8, 64 * 64, 8)["written"] <= 1.02 and "ld.global.v4.b32" in one.compiled.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
def test_on_a_gpu(dtype, channels_last):
    def mix(words, images, weight, out=None):
        placed = None if out is None else out.cuda()
        got, share = in_triton(words.cuda(), images.cuda(), None if weight is None else weight.cuda(), placed)
        return (got.cpu() if out is None else out.copy_(got)), share.cpu()

    for policy in POLICIES:
        for shape in [*SHAPES, (32, 3, 224, 224)]:
            check(mix, policy, shape, dtype, channels_last, weights(shape[0]))
    check_roundings(mix, dtype)
