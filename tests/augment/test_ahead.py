"""Plans that are worked out before they are applied: the same bits, and the words that kernels of a GPU read."""

import dataclasses
import importlib

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, ahead, apply, draw, mix, mixing
from fastimg.augment.mixing import mix_images, words_of
from fastimg.augment.plan import Sized

from .fused_policies import NAMED, POLICIES, images

CPU = torch.device("cpu")
EVERY = (
    POLICIES | NAMED | {"augmix": Policy(named="augmix-m5-w2"), "mixup": Policy(trivial=True, mixup=0.4, cutmix=1.0)}
)


@pytest.fixture
def for_a_gpu(monkeypatch):
    """Plans are worked out as for images on a GPU."""
    pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
    monkeypatch.setattr(ahead, "backend_of", lambda device: "fused")


@pytest.mark.parametrize("name", EVERY)
def test_the_same_bits(name):
    policy, batch = EVERY[name], images(7, 13, 24)
    plan = draw(policy, np.arange(7), 3, 1)
    known = ahead.work_out(plan, 13, 24, CPU)
    targets = torch.arange(7)
    for backend in ("cpu", "reference"):
        wanted, got = (apply(each.unmixed, batch, dtype=torch.bfloat16, backend=backend) for each in (plan, known))
        assert torch.equal(wanted, got)
    for wanted, got in zip(mix(plan, batch, targets, 9), mix(known, batch, targets, 9), strict=True):
        assert torch.equal(wanted, got)


def test_words_are_not_made_again(monkeypatch):
    plan = ahead.work_out(draw(EVERY["trivial"], np.arange(4), 0, 0), 13, 24, CPU)
    assert plan.sized(13, 24) is plan.ahead.sized
    assert plan.unmixed.sized(13, 24) is plan.ahead.sized
    assert plan.sized(24, 13) is not plan.ahead.sized  # another size


@pytest.mark.parametrize("part", ["hflip", "ops", "magnitudes", "trivial", "erasing"])
def test_a_plan_with_another_part_is_worked_out_anew(part):
    plan = ahead.work_out(draw(EVERY["trivial"], np.arange(9), 0, 0), 13, 24, CPU)
    other = draw(EVERY["trivial"], np.arange(9), 0, 1)
    changed = dataclasses.replace(plan, **{part: None if part == "erasing" else getattr(other, part)})
    wanted = dataclasses.replace(changed, ahead=None).sized(13, 24).words
    assert torch.equal(changed.sized(13, 24).words, wanted) and not torch.equal(plan.ahead.sized.words, wanted)


@pytest.mark.parametrize("name", EVERY)
def test_words_of_every_stage_travel(name, for_a_gpu):
    """As many for every batch of a policy, and each stage's where the allocator would align them."""
    launches = importlib.import_module("fastimg.augment.fused.launches")
    counts = set()
    for epoch in range(6):
        plan = ahead.work_out(draw(EVERY[name], np.arange(9), 0, epoch), 13, 24, CPU)
        counts.add(ahead.count_words(plan))
        room = np.full(ahead.count_words(plan) + 5, -1, np.int32)
        ahead.write(plan, room)
        there = ahead.sent(plan, torch.from_numpy(room))
        assert len(ahead.words_of(plan)) == len(plan.stages) + (plan.mixing is not None)
        if plan.mixing is not None:
            assert torch.equal(there.mixing.ahead.sent, words_of(plan.mixing, 13, 24))
            assert there.mixing.ahead.is_of(there.mixing, 13, 24) and not there.mixing.ahead.is_of(there.mixing, 24, 13)
        for stage, host in zip(there.stages, plan.stages, strict=True):
            launch = launches.launch_of(dataclasses.replace(host, ahead=None), 13, 24)
            assert torch.equal(stage.ahead.sent, launch.words) and stage.ahead.is_of(stage, 13, 24)
            assert stage.ahead.sent.data_ptr() % 256 == torch.from_numpy(room).data_ptr() % 256
            assert stage.ahead.launch.columns == launch.columns
            assert launch.words.shape[1] == Sized.FIXED + 2 * launch.columns.count + len(launch.lists) + 1
    assert len(counts) == 1


def test_mixing_takes_the_words_that_came_with_the_batch(for_a_gpu, monkeypatch):
    plan, batch = draw(EVERY["mixup"], np.arange(6), 0, 0), images(6, 13, 24).float()
    known = ahead.work_out(plan, 13, 24, CPU)
    room = np.zeros(ahead.count_words(known), np.int32)
    ahead.write(known, room)
    there = ahead.sent(known, torch.from_numpy(room))
    wanted, mixture = mix_images(plan, batch)
    monkeypatch.setattr(mixing, "to_device", None)
    got, same = mix_images(there, batch)
    assert torch.equal(got, wanted) and torch.equal(same.share, mixture.share)
    assert torch.equal(same.partner, mixture.partner)


def test_a_stage_of_several_launches_is_not_worked_out(for_a_gpu):
    """Sharpness before another operation, which no policy draws."""
    plan = draw(Policy(brightness=(0.5, 1.5), contrast=(0.5, 1.5)), np.arange(3), 0, 0)
    ops = plan.ops.clone()
    ops[:, 0] = 4
    known = ahead.work_out(dataclasses.replace(plan, ops=ops, kinds=None), 8, 8, CPU)
    assert known.ahead.launch is None and ahead.count_words(known) == 0
    ahead.write(known, np.empty(0, np.int32))
    assert ahead.sent(known, torch.empty(0, dtype=torch.int32)).ahead.sent is None
