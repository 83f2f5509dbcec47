"""Resolve a SRC argument to a Source: a folder, a manifest, shards from any writer, or a named set."""

import os
import re
from dataclasses import replace
from pathlib import Path

from fastimg.convert.annotations.array_files import with_arrays
from fastimg.convert.annotations.coco import read_coco, read_coco_folder
from fastimg.convert.annotations.layouts import Annotations, annotations_in
from fastimg.convert.annotations.mask_folders import read_mask_folders
from fastimg.convert.annotations.voc import read_voc
from fastimg.convert.annotations.yolo import read_yolo
from fastimg.convert.hub.reference import is_hub
from fastimg.convert.hub.sources import read_hub
from fastimg.convert.pairs import holds_pairs, read_pairs
from fastimg.convert.strays import strays
from fastimg.errors import UsageError
from fastimg.loaders.containers.datasets import is_plain_folder, refuse_class_folder
from fastimg.loaders.containers.foreign import foreign_betons, foreign_shards
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.archives import archive_hint
from fastimg.loaders.folders.folder import SPLIT_FOLDERS, Level, Mapped
from fastimg.loaders.folders.folder import is_class_folder as has_class_folders
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.loaders.remote.trees import tree_of

from .columns import SEPARATED, Columns, with_delimiter
from .containers.listing import read_betons, read_dataset, read_tars
from .containers.tar_rules import USUAL, TarRules
from .folders import read_folder, waiting_mapped
from .manifests import MANIFESTS, read_manifest
from .recognition.near_files import refuse_ids
from .samples import Source
from .streams import NAMED, read_named, read_parquets
from .text_manifests import holds_texts, read_texts


def is_class_folder(src: Path) -> bool:
    """Whether `src` is read as a folder of class folders."""
    return os.path.isdir(src) and is_plain_folder(src) and not find_parquets(src) and not annotations_in(src)


def holds_foreign_tars(src: Path) -> bool:
    """Whether `src` is a tar, or a folder of tars, of another writer."""
    if os.path.isdir(src):
        return not (src / "dataset.json").exists() and bool(foreign_shards(src))
    return src.suffix.lower() == ".tar"


def read_source(
    src: Path,
    columns: Columns,
    spool: Path,
    classes: Level | None = None,
    images: Path | None = None,
    masks: bool = False,
    mapped: Mapped = waiting_mapped,
    rules: TarRules = USUAL,
) -> Source:
    """List the samples of `src` without decoding them. `spool` is the folder for a temporary file, if one is needed.

    `classes` tells which level of a class folder names the classes, `images` where the images of COCO's annotations
    are, `masks` whether COCO's and YOLO's outlines are drawn as masks, `mapped` how the folders of a class folder are
    read, see `list_folder`, and `rules` how tars of other writers are. Other sources ignore them.
    Raises DataError, UsageError.
    """
    text = str(src)
    tree = tree_of(src)
    if columns.image_field is not None:
        return _read_arrays(src, columns, columns.image_field, classes, mapped)
    if (annotated := annotations_in(src)) is not None:
        _refuse_columns(columns, f"{src} holds {annotated} annotations and has no columns")
        return _read_annotations(src, annotated, images, masks, columns.trains)
    if is_hub(src) and not os.path.exists(src):
        _refuse_separation(columns, src)
        _refuse_fields(columns, f"{src} comes from the Hub without fields; download it and give the folder")
        return read_hub(src, columns, spool)
    if _is_named(src):
        _refuse_columns(columns, f"{text} has no columns")
        return read_named(text, spool)
    if os.path.isdir(src):
        parquets = find_parquets(src, columns.trains)
        if parquets and not (src / "dataset.json").exists():
            _refuse_separation(columns, src)
            source = read_parquets(src, parquets, columns, spool)
            files = [file for files in parquets.values() for file in files]
            return replace(source, ignored=strays(src, files, "parquet files"))
        _refuse_columns(columns, f"{src} is a folder and has no columns")
        return _read_directory(src, classes, mapped, columns.trains, rules)
    refuse_absent(src)
    suffix = src.suffix.lower()
    if suffix in (".tar", ".beton"):
        _refuse_columns(columns, f"{src} has no columns")
        if suffix == ".tar":
            return read_tars(src, {"train": [src]}, rules=rules)
        return read_betons(src, {"train": src})
    if suffix not in MANIFESTS:
        raise DataError(
            f"{src}: neither a folder, nor a manifest that ends in {', '.join(MANIFESTS)}, nor a .tar or .beton; "
            "give one of these"
        )
    columns = _separated(src, columns)
    if columns.text is None and suffix == ".parquet":
        from .image_parquets import holds_images  # brings pyarrow

        if holds_images(src, columns):
            return read_parquets(src, {"train": [src]}, columns, spool)
        if tree is not None:
            tree.fetch(src)
    if columns.fields and columns.text is not None:
        raise UsageError(f"{src}: --field goes with images alone, and --text-column names texts; leave one of them out")
    refuse_ids(src, columns)
    if holds_pairs(src, columns):
        return read_pairs(src, columns)
    if not columns.fields and holds_texts(src, columns):
        return read_texts(src, columns, spool)
    return read_manifest(src, columns)


def _read_annotations(src: Path, kind: Annotations, images: Path | None, masks: bool, trains: bool) -> Source:
    match kind:
        case "COCO":
            read = read_coco_folder if src.is_dir() else read_coco
            return read(src, images, masks, trains)
        case "VOC":
            return read_voc(src, trains)
        case "YOLO":
            return read_yolo(src, masks)
        case "mask":
            return read_mask_folders(src)


def _read_arrays(src: Path, columns: Columns, name: str, classes: Level | None, mapped: Mapped) -> Source:
    """List files of arrays as samples with the field `name`. Raises DataError, UsageError."""
    if columns.text is not None:
        raise UsageError(f"--image-field {name} and --text-column: texts go beside images alone; leave one of them out")
    if os.path.isdir(src) and is_plain_folder(src):
        _refuse_columns(columns, f"{src} is a folder and has no columns")
        return with_arrays(read_folder(src, classes, mapped, True, columns.trains), src, name, mapped)
    if src.suffix.lower() in MANIFESTS:
        refuse_absent(src)
        return with_arrays(read_manifest(src, _separated(src, columns)), src.parent, name, mapped)
    raise UsageError(
        f"--image-field {name} has no effect: {src} is neither a folder of class folders nor a manifest, whose files "
        "could be arrays; leave it out"
    )


def _read_directory(src: Path, classes: Level | None, mapped: Mapped, trains: bool, rules: TarRules) -> Source:
    if (src / "dataset.json").exists():
        return _with_strays(read_dataset(src))
    if (src / "convert.json").exists():
        raise DataError(f"{src}: a conversion that did not finish; run the same `fastimg convert` with --resume")
    if tars := foreign_shards(src):
        refuse_class_folder(src, [tar for files in tars.values() for tar in files])
        return _with_strays(read_tars(src, tars, rules=rules))
    if betons := foreign_betons(src):
        refuse_class_folder(src, list(betons.values()))
        return _with_strays(read_betons(src, betons))
    try:
        return read_folder(src, classes, mapped, trains=trains)
    except DataError as error:
        try:
            read_folder(src, classes, mapped, arrays=True, trains=trains)
        except DataError:
            raise error from None
        raise DataError(f"{error}; or store its .npy files as arrays, with --image-field NAME") from error


def _is_named(src: Path) -> bool:
    return str(src).partition(":")[0] in NAMED and not os.path.exists(src)


def refuse_absent(src: Path) -> None:
    """Raises DataError for a source that is not there. A named dataset need not be: it is downloaded."""
    if hint := archive_hint(src) if not src.is_dir() and not _is_named(src) else "":
        raise DataError(f"{src}: no folder; {hint}")
    if not os.path.exists(src) and not _is_named(src):
        raise DataError(f"{src}: no such file or folder, or you have no permission to read it; check the path")


def _separated(src: Path, columns: Columns) -> Columns:
    """The columns with the delimiter of a CSV or TSV. Raises UsageError where there is none."""
    if src.suffix.lower() in SEPARATED:
        return with_delimiter(src, columns)
    _refuse_separation(columns, src)
    return columns


def _with_strays(source: Source) -> Source:
    """Add what else is in a folder of shards; in an object store nothing else is looked for."""
    if mirror_at(source.src) is not None:
        return source
    return replace(source, ignored=strays(source.src, source.files))


def _refuse_separation(columns: Columns, src: Path) -> None:
    """Refuse flags that apply only to CSV and TSV."""
    if columns.delimiter is not None:
        raise UsageError(f"--delimiter: no character separates the columns of {src}; leave it out")
    if columns.no_header:
        raise UsageError(f"--no-header: the columns of {src} have names; leave it out")


def _refuse_fields(columns: Columns, reason: str) -> None:
    if columns.fields:
        raise UsageError(f"--field: {reason}")


def _refuse_columns(columns: Columns, reason: str) -> None:
    if columns.given():
        raise UsageError(f"{', '.join(columns.given())}: {reason}; leave it out, or give a manifest")


def find_parquets(folder: Path, trains: bool = True) -> dict[str, list[Path]]:
    """Find Parquet files with images, by split: in a folder, its data/, or a subfolder of either for each split.

    Splits are named by the files, as Hugging Face does (train-00000-of-00005.parquet), or by the subfolders. Empty if
    there are none, and for a class folder of images. A single split is to train on if the source `trains`. Raises
    DataError.
    """
    try:
        by_split = next((files for base in (folder, folder / "data") if (files := _parquets(base))), {})
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}; check the path and its permissions") from error
    if not by_split:
        return {}
    from .image_parquets import may_hold_images  # brings pyarrow

    if not any(may_hold_images(file) for files in by_split.values() for file in files) or has_class_folders(folder):
        return {}
    return {"train": next(iter(by_split.values()))} if trains and len(by_split) == 1 else by_split


def _parquets(base: Path) -> dict[str, list[Path]]:
    if files := _files(base):
        split_of_file = {file: _split_of_name(file.stem) for file in files}
        by_split: dict[str, list[Path]] = {}
        for file, split in split_of_file.items():
            by_split.setdefault(split or file.stem.rstrip("0123456789").rstrip("-_.") or file.stem, []).append(file)
        return by_split if any(split_of_file.values()) else {"train": files}
    by_split = {}
    for sub in sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []:
        split = SPLIT_FOLDERS.get(sub.name.lower())
        if split and (files := _files(sub)):
            if split in by_split:
                other = by_split[split][0].parent.name
                raise DataError(
                    f"{base}: {other}/ and {sub.name}/ are both names of the split {split}; keep one of them"
                )
            by_split[split] = files
    return by_split


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    named = (path for path in folder.iterdir() if path.suffix.lower() == ".parquet" and path.name[0] not in "._")
    return sorted(path for path in named if path.is_file())


def _split_of_name(stem: str) -> str | None:
    words = re.split(r"[^a-z]+", stem.lower())
    return next((SPLIT_FOLDERS[word] for word in words if word in SPLIT_FOLDERS), None)
