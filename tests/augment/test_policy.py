"""A policy says what may happen, and refuses what cannot."""

import dataclasses

import pytest

from fastimg.augment import Policy


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
