"""Sources that are read once from front to back: Parquet files with images in them, and named datasets.

Their images are written in order to an unnamed temporary file, and read from there in any order and from any thread.
Memory holds only the listing and what is being read: some rows of a Parquet file, or one image of a named dataset.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastimg.convert.annotations.cells import FieldCells
from fastimg.convert.annotations.reader import GIVEN, FieldsReader
from fastimg.loaders.containers.targets import Target
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.wording import agreeing, plural

from .columns import Columns
from .labels import Labels, number_classes
from .manifests import respelled_in
from .named_sets import SETS, open_set
from .samples import Entries, Source, SourceEntry
from .spools import Spool, SpoolReader
from .targets import TargetCells

if TYPE_CHECKING:
    from .image_parquets import ImageRow, ParquetPath  # brings pyarrow

NAMED = tuple(SETS)

Tick = Callable[[int], None]  # called with the number of images read since the last call


def read_named(text: str, spool: Path, tick: Tick | None = None) -> Source:
    """List `torchvision:NAME` or `sklearn:digits`, downloading it if it is missing.

    `spool` is the folder for a temporary file. Raises DataError, UsageError, and OSError if that folder is full.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(Spool(spool)))
        reader = SpoolReader(file, text)
        classes: tuple[str, ...] | None = None
        splits: dict[str, Entries] = {}
        remarks = []
        for part in open_set(text):
            classes = classes or part.classes
            remarks += [f"{text}: {part.remark}"] if part.remark else []
            entries = splits[part.split] = Entries()
            for key, image, label in part.samples:
                entries.append(reader.add(SourceEntry(key, label, 0), image, {}, {}))
                if tick:
                    tick(1)
        file.flush()
        _check_filled(text, splits, (), trains=True)
        top = max(int(entries.labels.max(initial=-1)) for entries in splits.values())
        named = classes is not None and top < len(classes)
        names = classes if classes is not None and named else tuple(map(str, range(top + 1)))
        source = _source(Path(text), text, names, splits, (reader,), named=named, remarks=remarks)
        stack.pop_all()
    return source


def read_parquets(
    src: Path,
    files: Mapping[str, "Sequence[ParquetPath]"],
    columns: Columns,
    spool: Path,
    tick: Tick | None = None,
    *,
    features: Mapping[str, Any] | None = None,
) -> Source:
    """List Parquet files with images, by split. A split column takes precedence over the names of the files.

    `spool` is the folder for a temporary file, `features` are Hugging Face's for files without metadata. Raises
    DataError, UsageError, and OSError if that folder is full.
    """
    # These bring pyarrow.
    from .image_parquets import LABELS, named_columns, read_layout, read_rows, same_layout, target_rows

    first = next(path for paths in files.values() for path in paths)
    layout = read_layout(first, columns, features)
    for path in (path for paths in files.values() for path in paths):
        same_layout(path, read_layout(path, columns, features), first, layout)
    if layout.split is None:
        _check_splits(src, files)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(Spool(spool)))
        label_cells = (
            Labels(src, layout.label, columns) if layout.label is not None and layout.classes is None else None
        )
        target_cells = None
        if columns.targets:
            rows = target_rows((path for _, paths in sorted(files.items()) for path in paths), layout)
            target_cells = TargetCells(src, columns, rows, named_columns(first, sorted(layout.targets), features))
        named_items = named_columns(first, sorted(layout.asked), features)
        field_cells = FieldCells(src, columns.fields, named_items) if columns.fields else None
        readers: list[SpoolReader] = []
        splits: dict[str, Entries] = {}
        labels: dict[str, int] = {}  # labels without names in the schema, numbered as they appear
        for split, paths in sorted(files.items()):
            for path in paths:
                place = _place(path, src)
                reader = SpoolReader(file, str(path))
                for sample in read_rows(path, layout, label_cells):
                    key = sample.key or f"{place}/{sample.row - 1:06d}"
                    text = sample.label
                    label = labels.setdefault(text, len(labels)) if isinstance(text, str) else text
                    if target_cells:
                        within = sample.split or split
                        label = target_cells.read_into(sample.extra, sample.row, sample.targets, within)
                    entry = SourceEntry(key, label, 0, sample.row, reader=len(readers))
                    splits.setdefault(sample.split or split, Entries()).append(
                        _added(reader, entry, sample, field_cells, path)
                    )
                    if tick:
                        tick(1)
                readers.append(reader)
        file.flush()
        _check_filled(src, splits, () if layout.split else files, columns.trains)
        remarks = list(label_cells.judged()) if label_cells else []
        classes, numbers = layout.classes or (), None
        if layout.classes is None:
            classes, numbers = number_classes(list(labels), None in columns.as_written)
        if target_cells:
            classes, numbers = target_cells.classes, None
            remarks += target_cells.judged()
        if numbers is not None:
            for entries in splits.values():
                entries.relabel(numbers)
            if columns.trains:
                _check_trained(splits, classes, readers)
        if layout.label is None and not target_cells:
            remarks = [
                f"{src}: no label column ({', '.join(LABELS)}); if it has one, name it with --label-column; if each "
                "class has a column of 0 and 1, each can be a target: --target NAME:class"
            ]
        splits = dict(sorted(splits.items()))
        named = layout.label is not None or target_cells is not None
        targets = target_cells.targets if target_cells else ()
        source = _source(src, "parquet", classes, splits, tuple(readers), named=named, remarks=remarks, targets=targets)
        respelled = respelled_in(label_cells, target_cells)
        source = replace(source, from_table=label_cells is not None, respelled=respelled)
        source = _with_fields(source, field_cells, columns, readers) if field_cells else source
        stack.pop_all()
    return source


def _added(
    reader: SpoolReader, entry: SourceEntry, sample: "ImageRow", cells: FieldCells | None, file: "ParquetPath"
) -> SourceEntry:
    """Store a sample of `file` with the files of its fields, whose other values go to its entry. Raises DataError."""
    if cells is None:
        return reader.add(entry, sample.image, sample.extra, sample.fields, sample.fault)
    given, inside = cells.read(sample.extra, sample.row, sample.cells, file if isinstance(file, Path) else None)
    members = {cells.member(name): content for name, content in inside.items()}
    entry = reader.add(entry, sample.image, sample.extra, {**sample.fields, **members}, sample.fault)
    return entry._replace(extra={**(entry.extra or {}), GIVEN: given})


def _with_fields(source: Source, cells: FieldCells, columns: Columns, readers: Iterable[SpoolReader]) -> Source:
    """The source with the fields that --field names. Raises DataError."""
    schemas, remarks = cells.decided()
    styles = {field.name: field.kind for field in columns.fields}
    members = (schema.member for schema in schemas if schema.member)
    return replace(
        source,
        readers=tuple(FieldsReader(reader, Path(reader.where).parent, schemas, styles) for reader in readers),
        remarks=(*source.remarks, *remarks),
        fields=tuple(sorted({*source.fields, *members})),
        stored_fields=schemas,
    )


def _place(path: "ParquetPath", src: Path) -> str:
    """A file's path in its source."""
    if not isinstance(path, Path):
        return path.path
    return src.name if path == src else str(path.relative_to(src))


def _check_splits(src: Path, files: Mapping[str, object]) -> None:
    known = sorted(set(SPLIT_FOLDERS.values()))
    if unknown := sorted(set(files) - set(known)):
        raise DataError(
            f"{src}: {', '.join(unknown)}: not among the known splits ({', '.join(known)}); rename or move these files"
        )


def _check_filled(src: Path | str, splits: Mapping[str, Entries], expected: Iterable[str], trains: bool) -> None:
    """Check that every split has rows, and if the source `trains` that one of them is train."""
    if not splits:
        raise DataError(f"{src}: no rows; give one row per image")
    if empty := sorted(set(expected) - set(splits)):
        raise DataError(f"{src}: no rows in the files of {', '.join(empty)}; remove these files")
    if trains and "train" not in splits:
        raise DataError(f"{src}: no training split; it has {', '.join(sorted(splits))}")


def _check_trained(splits: Mapping[str, Entries], classes: tuple[str, ...], readers: list[SpoolReader]) -> None:
    """Check that the training split has every class that another split has."""
    trained = {-1, *splits["train"].labels.tolist()}  # rows without a label are skipped later
    for split, entries in splits.items():
        lacking = np.flatnonzero(~np.isin(entries.labels, list(trained)))
        if len(lacking):
            entry = entries[int(lacking[0])]
            raise DataError(
                f"{readers[entry.reader].name(entry)}: the training split has no class {classes[entry.label]!r}, which "
                f"{split} has; add it there or drop the row"
            )


def _source(
    src: Path,
    kind: str,
    classes: tuple[str, ...],
    splits: dict[str, Entries],
    readers: tuple[SpoolReader, ...],
    *,
    named: bool,
    remarks: list[str],
    targets: tuple[Target, ...] = (),
) -> Source:
    """Build the source. If classes lack training images, or images lack labels, it is treated as a stored dataset."""
    gaps = []
    for split, entries in splits.items():
        missing = int(((entries.labels < 0) & (entries.sizes >= 0)).sum())  # the others are skipped
        if missing and not targets:
            gaps.append(
                f"{src}: {missing:,} of {plural(len(entries), 'image')} of {split} {agreeing(missing, 'has')} no label"
            )
    trained = set(splits["train"].labels.tolist()) if "train" in splits else set(range(len(classes)))
    if untrained := [name for label, name in enumerate(classes) if label not in trained]:
        shown = ", ".join(untrained[:5]) + (", ..." if len(untrained) > 5 else "")
        gaps.append(
            f"{src}: {len(untrained):,} of {plural(len(classes), 'class')} {agreeing(len(untrained), 'has')} no "
            f"training image ({shown})"
        )
    if gaps:
        gaps.append(f"{src}: the images keep their order, unless --shuffle is given")
    fields = tuple(sorted({field for reader in readers for field in reader.fields}))
    return Source(
        src,
        kind,
        classes,
        splits,
        readers,
        named=named,
        stored=bool(gaps),
        fields=fields,
        remarks=(*remarks, *gaps),
        targets=targets,
    )
