"""The loss of each sample, of a class or of several labels: how hard it is weighs in focal and asymmetric losses."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fastimg.config.training import LossKind

_TINY = 1e-8  # powers of a probability have a finite slope from here


@dataclass(frozen=True, kw_only=True, eq=False)
class LossSettings:
    """How logits and targets become a loss.

    kind: "cross-entropy" of a softmax. "bce": one yes-or-no question for each class (Wightman et al., 2021), summed
        over classes: of the size of the softmax loss, so that the same learning rates serve. "focal": cross-entropy
        times (1 - p) ** focal_gamma for the probability p of the class (Lin et al., 2017). "asymmetric": powers for the
        target's class and for the others of their own (Ridnik et al., 2021), whose defaults these are.
    smoothing: this share of a target goes to all classes alike (Szegedy et al., 2016).
    class_weights: float32 [C]: a sample's loss is multiplied by the weight of its class, a mixed one's by its shares.
    log_priors: float32 [C], added to the logits in training (Menon et al., 2021). Smoothing then follows these priors:
        a share alike for all would be more than a rare class's prior, and the model would always name that class.
    clip: asymmetric, several labels: labels that are absent and less probable than this weigh nothing.
    """

    kind: LossKind = "cross-entropy"
    smoothing: float = 0.0
    class_weights: torch.Tensor | None = None
    log_priors: torch.Tensor | None = None
    focal_gamma: float = 2.0
    gamma_positive: float = 0.0
    gamma_negative: float = 4.0
    clip: float = 0.05


CROSS_ENTROPY = LossSettings()


def losses(logits: torch.Tensor, targets: torch.Tensor, settings: LossSettings = CROSS_ENTROPY) -> torch.Tensor:
    """Loss [B] in nats of logits [B, C] for classes [B], or for soft targets [B, C], whose shares have the sum 1.

    Every loss is linear in the targets: that of a mixed target is the mixture of its classes' losses. What smoothing
    gives to other classes is weighted as the sample is: with the weight of those classes, as torch has it, it would be
    more than the sample's own class gets where that is fifty times as common.
    """
    logits = logits.float()
    smoothing = settings.smoothing
    if settings.log_priors is not None:
        logits = logits + settings.log_priors
    plain = settings.class_weights is None and settings.log_priors is None
    if settings.kind == "cross-entropy" and plain:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    classes = logits.shape[1]
    own = targets if targets.is_floating_point() else F.one_hot(targets, classes).float()
    if settings.kind == "bce" and plain:
        shares = own * (1.0 - smoothing) + smoothing / classes
        return F.binary_cross_entropy_with_logits(logits, shares, reduction="none").sum(dim=1)
    if settings.class_weights is not None:
        own = own * settings.class_weights
    whole = own.sum(dim=1, keepdim=True)  # the sample's weight [B, 1]
    spread: float | torch.Tensor = smoothing / classes  # what smoothing gives to each class: a number, or [C]
    if settings.log_priors is not None:
        spread = smoothing * settings.log_priors.softmax(dim=0)
    shares = own * (1.0 - smoothing) + whole * spread
    if settings.kind == "bce":
        return -(shares * F.logsigmoid(logits) + (whole - shares) * F.logsigmoid(-logits)).sum(dim=1)
    logs = F.log_softmax(logits, dim=1)
    if settings.kind == "focal":
        shares = shares * (-torch.expm1(logs)).clamp(min=_TINY) ** settings.focal_gamma
    elif settings.kind == "asymmetric":
        certain = own * (1.0 - smoothing + spread)
        others = (whole - own) * spread
        away = (-torch.expm1(logs)).clamp(min=_TINY) ** settings.gamma_positive
        shares = certain * away + others * logs.exp() ** settings.gamma_negative
    return -(shares * logs).sum(dim=1)


def multilabel_losses(
    logits: torch.Tensor, targets: torch.Tensor, settings: LossSettings, pos_weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Loss [B] in nats, summed over C labels, of logits [B, C] for labels [B, C], uint8 or float: 1 where they apply.

    Cross-entropy is binary here. Smoothing draws labels towards 1/2. `pos_weight` [C] multiplies the loss of labels
    that apply. Weights and priors of classes are those of a class target, and are not used.
    """
    logits = logits.float()
    labels = targets.float() * (1.0 - settings.smoothing) + 0.5 * settings.smoothing
    if settings.kind in ("cross-entropy", "bce"):
        each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none", pos_weight=pos_weight)
        return each.sum(dim=1)
    applies = labels if pos_weight is None else labels * pos_weight
    probable = logits.sigmoid()
    present, absent = F.logsigmoid(logits), F.logsigmoid(-logits)
    if settings.kind == "focal":
        gamma = settings.focal_gamma
        present = present * (1.0 - probable).clamp(min=_TINY) ** gamma
        absent = absent * probable.clamp(min=_TINY) ** gamma
    else:
        shifted = (probable - settings.clip).clamp(min=0.0)
        present = present * (1.0 - probable).clamp(min=_TINY) ** settings.gamma_positive
        absent = (1.0 - shifted).clamp(min=_TINY).log() * shifted**settings.gamma_negative
    return -(applies * present + (1.0 - labels) * absent).sum(dim=1)
