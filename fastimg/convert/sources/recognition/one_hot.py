"""Tables without a column of labels, in which each class has a column of 0 and 1.

Where every row has exactly one 1, the names of these columns are the classes. Otherwise they are the labels of a target
that may have several, as they also describe what is in an image.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.convert.sources.columns import LABEL_COLUMNS, AskedTarget, Columns
from fastimg.convert.sources.samples import Row
from fastimg.convert.sources.tables import Rows
from fastimg.loaders.errors import DataError
from fastimg.wording import plural, shortened

_CLASS, _LABELS = "label", "labels"  # the column that stands for the others
_TRUTH = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
_FEWEST = 2
_NEARLY = 0.9  # of the rows, that have 0 or 1: the others are probably mistakes


class OneHot(NamedTuple):
    """Columns of 0 and 1 that are read as one column, `name`."""

    name: str
    columns: tuple[str, ...]
    remark: str

    def joined(self, rows: Rows) -> Rows:
        """The rows with one column in place of these: the class, or a list of labels."""
        for number, row in rows:
            found = [name for name in self.columns if _truth(row.get(name))]
            rest: Row = {name: value for name, value in row.items() if name not in self.columns}
            yield number, rest | {self.name: found[0] if self.name == _CLASS else found}

    def asked(self, columns: Columns) -> Columns:
        """What is asked for with `columns`, of the joined rows."""
        if self.name == _CLASS:
            return replace(columns, label=_CLASS)
        return replace(columns, targets=(AskedTarget(_LABELS, "multilabel"),))


def find_one_hot(src: Path, rows: Rows, columns: Columns, names: Iterable[str]) -> OneHot | None:
    """The columns of 0 and 1, of those called `names`; None if labels have a column, or there are fewer than two.

    Two columns of 0 and 1 at least are needed: a single one may be anything. Raises DataError where a few cells are
    neither.
    """
    candidates = list(names)
    usual = {name.strip().lower() for name in candidates} & {*LABEL_COLUMNS, _LABELS}
    if columns.label is not None or columns.targets or columns.fields or usual or len(candidates) < _FEWEST:
        return None
    patterns: Counter[tuple[bool | None, ...]] = Counter()
    odd: dict[str, tuple[int, Any]] = {}  # the first cell of each column that is neither 0 nor 1, with its row
    few = 0  # rows in which fewer than two columns hold 0 or 1
    for seen, (number, row) in enumerate(rows, 1):
        truths = tuple(_truth(row.get(name)) for name in candidates)
        patterns[truths] += 1
        for name, truth in zip(candidates, truths, strict=True):
            if truth is None and name not in odd:
                odd[name] = number, row.get(name)
        few += sum(truth is not None for truth in truths) < _FEWEST
        if 2 * few >= seen:
            return None
    chosen = [name for name in candidates if name not in odd]
    _refuse_nearly(src, candidates, patterns, odd, len(chosen))
    places = [candidates.index(name) for name in chosen]
    counts: Counter[int] = Counter()  # rows by how many 1 they have
    for truths, count in patterns.items():
        counts[sum(bool(truths[place]) for place in places)] += count
    if len(chosen) < _FEWEST or not counts.keys() - {0}:
        return None
    what = f"{src}: no column of labels, but {plural(len(chosen), 'column')} of 0 and 1"
    what += f" ({shortened(', '.join(chosen), 80)})"
    if counts.keys() == {1}:
        return OneHot(_CLASS, tuple(chosen), f"{what}, with one 1 in every row: they are the classes")
    several = counts.total() - counts[0] - counts[1]
    return OneHot(
        _LABELS,
        tuple(chosen),
        f"{what}, with several 1 in {several:,} of {plural(counts.total(), 'row')} and none in {counts[0]:,}: they are "
        f"the target {_LABELS!r}, of several labels; name other columns with --target or --label-column",
    )


def _refuse_nearly(
    src: Path,
    candidates: Sequence[str],
    patterns: Mapping[tuple[bool | None, ...], int],
    odd: Mapping[str, tuple[int, Any]],
    others: int,
) -> None:
    """Raise DataError for a column of 0 and 1 but for a few cells, if there are `others`, or two such columns."""
    rows = sum(patterns.values())
    nearly = [
        name
        for place, name in enumerate(candidates)
        if name in odd and sum(n for truths, n in patterns.items() if truths[place] is not None) >= _NEARLY * rows
    ]
    if nearly and len(nearly) + others >= _FEWEST:
        number, value = odd[nearly[0]]
        raise DataError(
            f"{src}: row {number}: {nearly[0]!r} is {shortened(str('' if value is None else value), 40)!r}, where "
            "other rows have 0 or 1, as in a column for each class; correct it, or name the column of labels with "
            "--label-column, or targets with --target"
        )


def _truth(value: Any) -> bool | None:
    """What a cell of 0 or 1 says; None for any other."""
    return _TRUTH.get(str(value).strip().lower())
