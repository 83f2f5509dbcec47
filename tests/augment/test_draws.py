"""Draws follow the policy over a million images, and are independent of all other draws."""

import re

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2

from fastimg.augment import Policy, draw
from fastimg.augment.draws import beta_quantile
from fastimg.augment.ops import BINS, TRIVIAL

MILLION = np.arange(1_000_000)
EVERYTHING = Policy(
    hflip=0.5,
    vflip=0.3,
    rotate=30,
    brightness=(0.6, 1.4),
    contrast=(0.5, 1.5),
    saturation=(0.0, 2.0),
    trivial=True,
    erase=0.25,
    mixup=0.2,
    cutmix=1.0,
)


def tensors(plan):
    """Every tensor of a plan with one row per image."""
    fields = (plan.hflip, plan.vflip, plan.angle, plan.trivial, plan.ops, plan.magnitudes)
    return [*fields, plan.mixing.share, plan.mixing.cut, plan.mixing.centre]


@pytest.fixture(scope="module")
def million():
    return draw(Policy(hflip=0.5, rotate=30, trivial=True, brightness=(0.6, 1.4)), MILLION, 11, 2)


def unpacked(rows):
    return rows // (BINS * 2), rows // 2 % BINS, rows % 2


def test_operations_bins_and_signs_are_uniform(million):
    operation, at, negative = unpacked(million.trivial.numpy())
    for values, count in ((operation, len(TRIVIAL)), (at, BINS), (negative, 2), (million.trivial.numpy(), 868)):
        counts = np.bincount(values, minlength=count)
        assert len(counts) == count and stats.chisquare(counts).pvalue > 1e-3


def test_operations_are_independent_of_flips_epochs_seeds_and_neighbours(million):
    operation = unpacked(million.trivial.numpy())[0]
    policy = Policy(trivial=True)
    others = (
        million.hflip.numpy().astype(np.int64),
        unpacked(draw(policy, MILLION, 11, 3).trivial.numpy())[0],
        unpacked(draw(policy, MILLION, 12, 2).trivial.numpy())[0],
        np.roll(operation, 1),
        MILLION % 7,
    )
    for other in others:
        pairs = np.zeros((len(TRIVIAL), other.max() + 1))
        np.add.at(pairs, (operation, other), 1)
        assert stats.chi2_contingency(pairs).pvalue > 1e-3


def test_angles_and_factors_are_uniform(million):
    assert stats.kstest(million.angle.numpy(), stats.uniform(-30, 60).cdf).pvalue > 1e-3
    assert stats.kstest(million.magnitudes[:, 0].double().numpy(), stats.uniform(0.6, 0.8).cdf).pvalue > 1e-3


def beta_fit(values, alpha):
    """p value of chi-square. The ends, where small alphas have their mass, are bins and not points."""
    edges = np.linspace(0.05, 0.95, 19)
    counts = np.histogram(values, [-1, *edges, 2])[0]
    return stats.chisquare(counts, np.diff(stats.beta(alpha, alpha).cdf([0, *edges, 1])) * len(values)).pvalue


@pytest.mark.parametrize("alpha", [499.0, 501.0, 540.0, 5000.0, 1e9])
def test_shares_of_large_alphas_are_near_a_half(alpha):
    even = np.linspace(0.0, 1.0, 1001)[1:-1]
    np.testing.assert_allclose(beta_quantile(alpha, even), stats.beta(alpha, alpha).ppf(even), atol=1e-4)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 2.0, 8.0])
def test_shares_are_beta(alpha):
    chances = np.random.default_rng(0).random(1_000_000)
    assert beta_fit(beta_quantile(alpha, chances), alpha) > 1e-3
    even = np.linspace(0.0, 1.0, 1001)[1:-1]
    np.testing.assert_allclose(beta_quantile(alpha, even), stats.beta(alpha, alpha).ppf(even), atol=2e-5)
    policy = Policy(mixup=alpha)
    share = draw(policy, MILLION, 0, 0).mixing.share
    assert torch.equal(share * 65536, (share * 65536).round())
    assert beta_fit(share.numpy(), alpha) > 1e-3


def test_one_of_mixup_and_cutmix():
    ids = MILLION[:100_000]
    mixing = draw(EVERYTHING, ids, 1, 0).mixing
    assert stats.binomtest(int(mixing.cut.sum()), len(ids), 0.5).pvalue > 1e-3
    assert stats.kstest(mixing.share[mixing.cut].numpy(), stats.uniform.cdf).pvalue > 1e-3
    assert beta_fit(mixing.share[~mixing.cut].numpy(), 0.2) > 1e-3
    assert stats.kstest(mixing.centre[:, 0].numpy(), stats.uniform.cdf).pvalue > 1e-3
    assert not draw(Policy(mixup=1.0), ids, 1, 0).mixing.cut.any()
    assert draw(Policy(cutmix=1.0), ids, 1, 0).mixing.cut.all()
    assert draw(Policy(), ids, 1, 0).mixing is None


def test_partners_are_neighbours():
    for size, expected in ((1, [0]), (2, [1, 0]), (5, [1, 0, 3, 2, 3]), (6, [1, 0, 3, 2, 5, 4])):
        assert draw(Policy(mixup=1.0), np.arange(size), 0, 0).mixing.partner.tolist() == expected
    whole = draw(Policy(mixup=1.0), np.arange(64), 0, 0).mixing.partner
    for size in (2, 16):
        parts = [draw(Policy(mixup=1.0), np.arange(size), 0, 0).mixing.partner + i for i in range(0, 64, size)]
        assert torch.equal(torch.cat(parts), whole)


def test_draws_do_not_depend_on_batch_or_order():
    ids = np.arange(500)
    whole = draw(EVERYTHING, ids, 1, 2)
    order = np.random.default_rng(0).permutation(500)
    for a, b in zip(tensors(draw(EVERYTHING, order, 1, 2)), tensors(whole), strict=True):
        assert torch.equal(a, b[torch.from_numpy(order)])
    boxes = whole.sized(96, 80).words
    assert torch.equal(draw(EVERYTHING, order, 1, 2).sized(96, 80).words, boxes[torch.from_numpy(order)])
    for size in (1, 7):
        parts = [draw(EVERYTHING, ids[i : i + size], 1, 2).sized(96, 80).words for i in range(0, 500, size)]
        assert torch.equal(torch.cat(parts), boxes)


def test_disabled_stages_do_not_change_the_others():
    """Each stage has its own numbers."""
    ids = np.arange(200)
    everything, trivial = draw(EVERYTHING, ids, 1, 2), draw(Policy(trivial=True, hflip=0.5), ids, 1, 2)
    assert torch.equal(everything.trivial, trivial.trivial) and torch.equal(everything.hflip, trivial.hflip)
    assert torch.equal(everything.ops[:, 3:], trivial.ops) and trivial.ops.shape == (200, 1)
    contrast = draw(Policy(contrast=(0.5, 1.5)), ids, 1, 2)
    assert torch.equal(contrast.magnitudes[:, 0], everything.magnitudes[:, 1])


def test_columns_and_passes():
    ids = np.arange(2000)
    for policy, columns, passes in (
        (Policy(hflip=0.5, rotate=9), 0, 0),
        (Policy(brightness=(0.5, 2)), 1, 0),
        (Policy(contrast=(0.5, 2)), 1, 1),
        (Policy(trivial=True), 1, 1),
        (EVERYTHING, 4, 2),
    ):
        plan = draw(policy, ids, 0, 0)
        assert (plan.ops.shape, plan.magnitudes.shape, plan.passes) == ((2000, columns), (2000, columns), passes)
        sized = plan.sized(30, 40)
        assert sized.words.dtype == torch.int32 and sized.words.shape == (2000, 10 + 2 * columns)
        assert torch.equal(sized.ops, plan.ops) and torch.equal(sized.magnitudes, plan.magnitudes)


def test_erasing_is_torchvisions():
    """Frequency as in the policy; area and ratio within their ranges, up to whole pixels; positions anywhere."""
    ids, height, width = MILLION[:200_000], 200, 160
    box = draw(Policy(erase=0.3), ids, 0, 0).sized(height, width).box.numpy()
    erased = box.any(axis=1)
    top, left, bottom, right = box[erased].T
    assert stats.binomtest(int(erased.sum()), len(ids), 0.3).pvalue > 1e-3
    assert (top >= 0).all() and (left >= 0).all() and (bottom <= height).all() and (right <= width).all()
    h, w = bottom - top, right - left
    assert (h < height).all() and (w < width).all() and (h > 0).all() and (w > 0).all()
    area = h * w / (height * width)
    assert 0.018 < area.min() < 0.021 and 0.325 < area.max() < 0.335
    assert 0.28 < (h / w).min() < 0.31 and 3.2 < (h / w).max() < 3.5
    torch.manual_seed(0)
    theirs, image = v2.RandomErasing(p=1.0), torch.zeros(3, height, width)
    drawn = [theirs.make_params([image]) for _ in range(4000)]
    for ours, key in ((h, "h"), (w, "w"), (top, "i"), (left, "j")):
        assert stats.ks_2samp(ours, [d[key] for d in drawn]).pvalue > 1e-3


@pytest.mark.parametrize("size", [(1, 1), (1, 30), (2, 2), (3, 3), (8192, 3)])
def test_erasing_where_there_is_little_room(size):
    box = draw(Policy(erase=1.0), MILLION[:2000], 0, 0).sized(*size).box.numpy()
    assert (box >= 0).all() and (box[:, 2:] <= size).all()
    empty = ~box.any(axis=1)
    assert empty.all() if min(size) == 1 else ((box[:, 2:] > box[:, :2]).all(axis=1) | empty).all()


def test_images_too_large():
    plan = draw(Policy(trivial=True, rotate=180), MILLION[:100_000], 0, 0)
    with pytest.raises(ValueError, match="8193 x 5 pixels are too large to augment; sides may have up to 8192 pixels"):
        plan.sized(5, 8193)
    for height, width in ((8192, 8192), (8192, 1), (1, 8192)):  # no sum exceeds 32 bits
        affine = plan.sized(height, width).affine.numpy().astype(np.int64)
        for x in (0, width - 1):
            for y in (0, height - 1):
                for row in (0, 3):
                    assert abs(affine[:, row] * x + affine[:, row + 1] * y + affine[:, row + 2]).max() < 2**31


def test_alternating_mirror_images_change_with_every_epoch():
    """Each image is seen both ways within two epochs; the first is drawn as without alternation, in any batch."""
    ids = np.arange(4000)
    drawn = [draw(Policy(hflip=0.3), ids, 7, epoch).hflip for epoch in range(3)]
    turns = [draw(Policy(hflip=0.3, hflip_alternates=True), ids, 7, epoch).hflip for epoch in range(5)]
    assert torch.equal(turns[0], drawn[0]) and abs(turns[0].double().mean() - 0.3) < 0.03
    for epoch in range(4):
        assert torch.equal(turns[epoch + 1], ~turns[epoch])
    alone = draw(Policy(hflip=0.3, vflip=0.5, hflip_alternates=True), ids[100:107], 7, 3)
    assert torch.equal(alone.hflip, turns[3][100:107])
    assert torch.equal(alone.vflip, draw(Policy(vflip=0.5), ids[100:107], 7, 3).vflip)  # drawn as without alternation


@pytest.mark.parametrize(
    "integer", [np.int64, np.uint64, np.int8, np.array, torch.tensor], ids=lambda one: one.__name__
)
def test_integers_of_other_libraries_draw_as_pythons_do(integer):
    seed, epoch, view = 3, 5, 1
    expected = tensors(draw(EVERYTHING, np.arange(64), seed, epoch, view))
    for given in (
        (integer(seed), epoch, view),
        (seed, integer(epoch), view),
        (seed, epoch, integer(view)),
        (integer(seed), integer(epoch), integer(view)),
    ):
        for drawn, plain in zip(tensors(draw(EVERYTHING, np.arange(64), *given)), expected, strict=True):
            assert torch.equal(drawn, plain)


def test_an_epoch_counted_by_numpy_alternates_mirror_images():
    policy, ids = Policy(hflip=0.3, hflip_alternates=True), np.arange(64)
    for epoch in np.arange(3):
        assert torch.equal(draw(policy, ids, -1, epoch).hflip, draw(policy, ids, -1, int(epoch)).hflip)


@pytest.mark.parametrize("name", ["seed", "epoch", "view"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((3.0, "3.0"), ("3", "'3'"), (None, "None"), (np.float32(3), "np.float32(3.0)")),
        *((torch.tensor(3.0), "tensor(3.)"), (torch.tensor([3, 4]), "tensor([3, 4])"), (np.array([3]), "array([3])")),
    ],
    ids=str,
)
def test_a_key_that_is_no_integer(name, value, shown):
    sentence = f"{name} must be an integer; got {shown}: convert it, as in int({name})"
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        draw(Policy(hflip=0.5), np.arange(4), **{"seed": 0, "epoch": 0, name: value})


def test_the_first_view_is_what_is_drawn_without_views():
    ids = np.arange(64)
    for drawn, plain in zip(
        tensors(draw(EVERYTHING, ids, 3, 4, view=0)), tensors(draw(EVERYTHING, ids, 3, 4)), strict=True
    ):
        assert torch.equal(drawn, plain)
    with pytest.raises(ValueError, match="view -1: views are counted from 0"):
        draw(EVERYTHING, ids, 3, 4, view=-1)


def test_views_are_independent_of_each_other_and_of_epochs_and_seeds():
    """Each is a function of its number alone, and pairs of any two are uniform over the square."""
    policy, ids = Policy(trivial=True), MILLION[:100_000]
    drawn = [(11, 2, 0), (11, 2, 1), (11, 2, 2), (11, 3, 1), (12, 2, 1), (11, 2, 7)]
    operations = [unpacked(draw(policy, ids, seed, epoch, view).trivial.numpy())[0] for seed, epoch, view in drawn]
    for place, one in enumerate(operations):
        for other in operations[:place]:
            counts = np.bincount(one * len(TRIVIAL) + other, minlength=len(TRIVIAL) ** 2)
            assert stats.chisquare(counts).pvalue > 1e-4
    for name in ("rand-m9-mstd0.5-inc1", "augmix-m3-w3"):
        one, other = (draw(Policy(named=name, hflip=0.5), ids[:200], 0, 0, view=view) for view in (0, 1))
        assert not torch.equal(one.hflip, other.hflip)
