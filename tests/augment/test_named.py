"""Policies by timm's names: timm's parser and timm's operations on Pillow images are the judges."""

import itertools
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from timm.data import auto_augment as timms
from torchvision.transforms.v2 import functional as F

from fastimg.augment import Plan, Policy, apply, draw
from fastimg.augment.draws import beta_quantile, gamma_quantile
from fastimg.augment.layers import BLURS, MOVES, OPERATIONS, LayerKey, draw_layers
from fastimg.augment.named import Choice, NamedPolicy, parse

FILL = (124, 116, 104)
NAMES = sorted({*OPERATIONS, *MOVES, *BLURS} - {"GaussianBlurRand"})
RAND = (
    *("rand", "rand-m9-mstd0.5-inc1", "rand-m7-n3", "rand-m15-mmax20-inc1", "rand-m9-p1-mstd101", "rand-inc0"),
    *("rand-tweights-m8", "rand-t3a-n1-inc1", "rand-m6-n4-p0.7-t3aw"),
)


def picture(height, width, seed=0):
    return np.random.default_rng((height, width, seed)).integers(0, 256, (height, width, 3), dtype=np.uint8)


def batch_of(pixels, count):
    return torch.from_numpy(pixels).permute(2, 0, 1)[None].expand(count, -1, -1, -1)


def levels(plan, images, backend="reference"):
    return apply(plan, images, Policy(), torch.uint8, backend=backend).permute(0, 2, 3, 1).numpy()


def timms_image(image, name, level, sign, monkeypatch):
    """What timm makes of a Pillow image, nearest pixels and our colour outside."""
    monkeypatch.setattr(timms, "_randomly_negate", lambda value: sign * value)
    arguments = timms.LEVEL_TO_ARG[name]
    given = () if arguments is None else arguments(level, {"translate_pct": 0.45})
    if name.startswith("Posterize") and given[0] <= 0:  # black, which Pillow 13 refuses
        return Image.new("RGB", image.size)
    return timms.NAME_TO_OP[name](image, *given, fillcolor=FILL, resample=Image.Resampling.NEAREST)


def one_operation(name, level, count, most=10.0):
    """A plan of `count` images that all have one operation."""
    policy = NamedPolicy(rows=((Choice(name, 1.0, level),),), layers=1, most=most)
    [drawn] = draw_layers(policy, LayerKey(0, 0, np.arange(count)), FILL)
    plan = draw(Policy(), np.arange(count), 0, 0)
    ops, magnitudes = torch.from_numpy(drawn.ops)[:, None], torch.from_numpy(drawn.magnitudes)[:, None]
    return Plan(
        *(plan.hflip, plan.vflip, plan.angle, plan.trivial, ops, magnitudes),
        warps=drawn.warps,
        kinds=(drawn.kinds,),
        blur=drawn.blur,
        then=(plan,),
    )


@pytest.mark.parametrize("name", RAND)
def test_rand_augment_is_parsed_as_by_timm(name):
    theirs, ours = timms.rand_augment_transform(name, {"img_mean": FILL}), parse(name)
    assert [row[0].name for row in ours.rows] == [op.name for op in theirs.ops]
    assert ours.layers == theirs.num_layers and all(len(set(row)) == 1 for row in ours.rows)
    for row, op in zip(ours.rows, theirs.ops, strict=True):
        assert (row[0].probability, row[0].magnitude) == (op.prob, op.magnitude)
        assert (ours.spread, ours.most) == (op.magnitude_std, op.magnitude_max or 10.0)
    assert ours.weights == (None if theirs.choice_weights is None else pytest.approx(theirs.choice_weights))


@pytest.mark.parametrize("name", ["original", "originalr-mstd0.5", "v0", "v0r", "3a"])
def test_auto_augment_is_parsed_as_by_timm(name):
    theirs, ours = timms.auto_augment_transform(name, {"img_mean": FILL}), parse(name)
    found = [[(op.name, op.prob, op.magnitude) for op in row] for row in theirs.policy]
    assert [[(one.name, one.probability, one.magnitude) for one in row] for row in ours.rows] == found
    assert ours.spread == theirs.policy[0][0].magnitude_std
    assert parse("auto") == parse("original") and parse("3aug") == parse("3a")


@pytest.mark.parametrize("name", ["augmix", "augmix-m5-w4-d2", "augmix-m3-w3-a0.5-mstd1"])
def test_augmix_is_parsed_as_by_timm(name):
    theirs, ours = timms.augment_and_mix_transform(name), parse(name)
    assert [row[0].name for row in ours.rows] == [op.name for op in theirs.ops]
    assert {(one.probability, one.magnitude) for row in ours.rows for one in row} == {(1.0, theirs.ops[0].magnitude)}
    assert (ours.width, ours.alpha, ours.spread) == (theirs.width, theirs.alpha, theirs.ops[0].magnitude_std)
    assert ours.depth == max(theirs.depth, 0) and ours.translate == 0.3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("randd-m9", "unknown augmentation policy 'randd-m9' .did you mean 'rand'"),
        ("elastic", "there are rand, augmix, 3aug, auto"),
        ("rand-x3", "'x3' is no part of rand; it takes m, n, p, mstd, mmax, inc, t"),
        ("rand-msd0.5", "'msd0.5' is no part of rand .did you mean 'mstd'"),
        ("rand-m", "'m' is no part of rand"),
        ("rand-m9.5", "m takes a whole number from 0 to 100"),
        ("rand-m9-m8", "m is given twice"),
        ("rand-n0", "n takes a whole number from 1 to 8"),
        ("rand-p2", "p is a probability"),
        ("rand-mstdmuch", "is no part of rand"),
        ("rand-tweigths", "tweigths is no set of operations .did you mean 'weights'"),
        ("original-m9", "'m9' is no part of original; it takes mstd"),
        ("augmix-b1", "blended chains .b1. are not built in"),
        ("augmix-a0", "0.01 or more"),
    ],
)
def test_names_that_are_none(name, message):
    with pytest.raises(ValueError, match=message):
        Policy(named=name)


def test_one_policy_at_a_time():
    with pytest.raises(ValueError, match="exclude each other"):
        Policy(named="rand", trivial=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_timms(name, monkeypatch):
    """With either sign, where there is one."""
    on = [((23, 31), "reference"), ((64, 40), "cpu"), ((1, 5), "cpu")]
    for level, (size, backend) in zip((0.0, 3.3, 7.0, 10.0, 17.0), [*on, *on[:2]], strict=True):
        pixels = picture(*size)
        signed = [np.asarray(timms_image(Image.fromarray(pixels), name, level, s, monkeypatch)) for s in (1, -1)]
        got = levels(one_operation(name, level, 8, most=20.0), batch_of(pixels, 8), backend)
        seen = {tuple(bool((one == expected).all()) for expected in signed) for one in got}
        assert seen in ({(True, False), (False, True)}, {(True, True)}), (level, size)


def test_a_random_blur_is_pillows():
    policy = Policy(named="3aug")
    plan, pixels = draw(policy, np.arange(60), 0, 0), picture(33, 40)
    got, seen = levels(plan, batch_of(pixels, 60)), set()
    radii = dict(zip(plan.blur.rows.tolist(), plan.blur.radius.tolist(), strict=True))
    assert 0.1 <= min(radii.values()) < 0.4 and 1.7 < max(radii.values()) <= 2.0
    image = Image.fromarray(pixels)
    others = [np.asarray(timms.solarize(image, 128)), np.asarray(image.convert("L").convert("RGB"))]
    for number, one in enumerate(got):
        if number in radii:
            blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(radii[number])))
            np.testing.assert_array_equal(one, blurred)
        else:
            seen.add(tuple(bool((one == other).all()) for other in others))
    assert seen == {(True, False), (False, True)}


@pytest.mark.parametrize("name", ["original", "v0r"])
def test_auto_augment_is_one_of_timms_pairs(name, monkeypatch):
    """After the flip, with either sign of either operation, or without one that is not certain."""
    pixels = picture(14, 19)
    plan = draw(Policy(named=name, hflip=0.5, mean=tuple(f / 255 for f in FILL)), np.arange(40), 3, 1)
    got = levels(plan, batch_of(pixels, 40))
    named, used = parse(name), set()
    results = {}
    for row, mirrored in itertools.product(range(len(named.rows)), (False, True)):
        start = Image.fromarray(np.ascontiguousarray(pixels[:, ::-1]) if mirrored else pixels)
        for signs in itertools.product((0, 1, -1), repeat=2):
            image = start
            for choice, sign in zip(named.rows[row], signs, strict=True):
                if sign:
                    image = timms_image(image, choice.name, choice.magnitude, sign, monkeypatch)
            possible = all(
                (choice.probability > 0.0) if sign else (choice.probability < 1.0)
                for choice, sign in zip(named.rows[row], signs, strict=True)
            )
            if possible:
                results.setdefault((mirrored, np.asarray(image).tobytes()), set()).add(row)
    for mirrored, one in zip(plan.hflip.tolist(), got, strict=True):
        used |= results[mirrored, one.tobytes()]
    assert len(used) > 10


def test_hue_is_torchvisions():
    pixels = picture(200, 210)
    policy = Policy(hue=0.5)
    plan = draw(policy, np.arange(12), 0, 0)
    for backend in ("reference", "cpu"):
        got = levels(plan, batch_of(pixels, 12), backend)
        for turn, one in zip(plan.magnitudes[:, 0].tolist(), got, strict=True):
            factor = (turn if turn < 128 else turn - 256) / 255
            theirs = F.adjust_hue(Image.fromarray(pixels), math.copysign(abs(factor) + 1e-9, factor))
            np.testing.assert_array_equal(one, np.asarray(theirs))


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 2), (3, 5), (40, 33)], ids=str)
def test_blur_is_pillows(size):
    pixels, policy = picture(*size), Policy(blur=1.0)
    plan = draw(policy, np.arange(40), 0, 0)
    for backend in ("reference", "cpu"):
        for radius, one in zip(plan.blur.radius.tolist(), levels(plan, batch_of(pixels, 40), backend), strict=True):
            expected = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius)))
            np.testing.assert_array_equal(one, expected)


def test_the_order_is_torchvisions():
    """Jitter, hue, grey, blur, solarizing."""
    policy = Policy(brightness=(0.5, 1.5), hue=0.3, grayscale=0.5, blur=0.5, solarize=0.5)
    plan, pixels = draw(policy, np.arange(40), 0, 0), picture(20, 27)
    got = levels(plan, batch_of(pixels, 40))
    radii = dict(zip(plan.blur.rows.tolist(), plan.blur.radius.tolist(), strict=True))
    inverted = plan.then[-1].ops[:, 0].tolist()
    for number, one in enumerate(got):
        bright, turn, _ = plan.magnitudes[number].tolist()
        image = F.adjust_brightness(Image.fromarray(pixels), bright)
        image = F.adjust_hue(image, (turn if turn < 128 else turn - 256) / 255 + (1e-9 if turn < 128 else -1e-9))
        if plan.ops[number, 2]:
            image = F.rgb_to_grayscale(image, num_output_channels=3)
        if number in radii:
            image = image.filter(ImageFilter.GaussianBlur(radii[number]))
        if inverted[number]:
            image = F.solarize(image, 128)
        np.testing.assert_array_equal(one, np.asarray(image))
    assert 10 < sum(map(bool, inverted)) < 30 and 10 < len(radii) < 30 and 10 < (plan.ops[:, 2] > 0).sum() < 30


def test_augmix_is_timms_sum():
    """Of the chains that were drawn: timm's `_apply_basic`, whose chains are given."""
    pixels, policy = picture(16, 21), Policy(named="augmix-m3-w3-d2")
    plan = draw(policy, np.arange(12), 0, 0)
    images, mix = batch_of(pixels, 12), plan.chain_mix
    ends = []
    for stages in mix.chains:
        chain = images
        for stage in stages:
            chain = torch.from_numpy(levels(stage, chain)).permute(0, 3, 1, 2)
        ends.append(chain.permute(0, 2, 3, 1).numpy())
    for number, one in enumerate(levels(plan, images)):
        chains = iter([end[number] for end in ends])
        theirs = timms.AugMixAugment([lambda image: image], width=3, depth=1)
        theirs.ops = [lambda _, chains=chains: Image.fromarray(next(chains))]
        image = theirs._apply_basic(Image.fromarray(pixels), mix.weights[number].numpy(), float(mix.share[number]))
        np.testing.assert_array_equal(one, np.asarray(image))


EVERYTHING = {
    "rand": Policy(named="rand-m9-mstd0.5-inc1-p1", hflip=0.5, erase=0.3),
    "rand, rotated and jittered": Policy(named="rand-m9-n1", rotate=20, contrast=(0.5, 1.5), hue=0.2, vflip=0.5),
    "weighted": Policy(named="rand-m7-n3-tweights"),
    "three": Policy(named="rand-t3aw-m9-n2-p1"),
    "auto": Policy(named="v0"),
    "3aug": Policy(named="3aug", brightness=(0.7, 1.3), hflip=0.5),
    "augmix": Policy(named="augmix-w2-a0.5", hflip=0.5),
    "everything else": Policy(trivial=True, hue=0.2, grayscale=0.3, blur=0.5, solarize=0.3, rotate=20, erase=0.2),
}


@pytest.mark.parametrize("policy", EVERYTHING.values(), ids=EVERYTHING)
def test_the_references_bits(policy):
    for size, dtype in (((1, 1), torch.uint8), ((2, 5), torch.float32), ((23, 37), torch.bfloat16)):
        images = torch.stack([torch.from_numpy(picture(*size, seed)) for seed in range(24)]).permute(0, 3, 1, 2)
        plan = draw(policy, np.arange(24), 1, 2)
        expected = apply(plan, images, dtype=dtype, backend="reference")
        before = images.clone()
        assert torch.equal(apply(plan, images, dtype=dtype, backend="cpu"), expected)
        out = torch.empty_like(expected, memory_format=torch.channels_last)
        assert torch.equal(apply(plan, images.contiguous(), dtype=dtype, out=out), expected)
        assert torch.equal(images, before)


@pytest.mark.parametrize("policy", EVERYTHING.values(), ids=EVERYTHING)
def test_a_draw_does_not_depend_on_the_batch(policy):
    images = torch.stack([torch.from_numpy(picture(9, 8, seed)) for seed in range(10)]).permute(0, 3, 1, 2)
    whole = apply(draw(policy, np.arange(10), 1, 2), images, dtype=torch.uint8)
    for rows in ([3], [7, 0, 4]):
        assert torch.equal(apply(draw(policy, np.array(rows), 1, 2), images[rows], dtype=torch.uint8), whole[rows])
    assert len(draw(policy, np.arange(0), 1, 2).stages) == len(draw(policy, np.arange(10), 1, 2).stages)
    assert apply(draw(policy, np.arange(10), 1, 3), images, dtype=torch.uint8).ne(whole).any()


def chi_square(counts, expected):
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    return float(((counts - expected) ** 2 / expected).sum())


def test_operations_are_drawn_evenly_and_magnitudes_as_asked():
    count = 30_000
    policy = parse("rand-m5-mstd0.5-inc1-p1")
    for drawn in draw_layers(policy, LayerKey(3, 1, np.arange(count)), FILL):
        marked = np.bincount(drawn.ops, minlength=12)
        # AUTOCONTRAST 7, EQUALIZE 8, INVERT 9, POSTERIZE 5, SOLARIZE 6, ADD 10, COLOR 2, CONTRAST 3, BRIGHTNESS 1
        assert chi_square(marked[1:11], [count / 15] * 10) < 30  # 10 degrees of freedom: 0.1 % are above 29.6
        threshold = 256 - drawn.magnitudes[drawn.ops == 6]
        strength = threshold / 256 * 10  # rounded down to 10 / 256
        assert abs(strength.mean() - 5 + 5 / 256) < 0.05 and abs(strength.std() - 0.5) < 0.03
        factors = drawn.magnitudes[drawn.ops == 1]
        assert abs((factors > 1).mean() - 0.5) < 0.05
    half = draw_layers(parse("rand-m5"), LayerKey(3, 1, np.arange(count)), FILL)[1]
    assert abs((half.ops == 9).mean() - 0.5 / 15) < 0.004


def test_weighted_operations_are_drawn_without_putting_back():
    """As numpy.random.choice(replace=False, p=...): the first by its weight, the second by what is left."""
    policy, count = parse("rand-n2-p1-t3aw"), 20_000
    first, second = draw_layers(policy, LayerKey(0, 0, np.arange(count)), FILL)
    share = policy.weights[[row[0].name for row in policy.rows].index("SolarizeIncreasing")]
    others = [
        weight for row, weight in zip(policy.rows, policy.weights, strict=True) if row[0].name != "SolarizeIncreasing"
    ]
    later = sum(weight * share / (1 - weight) for weight in others)
    solarized = [(layer.ops == 6) for layer in (first, second)]
    assert not (solarized[0] & solarized[1]).any()
    assert abs(solarized[0].mean() - share) < 0.012 and abs(solarized[1].mean() - later) < 0.012


def test_mixtures_of_chains_are_dirichlets():
    chances = np.random.default_rng(0).random(20_000)
    for alpha in (0.3, 1.0, 2.5):
        drawn = gamma_quantile(alpha, chances)
        assert abs(drawn.mean() - alpha) < 0.05 * alpha + 0.01 and abs(drawn.var() - alpha) < 0.08 * alpha + 0.02
    mix = draw(Policy(named="augmix-w4"), np.arange(5000), 0, 0).chain_mix
    assert torch.allclose(mix.weights.sum(dim=1), torch.ones(5000)) and abs(mix.weights.mean(dim=0) - 0.25).max() < 0.01
    assert abs(float(mix.share.mean()) - 0.5) < 0.02 and len(mix.chains) == 4
    lasting = [sum(int((stage.ops[n] != 0).any()) for stage in mix.chains[0]) for n in range(300)]
    assert max(lasting) == 3 and min(lasting) == 0  # warps are no operations of a level
    assert np.allclose(beta_quantile(1.0, chances), chances, atol=1e-6)
