"""Images of one channel: every backend's bits, which are those of three equal channels and of Pillow's mode L."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from fastimg.augment import Policy, apply, draw, mix
from fastimg.augment.named import parse
from fastimg.augment.ops import BINS, TRIVIAL
from fastimg.augment.plan import Plan

ONE = {"mean": (0.4,), "std": (0.3,)}
POLICIES = {
    "nothing": Policy(**ONE),
    "flips and erasing": Policy(hflip=0.5, vflip=0.5, erase=0.5, erase_value=(1.5,), **ONE),
    "jitter": Policy(brightness=(0.0, 3.0), contrast=(0.0, 3.0), rotate=40, **ONE),
    "trivial": Policy(trivial="gray", hflip=0.5, rotate=20, erase=0.3, **ONE),
    "blur": Policy(blur=0.6, solarize=0.5, **ONE),
    "rand": Policy(named="rand-m9-mstd0.5-inc1-gray", **ONE),
    "weighted": Policy(named="rand-n1-t3aw-gray", **ONE),
    "augmix": Policy(named="augmix-m5-w2-gray", **ONE),
    "3aug": Policy(named="3aug-gray", **ONE),
}


def images(batch, height=21, width=18, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (batch, 1, height, width), dtype=np.uint8)
    pixels[1::3] //= 3
    pixels[2::3] = pixels[2::3] // 80 * 80
    return torch.from_numpy(pixels)


@pytest.mark.parametrize("name", POLICIES)
def test_all_backends_give_one_of_three_equal_channels(name):
    policy, batch = POLICIES[name], images(24)
    plan = draw(policy, np.arange(24), 1, 2)
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        expected = apply(plan, batch, dtype=dtype, backend="reference")
        assert expected.shape == (24, 1, 21, 18) and expected.dtype == dtype
        assert torch.equal(apply(plan, batch, dtype=dtype, backend="cpu"), expected)
        tripled = apply(plan, batch.expand(-1, 3, -1, -1), policy.tripled, dtype, backend="reference")
        assert torch.equal(tripled, expected.expand(-1, 3, -1, -1))
    out = torch.empty(24, 1, 21, 18)
    last = batch.permute(0, 2, 3, 1).contiguous()  # [B, H, W, 1]
    assert torch.equal(apply(plan, last, out=out), apply(plan, batch)) and out.any()


JUDGES = {
    "Brightness": lambda image, magnitude: ImageEnhance.Brightness(image).enhance(magnitude),
    "Contrast": lambda image, magnitude: ImageEnhance.Contrast(image).enhance(magnitude),
    "Sharpness": lambda image, magnitude: ImageEnhance.Sharpness(image).enhance(magnitude),
    "Posterize": lambda image, magnitude: ImageOps.posterize(image, int(magnitude)),
    "Solarize": lambda image, magnitude: ImageOps.solarize(image, magnitude),
    "AutoContrast": lambda image, magnitude: ImageOps.autocontrast(image),
    "Equalize": lambda image, magnitude: ImageOps.equalize(image),
}


@pytest.mark.parametrize("name", JUDGES)
def test_pillow_does_the_same_to_mode_l(name):
    magnitude = {"Posterize": 3.0, "Solarize": 77.0}.get(name, 1.4)
    batch = images(6)
    still = torch.zeros(6, dtype=torch.bool)
    plan = Plan(
        hflip=still,
        vflip=still,
        angle=torch.zeros(6, dtype=torch.float64),
        trivial=torch.zeros(6, dtype=torch.int64),
        ops=torch.full((6, 1), int(TRIVIAL[name]), dtype=torch.int32),
        magnitudes=torch.full((6, 1), magnitude),
    )
    seen = apply(plan, batch, POLICIES["nothing"], torch.uint8)
    for before, after in zip(batch[:, 0].numpy(), seen[:, 0].numpy(), strict=True):
        assert (np.asarray(JUDGES[name](Image.fromarray(before), magnitude)) == after).all()


def test_gray_policies_leave_colour_out_and_keep_the_rest():
    drawn = draw(POLICIES["trivial"], np.arange(4000), 0, 0).trivial.numpy() // (BINS * 2)
    assert set(drawn.tolist()) == {number for number, name in enumerate(TRIVIAL) if name != "Color"}
    plain, gray = parse("rand-m9-tweights"), parse("rand-m9-tweights-gray")
    kept = [row for row in plain.rows if row[0].name != "ColorIncreasing"]
    assert list(gray.rows) == kept and sum(gray.weights) == pytest.approx(1)
    assert gray.colours == [] and parse("3aug").colours == ["Desaturate"]


def test_mixing_and_evaluation():
    policy = Policy(mixup=1.0, cutmix=1.0, **ONE)
    batch, targets = images(8), torch.arange(8)
    mixed, soft = mix(draw(policy, np.arange(8), 0, 0), batch, targets, 8)
    assert mixed.shape == (8, 1, 21, 18) and soft.sum(dim=1).allclose(torch.ones(8))
    levels = (batch.double() / 255 - 0.4) / 0.3
    assert torch.equal(apply(None, batch, policy), levels.float())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"saturation": (0.5, 1.5)}, "saturation changes colours, which images of one channel do not have"),
        ({"hue": 0.1}, "hue changes colours"),
        ({"grayscale": 0.1}, "grayscale changes colours"),
        ({"trivial": True}, 'trivial has the operation Color; images of one channel take trivial="gray"'),
        ({"named": "rand-m9"}, "rand-m9 has the operation Color, .*: use rand-m9-gray"),
        ({"named": "auto"}, "auto has the operation Color, .*: choose another policy"),
        ({"named": "auto-gray"}, "auto-gray: auto has pairs of operations, which go together; rand or augmix"),
        ({"erase_value": (0.0, 0.0, 0.0)}, "erase_value must have a number for each channel, as mean has 1; got"),
        ({"std": (0.1, 0.1, 0.1)}, "std must have a number for each channel, as mean has 1; got"),
        ({"mean": (), "std": ()}, "mean must have a number for each channel"),
        ({"trivial": "grey"}, 'trivial must be True, False or "gray"'),
    ],
)
def test_what_gray_images_have_no_colours_for_is_refused_by_name(settings, words):
    with pytest.raises(ValueError, match=words):
        Policy(**{**ONE, **settings})


def test_images_of_other_channels_are_refused():
    with pytest.raises(ValueError, match=r"images must be uint8 \[B, 1, H, W\].*\[2, 3, 8, 9\]"):
        apply(None, torch.zeros(2, 3, 8, 9, dtype=torch.uint8), POLICIES["nothing"])
    with pytest.raises(ValueError, match=r"images must be uint8 \[B, 3, H, W\].*the policy's mean is for 3"):
        apply(None, torch.zeros(2, 1, 8, 9, dtype=torch.uint8), Policy())
