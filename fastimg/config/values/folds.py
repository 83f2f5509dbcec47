"""Folds of cross-validation as people write them: 0/5 holds the first of five parts out."""

import re
from dataclasses import dataclass

from fastimg.errors import UsageError

_WRITTEN = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One of `of` parts of the training split, which is held out; counted from 0.

    group: the column whose values stay together; None: samples are on their own, those of equal content together.
    stratify: every part has the same share of each class, as far as that is possible.
    """

    number: int
    of: int
    group: str | None = None
    stratify: bool = False

    def __str__(self) -> str:
        together = f", groups of {self.group}" if self.group else ""
        return f"fold {self.number} of {self.of}{together}{', stratified' if self.stratify else ''}"


def parse(text: str, group: str | None = None, stratify: bool = False) -> Fold:
    """The fold that --fold names. Raises UsageError."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--fold {text}: give the fold to hold out and how many there are, as 0/5")
    number, of = int(found[1]), int(found[2])
    if of < 2:
        raise UsageError(f"--fold {text}: give two folds or more, as 0/5")
    if number >= of:
        raise UsageError(f"--fold {text}: the folds are 0/{of} to {of - 1}/{of}; give one of them")
    return Fold(number=number, of=of, group=group, stratify=stratify)
