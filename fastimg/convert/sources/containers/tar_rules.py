"""How tars of other writers are read: the flags that tell keys, images and labels, and labels by these rules."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastimg.errors import UsageError
from fastimg.loaders.containers.tars.grouping import KeyDots
from fastimg.loaders.errors import DataError
from fastimg.loaders.folders.folder import SPLIT_FOLDERS, Level
from fastimg.wording import shortened

LABEL_BYTES = 256  # of a text
JSON_BYTES = 1 << 20
USUAL_LABELS = ("label", "class", "target", "labels", "lbl", "category", "class_id", "label_id", "txt")


class LabelMember(NamedTuple):
    """The member that holds the labels: its extension and, in JSON, the key of the label."""

    ext: str
    key: str | None = None

    def __str__(self) -> str:
        return self.ext if self.key is None else f"{self.ext}:{self.key}"

    @property
    def is_json(self) -> bool:
        """Whether it holds JSON."""
        return self.ext.rpartition(".")[2] == "json"

    def label(self, where: str, data: bytes) -> str:
        """The label in a member; empty if there is none. Raises DataError for what is not one class."""
        if not self.is_json:
            return label_text(data)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return ""  # the sample is left out for this when it is read, if it is its note
        if self.key is not None:
            value = value_at(value, self.key)
        if isinstance(value, dict) and self.key is None:
            raise DataError(
                f"{where}: its .{self.ext} holds an object with the keys {', '.join(list(value)[:8])}; name one, as in "
                f"--label-member {self.ext}:{min(value, key=usualness, default='label')}"
            )
        if isinstance(value, dict | list) or (isinstance(value, float) and not value.is_integer()):
            raise DataError(
                f"{where}: the label {shortened(json.dumps(value), 40)} in its .{self.ext} is not one class; name "
                "another with --label-member"
            )
        if value is None:
            return ""
        return str(int(value) if isinstance(value, float) else value).strip()


def label_text(data: bytes) -> str:
    """The label that a member holds as text, which some programs begin with a byte order mark."""
    return data.decode("utf-8-sig", "backslashreplace").strip()


def value_at(value: Any, key: str) -> Any:
    """What an object holds under a key, or under several joined by dots; None if there is nothing."""
    for part in (key,) if isinstance(value, dict) and key in value else key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def usualness(name: str) -> int:
    """Where a name is among those that labels usually have."""
    return USUAL_LABELS.index(name) if name in USUAL_LABELS else len(USUAL_LABELS)


@dataclass(frozen=True)
class TarRules:
    """How tars of other writers are read. What is None is as usual: .cls holds the label, `jpg` is the image."""

    key_dots: KeyDots | None = None
    image: str | None = None  # the extension of the image's member, or its name before `.jpg`
    label: LabelMember | None = None
    classes: Level | None = None  # which folder in a tar names the class
    any_labels: bool = False  # accept labels that do not look like classes
    known_classes: frozenset[str] = frozenset()  # of the dataset being appended to

    def is_image(self, ext: str) -> bool:
        """Whether a member is the image that was asked for."""
        return self.image in (ext.lower(), ext.lower().rpartition(".")[0])

    def holds_label(self, ext: str) -> bool:
        """Whether a member holds the label."""
        return ext.lower() == ("cls" if self.label is None else self.label.ext)


USUAL = TarRules()


def parse_label_member(text: str) -> LabelMember:
    """`EXT` or `EXT:key`. Raises UsageError."""
    ext, colon, key = text.strip().lstrip(".").partition(":")
    member = LabelMember(ext.lower(), key if colon else None)
    if not ext or (colon and not key):
        raise UsageError(f"--label-member {text}: give the extension of a member, as in txt, or json:KEY")
    if colon and not member.is_json:
        raise UsageError(f"--label-member {text}: only .json members have keys; leave out :{key}")
    return member


def folders_of(key: str) -> tuple[str, ...]:
    """The folders of a sample's key, outermost first."""
    return tuple(part for part in key.split("/")[:-1] if part not in ("", "."))


@dataclass(frozen=True)
class FolderLevels:
    """Which folders of keys name the split and the class."""

    split: int | None  # how many folders are above it; None: no folder names it
    below: bool  # the class is below the split, whose folders above are the same for all
    classes: Level

    @classmethod
    def of(cls, keys: Sequence[str], classes: Level) -> "FolderLevels":
        """The levels in tars with these keys: a folder names the split where all have one that is named as such."""
        levels: set[int] | None = None
        for key in keys:
            found = {level for level, name in enumerate(folders_of(key)) if name.lower() in SPLIT_FOLDERS}
            levels = found if levels is None else levels & found
        split = min(levels, default=None) if levels else None
        if split is None or any(len(folders_of(key)) < 2 for key in keys):
            return cls(None, False, classes)
        above = {folders_of(key)[:split] for key in keys}
        return cls(split, len(above) == 1 and all(len(folders_of(key)) > split + 1 for key in keys), classes)

    def place(self, key: str) -> tuple[str | None, str]:
        """The split and the class of a key; None and an empty name where there is none."""
        folders = folders_of(key)
        split = None
        if self.split is not None:
            split = SPLIT_FOLDERS[folders[self.split].lower()]
            folders = folders[self.split + 1 :] if self.below else folders[: self.split] + folders[self.split + 1 :]
        return split, folders[0 if self.classes == "top" else -1] if folders else ""
