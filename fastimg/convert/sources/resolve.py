"""What a SRC argument means: a folder, a manifest, shards of any make, or a named set -> one Source."""

import os
from dataclasses import replace
from pathlib import Path

from fastimg.convert.strays import strays
from fastimg.errors import UsageError
from fastimg.loaders.containers.datasets import foreign_betons, foreign_shards, is_plain_folder, refuse_class_folder
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import Level

from .columns import SEPARATED, Columns, with_delimiter
from .containers import read_betons, read_dataset, read_tars
from .folders import read_folder
from .manifests import MANIFESTS, read_manifest
from .samples import Source
from .streams import NAMED, find_parquets, holds_images, read_named, read_parquets
from .text_manifests import holds_texts, read_texts


def is_class_folder(src: Path) -> bool:
    """Whether `src` would be read as a folder of class folders."""
    return os.path.isdir(src) and is_plain_folder(src) and not find_parquets(src)


def read_source(src: Path, columns: Columns, spool: Path, classes: Level | None = None) -> Source:
    """List what `src` names; nothing is decoded. `spool` is a folder for a temporary file where one is needed.

    `classes`: which folders name the classes of a class folder; it changes nothing for other sources.
    Raises DataError, UsageError.
    """
    text = str(src)
    if text.partition(":")[0] in NAMED and not os.path.exists(src):
        _refuse_columns(columns, f"{text} has no columns")
        return read_named(text, spool)
    if os.path.isdir(src):
        parquets = find_parquets(src)
        if parquets and not (src / "dataset.json").exists():
            _refuse_separation(columns, src)
            source = read_parquets(src, parquets, columns, spool)
            files = [file for files in parquets.values() for file in files]
            return replace(source, ignored=strays(src, files, "parquet files"))
        _refuse_columns(columns, f"{src} is a folder and has no columns")
        return _read_directory(src, classes)
    if not os.path.exists(src):
        raise DataError(f"{src}: no such file or folder, or none that you may read; check the path")
    suffix = src.suffix.lower()
    if suffix in (".tar", ".beton"):
        _refuse_columns(columns, f"{src} has no columns")
        return read_tars(src, {"train": [src]}) if suffix == ".tar" else read_betons(src, {"train": src})
    if suffix not in MANIFESTS:
        raise DataError(
            f"{src}: neither a folder, nor a manifest that ends in {', '.join(MANIFESTS)}, nor a .tar or .beton; "
            "give one of these"
        )
    if suffix in SEPARATED:
        columns = with_delimiter(src, columns)
    else:
        _refuse_separation(columns, src)
    if columns.text is None and suffix == ".parquet" and holds_images(src, columns):
        return read_parquets(src, {"train": [src]}, columns, spool)
    if holds_texts(src, columns):
        return read_texts(src, columns, spool)
    return read_manifest(src, columns)


def _read_directory(src: Path, classes: Level | None) -> Source:
    if (src / "dataset.json").exists():
        return _with_strays(read_dataset(src))
    if (src / "convert.json").exists():
        raise DataError(f"{src}: a conversion that did not finish; run the same `fastimg convert` with --resume")
    if tars := foreign_shards(src):
        refuse_class_folder(src, [tar for files in tars.values() for tar in files])
        return _with_strays(read_tars(src, tars))
    if betons := foreign_betons(src):
        refuse_class_folder(src, list(betons.values()))
        return _with_strays(read_betons(src, betons))
    return read_folder(src, classes)


def _with_strays(source: Source) -> Source:
    """A folder of shards, and what else lies in it."""
    return replace(source, ignored=strays(source.src, source.files))


def _refuse_separation(columns: Columns, src: Path) -> None:
    """Refuse flags that are about csv and tsv alone."""
    if columns.delimiter is not None:
        raise UsageError(f"--delimiter: no character separates the columns of {src}; leave it out")
    if columns.no_header:
        raise UsageError(f"--no-header: the columns of {src} have names; leave it out")


def _refuse_columns(columns: Columns, reason: str) -> None:
    if columns.given():
        raise UsageError(f"{', '.join(columns.given())}: {reason}; leave it out, or give a manifest")
