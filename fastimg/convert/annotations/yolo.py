"""YOLO's folders as a source: images, and beside them labels with a line of `class x y width height` for each box.

The folder has `images/` and `labels/`, each with the same folders below it, or splits with both of them (Roboflow). A
`data.yaml` says where the splits and how the classes are called; without it there is one split, or a folder for each.
An image without a label file has no boxes, as Ultralytics has it. A line with a polygon (`class x y x y x y ...`) gives
the box around it, and with `masks` the polygons are drawn as a mask: 0 is the background, and class k is k + 1. Key
points, which a `kpt_shape` in data.yaml announces, are left out, which is said.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastimg.convert.sources.folders import FilesReader, WrittenPaths, file_size, split_folders
from fastimg.convert.sources.samples import Entries, Source, SourceEntry
from fastimg.errors import UsageError
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.remote.trees import leads_out
from fastimg.wording import plural

from .reader import GIVEN, OUTLINES, RELATIVE, FieldsReader, Given
from .segmentations import MASK, Outline, mask_of_classes

_IMAGES, _LABELS = "images", "labels"
_YAML = ("data.yaml", "dataset.yaml")
_UNNAMED = 100_000  # classes that numbers alone may name


class _LabelFile(NamedTuple):
    """What a label file has."""

    boxes: list[list[float]]  # centre and size, in shares of the image
    classes: list[int]
    outlines: list[Outline]  # of the lines with a polygon


def is_yolo(src: Path) -> bool:
    """Whether a folder has labels as YOLO has them beside its images."""
    for file in (src / name for name in _YAML):
        if file.is_file() and {"train:", "names:"} <= set(file.read_text(encoding="utf-8", errors="replace").split()):
            return True
    pairs = [src, *(src / name for name in os.listdir(src) if name.lower() in SPLIT_FOLDERS)]
    return any((at / _IMAGES).is_dir() and _has_labels(at / _LABELS) for at in pairs)


def read_yolo(src: Path, masks: bool = False) -> Source:
    """List the images and boxes of a folder; `masks`: with a mask of the polygons of each. Raises DataError."""
    described = next((src / name for name in _YAML if (src / name).is_file()), None)
    stated = _stated(described) if described else {}
    names = _names(described, stated)
    places = _places_of(described, stated) if described else _folders(src)
    splits: dict[str, Entries] = {}
    written, here = WrittenPaths(src), os.getcwd()
    highest = -1
    boxes = drawn = 0
    posed = "kpt_shape" in stated
    for split, folders in sorted(places.items()):
        splits[split] = Entries()
        for image in _images(src, split, folders):
            labels = _read_labels(_label_file(image), posed)
            highest = max([highest, *labels.classes])
            boxes, drawn = boxes + len(labels.boxes), drawn + len(labels.outlines)
            path = written.below(os.path.join(here, image))
            given: Given = {"boxes": labels.boxes, "box_labels": labels.classes}
            given |= {MASK: {OUTLINES: labels.outlines, RELATIVE: True}} if masks else {}
            splits[split].append(SourceEntry(path, -1, file_size(image), extra={GIVEN: given}))
    if masks and not drawn:
        raise UsageError(f"--masks semantic has no effect: {src} has no polygons; leave it out")
    if names and highest >= len(names):
        raise DataError(f"{described}: names {plural(len(names), 'class')}, and a box has the class {highest}; name it")
    if highest >= _UNNAMED:
        raise DataError(f"{src}: a box has the class {highest}, which no data.yaml names; correct it, or name it")
    classes = names or tuple(str(number) for number in range(highest + 1))
    schemas = (
        StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box"),
        StoredField(name="box_labels", kind="ragged", dtype="int64", along="boxes", classes=classes),
        *((mask_of_classes(classes),) if masks else ()),
    )
    remarks = [f"{src}: not stored: the key points of {plural(boxes, 'box')}"] if posed and boxes else []
    if masks and drawn < boxes:
        remarks.append(f"{src}: not in the masks: {plural(boxes - drawn, 'box')} without a polygon")
    reader = FieldsReader(FilesReader(src), src, schemas, {"boxes": "box-yolo"}, usually_upright=True)
    return Source(
        src,
        "yolo",
        (),
        splits,
        (reader,),
        uncounted=(f"{src.name} holds images with labels; other files beside them are not counted",),
        remarks=tuple(remarks),
        fields=tuple(schema.member for schema in schemas),
        columns=(f"{src.name}: boxes of {plural(len(classes), 'class')} from YOLO's labels",),
        stored_fields=schemas,
    )


def _has_labels(folder: Path) -> bool:
    return folder.is_dir() and next(folder.rglob("*.txt"), None) is not None


def _stated(file: Path) -> dict[str, Any]:
    import yaml

    from fastimg.config.yaml_text import Texts, parsed

    try:
        # Every scalar is a text: YAML 1.1, which PyYAML reads, would make false of a class called no.
        content = parsed(file.read_text(encoding="utf-8"), Texts)
        if not isinstance(content, dict):
            raise TypeError("it is not a mapping")
    except (OSError, ValueError, yaml.YAMLError, TypeError) as error:
        raise DataError(f"{file}: cannot be read ({' '.join(str(error).split())}); correct it") from error
    return content


def _names(file: Path | None, stated: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes; none if there is no file that states them. Raises DataError."""
    names = stated.get("names", [])
    if isinstance(names, dict):
        if set(names) != set(map(str, range(len(names)))):
            raise DataError(f"{file}: its names are not numbered from 0 on; correct it")
        names = [names[str(number)] for number in range(len(names))]
    if not isinstance(names, list) or len(set(map(str, names))) < len(names):
        raise DataError(f"{file}: its names are no list of different names; correct it")
    return tuple(map(str, names))


def _places_of(file: Path, stated: Mapping[str, Any]) -> dict[str, list[Path]]:
    """The folders, or lists of files, of each split that data.yaml names. Raises DataError."""
    root = file.parent
    out = leads_out(root, str(stated.get("path") or "."))
    if not out and (root / str(stated.get("path") or ".")).is_dir():
        root = root / str(stated.get("path") or ".")
    places: dict[str, list[Path]] = {}
    for name in ("train", "val", "test"):
        given = stated.get(name)
        for text in given if isinstance(given, list) else [given] if given else []:
            # Roboflow writes ../train/images for what lies beside data.yaml.
            tried = [(root, str(text)), (file.parent, str(text)), (file.parent, str(text).removeprefix("../"))]
            found = next((at / path for at, path in tried if not leads_out(at, path) and (at / path).exists()), None)
            if found is None:
                raise DataError(f"{file}: {name}: no such file or folder: {text}; correct the path")
            places.setdefault(name, []).append(found)
    return places


def _folders(src: Path) -> dict[str, list[Path]]:
    """The folders of images of each split, where no file names them. Raises DataError."""
    above = [(at.name, at / _IMAGES) for at in split_folders(src) if (at / _IMAGES).is_dir()]
    below = [(at.name, at) for at in split_folders(src / _IMAGES)]
    found: dict[str, list[Path]] = {}
    names: dict[str, str] = {}
    for name, images in above or below or [("train", src / _IMAGES)]:
        split = SPLIT_FOLDERS[name.lower()]
        if split in found:
            raise DataError(f"{src}: two folders are the split {split}: {names[split]} and {name}; keep one of them")
        names[split], found[split] = name, [images]
    return found


def _images(src: Path, split: str, places: Sequence[Path]) -> list[Path]:
    """The images below folders, or that lists of files name, sorted. Raises DataError if there are none."""
    extensions = image_extensions()
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            below = (path for path in place.rglob("*") if path.suffix.lower() in extensions and path.is_file())
            found += [path for path in below if not any(p.startswith(".") for p in path.relative_to(place).parts)]
        else:
            lines = [line.strip() for line in _text(place).splitlines() if line.strip()]
            found += [place.parent / line for line in lines if not leads_out(place.parent, line)]
    if not found:
        raise DataError(f"{src}: no images of the split {split} in {', '.join(map(str, places))}; check the path")
    return sorted(set(found))


def _label_file(image: Path) -> Path:
    """`labels/a.txt` for `images/a.jpg`: the last folder of that name in the path counts, as for Ultralytics."""
    parts = list(image.parts)
    last = max((place for place, part in enumerate(parts[:-1]) if part == _IMAGES), default=None)
    if last is not None:
        parts[last] = _LABELS
    return Path(*parts).with_suffix(".txt")


def _read_labels(file: Path, posed: bool) -> _LabelFile:
    """What a label file has; nothing if there is no file. Raises DataError.

    `posed`: key points follow each box; otherwise more than four numbers are a polygon.
    """
    labels = _LabelFile([], [], [])
    if not file.exists():
        return labels
    for number, words in _lines(file):
        where = f"{file}: line {number}"
        try:
            label, *numbers = (float(word) for word in words)
        except ValueError as error:
            raise DataError(f"{where}: not a class and numbers; correct it") from error
        if not label.is_integer() or label < 0 or not all(map(math.isfinite, numbers)) or len(numbers) < 4:
            raise DataError(f"{where}: not a class (0, 1, ...) and at least four finite numbers; correct it")
        if len(numbers) > 4 and not posed:
            if len(numbers) % 2 or len(numbers) < 6:
                raise DataError(f"{where}: {len(numbers)} numbers are neither a box nor a polygon; correct it")
            labels.outlines.append(Outline(f"{file.name}: line {number}", int(label) + 1, [numbers]))
            xs, ys = numbers[::2], numbers[1::2]
            left, top, right, bottom = min(xs), min(ys), max(xs), max(ys)
            numbers = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        labels.boxes.append(numbers[:4])
        labels.classes.append(int(label))
    return labels


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The words of each line that has any, with its number from 1. Raises DataError."""
    for number, line in enumerate(_text(file).splitlines(), start=1):
        if words := line.split():
            yield number, words


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); correct it") from error
