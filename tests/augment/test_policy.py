"""A policy states the possible operations, and refuses impossible values."""

import dataclasses

import pytest

from fastimg.augment import Policy, operation
from fastimg.augment.policy import OPERATIONS


def test_the_default_policy_does_nothing():
    policy = Policy()
    assert (policy.hflip, policy.vflip) == (0.0, 0.0)
    assert (policy.mean, policy.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize("name", ["hflip", "vflip"])
@pytest.mark.parametrize("p", [-0.1, 1.0001, float("nan"), float("inf")])
def test_probabilities(name, p):
    with pytest.raises(ValueError, match=f"{name} must be a probability, from 0 to 1; got {p}"):
        Policy(**{name: p})
    Policy(**{name: 0.0})
    Policy(**{name: 1.0})


@pytest.mark.parametrize("std", [(0.2, 0.0, 0.2), (0.2, 0.2, -0.1), (float("nan"), 0.2, 0.2), (0.2, float("nan"), 0.2)])
def test_invalid_standard_deviations(std):
    with pytest.raises(ValueError, match="std must be above 0"):
        Policy(std=std)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_three_channels(name):
    for values in ((0.5,), (0.5, 0.5), (0.5,) * 4):  # the other one has three
        with pytest.raises(ValueError, match="must have a number for each channel"):
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
        ("erase", 1.5, "erase must be a probability, from 0 to 1; got 1.5"),
        ("rotate", -5.0, "rotate must be an angle in degrees, from 0 to 180; got -5.0"),
        ("rotate", 181.0, "from 0 to 180"),
        ("rotate", float("nan"), "from 0 to 180; got nan"),
        ("contrast", (1.2, 0.8), r"contrast must be \(smallest, largest\); got \(1.2, 0.8\): swap them"),
        ("contrast", (-0.1, 0.8), "contrast must be two numbers, factors, at least 0"),
        ("brightness", (0.5, float("nan")), "brightness must be two numbers"),
        ("brightness", (0.5, float("inf")), "brightness must be two numbers"),
        ("saturation", (0.5,), "saturation must be two numbers"),
        ("erase_scale", (0.1, 1.1), "erase_scale must be two numbers, fractions"),
        ("erase_ratio", (0.0, 1.0), "erase_ratio must be two numbers, ratios of height to width, above 0"),
        ("erase_value", "random", "erase_value must be one number, or one for each channel"),
        ("erase_value", float("nan"), "erase_value must be one number, or one for each channel"),
        ("erase_value", (1.0, 2.0), "erase_value must have a number for each channel"),
        ("mixup", -0.1, "mixup must be the alpha of a Beta distribution, or 0 to turn it off; got -0.1"),
        ("cutmix", float("nan"), "cutmix must be the alpha"),
        ("cutmix", float("inf"), "cutmix must be the alpha"),
        ("mean", (0.5, float("nan"), 0.5), "mean must be finite"),
    ],
)
def test_impossible_values(field, value, message):
    with pytest.raises(ValueError, match=message):
        Policy(**{field: value})


def test_spellings_of_names():
    assert {name: operation(name) for name in OPERATIONS} == {name: name for name in OPERATIONS}
    for name, field in (
        *(("h-flip", "hflip"), ("RandomHorizontalFlip", "hflip"), ("TrivialAugmentWide", "trivial")),
        *(("random erasing", "erase"), ("reprob", "erase"), ("MixUp", "mixup"), ("RandomRotation", "rotate")),
        *(("ta_wide", "trivial"), ("Cut-Mix", "cutmix"), ("color", "saturation")),
    ):
        assert operation(name) == field


@pytest.mark.parametrize(("name", "nearest"), [("rotat", "rotate"), ("contrst", "contrast"), ("reprobe", "erase")])
def test_the_nearest_name(name, nearest):
    with pytest.raises(ValueError, match=f"unknown augmentation '{name}' .did you mean '{nearest}'"):
        operation(name)


def test_a_name_unlike_any_other():
    with pytest.raises(ValueError, match=r"unknown augmentation 'elastic'; choose from hflip, .*cutmix"):
        operation("elastic")
