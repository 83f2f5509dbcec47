"""A plan is drawn per image, by its id: independent of the caller, and fixed forever."""

import numpy as np
import pytest
import torch
from scipy import stats

from fastimg.augment import Plan, Policy, draw
from fastimg.augment.plan import _copies, to_device
from fastimg.loaders.random import uniforms

IDS = np.arange(1000)
BOTH = Policy(hflip=0.5, vflip=0.3)


def lists(plan):
    return plan.hflip.tolist(), plan.vflip.tolist()


def test_a_known_plan():
    plan = draw(Policy(hflip=0.5, vflip=0.25), np.arange(16), 3, 5)
    assert plan.hflip.int().tolist() == [0, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert plan.vflip.int().tolist() == [0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert (plan.hflip.dtype, plan.hflip.shape, plan.hflip.device.type) == (torch.bool, (16,), "cpu")


def test_the_generator_is_the_loaders():
    """The code exists twice, since neither package may import the other."""
    for seed, epoch in ((0, 0), (7, 3), (-1, 2**40), (2**70, 1)):
        chances = uniforms(seed, epoch, IDS, 0xF1, 2)
        plan = draw(BOTH, IDS, seed, epoch)
        assert lists(plan) == ((chances[:, 0] < 0.5).tolist(), (chances[:, 1] < 0.3).tolist())


def test_an_image_is_flipped_the_same_in_any_batch_and_order():
    whole = draw(BOTH, IDS, 1, 2)
    for size in (1, 7, 256):
        parts = [draw(BOTH, IDS[i : i + size], 1, 2) for i in range(0, 1000, size)]
        assert torch.equal(torch.cat([plan.hflip for plan in parts]), whole.hflip)
        assert torch.equal(torch.cat([plan.vflip for plan in parts]), whole.vflip)
    order = np.random.default_rng(0).permutation(1000)
    shuffled = draw(BOTH, order, 1, 2)
    assert torch.equal(shuffled.hflip, whole.hflip[order]) and torch.equal(shuffled.vflip, whole.vflip[order])


def test_ids_may_be_a_tensor():
    assert lists(draw(BOTH, torch.from_numpy(IDS), 1, 2)) == lists(draw(BOTH, IDS, 1, 2))


def test_epochs_and_seeds_differ():
    plans = [draw(BOTH, IDS, seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({str(lists(plan)) for plan in plans}) == 9
    a, b = plans[0].hflip, plans[1].hflip
    assert stats.binomtest(int((a ^ b).sum()), 1000, 0.5).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_frequencies_follow_the_policy(p):
    ids = np.arange(20_000)
    plan = draw(Policy(hflip=p, vflip=1 - p), ids, 4, 0)
    for flips, share in ((plan.hflip, p), (plan.vflip, 1 - p)):
        if share in (0.0, 1.0):
            assert flips.float().mean() == share
        else:
            assert stats.binomtest(int(flips.sum()), len(ids), share).pvalue > 1e-3


def test_the_two_flips_are_independent():
    plan = draw(Policy(hflip=0.5, vflip=0.5), np.arange(20_000), 4, 0)
    counts = np.bincount((plan.hflip.int() * 2 + plan.vflip.int()).numpy(), minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_flips_of_a_lower_probability_are_a_subset():
    rare, frequent = (draw(Policy(hflip=p), IDS, 0, 0).hflip for p in (0.2, 0.6))
    assert (frequent | ~rare).all() and rare.sum() < frequent.sum()


def test_whether_any_image_is_flipped():
    assert not draw(Policy(), IDS, 0, 0).flips
    assert draw(Policy(vflip=1.0), IDS[:1], 0, 0).flips and draw(Policy(hflip=1.0), IDS[:1], 0, 0).flips


def test_an_empty_batch():
    plan = draw(BOTH, IDS[:0], 0, 0)
    assert isinstance(plan, Plan) and len(plan.hflip) == len(plan.vflip) == 0 and not plan.flips


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_do_not_wait_for_what_was_enqueued():
    device = torch.device("cuda", 0)
    to_device(torch.arange(3), device)  # its stream is made
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)  # 0.2 s at 2 GHz
    slept = torch.cuda.Event()
    slept.record()
    copied = to_device(torch.arange(5), device)
    _copies(device).synchronize()
    assert not slept.query()
    assert (copied + 1).tolist() == [1, 2, 3, 4, 5]
