"""Every loss compared with torch's, timm's and torchvision's own."""

import pytest
import torch
import torch.nn.functional as F
from timm.loss import AsymmetricLossMultiLabel, AsymmetricLossSingleLabel, BinaryCrossEntropy
from torchvision.ops import sigmoid_focal_loss

from fastimg.train.losses import LossSettings, losses, multilabel_losses

KINDS = ("cross-entropy", "bce", "focal", "asymmetric")
WEIGHTS = torch.tensor([0.1, 3.0, 0.0, 1.0, 2.0])


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 5, generator=generator), torch.randint(0, 5, (6,), generator=generator)


def answers() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels [7, 4]."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(7, 4, generator=generator)
    return logits, torch.randint(0, 2, (7, 4), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing):
    logits, targets = drawn()
    expected = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    assert torch.equal(losses(logits, targets, LossSettings(smoothing=smoothing)), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_binary_cross_entropy_is_timms_summed_over_classes(smoothing):
    logits, targets = drawn()
    expected = BinaryCrossEntropy(smoothing=smoothing, sum_classes=True)(logits, targets)
    settings = LossSettings(kind="bce", smoothing=smoothing)
    torch.testing.assert_close(losses(logits, targets, settings).mean(), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_asymmetric_is_timms(smoothing):
    logits, targets = drawn()
    expected = AsymmetricLossSingleLabel(gamma_pos=1, gamma_neg=4, eps=smoothing)(logits, targets)
    settings = LossSettings(kind="asymmetric", smoothing=smoothing, gamma_positive=1.0)
    torch.testing.assert_close(losses(logits, targets, settings).mean(), expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_cross_entropy_times_a_power(gamma):
    logits, targets = drawn()
    entropy = F.cross_entropy(logits, targets, reduction="none")
    expected = (1 - torch.exp(-entropy)) ** gamma * entropy
    torch.testing.assert_close(losses(logits, targets, LossSettings(kind="focal", focal_gamma=gamma)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_of_one_class_are_that_class(kind, weights, smoothing):
    logits, targets = drawn()
    settings = LossSettings(kind=kind, smoothing=smoothing, class_weights=weights)
    soft = F.one_hot(targets, 5).float()
    torch.testing.assert_close(losses(logits, soft, settings), losses(logits, targets, settings))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_multiply_a_sample_and_the_shares_of_a_mixed_one(kind, smoothing):
    logits, targets = drawn()
    settings = LossSettings(kind=kind, smoothing=smoothing)
    weighted = LossSettings(kind=kind, smoothing=smoothing, class_weights=WEIGHTS)
    own = losses(logits, targets, weighted)
    torch.testing.assert_close(own, WEIGHTS[targets] * losses(logits, targets, settings))
    others = targets.roll(1)
    mixed = 0.3 * F.one_hot(targets, 5).float() + 0.7 * F.one_hot(others, 5).float()
    torch.testing.assert_close(losses(logits, mixed, weighted), 0.3 * own + 0.7 * losses(logits, others, weighted))


def test_weights_without_smoothing_are_torchs():
    logits, targets = drawn()
    expected = F.cross_entropy(logits, targets, weight=WEIGHTS, reduction="none")
    torch.testing.assert_close(losses(logits, targets, LossSettings(class_weights=WEIGHTS)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_gradients_are_those_of_finite_differences(kind, weights):
    logits, targets = drawn()
    settings = LossSettings(kind=kind, smoothing=0.1, class_weights=weights, log_priors=WEIGHTS - 1)
    logits.requires_grad_()
    losses(logits, targets, settings).sum().backward()
    step = torch.randn(6, 5, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        up, down = (losses(logits + sign * 1e-2 * step, targets, settings).double().sum() for sign in (1, -1))
    assert (logits.grad * step).sum().item() == pytest.approx(float(up - down) / 2e-2, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_extreme_logits_have_finite_gradients(kind, gamma):
    logits = torch.tensor([[300.0, -300.0], [-300.0, 300.0]], requires_grad=True)
    settings = LossSettings(kind=kind, focal_gamma=gamma, gamma_positive=gamma, clip=0.0)
    several = multilabel_losses(logits, torch.tensor([[1, 0], [1, 0]]), settings)
    (losses(logits, torch.tensor([0, 0]), settings) + several).sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["cross-entropy", "asymmetric"])
def test_with_priors_smoothing_does_not_favour_rare_classes(kind):
    """The best logits of a common class's sample name that class, though its rare neighbour's prior is tiny."""
    priors = torch.tensor([0.98, 0.02]).log()
    settings = LossSettings(kind=kind, smoothing=0.1, log_priors=priors)
    grid = torch.linspace(-8, 8, 1601)
    found = losses(torch.stack([grid, -grid], dim=1), torch.zeros(1601, dtype=torch.int64), settings)
    assert grid[found.argmin()] > 0.5
    mixed = 0.9 * F.one_hot(torch.zeros(1601, dtype=torch.int64), 2) + 0.1 * priors.exp()
    if kind == "cross-entropy":
        expected = F.cross_entropy(torch.stack([grid, -grid], dim=1) + priors, mixed, reduction="none")
        torch.testing.assert_close(found, expected)


def test_log_priors_are_added_to_the_logits():
    logits, targets = drawn()
    expected = F.cross_entropy(logits + WEIGHTS, targets, reduction="none")
    torch.testing.assert_close(losses(logits, targets, LossSettings(log_priors=WEIGHTS)), expected)


@pytest.mark.parametrize("pos_weight", [None, torch.tensor([1.0, 5.0, 0.5, 2.0])])
def test_several_labels_are_binary_cross_entropy(pos_weight):
    logits, labels = answers()
    entropy = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none", pos_weight=pos_weight)
    for kind in ("cross-entropy", "bce"):
        torch.testing.assert_close(
            multilabel_losses(logits, labels, LossSettings(kind=kind), pos_weight), entropy.sum(dim=1)
        )
    flat = LossSettings(kind="asymmetric", gamma_negative=0.0, clip=0.0)
    torch.testing.assert_close(multilabel_losses(logits, labels, flat, pos_weight), entropy.sum(dim=1))


def test_several_labels_focal_is_torchvisions():
    logits, labels = answers()
    expected = sigmoid_focal_loss(logits, labels.float(), alpha=-1, gamma=2).sum(dim=1)
    torch.testing.assert_close(multilabel_losses(logits, labels, LossSettings(kind="focal")), expected)


@pytest.mark.parametrize(("positive", "negative", "clip"), [(0, 4, 0.05), (1, 2, 0.2)])
def test_several_labels_asymmetric_is_timms(positive, negative, clip):
    logits, labels = answers()
    expected = AsymmetricLossMultiLabel(gamma_neg=negative, gamma_pos=positive, clip=clip)(logits, labels.float())
    settings = LossSettings(kind="asymmetric", gamma_positive=positive, gamma_negative=negative, clip=clip)
    torch.testing.assert_close(multilabel_losses(logits, labels, settings).mean(), expected)


def test_smoothing_moves_several_labels_towards_a_half():
    logits, labels = answers()
    smooth = multilabel_losses(logits, labels, LossSettings(smoothing=0.2))
    mixed = 0.9 * multilabel_losses(logits, labels, LossSettings()) + 0.1 * multilabel_losses(
        logits, 1 - labels, LossSettings()
    )
    torch.testing.assert_close(smooth, mixed)


def test_half_precision_is_converted_to_float32():
    logits, targets = drawn()
    assert losses(logits.bfloat16(), targets).dtype == torch.float32
