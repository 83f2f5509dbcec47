"""Columns of tables as targets: which ones are asked for, what kind each is, and its value in every row.

The kind is decided by all rows before the first one is stored. A sample's note keeps each value under its target's
name: the name of a class, a list of labels, or a number. The first class is the sample's label instead.
"""

import ast
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastimg.errors import UsageError, nearest
from fastimg.loaders.containers.fields import ABSENT
from fastimg.loaders.containers.targets import KINDS, Target, TargetKind, TargetValues, first_class
from fastimg.loaders.errors import DataError
from fastimg.wording import plural, shortened

from .columns import AskedTarget, Columns
from .labels import (
    is_empty,
    joined_classes,
    lists_by,
    look_like_lists,
    look_unique,
    naming_remarks,
    number_classes,
    respelled,
    separated,
)
from .samples import Row
from .tables import Rows, spelled

_MAX_NUMBERED_CLASSES = 20  # more different whole numbers are taken for a number, not for classes
_RESERVED = ("path", ABSENT)  # keys of a note that are its own
_DELIMITERS = ("|", ",")  # between the labels of a sample, unless --label-delimiter names one
_OTHERS = (";", " ")  # which also separate labels, but more often are part of a name


def parse_targets(texts: Sequence[str]) -> tuple[AskedTarget, ...]:
    """The values of --target: NAME, or NAME:KIND. What follows the last colon is a kind only if it is a known one.

    Raises UsageError.
    """
    asked = []
    for text in texts:
        name, _, last = text.rpartition(":")
        kind = next((kind for kind in KINDS if kind == last and name), None)
        asked.append(AskedTarget(name if kind else text, kind))
    for target, count in Counter(target.name for target in asked).items():
        if not target:
            raise UsageError("--target: give the name of a column")
        if count > 1:
            raise UsageError(f"--target {target}: given twice; give each column once")
        if target in _RESERVED:
            raise UsageError(f"--target {target}: every sample keeps something else under that name; rename the column")
    return tuple(asked)


def check_targets(src: object, known: Sequence[str], asked: Sequence[AskedTarget], taken: Iterable[str | None]) -> None:
    """Raise DataError or UsageError for targets that are no columns, or columns that mean something else."""
    for target in asked:
        if target.name not in known:
            raise DataError(
                f"{src}: no column {target.name!r} (--target); it has {', '.join(known)}{nearest(target.name, known)}"
            )
        if target.name in taken:
            raise UsageError(
                f"{src}: --target {target.name}: the column is already its path, text, image or split; leave it out"
            )


def labels_from(label: str | None, columns: Columns) -> str:
    """Which columns the labels or targets come from, for a sentence about columns."""
    if columns.targets:
        return f", targets from {', '.join(repr(target.name) for target in columns.targets)}"
    return "" if label is None else f", label from {label!r}"


class StatedTargets:
    """Which targets the samples of a source lack, by their labels and notes."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._own = first_class(targets)
        self._others = [TargetValues(target) for target in targets if target is not self._own]
        self._count = len(targets)

    def missing(self, label: int, note: bytes) -> tuple[list[str], bool]:
        """The targets that a sample lacks, and whether it has none at all. Raises ValueError for another value."""
        if not self._count:
            return [], False
        lacking = [self._own.name] if self._own is not None and label < 0 else []
        known = json.loads(note) if self._others else {}
        for other in self._others:
            try:
                if other.parse(known.get(other.target.name)) is None:
                    lacking.append(other.target.name)
            except ValueError as error:
                raise ValueError(
                    f"{error}, and {other.target.name!r} is a target of kind {other.target.kind}; convert its source "
                    f"with --target {other.target.name}:{other.target.kind}, or rename the column"
                ) from error
        return lacking, len(lacking) == self._count


class _Tally:
    """What all rows have in the column of one target."""

    def __init__(self, names: tuple[str, ...] | None) -> None:
        self.rows = 0
        self.missing = 0
        self.lists = 0  # cells that are lists, or JSON lists as text
        self.counts: Counter[str] = Counter()  # of all other cells, by their text
        self.numbers = names is None  # whether all of these are finite numbers
        self.fractions = False
        self.nans = 0  # texts such as nan, which are missing if all others are numbers
        self.labels: set[str] = set()  # in lists

    def add(self, cell: Any) -> None:
        """Count a cell, as `_cell` gives it."""
        self.rows += 1
        if cell is None:
            self.missing += 1
        elif isinstance(cell, list):
            self.lists += 1
            self.labels.update(cell)
        else:
            self.counts[cell] += 1
            number = _number(cell)
            self.nans += number is not None and math.isnan(number)
            self.numbers = self.numbers and number is not None
            self.fractions = self.fractions or bool(number is not None and not number.is_integer() and number == number)

    def is_nan(self, text: str) -> bool:
        """Whether a cell spells that there is no number, in a column of numbers."""
        return self.numbers and text[:4].lower().lstrip("+-") == "nan"

    @property
    def present(self) -> int:
        """Cells that are not empty."""
        return self.rows - self.missing

    def kind(self, delimiter: str | None) -> tuple[TargetKind, str]:
        """The kind that the cells look like, and why."""
        if self.lists:
            return "multilabel", "lists"
        if self.numbers:
            values = len({_number(text) for text in self.counts if not self.is_nan(text)})
            if self.fractions:
                return "number", "with fractions"
            if values > _MAX_NUMBERED_CLASSES:
                return "number", f"{values:,} different numbers"
            return "class", f"{values:,} different numbers"
        if delimiter is not None and any(delimiter in text for text in self.counts):
            if delimiter.strip() or lists_by(delimiter, self.counts):
                return "multilabel", f"separated by {delimiter!r}"
            return "class", f"{len(self.counts):,} different values, whose blanks look like those of names"
        marked = any(mark in text for text in self.counts for mark in _DELIMITERS)
        if marked and look_like_lists(self.counts, self.counts.total()):
            return "multilabel", f"separated by {self.separator()!r}"
        return "class", f"{len(self.counts):,} different values"

    def separator(self) -> str:
        """What is between labels where --label-delimiter does not say: | if it occurs, else a comma."""
        first, second = _DELIMITERS
        return first if any(first in text for text in self.counts) else second


class TargetCells:
    """The targets of a table: their kinds and classes, decided by `rows`, and their values in a row.

    `names` has the class names that a schema gives to the numbers of a column. Raises DataError.
    """

    def __init__(
        self,
        src: Path,
        columns: Columns,
        rows: Rows,
        names: Mapping[str, tuple[str, ...]],
    ) -> None:
        asked = columns.targets
        self._src = src
        self._delimiter = columns.label_delimiter
        self._names = names
        self._tallies = {target.name: _Tally(names.get(target.name)) for target in asked}
        for number, row in rows:
            for target in asked:
                self._tallies[target.name].add(self._cell(number, target.name, row.get(target.name)))
        self._remarks: list[str] = []
        self._delimiters: dict[str, str] = {}
        self._written: dict[str, dict[str, str]] = {}  # the name of each class by how it is written
        self._zeros: set[str] = set()  # targets whose integers lost them
        self._named: dict[str, list[str]] = {}  # of targets, what to say of the names of their classes
        self._as_written = columns.as_written
        existing = {target.name: target for target in columns.known_targets}
        self.targets: tuple[Target, ...] = ()
        for target in asked:
            self.targets += (self._decided(target, existing.get(target.name)),)
        self._own = first_class(self.targets)
        self._index = {name: index for index, name in enumerate(self._own.classes if self._own else ())}
        self._trained: dict[str, set[str]] = {target.name: set() for target in self.targets if target.classes}
        self._elsewhere: dict[str, dict[str, tuple[int, str]]] = {name: {} for name in self._trained}

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the first class target."""
        return self._own.classes if self._own else ()

    @property
    def respelled(self) -> frozenset[str]:
        """See Source."""
        return frozenset(self._zeros)

    def read_into(self, note: Row, number: int, row: Row, split: str) -> int:
        """Put the targets of a row into its note. Returns its label, -1 if it has none.

        Raises DataError that names the row.
        """
        label = -1
        for target in self.targets:
            value = self._value(number, target, self._cell(number, target.name, row.get(target.name)))
            for name in [value] if isinstance(value, str) else value if isinstance(value, list) else ():
                if split == "train":
                    self._trained[target.name].add(name)
                else:
                    self._elsewhere[target.name].setdefault(name, (number, split))
            if target is self._own:
                label = -1 if value is None else self._index[value]
                note.pop(target.name, None)
            else:
                note[target.name] = value
        return label

    def judged(self) -> tuple[str, ...]:
        """Remarks for the user, once all rows were read. Raises DataError for a class that the training split lacks."""
        remarks = list(self._remarks)
        for target in self.targets:
            trained = self._trained.get(target.name, set())
            lacking = {
                name: place for name, place in self._elsewhere.get(target.name, {}).items() if name not in trained
            }
            if not lacking:
                continue
            name, (number, split) = min(lacking.items(), key=lambda item: item[1])
            if target.kind == "class":
                raise DataError(
                    f"{self._src}: row {number}: the training split has no class {name!r} of {target.name!r}, which "
                    f"{split} has; add it there or drop the row"
                )
            remarks.append(
                f"{self._src}: the training split lacks {plural(len(lacking), 'label')} of {target.name!r}, such as "
                f"{name!r}; nothing is learnt of them"
            )
        return tuple(remarks)

    def _decided(self, asked: AskedTarget, existing: Target | None) -> Target:
        tally = self._tallies[asked.name]
        where = f"{self._src}: target {asked.name!r}"
        if not tally.present or (tally.numbers and tally.nans == tally.counts.total() and not tally.lists):
            raise DataError(f"{where}: every row is empty; fill it in, or leave out --target {asked.name}")
        guessed, why = tally.kind(self._delimiter)
        kind = asked.kind or (existing.kind if existing else guessed)
        if existing and kind != existing.kind:
            raise UsageError(f"--target {asked.name}:{kind}: the dataset has it as {existing.kind}; leave the kind out")
        names = self._classes_of(asked.name, kind, tally, existing)
        if not self._names.get(asked.name):
            self._refuse_lists(where, asked, kind, tally, existing)
        if kind == "class" and asked.kind is None and existing is None and not self._names.get(asked.name):
            if tally.lists:
                raise DataError(f"{where}: lists, not one class")
            if fault := look_unique(tally.counts, tally.present):
                raise DataError(
                    f"{where}: the values {fault}; make a class of each with --target {asked.name}:class, or leave it "
                    "out"
                )
        self._remarks.append(f"{where}: {self._said(asked, kind, '' if existing else why, names, tally)}")
        return Target(name=asked.name, kind=kind, classes=names)

    def _refuse_lists(
        self, where: str, asked: AskedTarget, kind: TargetKind, tally: _Tally, existing: Target | None
    ) -> None:
        """Raise DataError if labels look like several that another delimiter separates, and nobody has said which."""
        stated = self._delimiter if kind == "multilabel" else asked.kind or existing
        if kind == "number" or stated is not None:
            return
        between = self._delimiters[asked.name]
        cells = tally.counts
        labels = set(cells) if kind == "class" else {part for text in cells for part in separated(text, between)}
        known = existing.classes if existing else ()
        labels.difference_update(known)
        whole = not any(between in text for text in cells)
        for delimiter in (*_DELIMITERS, *_OTHERS):
            lists = lists_by(delimiter, labels, known)
            if delimiter == ";" and whole and look_like_lists(cells, tally.present):
                lists = {label for label in labels if ";" in label}
            if not lists:
                continue
            parts = {part for label in labels for part in separated(label, delimiter)}
            target = f"--target {asked.name}"
            several = "" if kind == "multilabel" else f"{target}:multilabel "
            single = f"--label-delimiter {spelled(between)}" if kind == "multilabel" else f"{target}:class"
            raise DataError(
                f"{where}: {len(lists):,} of {plural(len(labels), 'label')} look like several, separated by "
                f"{spelled(delimiter)}, such as {shortened(min(lists), 40)!r}; all are made of {len(parts):,}: give "
                f"{several}--label-delimiter {spelled(delimiter)}, or {single} if each is a label of its own"
            )

    def _said(self, asked: AskedTarget, kind: TargetKind, why: str, names: tuple[str, ...], tally: _Tally) -> str:
        missing = tally.missing + (tally.nans if tally.numbers else 0)
        of = {"class": "class", "multilabel": "label"}
        parts = [kind if kind == "number" else f"{kind}, {plural(len(names), of[kind])}"]
        if asked.kind is None and why:
            other = "class" if kind != "class" else "number" if tally.numbers else "multilabel"
            overruled = "" if tally.lists else f"; --target {asked.name}:{other} overrules this"
            parts.append(f"guessed: {why}{overruled}")
        if missing:
            parts.append(f"missing in {missing:,} of {plural(tally.rows, 'row')}")
        parts += [f"its labels {remark}" for remark in self._named.get(asked.name, ())]
        if len(tally.counts) == 1 and not tally.lists:
            parts.append(f"the same in every row ({next(iter(tally.counts))}), so there is nothing to learn")
        return "; ".join(parts)

    def _classes_of(self, name: str, kind: TargetKind, tally: _Tally, existing: Target | None) -> tuple[str, ...]:
        """The class names, in order; those that the dataset has already come first."""
        if kind == "number":
            return ()
        if schema := self._names.get(name):
            found = set(schema) & {*tally.counts, *tally.labels}
            self._written[name] = {label: label for label in found}
            classes = tuple(label for label in schema if label in found)
        else:
            self._delimiters[name] = self._delimiter or tally.separator()
            cells = [text for text in tally.counts if not tally.is_nan(text)]
            written = set(cells) if kind == "class" else set(tally.labels)
            if kind == "multilabel":
                for text in cells:
                    written.update(separated(text, self._delimiters[name]))
            ordered = sorted(written)
            labels = kind == "class" and first_class(self.targets) is None
            as_written = name in self._as_written or (labels and None in self._as_written)
            if respelled(ordered, as_written):
                self._zeros.add(name)
            self._named[name] = naming_remarks(ordered, as_written)
            classes, numbers = number_classes(ordered, as_written)
            self._written[name] = {text: classes[place] for text, place in zip(ordered, numbers.tolist(), strict=True)}
        if not classes:
            raise DataError(f"{self._src}: target {name!r}: no row has a label; fill it in, or leave it out")
        return joined_classes(existing.classes if existing else (), classes)

    def _value(self, number: int, target: Target, cell: Any) -> Any:
        """The name of a class, a list of labels, a number, or None."""
        if cell is None or (isinstance(cell, str) and self._tallies[target.name].is_nan(cell)):
            return None
        if target.kind == "number":
            value = _number(cell) if isinstance(cell, str) else None
            if value is None:
                raise self._fault(number, target, cell, f"is not a number; correct it, or use {target.name}:class")
            if math.isinf(value):
                raise self._fault(number, target, cell, "is not finite; correct it, or leave the cell empty")
            return None if math.isnan(value) else value
        written = self._written[target.name]
        if target.kind == "class":
            if isinstance(cell, list):
                raise self._fault(number, target, cell, f"is a list, not one class; use {target.name}:multilabel")
            return written[cell]
        cells = cell if isinstance(cell, list) else separated(cell, self._delimiters.get(target.name, "|"))
        return sorted({written[label] for label in cells})

    def _fault(self, number: int, target: Target, cell: Any, what: str) -> DataError:
        shown = shortened(json.dumps(cell, ensure_ascii=False), 40)
        return DataError(f"{self._src}: row {number}: {shown} in column {target.name!r} {what}")

    def _cell(self, number: int, name: str, value: Any) -> str | list[str] | None:
        """A cell as text, as a list of texts, or None if it is empty. Raises DataError for anything else."""
        where = f"{self._src}: row {number}: column {name!r}"
        if isinstance(value, list | tuple):
            return [label for item in value if (label := self._text(where, name, item))]
        if is_empty(value):
            return None
        items = _list(value.strip()) if isinstance(value, str) else None
        if items is not None:
            return [label for item in items if (label := self._text(where, name, item))]
        return self._text(where, name, value) or None

    def _text(self, where: str, column: str, value: Any) -> str:
        if (names := self._names.get(column)) and isinstance(value, int):
            if value == -1:
                return ""
            if not 0 <= value < len(names):
                raise DataError(
                    f"{where}: {value} is not one of the {plural(len(names), 'class')} that the schema names"
                )
            return names[value]
        if isinstance(value, float) and value.is_integer():  # pandas makes floats of integers if one is missing
            value = int(value)
        if not isinstance(value, str | int | float):
            raise DataError(f"{where}: neither text nor a number ({type(value).__name__}); name another column")
        text = str(value).strip()
        try:
            text.encode()
        except UnicodeEncodeError as error:  # surrogates: bytes that are not UTF-8, or half of a pair in JSON
            raise DataError(f"{where}: not UTF-8; correct it") from error
        return text


def _number(text: str) -> float | None:
    """The number that a cell spells, or None."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _list(text: str) -> list[Any] | None:
    """The list that a cell spells, as JSON or as Python writes it; None if it does not spell one."""
    if text[:1] != "[" or text[-1:] != "]":
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            items = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(items, list):
            return items
    return None
