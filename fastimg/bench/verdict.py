"""The verdict on measured rates: what limits training, what the next limit would allow, and what to change.

Rates are in images per second. The parts of a pipeline work at the same time, so the slowest determines the rate of the
whole. If the CPU both decodes and trains, the two share its cores, and their times add up.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fastimg.system.machine_load import Load
from fastimg.train.reporting.hints import DRAINED
from fastimg.wording import number

Kind = Literal[
    "network-bound",
    "storage-bound",
    "decode-bound",
    "copy-bound",
    "augment-bound",
    "launch-bound",
    "compute-bound",
    "balanced",
]

NEAR = 1.1  # rates within this factor of each other count as equal
APART = 1.3  # rates that differ by more, and should be equal or the other way round, cannot be trusted
_WORDS = {
    "network": "the network",
    "storage": "reading",
    "decode": "the loader",
    "copy": "the copy to the device",
    "compute": "the training step",
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured rates, in images per second. None for stages that do not exist, such as the copy on a CPU."""

    storage: float | None  # from the disk if the data is larger than memory
    decode: float  # the loader alone
    copy: float | None
    augment: float | None  # alone
    step: float | None  # forward, backward and update alone
    synthetic: float  # augmentation and step, on data on the device
    real: float  # end to end
    network: float | None = None  # what an object store gives, where every epoch fetches its data
    shared: bool = False  # decoding and training share the cores; `decode` is then measured on all of them
    drained: float | None = None  # share of the steps on synthetic data in which a GPU had nothing left to do


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A change, and the factor by which it raises the end-to-end rate: measured in the same run, or estimated."""

    change: str
    factor: float | None  # None: unknown
    tried: bool
    note: str = ""

    def text(self) -> str:
        """`--loader native (2.61x, tried)`."""
        how = "tried" if self.tried else "an estimate" if self.factor is not None else "not tried"
        effect = how if self.factor is None else f"{self.factor:.2f}x, {how}"
        return f"{self.change} ({effect}{'; ' + self.note if self.note else ''})"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What limits training, its rate as a share of that on synthetic data, and the next limit."""

    kind: Kind
    share: float  # real / synthetic
    limit: str  # the slowest of network, storage, decode, copy and compute
    limit_rate: float
    next: str | None
    next_rate: float | None
    advice: tuple[Advice, ...] = ()
    possible: tuple[Kind, ...] = ()  # what the spread of the repeats allows, if it is more than one answer

    def sentence(self) -> str:
        """The verdict in one sentence."""
        if not self.possible:
            return self._sentence()
        several = f"{', '.join(self.possible[:-1])} or {self.possible[-1]}"
        return f"uncertain: {several}, by the spread of the repeats; at their medians, {self._sentence()}"

    def _sentence(self) -> str:
        sentence = f"{self.kind} at {self.share:.2f}: {_WORDS[self.limit]} allows {number(self.limit_rate)} img/s"
        if self.next is not None and self.next_rate is not None:
            sentence += f", {_WORDS[self.next]}, the next limit, {number(self.next_rate)}"
        better = [advice.text() for advice in self.advice]
        return sentence + (f"; {' or '.join(better)}" if better else "")

    def record(self) -> dict[str, Any]:
        """The verdict for JSON."""
        advice = [{"change": a.change, "factor": a.factor, "tried": a.tried, "note": a.note} for a in self.advice]
        return {
            "kind": "uncertain" if self.possible else self.kind,
            "possible": list(self.possible or (self.kind,)),
            "real_over_synthetic": round(self.share, 4),
            "limit": self.limit,
            "limit_images_per_second": round(self.limit_rate, 1),
            "next": self.next,
            "next_images_per_second": None if self.next_rate is None else round(self.next_rate, 1),
            "advice": advice,
            "sentence": self.sentence(),
        }


@dataclass(frozen=True, kw_only=True)
class NoVerdict:
    """No verdict, since the measurements contradict each other; `doubts` says where."""

    share: float  # real / synthetic
    doubts: tuple[str, ...]
    load: Load
    advice: tuple[Advice, ...] = ()

    def sentence(self) -> str:
        """The reason in one sentence."""
        return (
            f"no verdict: the measurements disagree by more than {APART - 1:.0%} ({'; '.join(self.doubts)}); the "
            f"machine was busy, or its speed changed ({self.load.text()}); run again when it is idle"
        )

    def record(self) -> dict[str, Any]:
        """The result for JSON, with the keys of a verdict."""
        return {
            "kind": None,
            "possible": [],
            "real_over_synthetic": round(self.share, 4),
            "limit": None,
            "limit_images_per_second": None,
            "next": None,
            "next_images_per_second": None,
            "advice": [],
            "doubts": list(self.doubts),
            "sentence": self.sentence(),
        }


Ranges = Mapping[str, tuple[float, float]]


def doubts(m: Measured, ranges: Ranges, alone: float | None = None) -> tuple[str, ...]:
    """Why the rates cannot be trusted: a part is slower than the whole that contains it, by more than they vary.

    `ranges` holds the lowest and highest rate of repeated measurements, by field of `m`, and "alone". `alone` is the
    rate of the loader as used in `real`, if `m.decode` was measured with more threads.
    """
    training = "the training step with its augmentation"
    loader = ("decode", m.decode) if alone is None else ("alone", alone)
    contradictions = []
    for words, (part, rate), whole, container in (
        ("the step alone", ("step", m.step), training, "synthetic"),
        ("augmentation alone", ("augment", m.augment), training, "synthetic"),
        ("training on synthetic data", ("synthetic", m.synthetic), "training end to end", "real"),
        ("the loader alone", loader, "training end to end", "real"),
    ):
        faster: float = getattr(m, container)
        if rate is None or faster <= APART * rate:
            continue
        if ranges.get(part, (rate, rate))[1] < ranges.get(container, (faster, faster))[0]:
            text = f"{words} {number(rate)} img/s, and {whole}, which cannot be faster, {number(faster)}"
            contradictions.append(text)
    return tuple(contradictions)


def widest(ranges: Ranges) -> str | None:
    """The name of the rate whose repeats differ most; None if none of them differ by more than `APART`."""
    name = max(ranges, key=lambda name: ranges[name][1] / ranges[name][0], default=None)
    return None if name is None or ranges[name][1] <= APART * ranges[name][0] else name


def allowed(m: Measured, ranges: Ranges, shares: tuple[float, float]) -> tuple[Kind, ...]:
    """The kinds of verdict that the repeats allow: with each rate at its lowest or its highest, in any combination.

    `shares` are the lowest and highest real / synthetic of repeats that were measured one after the other, which vary
    less than the rates themselves. The kind at the medians comes first.
    """
    parts = [
        name for name in ("network", "storage", "decode", "copy", "augment", "step", "synthetic") if name in ranges
    ]
    kinds = [judge(m).kind]
    for rates in itertools.product(*(ranges[name] for name in parts)):
        ends: dict[str, Any] = dict(zip(parts, rates, strict=True))
        changed = replace(m, **ends)
        kinds += [judge(replace(changed, real=share * changed.synthetic)).kind for share in shares]
    return tuple(dict.fromkeys(kinds))


def judge(m: Measured, advice: Sequence[Advice] = (), possible: Sequence[Kind] = ()) -> Verdict:
    """Judge what limits: the slowest part, or `balanced` if the two slowest are about equally fast.

    A CPU that both decodes and trains is `balanced`, too, if training would be faster without decoding. If several
    kinds are `possible`, as `allowed` finds them, the verdict is uncertain.
    """
    rates = {"network": m.network, "storage": m.storage, "decode": m.decode, "copy": m.copy, "compute": m.synthetic}
    order = sorted((rate, name) for name, rate in rates.items() if rate is not None)
    (rate, limit) = order[0]
    (after, following) = order[1]
    kind: Kind
    costly = m.shared and limit == "compute" and m.real * NEAR < m.synthetic  # decoding takes its share of the cores
    if after < NEAR * rate or costly:
        kind = "balanced"
    elif limit == "compute" and (m.drained or 0.0) > DRAINED:
        kind = "launch-bound"  # the GPU waits for the host, kernel after kernel
    elif limit == "compute" and m.augment is not None and m.step is not None and m.augment < m.step:
        kind = "augment-bound"  # the device spends more time on augmentation than on the step
    else:
        kinds: dict[str, Kind] = {
            "network": "network-bound",
            "storage": "storage-bound",
            "decode": "decode-bound",
            "copy": "copy-bound",
        }
        kind = kinds.get(limit, "compute-bound")
    return Verdict(
        kind=kind,
        share=m.real / m.synthetic,
        limit=limit,
        limit_rate=rate,
        next=following,
        next_rate=after,
        advice=tuple(advice),
        possible=tuple(possible) if len(possible) > 1 else (),
    )


def together(m: Measured) -> float:
    """The end-to-end rate that the parts allow, for estimates of what a change would gain."""
    if m.shared:
        cores = 1 / (1 / m.decode + 1 / m.synthetic)
        return min(cores, m.storage or m.decode, m.network or m.decode)
    return min(rate for rate in (m.network, m.storage, m.decode, m.copy, m.synthetic) if rate is not None)
