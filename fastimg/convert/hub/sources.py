"""A dataset of the hub as a source of images, or of texts."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastimg.convert.pairs import INPUTS
from fastimg.convert.sources.columns import SPLIT_COLUMNS, TEXT_COLUMNS, Columns, find_column, lower
from fastimg.convert.sources.labels import is_empty
from fastimg.convert.sources.samples import Original, Source, SourceEntry, SourceReader, WrappingReader
from fastimg.convert.sources.streams import read_parquets
from fastimg.convert.sources.tables import readable
from fastimg.convert.sources.text_manifests import read_texts
from fastimg.loaders.captions.positions import FIELD
from fastimg.loaders.errors import DataError

from .ranges import HubFile
from .reference import parse_reference
from .repository import HubDataset, open_repository

if TYPE_CHECKING:
    import pyarrow as pa


def read_hub(src: Path, columns: Columns, spool: Path) -> Source:
    """List `hf://datasets/USER/NAME[:config][@revision]`, while its parquet files are read, at one commit.

    Images and texts go to an unnamed temporary file in the folder `spool`, as those of any parquet file. The source's
    kind is the reference with the commit. Raises UsageError, UserError, DataError, and OSError if that folder is full.
    """
    dataset = open_repository(parse_reference(src))
    names = list(_schema(next(file for files in dataset.splits.values() for file in files)).names)
    of_texts = columns.path is None and (columns.text is not None or bool(lower(names) & set(TEXT_COLUMNS)))
    if of_texts and not _has_image(dataset, columns):
        source = _texts(dataset, columns, spool)
    else:
        src = Path(str(dataset.reference))
        if columns.text is not None:
            find_column(src, names, columns.text, (), "text")
        source = read_parquets(src, dataset.splits, columns, spool, features=dataset.features)
        if columns.text is not None:
            source = _with_texts(source, columns.text)
    return replace(source, kind=str(dataset.reference), remarks=(*dataset.remarks, *source.remarks))


class TextBesideReader(WrappingReader):
    """Reads images whose texts are in a column of their notes, with these as fields."""

    def __init__(self, reader: SourceReader, column: str) -> None:
        super().__init__(reader)
        self._column = column

    def read(self, entry: SourceEntry) -> Original:
        """See SourceReader."""
        original = self.reader.read(entry)
        note = json.loads(original.note)
        text = note.pop(self._column, None)
        fields = original.fields if is_empty(text) else {**original.fields, FIELD: str(text).encode()}
        return original._replace(note=json.dumps(note).encode(), fields=fields)


def _with_texts(source: Source, column: str) -> Source:
    """Images with the texts of a column beside them."""
    readers = tuple(TextBesideReader(reader, column) for reader in source.readers)
    said = f"{source.src}: text from column {column!r}"
    return replace(source, readers=readers, fields=(*source.fields, FIELD), inputs=INPUTS, columns=(said,))


def _has_image(dataset: HubDataset, columns: Columns) -> bool:
    from fastimg.convert.sources.image_parquets import read_layout

    first = next(file for files in dataset.splits.values() for file in files)
    try:
        read_layout(first, replace(columns, targets=(), label=None, split=None), dataset.features)
    except DataError:
        return False
    return True


def _schema(file: HubFile) -> "pa.Schema":
    import pyarrow.parquet as pq

    with readable(file), file.open() as opened:
        return pq.read_schema(opened)


def _texts(dataset: HubDataset, columns: Columns, spool: Path) -> Source:
    """The texts of all files, by way of one parquet file with a column of splits, which is deleted at once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    reference = dataset.reference
    folder = next(path for path in (spool.absolute(), *spool.absolute().parents) if path.is_dir())
    first = next(file for files in dataset.splits.values() for file in files)
    schema = _with_features(_schema(first), dataset.features)
    split = next((name for name in schema.names if name.strip().lower() in SPLIT_COLUMNS), None)
    add_split = columns.split is None and split is None
    whole = schema.append(pa.field("split", pa.string())) if add_split else schema
    with tempfile.TemporaryDirectory(prefix=".fastimg-", dir=folder) as temporary:
        table = Path(temporary) / f"{reference.repository.rpartition('/')[2]}.parquet"
        with pq.ParquetWriter(table, whole) as writer:
            for name, batch in _batches(dataset, schema):
                values = [*batch.columns, pa.array([name] * len(batch), pa.string())] if add_split else batch.columns
                writer.write_batch(pa.RecordBatch.from_arrays(values, schema=whole))
        try:
            source = read_texts(table, columns, spool)
        except DataError as error:
            raise DataError(str(error).replace(str(table), str(reference))) from error
    return replace(
        source,
        src=Path(str(reference)),
        remarks=tuple(remark.replace(str(table), str(reference)) for remark in source.remarks),
        columns=tuple(said.replace(str(table), str(reference)) for said in source.columns),
    )


def _batches(dataset: HubDataset, schema: "pa.Schema") -> Iterator[tuple[str, Any]]:
    """The rows of all files with their split, as pyarrow's batches. Raises DataError if columns differ."""
    import pyarrow.parquet as pq

    for split, files in sorted(dataset.splits.items()):
        for file in files:
            with readable(file), file.open() as opened, pq.ParquetFile(opened) as parquet:
                if not parquet.schema_arrow.equals(schema):
                    raise DataError(
                        f"{file}: its columns differ from those of the first file; choose a configuration whose files "
                        "agree"
                    )
                for batch in parquet.iter_batches():
                    yield split, batch


def _with_features(schema: "pa.Schema", features: Mapping[str, Any]) -> "pa.Schema":
    """The schema, with the card's features where it has none of its own."""
    if not features or b"huggingface" in (schema.metadata or {}):
        return schema
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
