"""The loss of each sample: softmax cross-entropy, or binary cross-entropy of each class."""

import torch
import torch.nn.functional as F


def losses(logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0, bce: bool = False) -> torch.Tensor:
    """Loss [B] in nats of logits [B, C] for classes [B], or for soft targets [B, C].

    Smoothing gives `smoothing` of a target to all classes alike (Szegedy et al., 2016). `bce`: one yes-or-no question
    for each class (Wightman et al., 2021), summed over classes: of the size of the softmax loss, so that the same
    learning rates serve.
    """
    logits = logits.float()
    if not bce:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    classes = logits.shape[1]
    shares = targets if targets.is_floating_point() else F.one_hot(targets, classes).float()
    shares = shares * (1.0 - smoothing) + smoothing / classes
    return F.binary_cross_entropy_with_logits(logits, shares, reduction="none").sum(dim=1)
