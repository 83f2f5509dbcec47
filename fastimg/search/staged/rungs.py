"""What the stages of a search try, and how much of it fits in a time: pure functions of numbers and records.

Successive halving (Jamieson and Talwalkar, 2016): many arms train for a few epochs, a third of them for longer, the
best of those for longer still.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

StageName = Literal["heads", "fine-tuning", "final"]
_Each = TypeVar("_Each")
KEEP = 3  # one arm in so many is kept
FIRST_HEADS = 4  # trials of each encoder's classifier before the worse half of the encoders is left out
MOST_HEADS = 32  # of the best encoder's
MOST_ARMS = 9
MOST_EPOCHS = {True: 30, False: 200}  # of the winner, from trained weights or from random ones
SMALL = 4 / 7  # of an image's side, on small rungs: 128 pixels of 224
_STEP = 32  # pixels between sizes
_LEAST = 96  # pixels; smaller images are not made smaller still
MARGIN = 0.9  # of a time that is planned for: epochs differ


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Settings that are tried on an encoder, and the measured cost of training it.

    seconds: of an epoch at the full size. small: the side of images on small rungs; None where the size never changes.
    """

    encoder: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seconds: float
    side: int = 0
    small: int | None = None

    def epoch_seconds(self, full: bool) -> float:
        """The time of an epoch, which grows as the number of pixels does."""
        return self.seconds if full or self.small is None else self.seconds * (self.small / self.side) ** 2


@dataclass(frozen=True, kw_only=True)
class Rung:
    """How many arms train, for how many epochs more, and whether with images of the full size."""

    arms: int
    epochs: int
    full: bool


def rungs(arms: int) -> list[Rung]:
    """The rungs for a number of arms: 1 epoch, then 2 more, then 6 more; small images on all but the last one."""
    counts = [arms]
    while counts[-1] > 1 and len(counts) < 3:
        counts.append(math.ceil(counts[-1] / KEEP))
    epochs = (1, 2, 6)
    last = len(counts) - 1
    return [Rung(arms=count, epochs=epochs[n], full=n == last) for n, count in enumerate(counts)]


def cost(arms: Sequence[Arm]) -> float:
    """Seconds of successive halving over arms, if the slowest of them survive."""
    total = 0.0
    for rung in rungs(len(arms)):
        dearest = sorted((arm.epoch_seconds(rung.full) for arm in arms), reverse=True)[: rung.arms]
        total += rung.epochs * sum(dearest)
    return total


def affordable(arms: Sequence[Arm], seconds: float) -> list[Arm]:
    """As many of the arms, which come in the order of their promise, as successive halving affords; maybe none.

    An arm that alone costs more than there is is left out, and does not keep those behind it out.
    """
    chosen: list[Arm] = []
    for arm in arms:
        if len(chosen) < MOST_ARMS and cost([*chosen, arm]) <= seconds * MARGIN:
            chosen.append(arm)
    return chosen


def small_side(side: int) -> int | None:
    """The side of images on small rungs; None where images are small already."""
    small = round(side * SMALL / _STEP) * _STEP
    return small if small >= _LEAST and small < side else None


def variations(tuned: bool, text: bool, rate: float) -> list[dict[str, Any]]:
    """What is tried on an encoder, the usual first. `rate` is the learning rate that is chosen for such a model."""
    usual: dict[str, Any] = {"lr": rate}
    rates: list[dict[str, Any]] = [{"lr": _rounded(rate * 3)}, {"lr": _rounded(rate / 3)}]
    if text:
        return [usual, *rates, {**usual, "layer_decay": 0.75}]
    if tuned:
        mirrored = [{**usual, "hflip": 0.0}, {**usual, "aa": "trivial"}]
        return [usual, *rates, *mirrored, {**rates[0], "layer_decay": 0.75}]
    return [usual, rates[0], {**usual, "hflip": 0.0}, {**usual, "aa": "trivial"}, rates[1]]


def interleaved(ranked: Sequence[Sequence[_Each]]) -> list[_Each]:
    """The arms of encoders, given best encoder first, in the order of their promise.

    The second variation of an encoder comes before the first one of the encoder after the next.
    """
    placed = [
        (number + 1.5 * place, place, arm) for place, arms in enumerate(ranked) for number, arm in enumerate(arms)
    ]
    return [arm for _, _, arm in sorted(placed, key=lambda each: each[:2])]


def next_head(scores: Mapping[str, Sequence[float]]) -> str | None:
    """The encoder whose classifier is tried next; None where enough has been tried.

    `scores`: of each encoder's trials so far, in the order of the encoders; more is better. Each gets four trials, the
    better half of them four more, and so on; the best one gets up to 32.
    """
    left = list(scores)
    target = FIRST_HEADS
    while left:
        behind = [name for name in left if len(scores[name]) < target]
        if behind:
            return min(behind, key=lambda name: len(scores[name]))
        if target >= MOST_HEADS:
            return None
        kept = sorted(left, key=lambda name: max(scores[name]), reverse=True)[: math.ceil(len(left) / 2)]
        left = [name for name in left if name in kept]
        target *= 2
    return None


def shares(heads: bool, affords_tuning: bool) -> dict[StageName, float]:
    """The share of the time that each stage may take; what one leaves over is the next one's."""
    if heads and not affords_tuning:
        return {"heads": 1.0}
    if heads:
        return {"heads": 0.25, "fine-tuning": 0.4, "final": 0.35}
    return {"fine-tuning": 0.5, "final": 0.5}


def final_epochs(seconds: float, epoch_seconds: float, tuned: bool) -> int:
    """The epochs that the winner can train in a time; 0 where not one."""
    return min(MOST_EPOCHS[tuned], math.floor(seconds * MARGIN / max(epoch_seconds, 1e-9)))


def epoch_guess(rate: float, train: int, val: int) -> float:
    """Seconds of an epoch of training, by a model's samples per second at prediction.

    A step computes the gradients of activations and of weights too: three times a forward pass, and a little.
    """
    return (3.5 * train + val) / rate


def head_epochs(samples: int) -> int:
    """Epochs of a classifier on kept embeddings: about 400 steps of 64, between 5 and 40 epochs."""
    return max(5, min(40, round(400 * 64 / max(samples, 1))))


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
