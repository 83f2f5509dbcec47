"""COCO's annotations as a source: images with boxes, the classes and areas of these, and whether they are of crowds.

Stored are `boxes` (xyxy), and along them `box_labels` (indices into the categories, sorted by their ids), `iscrowd` and
`area`, and where there are key points, `keypoints` and `keypoint_flags`; and the number `image_id`. Crowds are kept and
marked. An image without annotations has no boxes. With `masks` their segmentations are drawn as a mask of classes: 0
is the background, and a category the label that its boxes have, plus 1. Captions, and segmentations without `masks`,
are not stored, which is said.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastimg.convert.sources.folders import FilesReader, WrittenPaths, size_below
from fastimg.convert.sources.samples import Entries, Source, SourceEntry
from fastimg.errors import UsageError, reason_of
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.wording import plural

from .reader import GIVEN, OUTLINES, RELATIVE, SIZE, FieldsReader
from .segmentations import MASK, Outline, mask_of_classes

_NOT_STORED = ("segmentation", "caption")
_RAGGED = ("boxes", "box_labels", "iscrowd", "area")
_POINTS = ("keypoints", "keypoint_flags")
_BESIDE = "_annotations.coco.json"  # in the folder of each split's images, as Roboflow writes it
_KEYS = (b'"images"', b'"annotations"', b'"categories"')
_CHUNK = 1 << 24
_GIVE = (
    "give COCO's file, with images, annotations and categories, or list other images in csv or jsonl, a row for each, "
    "with the columns path and label"
)


def coco_fields(classes: Iterable[str], points: int = 0, masks: bool = False) -> tuple[StoredField, ...]:
    """The fields of a sample from COCO, with this number of key points for each box, and with a mask if asked."""
    names = tuple(classes)
    shape = (points, 2)
    keypoints = (
        StoredField(name="keypoints", kind="ragged", shape=shape, along="boxes", geometry="keypoint"),
        StoredField(name="keypoint_flags", kind="ragged", dtype="uint8", shape=shape[:1], along="boxes"),
    )
    return (
        StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box"),
        StoredField(name="box_labels", kind="ragged", dtype="int64", along="boxes", classes=names),
        StoredField(name="iscrowd", kind="ragged", dtype="uint8", along="boxes"),
        StoredField(name="area", kind="ragged", along="boxes"),
        *(keypoints if points else ()),
        StoredField(name="image_id", kind="number", dtype="int64"),
        *((mask_of_classes(names),) if masks else ()),
    )


def is_coco(src: Path) -> bool:
    """Whether a folder is laid out as COCO or Roboflow have it, or holds one file of COCO's and at most one folder."""
    return bool(_instances(src) or _beside(src) or _lone(src))


def read_coco_folder(src: Path, images: Path | None, masks: bool = False, trains: bool = True) -> Source:
    """List the images of a folder that `is_coco`; see `read_coco`. Raises DataError.

    Its files are `annotations/instances_train2017.json` and the like, with images in `train2017/`; or
    `train/_annotations.coco.json`, beside the images; or one file in the folder itself.
    """
    if not (found := _instances(src) or _beside(src)) and (lone := _lone(src)):
        return _read(src, {_split_of(lone, trains): lone}, images, masks)
    files: dict[str, Path] = {}
    for name, file in found:
        split = SPLIT_FOLDERS.get(name.rstrip("0123456789").lower())
        if split is None or split in files:
            other = f" and {files[split].relative_to(src)}" if split in files else ""
            raise DataError(f"{file}{other}: give one file for each of train, val and test, or one file as the source")
        files[split] = file
    return _read(src, files, images, masks)


def read_coco(src: Path, images: Path | None, masks: bool = False, trains: bool = True) -> Source:
    """List the images of one file; `masks`: with a mask of the segmentations of each. Raises DataError.

    They are to train on if the source `trains`; else the file's name may say which split they are.
    """
    return _read(src, {_split_of(src, trains): src}, images, masks)


def _split_of(file: Path, trains: bool) -> str:
    """The split in the name of a file, as in `instances_val2017.json`; `train` if it `trains`, or names none."""
    words = re.split(r"[^a-z]+", file.stem.lower())
    named = {SPLIT_FOLDERS[word] for word in words if word in SPLIT_FOLDERS}
    return "train" if trains or len(named) != 1 else named.pop()


def _instances(src: Path) -> list[tuple[str, Path]]:
    """The files that are named as COCO's are, with the names of their splits."""
    files = sorted((src / "annotations").glob("instances_*.json"))
    return [(file.stem.removeprefix("instances_"), file) for file in files]


def _beside(src: Path) -> list[tuple[str, Path]]:
    """The files that lie beside the images of a split, with its name."""
    files = sorted(src.glob(f"*/{_BESIDE}"))
    return [(file.parent.name, file) for file in files if file.parent.name.lower() in SPLIT_FOLDERS]


def _lone(src: Path) -> Path | None:
    """The only .json of a folder, if it has COCO's keys; None beside several folders, which are classes."""
    files = [file for file in src.glob("*.json") if file.is_file() and not file.name.startswith(".")]
    if len(files) != 1 or sum(path.is_dir() and not path.name.startswith(".") for path in src.iterdir()) > 1:
        return None
    missing, end = set(_KEYS), b""
    try:
        with files[0].open("rb") as file:
            while missing and (chunk := file.read(_CHUNK)):
                missing -= {key for key in missing if key in end + chunk}
                end = chunk[-len(max(_KEYS, key=len)) :]
    except OSError:
        return None
    return None if missing else files[0]


def _read(src: Path, files: Mapping[str, Path], images: Path | None, masks: bool) -> Source:
    contents = {split: _load(file) for split, file in files.items()}
    categories = _categories(files, contents)
    names = tuple(categories.values())
    index = {number: place for place, number in enumerate(categories)}
    root = src if src.is_dir() else src.parent
    points = [_points(files[split], content["annotations"]) for split, content in contents.items()]
    counts = set().union(*points)
    count = min(counts) if len(counts) == 1 else 0
    splits: dict[str, Entries] = {}
    remarks: list[str] = []
    if counts and not count:
        remarks.append(f"{src}: not stored: key points, because not all boxes have the same number of them")
    if masks and not any(_outlined(content["annotations"]) for content in contents.values()):
        raise UsageError(f"--masks semantic has no effect: {src} has no segmentations; leave it out")
    for split, file in files.items():
        content = contents.pop(split)
        folder = images if images is not None else _images_beside(file, content["images"])
        splits[split] = _entries(file, content, index, folder, WrittenPaths(root), count)
        if masks:
            splits[split] = _with_masks(splits[split], content["annotations"], index)
        remarks += _not_stored(file, content["annotations"], masks)
    schemas = coco_fields(names, count, masks)
    reader = FieldsReader(FilesReader(root), root, schemas, {"boxes": "box-xywh"})
    pointed = f" with {plural(count, 'key point')}" if count else ""
    said = f"{src.name}: boxes of {plural(len(names), 'class')}{pointed} from COCO's annotations"
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
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: not JSON that can be read ({reason_of(error)}); {_GIVE}") from error
    lists = content if isinstance(content, dict) else {}
    if lacking := [key for key in ("images", "annotations", "categories") if not isinstance(lists.get(key), list)]:
        raise DataError(f"{file}: not COCO's annotations: it has no list {lacking[0]!r}; {_GIVE}")
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
            if not isinstance(name, str):
                raise DataError(f"{files[split]}: category {number} has the name {name!r}, not a text; correct it")
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
        if first and size_below(folder, first) >= 0:
            return folder
    raise UsageError(f"{file}: {first!r} is not beside it; name the folder of its images with --images DIR")


def _points(file: Path, annotations: list[Any]) -> set[int]:
    """The numbers of key points that annotations have, of those that have any. Raises DataError."""
    found = set()
    for place, annotation in enumerate(annotations):
        points = annotation.get("keypoints") if isinstance(annotation, dict) else None
        if not points:
            continue
        if not isinstance(points, list) or len(points) % 3 or not all(type(each) in (int, float) for each in points):
            what = _called(annotation, place)
            raise DataError(f"{file}: {what} has keypoints that are not x, y and a flag for each point; correct it")
        found.add(len(points) // 3)
    return found


def _entries(
    file: Path, content: dict[str, Any], index: Mapping[int, int], folder: Path, written: WrittenPaths, points: int
) -> Entries:
    """The images of a file, sorted by their paths, with their annotations. Raises DataError."""
    images: dict[int, dict[str, Any]] = {}
    for place, image in enumerate(content["images"]):
        number = _number(file, f"image {place}", image, "id")
        if number in images:
            raise DataError(f"{file}: two images have the id {number}; correct one")
        if not isinstance(image.get("file_name"), str):
            raise DataError(f"{file}: image {number} has no file_name; correct it")
        images[number] = image
    names = (*_RAGGED, *(_POINTS if points else ()))
    given: dict[int, dict[str, list[Any]]] = {number: {name: [] for name in names} for number in images}
    seen: set[int] = set()
    for place, annotation in enumerate(content["annotations"]):
        own = annotation.get("id") if isinstance(annotation, dict) else None
        what = _called(annotation, place)
        if type(own) is int:
            if own in seen:
                raise DataError(f"{file}: two annotations have the id {own}; correct one")
            seen.add(own)
        image_id = _number(file, what, annotation, "image_id")
        category = _number(file, what, annotation, "category_id")
        for kind, value, known in (("image", image_id, images), ("category", category, index)):
            if value not in known:
                raise DataError(f"{file}: {what} is of the {kind} {value}, which is not listed; correct it or drop it")
        _add(file, what, annotation, index[category], given[image_id])
        if points:
            _add_points(file, what, annotation, points, given[image_id])
    entries = Entries()
    above = os.path.join(os.getcwd(), folder)
    for path, number in sorted((_written(written, above, images[n]["file_name"]), n) for n in images):
        width, height = images[number].get("width"), images[number].get("height")
        stated = {SIZE: [width, height]} if type(width) is int and type(height) is int else {}
        extra = {"image_id": number, GIVEN: given[number] | stated}
        entries.append(SourceEntry(path, -1, size_below(written.root, path), extra=extra))
    return entries


def _written(written: WrittenPaths, folder: str, name: str) -> str:
    return written.plain(name) if os.path.isabs(name) else written.below(os.path.join(folder, name))


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


def _add_points(file: Path, what: str, annotation: dict[str, Any], count: int, given: dict[str, list[Any]]) -> None:
    """Add the key points of an annotation; one with the flag 0 is missing. Raises DataError."""
    listed = annotation.get("keypoints") or [0] * 3 * count
    points = [(x, y) if flag else (None, None) for x, y, flag in zip(*[iter(listed)] * 3, strict=True)]
    if any(flag not in (0, 1, 2) for flag in listed[2::3]):
        raise DataError(f"{file}: {what} has a key point whose flag is not 0, 1 or 2; correct it")
    given["keypoints"].append(points)
    given["keypoint_flags"].append([int(flag) for flag in listed[2::3]])


def _outlined(annotations: list[Any]) -> int:
    """How many annotations have a segmentation."""
    return sum(bool(annotation.get("segmentation")) for annotation in annotations if isinstance(annotation, dict))


def _with_masks(entries: Entries, annotations: list[dict[str, Any]], index: Mapping[int, int]) -> Entries:
    """The entries with the outlines of their objects, of which their masks are drawn."""
    outlines: dict[int, list[Outline]] = {}
    for place, annotation in enumerate(annotations):
        if shape := annotation.get("segmentation"):
            outline = Outline(_called(annotation, place), index[annotation["category_id"]] + 1, shape)
            outlines.setdefault(annotation["image_id"], []).append(outline)
    drawn = Entries()
    for entry in entries:
        extra = dict(entry.extra or {})
        mask = {OUTLINES: outlines.pop(extra["image_id"], []), RELATIVE: False}
        drawn.append(entry._replace(extra=extra | {GIVEN: extra[GIVEN] | {MASK: mask}}))
    return drawn


def _called(annotation: Any, place: int) -> str:
    """The name of an annotation in messages: its id, or else its place in the list."""
    own = annotation.get("id") if isinstance(annotation, dict) else None
    return f"annotation {place if own is None else own}"


def _not_stored(file: Path, annotations: list[dict[str, Any]], masks: bool) -> list[str]:
    """Remarks about what annotations have that is not stored, and which masks lack objects."""
    keys = [key for key in _NOT_STORED if key != "segmentation" or not masks]
    counts = {key: sum(bool(annotation.get(key)) for annotation in annotations) for key in keys}
    said = ", ".join(f"{key} of {plural(count, 'annotation')}" for key, count in counts.items() if count)
    remarks = [f"{file}: not stored: {said}"] if said else []
    if masks and (bare := len(annotations) - _outlined(annotations)):
        remarks.append(f"{file}: not in the masks: {plural(bare, 'annotation')} without a segmentation")
    return remarks
