"""Average precision, and the thresholds with the best F1, of many labels at once on the device."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

_LABELS = 64  # ranked at a time: sorting takes about 50 bytes for each of their scores


class RankedScores(NamedTuple):
    """Of each label, float64 [C]."""

    precision: torch.Tensor  # average precision; 0 without positive samples
    thresholds: torch.Tensor  # probabilities: a label is predicted from there on
    f1: torch.Tensor  # at the threshold
    positives: torch.Tensor  # samples that have the label

    def at(self, logits: torch.Tensor, truth: torch.Tensor, thresholds: Sequence[float]) -> "RankedScores":
        """The same scores with other thresholds [C] of probabilities, and F1 there."""
        given = torch.tensor(thresholds, dtype=torch.float64, device=logits.device)
        predicted = logits.double().sigmoid() >= given
        right = (predicted & truth).sum(dim=0).double()
        f1 = 2.0 * right / (predicted.sum(dim=0) + self.positives).clamp(min=1.0)
        return self._replace(thresholds=given, f1=f1)


def ranked_scores(logits: torch.Tensor, truth: torch.Tensor) -> RankedScores:
    """Logits [N, C], truth bool [N, C]. A sync point.

    Average precision as scikit-learn has it: the mean, over the samples with the label, of the precision among all
    that score at least as high. A threshold lies halfway between the probabilities on either side of the cut with the
    best F1; of a label that no sample has, it is 0.5.
    """
    parts = [
        _ranked(logits[:, at : at + _LABELS], truth[:, at : at + _LABELS]) for at in range(0, logits.shape[1], _LABELS)
    ]
    return RankedScores(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _ranked(logits: torch.Tensor, truth: torch.Tensor) -> RankedScores:
    count, labels = logits.shape
    positives = truth.sum(dim=0).double()
    if count == 0:
        nothing = torch.zeros(labels, dtype=torch.float64, device=logits.device)
        return RankedScores(nothing, nothing + 0.5, nothing, positives)
    ranked, order = logits.sort(dim=0, descending=True, stable=True)
    hits = truth.gather(0, order).double()
    found = hits.cumsum(dim=0)
    place = torch.arange(1, count + 1, device=logits.device)[:, None].expand(count, labels)
    ends = torch.ones_like(truth)  # the last of those that score alike: a cut is possible behind it
    ends[:-1] = ranked[1:] != ranked[:-1]
    end = torch.where(ends, place, count).flip(0).cummin(dim=0).values.flip(0)
    precision = (found.gather(0, end - 1) / end * hits).sum(dim=0) / positives.clamp(min=1.0)
    f1 = torch.where(ends, 2.0 * found / (place + positives), -1.0)
    best = f1.max(dim=0)
    shares = ranked.double().sigmoid()
    own = shares.gather(0, best.indices[None])[0]
    after = shares.gather(0, (best.indices[None] + 1).clamp(max=count - 1))[0]
    after = torch.where(best.indices == count - 1, 0.0, after)
    thresholds = torch.where(positives > 0, (own + after) / 2.0, 0.5)
    return RankedScores(precision, thresholds, best.values.clamp(min=0.0), positives)
