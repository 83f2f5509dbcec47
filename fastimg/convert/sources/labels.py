"""Turn the labels of a table into classes, and check that they look like classes.

The classes of folders, tars and .beton files were chosen by someone. A column of a table may hold anything, and each
distinct value would silently become a class. So identifiers, measurements and lists of labels are refused unless the
user states that they are classes.
"""

import json
import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.errors import DataError
from fastimg.wording import plural, shortened

from .columns import Columns
from .samples import Source

FLAG = "--labels-are-classes"

# A class with a single image cannot be used for both training and validation. So in a dataset made for classification,
# most images share their class with another one, however fine the classes are. Fewer than 20 rows may be a first trial.
_MIN_ROWS = 20
_MAX_UNIQUE_SHARE = 0.5  # of the rows
_MIN_LISTED_SHARE = 0.1  # below, they may be names that happen to contain a separator
_MIN_NUMBER_SHARE = 0.9  # the rest may stand for missing values

_REMEDY = f"name the column of classes with --label-column, or make each different label a class with {FLAG}"

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_WHOLE = re.compile(r"([+-]?[0-9]{1,4000})(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
_SEPARATED = re.compile(r"[^\s|;,](?:\s*[|;]\s*|,)[^\s|;,]")  # names may contain a comma with a space
_SPACED_NUMBERS = re.compile(r"[0-9]+(?: +[0-9]+)+")
_MISSING = frozenset(
    ("nan", "none", "null", "na", "n/a", "?")
)  # a class of this name may be a gap, as pandas writes it
_MIN_RECURRING_SHARE = 0.9  # of what would be lists; the rest may be misspelt


class Labels:
    """Reads the labels of one column row by row, then checks that they look like classes.

    `names` are those that a schema gives to the numbers of the column: the classes.
    """

    def __init__(self, src: Path, column: str, columns: Columns, names: tuple[str, ...] | None = None) -> None:
        self._src = src
        self._column = column
        self.names = names
        self._accepted = columns.labels_are_classes
        self._known = columns.known_classes
        self._as_written = None in columns.as_written
        self._counts: Counter[str] = Counter()
        self._trimmed = 0
        self._first_trimmed = ""

    def is_missing(self, value: Any) -> bool:
        """Whether a cell has no label, which Hugging Face writes as -1 among the numbers of classes with names."""
        return is_empty(value) or (self.names is not None and value == -1)

    def read(self, where: str, value: Any) -> str:
        """Read the label in a cell. Raises DataError if it is empty, no class of the schema, or of another type."""
        label = sys.intern(self._text(where, value))
        if self.names is not None:
            number = int(label) if _INTEGER.fullmatch(label) else -1
            if not 0 <= number < len(self.names):
                raise DataError(
                    f"{where}: the label {label} in column {self._column!r} is not one of the "
                    f"{plural(len(self.names), 'class')} that the schema names; correct it or drop the row"
                )
            label = self.names[number]
        if isinstance(value, str) and value != label:
            self._trimmed += 1
            self._first_trimmed = self._first_trimmed or value
        self._counts[label] += 1
        return label

    def judged(self) -> tuple[str, ...]:
        """Return remarks for the user. Raises DataError if the labels do not look like classes.

        Classes of the dataset being appended to are always accepted, and so is everything with --labels-are-classes.
        """
        if not self._counts:
            raise DataError(f"{self._src}: every label in column {self._column!r} is empty; fill them in")
        if self.names is not None:
            return ()
        what = f"{self._src}: the labels in column {self._column!r}"
        unknown = {label: count for label, count in self._counts.items() if label not in self._known}
        rows = self._counts.total()
        fault = look_like_lists(unknown, rows) or _fractions(unknown, rows) or look_unique(unknown, rows)
        if fault and not self._accepted:
            several = f"learn several labels with --target {self._column}:multilabel --label-delimiter ' ', "
            raise DataError(f"{what} {fault}; {several if lists_by(' ', unknown) else ''}{_REMEDY}")
        remarks = []
        if fault:
            remarks.append(f"{what} {fault}; {FLAG} makes a class of each of {len(self._counts):,} different ones")
        elif self._accepted:
            remarks.append(f"{what} look like classes: {FLAG} changes nothing")
        if self._trimmed:
            remarks.append(
                f"{what} lose the blanks around them in {plural(self._trimmed, 'row')}, as in {self._first_trimmed!r}"
            )
        remarks += [f"{what} {remark}" for remark in naming_remarks(self._counts, self._as_written)]
        return tuple(remarks)

    def respelled(self) -> frozenset[None]:
        """What Source.respelled says of the labels."""
        changed = self.names is None and respelled(self._counts, self._as_written)
        return frozenset((None,)) if changed else frozenset()

    def numbered(self, labels: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
        """Class names, and the class index of each label; in the order of the schema, if it has names."""
        if self.names is None:
            return number_classes(labels, self._as_written)
        used = set(labels)
        classes = tuple(name for name in self.names if name in used)
        places = {name: place for place, name in enumerate(classes)}
        return classes, np.array([places[label] for label in labels], np.int64)

    def _text(self, where: str, value: Any) -> str:
        if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
            value = int(value)  # pandas turns integers into floats if one is missing
        if is_empty(value):
            raise DataError(f"{where}: the label in column {self._column!r} is empty; fill it in or drop the row")
        if isinstance(value, str | int):
            return str(value).strip()
        shown = f"{where}: the label {shortened(str(value), 40)} in column {self._column!r} is"
        if isinstance(value, bytes):
            raise DataError(f"{shown} neither a string nor an integer; name another column with --label-column")
        if not self._accepted:
            kinds = ((float, "not a whole number"), (list, "a list, not one class"), (dict, "an object, not a class"))
            what = next(
                (reason for kind, reason in kinds if isinstance(value, kind)), "neither a string nor an integer"
            )
            raise DataError(f"{shown} {what}; {_REMEDY}")
        return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def is_empty(value: Any) -> bool:
    """Whether a cell has no label: null, NaN, or blanks only."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip()


def number_classes(labels: Sequence[str], as_written: bool = False) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Class names, and the class index of each label. Names are sorted, as integers if all labels are whole numbers."""
    names = class_names(set(labels), as_written)
    numbers = whole_numbers(names.values())
    classes = tuple(sorted(set(names.values()), key=lambda name: (numbers.get(name, 0), name)))
    places = {name: place for place, name in enumerate(classes)}
    index = {label: places[name] for label, name in names.items()}
    return classes, np.array([index[label] for label in labels], np.int64)


def class_names(labels: Collection[str], as_written: bool = False) -> dict[str, str]:
    """The name of each label's class.

    If all are whole numbers, they are named as such, 007 and 7.0 as 7, unless they are classes `as_written`. Labels
    that look alike, as their accents are composed in one (NFC) and not in the other (NFD), are one class.
    """
    if numbers := whole_numbers(labels):
        return {label: label if as_written else str(numbers[label]) for label in labels}
    composed = {label: unicodedata.normalize("NFC", label) for label in labels}
    forms = Counter(composed.values())
    return {label: name if forms[name] > 1 else label for label, name in composed.items()}


def whole_numbers(labels: Iterable[str]) -> dict[str, int]:
    """The integer that each label is, 7, 007 and 7.0 alike; empty unless all are whole numbers."""
    found = {label: _WHOLE.fullmatch(label) for label in labels}
    return {label: int(match[1]) for label, match in found.items() if match} if all(found.values()) else {}


def respelled(labels: Iterable[str], as_written: bool = False) -> list[str]:
    """The whole numbers that `number_classes` names otherwise than they are written, sorted."""
    numbers = {} if as_written else whole_numbers(set(labels))
    return sorted(label for label, number in numbers.items() if str(number) != label)


def naming_remarks(labels: Iterable[str], as_written: bool = False) -> list[str]:
    """What to say of labels that `number_classes` names otherwise than they are written, after what they are."""
    names = class_names(set(labels), as_written)
    changed = sorted(label for label, name in names.items() if name != label)
    if not changed:
        return []
    first = changed[0]
    if whole_numbers(changed):
        return [f"are all integers and named as such: {first!r} is class {names[first]}"]
    count = plural(len(set(map(names.get, changed))), "class")
    return [f"look alike, but differ in the Unicode form of their accents, in {count}: {first!a} is {names[first]!r}"]


def beside_names(classes: Iterable[str]) -> bool:
    """Whether integers that are added to these classes are classes as they are written, 007 apart from 7.

    They are numbers if these have integers, too, that are written as numbers are named.
    """
    names = set(classes)
    integers = set(filter(_INTEGER.fullmatch, names))
    return any(str(int(integer)) != integer for integer in integers) or bool(names and not integers)


def joined_classes(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """The classes of `first`, and then those that only `second` has."""
    known = set(first)
    return (*first, *(name for name in second if name not in known))


def class_remarks(source: Source) -> list[str]:
    """Remarks on classes, of any source, that are probably a mistake."""
    remarks = []
    if len(source.classes) == 1 and len(source.targets) < 2:
        remarks.append(
            f"{source.src}: there is only one class, {source.classes[0]!r}; `train` refuses such a dataset, which has "
            "nothing to tell apart"
        )
    numbers = [name for name in source.classes if _WHOLE.fullmatch(name)]
    others = [name for name in source.classes if name not in numbers]
    doubtful = [name for name in others if name.lower() in _MISSING] if len(numbers) + 1 == len(source.classes) else []
    doubtful += ["-1"] if "-1" in numbers and not others and min(map(_whole, numbers)) == -1 else []
    for name in doubtful if source.named else ():
        remarks.append(
            f"{source.src}: {name!r} is a class, beside {plural(len(source.classes) - 1, 'class')} that are numbers; "
            "if it says that a label is missing, leave that cell empty, or drop the row"
        )
    remarks += _untrained(source)
    alike: dict[str, list[str]] = {}
    for name in source.classes:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).split()).casefold(), []).append(name)
    groups = [names for names in alike.values() if len(names) > 1]
    if groups:
        shown = "; ".join(" and ".join(map(repr, names)) for names in groups[:3])
        shown += f"; and {len(groups) - 3:,} more" if len(groups) > 3 else ""
        remarks.append(
            f"{source.src}: classes that differ only in upper and lower case, spaces or Unicode forms stay apart: "
            f"{shown}; write them alike if they are the same"
        )
    return remarks


def _whole(name: str) -> int:
    return int(name.partition(".")[0])


def _untrained(source: Source) -> list[str]:
    """Say which classes only other splits than the training one have, of sources that may have such: shards."""
    if source.kind not in ("tar", "beton") or "train" not in source.splits:  # other sources are refused, or say it
        return []
    trained = source.splits["train"].labels
    remarks = []
    for split, entries in source.splits.items():
        lacking = np.setdiff1d(entries.labels[entries.labels >= 0], trained)
        if len(lacking):
            names = ", ".join(repr(source.classes[label]) for label in lacking[:5].tolist())
            remarks.append(
                f"{source.src}: {split} has {plural(len(lacking), 'class')} that no sample of train has ({names}"
                f"{', ...' if len(lacking) > 5 else ''})"
            )
    return remarks


def look_like_lists(counts: Mapping[str, int], rows: int) -> str:
    """Say why labels look like lists; empty if they do not."""
    tight = {name for name in counts if _bracketed(name) or _SEPARATED.search(name)}
    tight = {name for name in tight if not _NUMBER.fullmatch(name)} | set(filter(_SPACED_NUMBERS.fullmatch, counts))
    spaced = lists_by(" ", counts)
    listed = tight | _recurring(counts) | spaced
    compound = bool(spaced) or any(_of_labels(name, counts) for name in tight)
    count = sum(counts[name] for name in listed)
    if not listed or (count < _MIN_LISTED_SHARE * rows and not compound):
        return ""
    return f"look like lists in {count:,} of {plural(rows, 'row')}, such as {_examples(listed)}: a sample has one class"


def lists_by(delimiter: str, names: Collection[str], known: Collection[str] = ()) -> set[str]:
    """Those of `names` that `delimiter` splits into other labels; empty if they look like names that contain it.

    They are lists if at least half of them consist of labels that also stand alone (`scab`, `rust`, `scab rust`), here
    or among the `known` ones. They also are if nine tenths consist of parts that recur, and there are no more parts
    than names. Then, with a space, a third of the parts must be both first and behind another part: in names (`golden
    retriever`, `car front`, `car rear`) a word keeps its place.
    """
    decimal = delimiter == ","  # as in 0,5
    every = {name: separated(name, delimiter) for name in {*names, *known} if not (decimal and _NUMBER.fullmatch(name))}
    several = {name for name in names if len(every.get(name, ())) > 1}
    if not several:
        return set()
    seen = Counter(part for parts in every.values() for part in set(parts))
    alone = {parts[0] for parts in every.values() if len(parts) == 1}
    if 2 * sum(alone.issuperset(every[name]) for name in several) >= len(several):
        return several
    recurring = sum(all(seen[part] > 1 for part in every[name]) for name in several)
    if recurring < _MIN_RECURRING_SHARE * len(several) or len(seen) > len(every):
        return set()
    behind = {part for name in several for part in every[name][1:]}
    moving = behind & {every[name][0] for name in several}
    return several if delimiter.strip() or 3 * len(moving) >= len(seen) else set()


def separated(name: str, delimiter: str) -> list[str]:
    """The labels in a cell, without the blanks around them."""
    return [part for label in name.split(delimiter) if (part := label.strip())]


def _bracketed(name: str) -> bool:
    """Whether a label is a list or an object as JSON, Python or NumPy writes it. `[unknown]` is not."""
    if (name[0], name[-1]) not in (("[", "]"), ("{", "}"), ("(", ")")):
        return False
    inside = name[1:-1].strip()
    if name[0] == "[":
        return any(mark in inside for mark in ",\"'") or not inside.strip("0123456789. \n")
    return inside[:1] in ("'", '"')


def _of_labels(name: str, labels: Collection[str]) -> bool:
    """Whether a label is a list of other labels."""
    parts = re.split(r"\s*[|;,]\s*", name)
    return len(parts) > 1 and all(part in labels for part in parts)


def _recurring(names: Iterable[str]) -> set[str]:
    """Names of several parts, separated by commas and spaces, that all occur in other names too, as in lists."""
    parts = {name: set(re.split(r", +", name)) for name in names}
    seen: dict[str, int] = {}
    for several in parts.values():
        for part in several:
            seen[part] = seen.get(part, 0) + 1
    return {name for name, several in parts.items() if len(several) > 1 and all(seen[part] > 1 for part in several)}


def _fractions(counts: Mapping[str, int], rows: int) -> str:
    """Say why labels look like measurements; empty if they do not."""
    numbers = [name for name in counts if _NUMBER.fullmatch(name)]
    fractions = [name for name in numbers if not float(name.replace(",", ".")).is_integer()]
    if not fractions or sum(counts[name] for name in numbers) < _MIN_NUMBER_SHARE * rows:
        return ""
    return f"look like numbers with fractions, such as {_examples(fractions)}, not like classes"


def look_unique(counts: Mapping[str, int], rows: int) -> str:
    """Say why labels look like identifiers; empty if they do not."""
    once = [name for name, count in counts.items() if count == 1]
    if rows < _MIN_ROWS or len(once) <= _MAX_UNIQUE_SHARE * rows:
        return ""
    share = f"{len(once):,} of {plural(rows, 'row')} have a label that no other row has"
    return f"look like identifiers, not like classes: {share}, such as {_examples(once)}"


def _examples(names: Iterable[str]) -> str:
    return ", ".join(repr(shortened(name, 40)) for name in sorted(names)[:3])
