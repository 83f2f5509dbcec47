"""Configurations as YAML: the same keys as the flags, an unknown key is an error."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

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
    try:
        return msgspec.convert(values, kind, dec_hook=lambda target, value: target(value), strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"--config {path}: {error}") from error
