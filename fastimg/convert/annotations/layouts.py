"""Which layout of annotations a source has, and what of it must be here to be listed, if it lies in a store."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from fastimg.convert.stored.files import REQUESTS
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.remote.trees import tree_of
from fastimg.wording import plural

from .coco import is_coco
from .mask_folders import holds_masks
from .voc import is_voc
from .yolo import is_yolo

Annotations = Literal["COCO", "VOC", "YOLO", "mask"]

_COCO = ("annotations/instances_*.json", "*/_annotations.coco.json")
_LISTED: Mapping[Annotations, tuple[str, ...]] = {
    "COCO": _COCO,
    "VOC": ("Annotations/*.xml", "ImageSets/*/*.txt"),
    "YOLO": ("**/*.txt",),
}


def annotations_in(src: Path) -> Annotations | None:
    """Whose layout of annotations a file or folder has; None if it has none."""
    if src.suffix.lower() == ".json" and src.is_file():
        return "COCO"
    if not src.is_dir() or not is_plain_folder(src) or (src / "convert.json").exists():
        return None
    layouts: tuple[tuple[Annotations, bool], ...] = (
        ("COCO", is_coco(src)),
        ("VOC", is_voc(src)),
        ("YOLO", is_yolo(src)),
        ("mask", holds_masks(src)),
    )
    return next((name for name, found in layouts if found), None)


def fetch_annotations(src: Path, tell: Callable[[str], object]) -> None:
    """Have the files here that listing a source reads, if it stands for a URL. Raises DataError."""
    tree = tree_of(src)
    layout = None if tree is None else annotations_in(src)
    if tree is None or layout is None or not src.is_dir():
        return
    found = {file for pattern in _LISTED.get(layout, ()) for file in src.glob(pattern) if file.is_file()}
    wanted = sorted(file for file in found if tree.holds(file))
    if wanted:
        tell(f"{tree.url}: {plural(len(wanted), 'file')} of annotations, fetched to be listed")
        tree.fetch_all(wanted, REQUESTS)
