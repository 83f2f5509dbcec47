"""A policy says what may happen, and refuses what cannot."""

import dataclasses

import pytest

from fastimg.augment import Policy, operation
from fastimg.augment.policy import OPERATIONS


def test_it_does_nothing_unless_told():
    policy = Policy()
    assert (policy.hflip, policy.vflip) == (0.0, 0.0)
    assert (policy.mean, policy.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize("name", ["hflip", "vflip"])
@pytest.mark.parametrize("p", [-0.1, 1.0001, float("nan"), float("inf")])
def test_probabilities(name, p):
    with pytest.raises(ValueError, match=f"{name} is a probability, from 0 to 1; it was {p}"):
        Policy(**{name: p})
    Policy(**{name: 0.0})
    Policy(**{name: 1.0})


@pytest.mark.parametrize("std", [(0.2, 0.0, 0.2), (0.2, 0.2, -0.1), (float("nan"), 0.2, 0.2), (0.2, float("nan"), 0.2)])
def test_a_std_that_is_none(std):
    with pytest.raises(ValueError, match="std must be above 0"):
        Policy(std=std)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_three_channels(name):
    for values in ((0.5,), (0.5, 0.5), (0.5,) * 4):
        with pytest.raises(ValueError, match="three numbers"):
            Policy(**{name: values})


def test_it_is_a_value():
    assert Policy(hflip=0.5) == Policy(hflip=0.5) and hash(Policy(hflip=0.5)) == hash(Policy(hflip=0.5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().hflip = 1.0
    with pytest.raises(TypeError):
        Policy(0.5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("erase", 1.5, "erase is a probability, from 0 to 1; it was 1.5"),
        ("rotate", -5.0, "rotate is in degrees to either side, from 0 to 180; it was -5.0"),
        ("rotate", 181.0, "from 0 to 180"),
        ("rotate", float("nan"), "from 0 to 180; it was nan"),
        ("contrast", (1.2, 0.8), r"contrast is \(smallest, largest\); it was \(1.2, 0.8\): exchange them"),
        ("contrast", (-0.1, 0.8), "contrast has two numbers, factors from 0 up"),
        ("brightness", (0.5, float("nan")), "brightness has two numbers"),
        ("brightness", (0.5, float("inf")), "brightness has two numbers"),
        ("saturation", (0.5,), "saturation has two numbers"),
        ("erase_scale", (0.1, 1.1), "erase_scale has two numbers, shares"),
        ("erase_ratio", (0.0, 1.0), "erase_ratio has two numbers, height over width, above 0"),
        ("erase_value", "random", "erase_value is a number, or three"),
        ("erase_value", float("nan"), "erase_value is a number, or three"),
        ("erase_value", (1.0, 2.0), "erase_value has three numbers"),
        ("mixup", -0.1, "mixup is the alpha of a Beta distribution, above 0, or 0 for none; it was -0.1"),
        ("cutmix", float("nan"), "cutmix is the alpha"),
        ("cutmix", float("inf"), "cutmix is the alpha"),
        ("mean", (0.5, float("nan"), 0.5), "mean must be finite"),
    ],
)
def test_what_cannot_be(field, value, message):
    with pytest.raises(ValueError, match=message):
        Policy(**{field: value})


def test_names_as_people_write_them():
    assert {name: operation(name) for name in OPERATIONS} == {name: name for name in OPERATIONS}
    for name, field in (
        *(("h-flip", "hflip"), ("RandomHorizontalFlip", "hflip"), ("TrivialAugmentWide", "trivial")),
        *(("random erasing", "erase"), ("reprob", "erase"), ("MixUp", "mixup"), ("RandomRotation", "rotate")),
        *(("ta_wide", "trivial"), ("Cut-Mix", "cutmix"), ("color", "saturation")),
    ):
        assert operation(name) == field


@pytest.mark.parametrize(("name", "nearest"), [("rotat", "rotate"), ("contrst", "contrast"), ("reprobe", "erase")])
def test_the_nearest_name(name, nearest):
    with pytest.raises(ValueError, match=f"no augmentation is called '{name}': did you mean '{nearest}'"):
        operation(name)


def test_a_name_near_nothing():
    with pytest.raises(ValueError, match=r"no augmentation is called 'elastic'; there are hflip, .*cutmix"):
        operation("elastic")
