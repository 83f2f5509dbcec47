"""COCO's annotations as a source: images with boxes, the classes and areas of these, and whether they are of crowds.

Stored are `boxes` (xyxy), and along them `box_labels` (indices into the categories, sorted by their ids), `iscrowd` and
`area`; and the number `image_id`. Crowds are kept and marked. An image without annotations has no boxes. Segmentations,
key points and captions are not stored, which is said.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastimg.convert.sources.folders import FilesReader, file_size
from fastimg.convert.sources.samples import Entries, Source, SourceEntry
from fastimg.errors import UsageError
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.wording import plural

from .reader import GIVEN, SIZE, FieldsReader

_NOT_STORED = ("segmentation", "keypoints", "caption")
_RAGGED = ("boxes", "box_labels", "iscrowd", "area")


def coco_fields(classes: Iterable[str]) -> tuple[StoredField, ...]:
    """The fields of a sample from COCO."""
    return (
        StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box"),
        StoredField(name="box_labels", kind="ragged", dtype="int64", along="boxes", classes=tuple(classes)),
        StoredField(name="iscrowd", kind="ragged", dtype="uint8", along="boxes"),
        StoredField(name="area", kind="ragged", along="boxes"),
        StoredField(name="image_id", kind="number", dtype="int64"),
    )


def is_coco(src: Path) -> bool:
    """Whether a folder is laid out as COCO is: `annotations/instances_*.json`."""
    return bool(_instances(src))


def read_coco_folder(src: Path, images: Path | None) -> Source:
    """List `annotations/instances_train2017.json` and the like, with images in `train2017/`. Raises DataError."""
    files: dict[str, Path] = {}
    for file in _instances(src):
        name = file.stem.removeprefix("instances_")
        split = SPLIT_FOLDERS.get(name.rstrip("0123456789").lower())
        if split is None or split in files:
            other = f" and {files[split].name}" if split in files else ""
            raise DataError(f"{file}{other}: give one file for each of train, val and test, or one file as the source")
        files[split] = file
    if "train" not in files:
        raise DataError(f"{src}: no annotations/instances_train*.json; give one file as the source")
    return _read(src, files, images)


def read_coco(src: Path, images: Path | None) -> Source:
    """List the images of one file. Raises DataError."""
    return _read(src, {"train": src}, images)


def _instances(src: Path) -> list[Path]:
    return sorted((src / "annotations").glob("instances_*.json"))


def _read(src: Path, files: Mapping[str, Path], images: Path | None) -> Source:
    contents = {split: _load(file) for split, file in files.items()}
    categories = _categories(files, contents)
    names = tuple(categories.values())
    index = {number: place for place, number in enumerate(categories)}
    root = src if src.is_dir() else src.parent
    splits: dict[str, Entries] = {}
    remarks: list[str] = []
    for split, file in files.items():
        content = contents.pop(split)
        folder = images if images is not None else _images_beside(file, content["images"])
        splits[split] = _entries(file, content, index, os.path.relpath(folder, root), root)
        remarks += _not_stored(file, content["annotations"])
    schemas = coco_fields(names)
    reader = FieldsReader(FilesReader(root), root, schemas, {"boxes": "box-xywh"})
    said = f"{src.name}: boxes of {plural(len(names), 'class')} from COCO's annotations"
    return Source(
        src,
        "coco",
        (),
        splits,
        (reader,),
        uncounted=(f"{src.name} names the files to read; other files beside them are not counted",),
        remarks=tuple(remarks),
        fields=tuple(schema.member for schema in schemas if schema.member),
        columns=(said,),
        stored_fields=schemas,
    )


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        if not all(isinstance(content[key], list) for key in ("images", "annotations", "categories")):
            raise TypeError("images, annotations and categories must be lists")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(
            f"{file}: not COCO's annotations ({error!r}); give a file with images, annotations and categories"
        ) from error
    loaded: dict[str, Any] = content
    return loaded


def _number(file: Path, what: str, item: Any, key: str) -> int:
    """The id that an item of a list states. Raises DataError."""
    value = item.get(key) if isinstance(item, dict) else None
    if type(value) is not int:
        shown = "no" if value is None else f"the {key} {value!r}, which is not a whole number, as its"
        raise DataError(f"{file}: {what} has {shown} {key}; correct it")
    return value


def _categories(files: Mapping[str, Path], contents: Mapping[str, dict[str, Any]]) -> dict[int, str]:
    """The names of all categories by their ids, which ascend. Raises DataError if two files or ids disagree."""
    found: dict[int, str] = {}
    for split, content in contents.items():
        mine: set[int] = set()
        for place, category in enumerate(content["categories"]):
            number = _number(files[split], f"category {place}", category, "id")
            name = category.get("name", str(number))
            if number in mine:
                raise DataError(f"{files[split]}: two categories have the id {number}; correct one")
            if found.setdefault(number, name) != name:
                raise DataError(f"{files[split]}: category {number} is {name!r}, and {found[number]!r} in another file")
            mine.add(number)
    names = Counter(found.values())
    if double := next((name for name, count in names.items() if count > 1), None):
        raise DataError(f"{next(iter(files.values()))}: two categories are called {double!r}; rename one")
    return dict(sorted(found.items()))


def _images_beside(file: Path, images: list[Any]) -> Path:
    """The folder of the images of a file: where its first one is. Raises UsageError."""
    first = next((str(image.get("file_name")) for image in images if isinstance(image, dict)), "")
    name = file.stem.removeprefix("instances_")
    around = (file.parent, file.parent.parent)
    for folder in [base / below for base in around for below in (name, f"images/{name}", "images", ".")]:
        if first and file_size(folder / first) >= 0:
            return folder
    raise UsageError(f"{file}: {first!r} is not beside it; name the folder of its images with --images DIR")


def _entries(file: Path, content: dict[str, Any], index: Mapping[int, int], folder: str, root: Path) -> Entries:
    """The images of a file, sorted by their paths, with their annotations. Raises DataError."""
    images: dict[int, dict[str, Any]] = {}
    for place, image in enumerate(content["images"]):
        number = _number(file, f"image {place}", image, "id")
        if number in images:
            raise DataError(f"{file}: two images have the id {number}; correct one")
        if not isinstance(image.get("file_name"), str):
            raise DataError(f"{file}: image {number} has no file_name; correct it")
        images[number] = image
    given: dict[int, dict[str, list[Any]]] = {number: {name: [] for name in _RAGGED} for number in images}
    seen: set[int] = set()
    for place, annotation in enumerate(content["annotations"]):
        own = annotation.get("id") if isinstance(annotation, dict) else None
        what = f"annotation {place if own is None else own}"
        if own in seen:
            raise DataError(f"{file}: two annotations have the id {own}; correct one")
        if type(own) is int:
            seen.add(own)
        image_id = _number(file, what, annotation, "image_id")
        category = _number(file, what, annotation, "category_id")
        for kind, value, known in (("image", image_id, images), ("category", category, index)):
            if value not in known:
                raise DataError(f"{file}: {what} is of the {kind} {value}, which is not listed; correct it or drop it")
        _add(file, what, annotation, index[category], given[image_id])
    entries = Entries()
    for path, number in sorted((os.path.normpath(os.path.join(folder, images[n]["file_name"])), n) for n in images):
        width, height = images[number].get("width"), images[number].get("height")
        stated = {SIZE: [width, height]} if type(width) is int and type(height) is int else {}
        extra = {"image_id": number, GIVEN: given[number] | stated}
        entries.append(SourceEntry(path, -1, file_size(root / path), extra=extra))
    return entries


def _add(file: Path, what: str, annotation: dict[str, Any], label: int, given: dict[str, list[Any]]) -> None:
    """Add an annotation to those of its image. Raises DataError."""
    box = annotation.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(type(side) in (int, float) for side in box):
        raise DataError(f"{file}: {what} has no bbox of four numbers; correct it, or give the file of instances")
    area = annotation.get("area", box[2] * box[3])
    crowd = annotation.get("iscrowd", 0)
    if type(area) not in (int, float) or crowd not in (0, 1):
        raise DataError(f"{file}: {what} has an area that is no number, or an iscrowd other than 0 and 1; correct it")
    for name, value in zip(_RAGGED, (box, label, int(crowd), area), strict=True):
        given[name].append(value)


def _not_stored(file: Path, annotations: list[dict[str, Any]]) -> list[str]:
    """A remark about what annotations have that is not stored."""
    counts = {key: sum(bool(annotation.get(key)) for annotation in annotations) for key in _NOT_STORED}
    said = ", ".join(f"{key} of {plural(count, 'annotation')}" for key, count in counts.items() if count)
    return [f"{file}: not stored: {said}"] if said else []
