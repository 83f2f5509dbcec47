"""Combine several sources into one, and map the classes of one dataset onto those of another."""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastimg.errors import UsageError
from fastimg.loaders.containers.content import samples_of
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.containers.targets import LABEL, Target, first_class
from fastimg.loaders.errors import DataError
from fastimg.wording import plural, shortened

from .labels import beside_names, joined_classes
from .samples import Entries, Source


def combine(sources: Sequence[Source]) -> Source:
    """Concatenate all sources within each split; classes with the same name are merged.

    Raises UsageError if images and texts are mixed, and DataError if labels cannot be matched.
    """
    first, *others = sources
    for other in others:
        if other.content != first.content:
            raise UsageError(
                f"{first.src} holds {samples_of(first.content)} and {other.src} {samples_of(other.content)}: a "
                "dataset holds only one kind; convert them separately"
            )
        side = Side.of_base(first.classes, first.named, first.targets, first.stored_fields)
        first = _joined(first, onto(other, side))
    return replace(first, src=Path(" + ".join(str(source.src) for source in sources)))


Written = frozenset[str | None]  # targets, or None for labels, whose integers keep their zeros


def read_together(srcs: Sequence[Path], read: "Callable[[Path, Written], Source]", base: "Side | None") -> Source:
    """Read sources and combine them, to be added to a `base` if there is one.

    Whether 007 is the class 7 is decided by the classes of all, so that a table of integers may have to be read again.
    Raises what `read` and `combine` raise.
    """
    added = _beside(base.classes, base.targets) if base else frozenset()
    sources = [read(src, added) for src in srcs]
    for place, source in enumerate(sources):
        written = frozenset(name for name in source.respelled if beside_names(_classes_beside(source, name, sources)))
        if written:
            source.close()
            sources[place] = replace(read(srcs[place], written), respelled=source.respelled)
    return combine(sources)


def _beside(classes: Iterable[str], targets: Iterable[Target]) -> Written:
    """The targets, and None for the labels, whose integers are written as names are."""
    names = {target.name for target in targets if beside_names(target.classes)}
    return frozenset((*names, None)) if beside_names(classes) else frozenset(names)


def _classes_beside(source: Source, name: str | None, sources: Iterable[Source]) -> list[str]:
    """The classes of a target, or of the labels, in other sources, except those that are integers of a table, too."""
    own = first_class(source.targets)
    found: list[str] = []
    for other in sources:
        theirs = first_class(other.targets)
        if name is None or (own is not None and name == own.name):
            if not other.respelled & {None, theirs.name if theirs else None}:
                found += other.classes
        elif name not in other.respelled:
            found += (label for target in other.targets if target.name == name for label in target.classes)
    return found


class Side(NamedTuple):
    """What samples are added to: its classes, whether they have names, and its targets, if it declares any."""

    classes: tuple[str, ...]
    named: bool
    targets: tuple[Target, ...]
    fields: tuple[StoredField, ...] = ()  # that its samples have

    @classmethod
    def of_base(
        cls, classes: Iterable[str], named: bool, targets: Iterable[Target], fields: Iterable[StoredField] = ()
    ) -> "Side":
        """A side of any sequences."""
        return cls(tuple(classes), named, tuple(targets), tuple(fields))


def onto(source: Source, side: Side) -> Source:
    """Match the source's classes and targets to those of the `side` that it is added to.

    Raises DataError if they do not go together.
    """
    matched = _onto_classes(source, side.classes, side.named)
    matched = replace(matched, stored_fields=joined_fields(source, side.fields))
    if not (source.targets or side.targets):
        return matched
    before, after = _stated(side.targets, side.classes), _stated(source.targets, source.classes)
    own, others = first_class(before), first_class(after)
    if own and others and own.name != others.name:
        if not side.targets:  # classes without a name of their own are those of the first class target
            before = (replace(own, name=others.name),)
        elif not source.targets:
            after = (replace(others, name=own.name),)
        else:
            raise DataError(
                f"{source.src}: its first class is {others.name!r} and that of the other side {own.name!r}; declare "
                "the targets in the same order"
            )
    merged = {target.name: target for target in before}
    for target in after:
        known = merged.setdefault(target.name, target)
        if known.kind != target.kind:
            raise DataError(
                f"{source.src}: its target {target.name!r} is a {target.kind}, and on the other side a {known.kind}; "
                "convert it again with the other kind"
            )
        merged[target.name] = replace(known, classes=joined_classes(known.classes, target.classes))
    first = first_class(tuple(merged.values()))
    if first is not None:
        merged[first.name] = replace(first, classes=matched.classes)
    return replace(matched, targets=tuple(merged.values()))


def _stated(targets: tuple[Target, ...], classes: tuple[str, ...]) -> tuple[Target, ...]:
    """The targets of one side; its class alone if it declares none."""
    return targets or ((Target(name=LABEL, kind="class", classes=classes),) if classes else ())


def joined_fields(source: Source, others: Sequence[StoredField]) -> tuple[StoredField, ...]:
    """The fields of the other side, and then those that only the source has.

    Raises DataError if a field is not the same on both sides.
    """
    merged = {field.name: field for field in others}
    for field in source.stored_fields:
        known = merged.setdefault(field.name, field)
        mine, theirs = (_lasting(each) for each in (field, known))
        if mine != theirs:
            differing = next(key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key))
            raise DataError(
                f"{source.src}: its field {field.name!r} has the {differing} {_said(mine.get(differing))}, and on the "
                f"other side {_said(theirs.get(differing))}; a field is the same for all samples of a dataset"
            )
    return tuple(merged.values())


def _lasting(field: StoredField) -> dict[str, Any]:
    """What is the same for all samples of a field; the rest is counted."""
    counted = ("longest", "optional", *(("dtype",) if field.geometry == "mask" else ()))
    return {key: value for key, value in field.to_json().items() if key not in counted}


def _said(value: Any) -> str:
    return shortened(str(value), 60) if value is not None else "none"


def _onto_classes(source: Source, classes: Sequence[str], named: bool) -> Source:
    """Renumber the source's classes: `classes` first, then those that only the source has.

    If one side has no class names, its labels are taken as indices into the names of the other. Raises DataError if
    there are more labels than names.
    """
    if source.named == named:
        source = _spelled_as(source, classes)
        union = joined_classes(classes, source.classes)
        if not named:
            union = tuple(str(label) for label in range(max(len(classes), len(source.classes))))
        index = {name: label for label, name in enumerate(union)}
        table = np.array([index[name] for name in source.classes], np.int64)
        return _relabelled(source, union, table)
    more, fewer = (len(classes), len(source.classes)) if named else (len(source.classes), len(classes))
    if fewer > more:
        raise DataError(
            f"{source.src}: one side has unnamed labels up to {fewer - 1}, but the other names only "
            f"{plural(more, 'class')}; convert the unnamed labels with a manifest that names their classes"
        )
    names = tuple(classes) if named else source.classes
    shown = ", ".join(f"{label} is {name}" for label, name in enumerate(names[:3]))
    remark = f"{source.src}: labels without names are taken as indices of the named classes: {shown}, ..."
    return replace(source, classes=names, named=True, remarks=(*source.remarks, remark))


def _spelled_as(source: Source, classes: Iterable[str]) -> Source:
    """The source with the names of `classes` for those of its own that look alike, in another Unicode form."""
    known = {unicodedata.normalize("NFC", name): name for name in classes} | {name: name for name in classes}
    names = tuple(known.get(name, known.get(unicodedata.normalize("NFC", name), name)) for name in source.classes)
    if names == source.classes or len(set(names)) < len(names):
        return source
    first = next(pair for pair in zip(source.classes, names, strict=True) if pair[0] != pair[1])
    remark = f"{source.src}: its class {first[0]!a} is {first[1]!a}, as it looks alike in another Unicode form"
    return replace(source, classes=names, remarks=(*source.remarks, remark))


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
    """Join two sources; the second has all classes of the first, and perhaps more."""
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
        inputs=first.inputs or second.inputs,
        targets=second.targets,
        stored_fields=second.stored_fields,
        previewed=first.previewed or second.previewed,
    )
