"""Processes that stay, one per device, and run one trial after the other."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .records import TrialRecord


@dataclass(frozen=True, kw_only=True)
class Job:
    """A trial to be run.

    parameters: what was drawn for it, for its record. settings: fields of Train by name, with YAML's values; data,
    output and name are among them, and resume where it goes on with a run.
    """

    number: int
    stage: str
    parameters: Mapping[str, Any]
    settings: Mapping[str, Any]


Report = Callable[[int, int, float], bool]  # (number, epoch, value) -> whether to stop this trial
Runner = Callable[[Iterable[Job], Report], Iterator[TrialRecord]]  # records in the order in which trials end
