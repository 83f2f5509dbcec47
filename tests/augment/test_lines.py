"""Normalisation as a line: it gives the table's bits, or there is no line."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from fastimg.augment import Policy
from fastimg.augment.lines import LevelLine, _channel, double_line_of, evaluate, line_of
from fastimg.augment.reference import normalisation_table

HALVES = [torch.bfloat16, torch.float16]
NORMALISATIONS = {
    "imagenet": Policy(),
    "cifar": Policy(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "clip": Policy(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)),
    "inception": Policy(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    "none": Policy(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
}


def nearest(value: Fraction) -> np.float32:
    """The float32 nearest to a number, ties to even, found by the exact distance to each candidate."""
    guess = np.float32(float(value))
    candidates = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - value), c.view(np.uint32) & 1))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NORMALISATIONS)
def test_a_line_gives_the_tables_bits(name, dtype):
    """With one exact product, one exact sum and one rounding to float32, computed in fractions."""
    policy = NORMALISATIONS[name]
    line = line_of(policy, dtype)
    assert isinstance(line, LevelLine)
    values = torch.tensor(
        [
            [float(nearest(level * Fraction(scale) + Fraction(bias))) for level in range(256)]
            for scale, bias in zip(line.scales, line.biases, strict=True)
        ]
    )
    expected = normalisation_table(policy, dtype)[:768].view(3, 256)
    assert torch.equal(values.to(dtype).view(torch.int16), expected.view(torch.int16))


def test_types_without_a_line():
    assert line_of(Policy(), torch.float32) is None and line_of(Policy(), torch.uint8) is None


def test_one_differing_entry_is_enough():
    entries = normalisation_table(Policy(), torch.bfloat16)[:256]
    scale, bias = 1 / (255 * 0.229), -0.485 / 0.229
    assert _channel(entries, scale, bias) is not None
    for level in (0, 100, 255):
        other = entries.clone()
        other.view(torch.int16)[level] += 1
        assert _channel(other, scale, bias) is None


def test_the_sign_of_zero_counts():
    entries = torch.zeros(256, dtype=torch.float16)
    assert _channel(entries, 0.0, 0.0) is not None
    entries[3] = -0.0
    assert _channel(entries, 0.0, 0.0) is None


def test_a_neighbouring_number_is_used_if_the_nearest_fails():
    scale, bias = np.nextafter(np.float32(0.0171), np.float32(1)), np.float32(-2.0)
    values = evaluate(scale, bias)
    found = _channel(torch.from_numpy(values), 0.0171, -2.0)
    assert found is not None and np.array_equal(evaluate(*map(np.float32, found)), values)
    assert not np.array_equal(evaluate(np.float32(0.0171), bias), values)


def test_no_line_if_float64_rounds_the_sum():
    """It would be rounded twice, while a device rounds once."""
    assert evaluate(np.float32(1.1e-20), np.float32(1.3)) is None
    assert evaluate(np.float32(1.5), np.float32(-2.25)) is not None
    assert line_of(Policy(mean=(1e-30, 1e-30, 1e-30), std=(1.0, 1.0, 1.0)), torch.bfloat16) is None


@pytest.mark.parametrize("policy", NORMALISATIONS.values(), ids=NORMALISATIONS)
def test_a_line_of_float64_gives_float32s_bits(policy):
    line = double_line_of(policy, torch.float32)
    assert line is not None
    values = np.arange(256, dtype=np.float64) * np.array(line.scales)[:, None] + np.array(line.biases)[:, None]
    expected = normalisation_table(policy, torch.float32)[:768].view(3, 256)
    assert torch.equal(torch.from_numpy(values.astype(np.float32)).view(torch.int32), expected.view(torch.int32))


def test_no_line_of_float64_where_an_entry_differs():
    assert double_line_of(Policy(), torch.bfloat16) is None and double_line_of(Policy(), torch.uint8) is None
    # (100 / 255 - mean) / std is nearly 0, and the line loses what is left of it.
    mean = 100 / 255 * (1 + 1e-12)
    assert double_line_of(Policy(mean=(mean,) * 3, std=(1e-6,) * 3), torch.float32) is None
