"""Both losses compared with torch's functions."""

import pytest
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy

from fastimg.train.losses import losses


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 5, generator=generator), torch.randint(0, 5, (6,), generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing):
    logits, targets = drawn()
    expected = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    assert torch.equal(losses(logits, targets, smoothing), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_binary_cross_entropy_is_timms_summed_over_classes(smoothing):
    logits, targets = drawn()
    expected = BinaryCrossEntropy(smoothing=smoothing, sum_classes=True)(logits, targets)
    torch.testing.assert_close(losses(logits, targets, smoothing, bce=True).mean(), expected)


@pytest.mark.parametrize("bce", [False, True])
def test_soft_targets_of_one_class_are_that_class(bce):
    logits, targets = drawn()
    soft = F.one_hot(targets, 5).float()
    torch.testing.assert_close(losses(logits, soft, 0.1, bce), losses(logits, targets, 0.1, bce))


def test_half_precision_is_converted_to_float32():
    logits, targets = drawn()
    assert losses(logits.bfloat16(), targets).dtype == torch.float32
