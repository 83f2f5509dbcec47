"""What the pool and its processes tell each other: a trial to run, how it goes, how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .records import TIME_OVER as TIME_OVER
from .records import TrialRecord


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """A trial to be run.

    parameters: what was drawn for it, for its record. settings: fields of Train by name, with YAML's values; data,
    output and name are among them, and resume where it goes on with a run.
    """

    number: int
    stage: str
    parameters: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrialProbe:
    """To a process: can these settings train, and which metric decides?"""

    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrialProbed:
    """The answer: the metric; or what is wrong, and the exit code, which an internal error has none of."""

    metric: str | None = None
    fault: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrialWork:
    """To a process: run this trial, whose first objective is the metric.

    speed_split: the split whose samples per second at prediction are the second objective; None where there is one.
    """

    job: TrialJob
    metric: str
    speed_split: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reported:
    """From a process: the first objective after so many epochs."""

    number: int
    epoch: int
    value: float


@dataclass(frozen=True, kw_only=True)
class TrialVerdict:
    """The answer: whether the trial is to stop."""

    stop: bool


@dataclass(frozen=True, kw_only=True)
class Ended:
    """From a process: a trial has ended."""

    record: TrialRecord


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """From a process on another machine: it is there. node: the name of the machine."""

    node: str


@dataclass(frozen=True, kw_only=True)
class HostFault:
    """From there instead: why no process can run, or no trial read the data, a sentence."""

    words: str


Message = Arrived | HostFault | TrialProbe | TrialProbed | TrialWork | Reported | TrialVerdict | Ended
