"""Tables without a column of labels, in which each class has a column of 0 and 1.

Where every row has exactly one 1, the names of these columns are the classes. Otherwise they are the labels of a target
that may have several, as they also describe what is in an image.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.convert.sources.columns import LABEL_COLUMNS, AskedTarget, Columns
from fastimg.convert.sources.samples import Row
from fastimg.convert.sources.tables import Rows
from fastimg.wording import plural, shortened

_CLASS, _LABELS = "label", "labels"  # the column that stands for the others
_TRUTH = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
_FEWEST = 2


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

    Two columns of 0 and 1 at least are needed: a single one may be anything.
    """
    candidates = list(names)
    usual = {name.strip().lower() for name in candidates} & {*LABEL_COLUMNS, _LABELS}
    if columns.label is not None or columns.targets or columns.fields or usual or len(candidates) < _FEWEST:
        return None
    patterns = Counter(_truths(rows, candidates))
    chosen = [name for place, name in enumerate(candidates) if all(truths[place] is not None for truths in patterns)]
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


def _truths(rows: Rows, names: Sequence[str]) -> Iterator[tuple[bool | None, ...]]:
    """What the columns say in each row, up to the first row in which fewer than two hold 0 or 1."""
    for _, row in rows:
        truths = tuple(_truth(row.get(name)) for name in names)
        yield truths
        if sum(truth is not None for truth in truths) < _FEWEST:
            return


def _truth(value: Any) -> bool | None:
    """What a cell of 0 or 1 says; None for any other."""
    return _TRUTH.get(str(value).strip().lower())
