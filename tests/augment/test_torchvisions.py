"""torchvision's RandAugment and AutoAugment by name: torchvision's operations on Pillow images are the judges."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, InterpolationMode, RandAugment
from torchvision.transforms.autoaugment import _apply_op

from fastimg.augment import Policy, apply, draw
from fastimg.augment.named import parse

SIDES = (19, 33)  # height, width
PICTURE = np.random.default_rng(0).integers(0, 256, (*SIDES, 3), dtype=np.uint8)


def ours(name, count):
    """What a policy makes of `count` copies of the picture, as bytes."""
    images = torch.from_numpy(PICTURE).permute(2, 0, 1)[None].expand(count, -1, -1, -1)
    plan = draw(Policy(named=name), np.arange(count), seed=3, epoch=0)
    return [image.permute(1, 2, 0).numpy().tobytes() for image in apply(plan, images, dtype=torch.uint8)]


def theirs(image, name, space, place):
    """What torchvision makes of an image by one operation, for either sign."""
    magnitudes, signed = space[name]
    magnitude = float(magnitudes[place]) if magnitudes.ndim else 0.0
    for sign in (1.0, -1.0) if signed else (1.0,):
        yield _apply_op(image, name, sign * magnitude, InterpolationMode.NEAREST, None)


@pytest.mark.parametrize(("magnitude", "bins"), [(9, 31), (4, 10), (30, 31), (0, 31)])
def test_rand_augment_makes_torchvisions_pixels_equally_often(magnitude, bins):
    space = RandAugment(num_magnitude_bins=bins)._augmentation_space(bins, SIDES)
    expected, count = {}, 1000
    for name in space:
        images = list(theirs(Image.fromarray(PICTURE), name, space, magnitude))
        for image in images:
            expected[image.tobytes()] = expected.get(image.tobytes(), 0.0) + count / len(space) / len(images)
    found = ours(f"tvrand-n1-m{magnitude}-b{bins}", count)
    assert set(found) == set(expected)
    for image, mean in expected.items():
        assert abs(found.count(image) - mean) < 5 * mean**0.5


@pytest.mark.parametrize("policy", AutoAugmentPolicy)
def test_auto_augment_makes_torchvisions_pixels(policy):
    augment = AutoAugment(policy)
    space, whole = augment._augmentation_space(10, SIDES), Image.fromarray(PICTURE)
    possible = set()
    for (first, p, at), (second, q, then) in augment.policies:
        begun = [*(theirs(whole, first, space, at) if p > 0 else ()), *([whole] if p < 1 else ())]
        for image in begun:
            ended = [*(theirs(image, second, space, then) if q > 0 else ()), *([image] if q < 1 else ())]
            possible |= {one.tobytes() for one in ended}
    found = set(ours(f"tvauto-{policy.value}", 600))
    assert found <= possible and len(found) > 0.6 * len(possible)
    stated = [[(one.probability) for one in row] for row in parse(f"tvauto-{policy.value}").rows]
    assert stated == [[p, q] for (_, p, _), (_, q, _) in augment.policies]


def test_two_layers_are_drawn_apart():
    rows = {tuple(map(int, plan)) for plan in _drawn("tvrand-n2-m9", 2000)}
    assert len(rows) > 60 and len(parse("tvrand-n2-m9").rows) == 14


def _drawn(name, count):
    plan = draw(Policy(named=name), np.arange(count), seed=0, epoch=0)
    return torch.cat([stage.ops for stage in plan.stages], dim=1).tolist()


@pytest.mark.parametrize("name", ["tvrand-m31", "tvrand-n9", "tvrand-x3", "tvauto", "tvauto-mnist", "tvauto-svhn-m3"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=name.split("-")[0]):
        Policy(named=name)
