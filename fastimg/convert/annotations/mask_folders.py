"""Folders of images and of masks with the same names as a source: `images/a.jpg` and `masks/a.png`.

Both may have splits below them (`images/train`), or be below splits (`train/images`). An image without a mask lacks the
field `mask`; a mask without an image is ignored, and counted.
"""

import os
from collections.abc import Set
from pathlib import Path

from fastimg.convert.sources.folders import FilesReader, file_size, split_folders
from fastimg.convert.sources.samples import Entries, Source, SourceEntry
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.folders.ignored import Ignored

from .reader import GIVEN, FieldsReader, file_value

_IMAGES, _MASKS = "images", "masks"
_MASK_EXTENSIONS = frozenset((".png", ".tif", ".tiff", ".bmp", ".gif", ".webp"))
_ALONE = "a mask without an image of its name"


def holds_masks(src: Path) -> bool:
    """Whether a folder, or a split in it, has images/ and masks/."""
    return any((at / _IMAGES).is_dir() and (at / _MASKS).is_dir() for at in (src, *split_folders(src)))


def read_mask_folders(src: Path) -> Source:
    """List the images with their masks. Raises DataError."""
    ignored = Ignored()
    splits: dict[str, Entries] = {}
    for split, (images, masks) in sorted(_places(src).items()):
        if split in splits:
            raise DataError(f"{src}: two folders are the split {split}; keep one of them")
        found = _by_name(masks, {*_MASK_EXTENSIONS, *image_extensions()})
        splits[split] = Entries()
        for name, image in _by_name(images, image_extensions()).items():
            mask = found.pop(name, None)
            given = {} if mask is None else {"mask": file_value(src, os.path.relpath(mask, src))}
            path = os.path.relpath(image, src)
            splits[split].append(SourceEntry(path, -1, file_size(image), extra={GIVEN: given}))
        if not splits[split]:
            raise DataError(f"{images}: has no images; add them or remove the folder")
        for mask in found.values():
            ignored.add(os.path.relpath(mask, src), _ALONE)
    schema = StoredField(name="mask", kind="image", dtype="uint8", geometry="mask")
    return Source(
        src,
        "masks",
        (),
        splits,
        (FieldsReader(FilesReader(src), src, (schema,)),),
        ignored,
        uncounted=(f"{src.name} holds images with masks; other files beside them are not counted",),
        fields=(schema.member,),
        columns=(f"{src.name}: masks from {_MASKS}/, by the names of the images",),
        stored_fields=(schema,),
    )


def _places(src: Path) -> dict[str, tuple[Path, Path]]:
    """The folders of images and of masks of each split. Raises DataError."""
    above = [(at.name, (at / _IMAGES, at / _MASKS)) for at in split_folders(src) if (at / _IMAGES).is_dir()]
    below = [(at.name, (at, src / _MASKS / at.name)) for at in split_folders(src / _IMAGES)]
    found = above or below
    if not found:
        return {"train": (src / _IMAGES, src / _MASKS)}
    places = {SPLIT_FOLDERS[name.lower()]: pair for name, pair in found}
    if len(places) < len(found):
        raise DataError(f"{src}: splits are {', '.join(name for name, _ in found)}; give each once")
    return places


def _by_name(folder: Path, extensions: Set[str]) -> dict[str, Path]:
    """The files below a folder by their paths without extension, sorted. Raises DataError for two of one name."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        relative = path.relative_to(folder)
        if path.suffix.lower() not in extensions or any(part.startswith(".") for part in relative.parts):
            continue
        name = str(relative.with_suffix(""))
        if name in found:
            raise DataError(f"{path} and {found[name].name}: two files of one name; keep one of them")
        if path.is_file():
            found[name] = path
    return found
