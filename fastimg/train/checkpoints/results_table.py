"""results.csv: the records of metrics.jsonl as a table, with a line an epoch, for pandas and spreadsheets."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastimg.loaders.containers.atomic import replace_file

_KINDS = ("train", "val", "train_eval")  # whose scores stand in a line, each under KIND_NAME
_LEFT_OUT = ("kind", "epoch", "step", "samples", "seconds", "images_per_second", "texts_per_second")  # of part of it
_ENDINGS = ("_share", "_bytes")  # likewise


class ResultsTable:
    """The lines of a run's epochs, which are done once their `epoch` record is there.

    A line is appended. The file is written anew where a column is new, as with the first validation.
    """

    def __init__(self, file: Path, records: Iterable[Mapping[str, Any]]) -> None:
        self._file = file
        self._columns: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._latest: dict[str, Mapping[str, Any]] = {}
        for record in records:
            self._take(record["kind"], record)
        if self._rows or self._file.exists():
            self._rewrite()

    def add(self, kind: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Take records of one kind. Raises OSError."""
        for record in records:
            known = len(self._columns)
            if not self._take(kind, record):
                continue
            if len(self._columns) > known:
                self._rewrite()
            else:
                with self._file.open("a", encoding="utf-8", newline="") as file:
                    file.write(self._lines(self._rows[-1:]))

    def _take(self, kind: str, record: Mapping[str, Any]) -> bool:
        """Whether a line is complete."""
        if kind in _KINDS:
            self._latest[kind] = record
        if kind != "epoch":
            return False
        row: dict[str, Any] = {"epoch": record["epoch"], "step": record["step"]}
        for part in _KINDS:
            scores = self._latest.get(part, {})
            row |= {f"{part}_{name}": value for name, value in scores.items() if name != "lr" and _is_score(name)}
        row["lr"] = self._latest.get("train", {}).get("lr")
        row |= {name: value for name, value in record.items() if name.endswith("_seconds")}
        self._latest = {}
        self._rows.append(row)
        self._columns += [name for name in row if name not in self._columns]
        return True

    def _rewrite(self) -> None:
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(self._columns)
        replace_file(self._file, (header.getvalue() + self._lines(self._rows)).encode())

    def _lines(self, rows: Sequence[Mapping[str, Any]]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([_cell(row.get(name)) for name in self._columns] for row in rows)
        return text.getvalue()


def _is_score(name: str) -> bool:
    return name not in _LEFT_OUT and not name.endswith(_ENDINGS)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
