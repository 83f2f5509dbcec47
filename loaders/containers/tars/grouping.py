"""Which members of another writer's tar are one sample: those whose names have the same key.

The key is the name up to the first dot after the last slash, as in DALI and webdataset, whose rule leaves names such as
`cat.17.jpg` the key `cat`. Such names are refused unless the rule is stated: "last" takes the name up to its last dot.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Literal, NamedTuple

from fastimg.loaders.containers.content import TEXT_EXTENSIONS
from fastimg.loaders.errors import ShardError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.wording import plural

KeyDots = Literal["first", "last"]  # the dot of a name that its extension begins at

_DIGITS = frozenset("0123456789._-")
_KINDS = 16  # of images in a sample, as of cameras: more are rather samples of their own


class Member(NamedTuple):
    """One file of a sample: `data = tar[offset : offset + size]`. `name` is empty if it comes from a v1.1 index."""

    ext: str
    offset: int
    size: int
    name: str


Sample = tuple[Member, ...]


def split_name(name: str, dots: KeyDots = "first") -> tuple[str, str]:
    """(stem, extension): the extension starts at the first dot after the last slash, or at the last one.

    The stem of a hidden file is empty, or ends with a slash.
    """
    folder, slash, base = name.rpartition("/")
    stem, _, ext = base.partition(".")
    if dots == "last" and stem and ext:
        stem, _, ext = base.rpartition(".")
    return folder + slash + stem, ext


def has_extension(ext: str, extensions: Set[str]) -> bool:
    """Whether a member's extension, or its last part (the `png` of `depth.png`), is one of `.jpg`, `.png`, ..."""
    return "." + ext.lower().rpartition(".")[2] in extensions


def grouped(path: Path, runs: Sequence[tuple[str, Sample]], dots: KeyDots | None) -> tuple[list[Sample], int]:
    """The samples of a tar, and how many of them have members that are not next to one another.

    `runs` are members that follow one another, with their stem. Those of one stem are joined, unless each is a sample
    of its own. Without `dots`, which is then "first", names that hardly fit that rule are refused. Raises ShardError.
    """
    samples, apart = _joined(path, runs)
    if dots is None and (fault := _misread(samples)):
        raise ShardError(f"{path}: {fault}")
    return samples, apart


def apart_note(where: object, apart: int) -> str:
    """Say how many samples have members that do not follow one another."""
    return (
        f"{where}: the members of {plural(apart, 'sample')} do not follow one another, and were paired by their names; "
        "programs that read tars from front to back do not pair them"
    )


def folder_of(name: str) -> str:
    """The folder of a name or key; empty if it is in none."""
    return name.rpartition("/")[0]


def split_folders(folders: Iterable[str]) -> list[str]:
    """What folders of tars are called that are named as splits; nothing if they name fewer than two."""
    found = {name for folder in set(folders) for name in folder.split("/") if name.lower() in SPLIT_FOLDERS}
    return sorted(found) if len({SPLIT_FOLDERS[name.lower()] for name in found}) > 1 else []


def _joined(path: Path, runs: Sequence[tuple[str, Sample]]) -> tuple[list[Sample], int]:
    places: dict[str, list[int]] = {}
    for place, (stem, _) in enumerate(runs):
        places.setdefault(stem, []).append(place)
    samples = [run for _, run in runs]
    if len(places) == len(runs):
        return samples, 0
    apart = 0
    taken: set[int] = set()
    for stem, several in places.items():
        parts = [{member.ext.lower() for member in samples[place]} for place in several]
        counts = Counter(ext for part in parts for ext in part)
        repeated = {ext for ext, count in counts.items() if count > 1}
        if repeated and all(repeated <= part for part in parts):
            continue  # samples of the same name, as of tars that were joined
        if repeated:
            raise ShardError(
                f"{path}: the members of {stem} are in {len(several)} places, and .{min(repeated)} is in "
                f"{counts[min(repeated)]} of them: which belong together cannot be told; make the tar again with the "
                "members of a sample next to one another"
            )
        if len(several) > 1:
            samples[several[0]] = tuple(member for place in several for member in runs[place][1])
            taken.update(several[1:])
            apart += 1
    return [sample for place, sample in enumerate(samples) if place not in taken], apart


def _misread(samples: Sequence[Sample]) -> str:
    """Why names up to the first dot are hardly the keys of these samples; empty if they may be."""
    if not any("." in ext for ext in {member.ext for sample in samples for member in sample}):
        return ""
    images = image_extensions()
    kinds = images if any(has_extension(m.ext, images) for sample in samples for m in sample) else TEXT_EXTENSIONS
    several = []  # samples with several images, one of them at least behind a further dot
    for sample in samples:
        if any("." in member.ext for member in sample):
            found = [member for member in sample if has_extension(member.ext, kinds)]
            if len(found) > 1 and any("." in member.ext for member in found):
                several.append((sample, found))
    if not several:
        return ""
    views = [frozenset(m.ext.lower() for m in found if "." in m.ext) for _, found in several]
    dotted = frozenset().union(*views)
    most = _KINDS if len(views) > 1 and len(set(views)) == 1 else min(len(views), _KINDS)  # the same ones recur
    numbered = any(set(ext.rpartition(".")[0]) <= _DIGITS for ext in dotted)
    labelled = any(_labelled_apart(sample, found) for sample, found in several)
    if not numbered and not labelled and len(dotted) <= max(2, most):
        return ""
    first, second = several[0][1][:2]
    count = sum(len(found) for _, found in several)
    noun = "image" if kinds is images else "text"
    return (
        f"{plural(count, noun)} would be {plural(len(several), 'sample')}, because names up to their first dot are "
        f"keys, and {first.name} and {second.name} have the same one; make the tars again under names without such "
        "dots, or convert with key_dots=last, which takes names up to their last dot; with key_dots=first, if these "
        f"are {noun}s of one sample"
    )


def _labelled_apart(sample: Sample, images: Sequence[Member]) -> bool:
    """Whether several images of a sample have a label each, as x.1a.jpg has x.1a.cls."""
    labels = {m.ext[:-4] for m in sample if m.ext.lower().endswith(".cls")}
    return sum(m.ext.rpartition(".")[0] in labels for m in images if "." in m.ext) > 1
