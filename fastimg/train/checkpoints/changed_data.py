"""Checks, before anything is loaded, that a resumed run still has the classes and samples that it started with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastimg.errors import UserError
from fastimg.train.tasks.selection import ChosenTargets

from . import format as checkpoint

_MAX_NAMES = 8  # in a message


def check(run: Path, data: Path, chosen: ChosenTargets) -> None:
    """Raises UserError if the targets, or the samples per class, are not those of the run's last checkpoint."""
    last = (run / "last").resolve() / checkpoint.MODEL
    if not last.exists():
        return
    card = checkpoint.read_card(last)
    tasks = chosen.tasks
    compare(run, data, card.classes, card.class_counts, tasks.classes, chosen.class_counts)
    before = {stated["name"]: _without_thresholds(stated) for stated in card.targets}
    now = {stated["name"]: stated for stated in tasks.stated()}
    if list(before) != list(now):
        raise _refusal(
            run,
            f"{data} gives the targets {_listed(list(now)) or 'of one class'}, and {run} was trained on "
            f"{_listed(list(before)) or 'one class'}",
            "targets",
        )
    for name, stated in now.items():
        if json.loads(json.dumps(stated)) != before[name]:
            raise _refusal(run, f"{data} has other values of the target {name} than {run} was trained on", "samples")


def _without_thresholds(stated: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stated.items() if key != "thresholds"}


def compare(
    run: Path,
    data: Path,
    before: Sequence[str],
    counts_before: Sequence[int],
    now: tuple[str, ...],
    counts: tuple[int, ...],
) -> None:
    """Raises UserError if the dataset has other classes, or other numbers of samples per class, than a run had.

    `counts_before` is empty for checkpoints without counts.
    """
    if tuple(before) != now:
        changes = "; ".join(_class_changes(before, now, counts_before, counts))
        raise _refusal(run, f"{data} has other classes than {run} was trained on: {changes}", "class folders")
    differing = [
        f"{name} had {then:,} and has {present:,}"
        for name, then, present in zip(now, counts_before or counts, counts, strict=True)
        if then != present
    ]
    if differing:
        raise _refusal(run, f"{data} has other samples than {run} was trained on: {_listed(differing)}", "samples")


def not_the_same(run: Path, data: Path, cause: str) -> UserError:
    """The error for data that has the run's classes and numbers of samples, but is not the same data."""
    return _refusal(run, f"{data} is not the data that {run} was trained on: {cause}", "samples")


def _refusal(run: Path, fault: str, what: str) -> UserError:
    return UserError(
        f"--resume: {fault}; restore the {what} to go on, or leave --resume out and give another --name or --output "
        f"for a new run, which may start from these weights with --weights {run}"
    )


def _class_changes(
    before: Sequence[str], now: Sequence[str], counts_before: Sequence[int], counts: Sequence[int]
) -> list[str]:
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    if not gone and not new:
        return [f"the same {len(now)} in another order ({_listed(now)}, and were {_listed(before)})"]
    renamed = _renamed(before, now, counts_before, counts)
    changes = [f"renamed: {_listed([f'{old} -> {name}' for old, name in renamed.items()])}"] if renamed else []
    gone = [name for name in gone if name not in renamed]
    new = [name for name in new if name not in renamed.values()]
    changes += [f"gone: {_listed(gone)}"] if gone else []
    changes += [f"new: {_listed(new)}"] if new else []
    return changes


def _renamed(
    before: Sequence[str], now: Sequence[str], counts_before: Sequence[int], counts: Sequence[int]
) -> dict[str, str]:
    """Old -> new name of classes that have as many samples as before under another name.

    If several match, or counts are not known, the one at the same place counts, in lists of the same length.
    """
    then = dict(zip(before, counts_before or [0] * len(before), strict=True))
    present = dict(zip(now, counts if counts_before else [0] * len(now), strict=True))
    gone = [name for name in before if name not in present]
    new = [name for name in now if name not in then]
    places = dict(zip(before, now, strict=True)) if len(before) == len(now) else {}
    renamed: dict[str, str] = {}
    for old in gone:
        alike = [name for name in new if present[name] == then[old]]
        single = counts_before and len(alike) == 1 and [then[name] for name in gone].count(then[old]) == 1
        if single:
            renamed[old] = alike[0]
        elif places.get(old) in alike:
            renamed[old] = places[old]
    return renamed


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES:,} more"
