"""Reads metrics.jsonl: the records that can be used, and which lines cannot, and why.

A line may be damaged by a full disk, a crash of the machine or an editor. What is left of the log is used.
"""

import json
import math
from pathlib import Path
from typing import Any

_NEEDED = {  # of each kind that is read again, beside `kind` and `step`
    "train": ("epoch", "loss", "lr"),
    "step": ("epoch", "loss", "lr"),
    "val": ("epoch", "loss"),
    "train_eval": ("epoch", "loss"),
    "epoch": ("epoch",),
}
_COUNTS = ("step", "epoch")
_MOST = 2**53  # a count, or a number as a float
_NAMED = 3  # lines in a message


def read(file: Path) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """(records, what is wrong with lines by their number). A last line that a kill cut off is neither.

    Without the file there are none. Raises OSError.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return [], {}
    records: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            faults[number] = "not JSON"
            continue
        if (fault := _fault(record)) is None:
            records.append(record)
        else:
            faults[number] = fault
    return records, faults


def words(file: Path, faults: dict[int, str]) -> str:
    """How many lines are left out, and the first of them."""
    lines = [f"line {number}: {fault}" for number, fault in list(faults.items())[:_NAMED]]
    more = f" and {len(faults) - _NAMED:,} more" if len(faults) > _NAMED else ""
    count = "1 damaged line is" if len(faults) == 1 else f"{len(faults):,} damaged lines are"
    return f"{file}: {count} left out ({'; '.join(lines)}{more}); the others are used"


def _fault(record: Any) -> str | None:
    """Why a record cannot be used; None if it can."""
    if not isinstance(record, dict):
        return "no record"
    kind = record.get("kind")
    if not isinstance(kind, str):
        return "no kind"
    known = kind in _NEEDED
    missing = [name for name in ("step", *_NEEDED.get(kind, ())) if name not in record]
    missing += _missing_of_time(record) if kind == "train" else []
    if missing:
        return f"no {missing[0]}"
    wrong = [name for name, value in record.items() if (known or name == "step") and not _fits(name, value)]
    return f"{wrong[0][:40]!r} is no {'count' if wrong[0] in _COUNTS else 'number'}" if wrong else None


def _missing_of_time(record: dict[str, Any]) -> list[str]:
    """What a line of progress lacks: its speed, and of a time that it states the share that was waited."""
    lacks = [] if any(name.endswith("_per_second") for name in record) else ["images_per_second"]
    return [*lacks, *(["wait_share"] if "seconds" in record and "wait_share" not in record else [])]


def _fits(name: str, value: Any) -> bool:
    if name == "kind":
        return True
    if name in _COUNTS:
        return type(value) is int and (name == "epoch") <= value < _MOST
    if type(value) is int:
        return -_MOST < value < _MOST
    return type(value) is float and value != -math.inf
