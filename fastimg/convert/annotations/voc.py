"""Pascal VOC's folders as a source: `JPEGImages/`, `Annotations/*.xml`, `SegmentationClass/`, and lists of the splits.

Stored are `boxes` (xyxy), and along them `box_labels` (indices into the sorted names) and `difficult`; and `mask`, if
there is a folder of masks, which keep their indices, 255 being the border. VOC counts pixels from 1, and a box includes
its last pixel: 1 is subtracted from xmin and ymin alone, so that a box of the whole image is 0, 0, width, height.
"""

import math
import re
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastimg.convert.sources.folders import FilesReader, file_size
from fastimg.convert.sources.samples import Entries, Source, SourceEntry
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.remote.trees import leads_out
from fastimg.wording import plural

from .reader import GIVEN, SIZE, FieldsReader, Given, file_value

_IMAGES, _ANNOTATIONS, _MASKS, _LISTS = "JPEGImages", "Annotations", "SegmentationClass", "ImageSets"
_PRESENCE = re.compile(r"\s+(-1|[01])$")
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def is_voc(src: Path) -> bool:
    """Whether a folder has VOC's folders."""
    return (src / _IMAGES).is_dir() and (src / _ANNOTATIONS).is_dir()


def read_voc(src: Path, trains: bool = True) -> Source:
    """List the images, boxes and masks of a folder. Raises DataError, also if it `trains` and lists none."""
    images = _images(src / _IMAGES)
    found: dict[str, list[tuple[str, Given, list[str]]]] = {}
    for split, stems in _splits(src, images, trains).items():
        found[split] = []
        for stem in stems:
            if stem not in images:
                raise DataError(f"{src}: {split} lists {stem}, of which {_IMAGES} has no image; add it or drop it")
            found[split].append((stem, *_annotated(src / _ANNOTATIONS / f"{stem}.xml")))
    names = sorted({name for samples in found.values() for _, _, labels in samples for name in labels})
    index = {name: place for place, name in enumerate(names)}
    masked = (src / _MASKS).is_dir()
    unlisted = not (src / _LISTS).is_dir()
    splits: dict[str, Entries] = {}
    for split, samples in found.items():
        splits[split] = Entries()
        for stem, given, labels in samples:
            if given:
                given["box_labels"] = [index[name] for name in labels]
            if masked and (src / _MASKS / f"{stem}.png").is_file():
                given["mask"] = file_value(src, f"{_MASKS}/{stem}.png")
            path = images[stem]
            entry = SourceEntry(f"{_IMAGES}/{path.name}", -1, file_size(path), extra={GIVEN: given})
            splits[split].append(entry)
    schemas = voc_fields(tuple(names), masked)
    return Source(
        src,
        "voc",
        (),
        splits,
        (FieldsReader(FilesReader(src), src, schemas),),
        uncounted=(f"{src.name} holds images with annotations; other files beside them are not counted",),
        fields=tuple(schema.member for schema in schemas),
        remarks=(f"{src}: no lists of splits ({_LISTS}/), so all images are train",) if unlisted else (),
        columns=(f"{src.name}: boxes of {plural(len(names), 'class')} from VOC's annotations",),
        stored_fields=schemas,
    )


def _images(folder: Path) -> dict[str, Path]:
    """The images in a folder by their stems, sorted. Raises DataError for two of one stem, by which lists name them."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in image_extensions():
            continue
        if path.stem in found:
            raise DataError(f"{path} and {found[path.stem].name}: two files of one name; keep one of them")
        found[path.stem] = path
    return found


def voc_fields(classes: tuple[str, ...], masked: bool) -> tuple[StoredField, ...]:
    """The fields of a sample from VOC."""
    boxes = (
        StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box"),
        StoredField(name="box_labels", kind="ragged", dtype="int64", along="boxes", classes=classes),
        StoredField(name="difficult", kind="ragged", dtype="uint8", along="boxes"),
    )
    return (*boxes, StoredField(name="mask", kind="image", dtype="uint8", geometry="mask")) if masked else boxes


def _splits(src: Path, images: dict[str, Path], trains: bool) -> dict[str, list[str]]:
    """The stems of each split: of the lists in ImageSets/Main or Segmentation, or all as `train`. Raises DataError."""
    others: dict[str, list[str]] = {}  # the first lists without one to train on
    for folder in (src / _LISTS / name for name in ("Main", "Segmentation")):
        lists = {split: folder / f"{split}.txt" for split in ("train", "val", "test")}
        if not lists["train"].is_file() and (folder / "trainval.txt").is_file():
            lists = {"train": folder / "trainval.txt", "test": lists["test"]}
        splits = {split: list(_stems(file, images)) for split, file in lists.items() if file.is_file()}
        splits = {split: stems for split, stems in splits.items() if stems}
        if "test" in splits and _lacks(src, splits["test"]):  # VOC's own archive has no annotations of its test images
            del splits["test"]
        if "train" in splits:
            return splits
        others = others or splits
    if not images:
        raise DataError(f"{src}: no images in {_IMAGES}; check the path")
    if others and trains:
        raise DataError(
            f"{src / _LISTS}: has lists of {' and '.join(others)}, but none to train on; add Main/train.txt, or remove "
            "the lists to train on all images"
        )
    return others or {"train": list(images)}


def _lacks(src: Path, stems: list[str]) -> bool:
    folder = src / _ANNOTATIONS
    return not any(not leads_out(folder, stem) and (folder / f"{stem}.xml").is_file() for stem in stems)


def _stems(file: Path, images: dict[str, Path]) -> Iterator[str]:
    """The names in a list. A name can have spaces; behind it, lists of a class have 1, 0 or -1."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); correct it") from error
    named = (line.strip() for line in lines if line.strip())
    return (name if name in images else _PRESENCE.sub("", name) for name in named)


def _annotated(file: Path) -> tuple[Given, list[str]]:
    """The boxes in a file, and the names of their classes; nothing if there is no file. Raises DataError."""
    if not file.is_file():
        return {}, []
    try:
        root = xml.fromstring(file.read_bytes())
    except (OSError, xml.ParseError, ValueError) as error:
        raise DataError(f"{file}: not XML that can be read ({error}); correct it") from error
    given: Given = {"boxes": [], "difficult": []}
    names: list[str] = []
    for place, item in enumerate(root.findall("object")):
        where = f"{file}: object {place}"
        left, top, right, bottom = (_number(where, item, f"bndbox/{side}") for side in _SIDES)
        given["boxes"].append([left - 1, top - 1, right, bottom])
        given["difficult"].append(int((item.findtext("difficult") or "0").strip() == "1"))
        names.append((item.findtext("name") or "").strip())
        if not names[-1]:
            raise DataError(f"{where} has no name; correct it")
    width, height = (root.findtext(f"size/{side}") for side in ("width", "height"))
    if width and height and int(_number(str(file), root, "size/width")) > 0:
        given[SIZE] = [int(_number(str(file), root, f"size/{side}")) for side in ("width", "height")]
    return given, names


def _number(where: str, item: Any, path: str) -> float:
    text = item.findtext(path)
    try:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} has no number in {path} ({text!r}); correct it") from error
    return number
