"""A policy states the possible operations, and refuses impossible values."""

import dataclasses
import re

import numpy as np
import pytest
import torch

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


def test_standard_deviations_of_255_levels():
    with pytest.raises(ValueError, match=r"std must be shares of white, at most 1; .* 255 of 8 bits"):
        Policy(mean=(0.5, 0.5, 0.5), std=(58.4, 57.1, 57.4))
    assert Policy(std=(1.0, 1.0, 1.0)).std == (1.0, 1.0, 1.0)
    assert Policy(mean=(90.0,), std=(58.4,), as_stored=True).std == (58.4,)


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
        (
            "mean",
            (127.0, 127.0, 127.0),
            r"mean must be shares of white, from 0 to 1; got \(127.0, 127.0, 127.0\): divide",
        ),
        ("mean", [0.5, 0.5, 1.1], "divide mean and std by the level of white, 255 of 8 bits, or set as_stored=True"),
        ("mean", (0.5, -0.1, 0.5), "mean must be shares of white, from 0 to 1"),
        (
            "hflip_alternates",
            True,
            "hflip_alternates has no effect with hflip=0: give hflip, as in hflip=0.5, or leave",
        ),
        ("brightness", [0.5], r"brightness must be two numbers, factors, .*; got \(0.5,\)"),
        ("contrast", np.array([1.2, 0.8]), r"contrast must be \(smallest, largest\); got \(1.2, 0.8\): swap them"),
        ("mean", [0.5, 0.5], r"std must have a number for each channel, as mean has 2; got \(0.229, 0.224, 0.225\)"),
        ("std", torch.ones(4), "std must have a number for each channel, as mean has 3; got"),
        ("erase_value", [1, 2], r"erase_value must have a number for each channel, as mean has 3; got \(1.0, 2.0\)"),
    ],
)
def test_impossible_values(field, value, message):
    with pytest.raises(ValueError, match=message):
        Policy(**{field: value})


SEQUENCES = {
    "brightness": (0.5, 1.5),
    "contrast": (0.5, 1.0),
    "saturation": (0.0, 2.0),
    "erase_scale": (0.125, 0.25),
    "erase_ratio": (0.5, 2.0),
    "erase_value": (0.0, -1.0, 2.0),
    "mean": (0.5, 0.25, 0.0),
    "std": (1.0, 0.25, 0.5),
}


@pytest.mark.parametrize(
    "sequence",
    [list, np.array, np.float32, torch.tensor, lambda values: [np.float64(value) for value in values]],
    ids=["list", "array", "float32", "tensor", "scalars"],
)
@pytest.mark.parametrize("name", SEQUENCES)
def test_any_sequence_is_the_policy_of_a_tuple(name, sequence):
    expected, made = Policy(**{name: SEQUENCES[name]}), Policy(**{name: sequence(SEQUENCES[name])})
    assert made == expected and hash(made) == hash(expected) and repr(made) == repr(expected)
    taken = getattr(made, name)
    assert type(taken) is tuple and {type(value) for value in taken} == {float}


def test_whole_numbers_become_floats():
    assert repr(Policy(mean=[0, 0, 1], brightness=(0, 2))) == repr(Policy(mean=(0.0, 0.0, 1.0), brightness=(0.0, 2.0)))


@pytest.mark.parametrize("value", [2.0, 2, np.float32(2), np.array(2.0), torch.tensor(2.0)], ids=repr)
def test_one_erase_value_stays_one(value):
    policy = Policy(erase_value=value)
    assert policy == Policy(erase_value=2.0) and hash(policy) == hash(Policy(erase_value=2.0))
    assert policy.erase_values == (2.0, 2.0, 2.0)


FACTORS = "be two numbers, factors, at least 0 (1 changes nothing)"
CHANNELS = "have a number for each channel"
COLOUR = "be one number, or one for each channel, in the normalised image, where 0 is the mean colour"
SCALARS = [0.4, "0.4", np.array(0.4), torch.tensor(0.4)]
NEITHER = [None, ["0.4", "0.4"], {0.4, 0.6}, np.ones((3, 2)), torch.ones(2, 3)]


@pytest.mark.parametrize(
    ("name", "must", "example", "values"),
    [
        ("brightness", FACTORS, "(smallest, largest), as in (0.6, 1.4)", [*SCALARS, *NEITHER]),
        ("contrast", FACTORS, "(smallest, largest), as in (0.6, 1.4)", [*SCALARS, *NEITHER]),
        ("saturation", FACTORS, "(smallest, largest), as in (0.6, 1.4)", [*SCALARS, *NEITHER]),
        (
            "erase_scale",
            "be two numbers, fractions of an image's area, from 0 to 1",
            "(smallest, largest), as in (0.02, 0.33)",
            [*SCALARS, *NEITHER],
        ),
        (
            "erase_ratio",
            "be two numbers, ratios of height to width, above 0",
            "(smallest, largest), as in (0.3, 3.3)",
            [*SCALARS, *NEITHER],
        ),
        ("mean", CHANNELS, "three for RGB, as in (0.5, 0.5, 0.5), or one for gray, (0.5,)", [*SCALARS, *NEITHER]),
        ("std", CHANNELS, "three for RGB, as in (0.5, 0.5, 0.5), or one for gray, (0.5,)", [*SCALARS, *NEITHER]),
        ("erase_value", COLOUR, "0.0, or as in (0.0, 0.0, 0.0)", NEITHER),
    ],
)
def test_what_is_no_sequence_of_numbers(name, must, example, values):
    for value in values:
        sentence = f"{name} must {must}; got {value!r}: give {example}"
        with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
            Policy(**{name: value})


def test_means_in_the_units_of_the_values():
    assert Policy(mean=[127] * 3, std=[60] * 3, as_stored=True).mean == (127.0, 127.0, 127.0)
    assert Policy(mean=(0, 1, 0.5)).mean == (0.0, 1.0, 0.5)


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
