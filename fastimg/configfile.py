"""Configurations as YAML: the same keys as the flags, an unknown key is an error."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from .config import Augmenting, Train
from .errors import UsageError, nearest

_T = TypeVar("_T")


def dump(config: Any) -> str:
    """A dataclass as YAML that `load` reads back; unset choices are left out."""
    values = {key: value for key, value in msgspec.to_builtins(config, enc_hook=str).items() if value is not None}
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def load(path: Path, kind: type[_T]) -> _T:
    """A dataclass from YAML. Raises UsageError naming the file and the key."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}; check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--config {path}: not a mapping of settings; write lines like `epochs: 10`")
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    for key in values:
        if key not in known:
            raise UsageError(f"--config {path}: unknown key {key!r}{nearest(key, known)}")
    if values.get("augmentation") is False and "no_aug" in known:
        values = {key: value for key, value in values.items() if key != "augmentation"} | {"no_aug": True}
    try:
        config = msgspec.convert(values, kind, dec_hook=lambda target, value: target(value), strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"--config {path}: {error}") from error
    if isinstance(config, Augmenting) and config.augmentation is not None:
        _check_list(path, config)
    return config


def without_contradicted(file: Train, given: set[str]) -> Train:
    """A file's settings without those that contradict the `given` fields of Augmenting: flags win.

    --no-aug drops all other augmentation, any other drops no_aug; --color-jitter and the ranges that it sets exclude
    each other.
    """
    dropped: dict[str, Any] = {}
    if given == {"no_aug"}:
        dropped = {field.name: None for field in dataclasses.fields(Augmenting)} | {"no_aug": False}
    elif given:
        dropped = {"no_aug": False}
        jitter = {"brightness", "contrast", "saturation"}
        if "color_jitter" in given:
            dropped |= dict.fromkeys(jitter)
        elif given & jitter:
            dropped |= {"color_jitter": None}
    return dataclasses.replace(file, **dropped)


def _check_list(path: Path, config: Augmenting) -> None:
    """Refuse a list that cannot be, and a file that says the same thing in two ways."""
    from .augmentation import FIELDS, listed  # not above: it brings torch, which takes seconds

    others = [name for name in FIELDS if name not in ("augmentation", "scale", "ratio")]
    for name in others:
        if getattr(config, name) is not None:
            raise UsageError(f"--config {path}: augmentation and {name} say two things; put {name} into the list")
    try:
        listed(config.augmentation)
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from error
