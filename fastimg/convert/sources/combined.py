"""Several sources as one, and classes of one dataset by the names of another."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastimg.errors import UsageError
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.errors import DataError
from fastimg.wording import plural

from .samples import Entries, Source


def combine(sources: Sequence[Source]) -> Source:
    """The samples of all sources, one after the other in each split; classes of one name are one class.

    Raises UsageError where some are images and some texts, DataError where labels cannot be matched.
    """
    first, *others = sources
    for other in others:
        if other.content != first.content:
            raise UsageError(
                f"{first.src} holds {samples_of(first.content)} and {other.src} {samples_of(other.content)}: a "
                "dataset holds only one kind; convert them one by one"
            )
        first = _joined(first, onto(other, first.classes, first.named))
    return replace(first, src=Path(" + ".join(str(source.src) for source in sources)))


def onto(source: Source, classes: Sequence[str], named: bool) -> Source:
    """The source with `classes` before those that it alone has. Raises DataError where labels cannot be matched.

    Labels of a source that names no classes are numbers of the classes that are named.
    """
    if source.named == named:
        union = [*classes, *(name for name in source.classes if name not in set(classes))]
        if not named:
            union = [str(at) for at in range(max(len(classes), len(source.classes)))]
        index = {name: at for at, name in enumerate(union)}
        table = np.array([index[name] for name in source.classes], np.int64)
        return _relabelled(source, tuple(union), table)
    more, fewer = (len(classes), len(source.classes)) if named else (len(source.classes), len(classes))
    if fewer > more:
        raise DataError(
            f"{source.src}: labels are numbers up to {fewer - 1} on one side, and "
            f"{plural(more, 'class', 'has')} names on the "
            "other; convert what has no names by a manifest that gives them"
        )
    names = tuple(classes) if named else source.classes
    shown = ", ".join(f"{at} is {name}" for at, name in enumerate(names[:3]))
    remark = f"{source.src}: labels without names are taken as numbers of the classes that have one: {shown}, ..."
    return replace(source, classes=names, named=True, remarks=(*source.remarks, remark))


def _relabelled(source: Source, classes: tuple[str, ...], table: np.ndarray) -> Source:
    if (table == np.arange(len(table))).all():
        return replace(source, classes=classes)
    splits = {}
    for split, entries in source.splits.items():
        splits[split] = Entries(
            entry if entry.label < 0 else entry._replace(label=int(table[entry.label])) for entry in entries
        )
    return replace(source, classes=classes, splits=splits)


def _joined(first: Source, second: Source) -> Source:
    """Both, where the second has the classes of the first and perhaps more."""
    readers = len(first.readers)
    splits = {}
    for split in sorted(first.splits.keys() | second.splits.keys()):
        joined = splits[split] = Entries(first.splits.get(split, ()))
        for entry in second.splits.get(split, ()):
            joined.append(entry._replace(reader=entry.reader + readers))
    return Source(
        first.src,
        first.kind if first.kind == second.kind else f"{first.kind}, {second.kind}",
        second.classes,
        splits,
        first.readers + second.readers,
        ignored=first.ignored.joined(second.ignored),
        uncounted=first.uncounted + second.uncounted,
        named=second.named,
        stored=first.stored and second.stored,
        fields=tuple(sorted({*first.fields, *second.fields})),
        remarks=first.remarks + second.remarks,
        files=first.files + second.files,
        content=first.content,
        columns=first.columns + second.columns,
        from_table=first.from_table or second.from_table,
    )
