"""URLs among the values of settings: those that no command reads or writes are refused before anything is done."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastimg.errors import UsageError
from fastimg.loaders.remote.urls import BadURLError, url_of

from .rules import flag

HUB = "hf"  # the scheme of the Hugging Face hub, from which `convert` reads
_HERE = ("cache_dir", "config", "scratch", "plot")  # what is on this machine alone
_TEXTS = ("resume",)  # settings that may be URLs and are no paths


def refuse_urls(values: Mapping[str, Any]) -> None:
    """Raises UsageError for the first of a command's settings that is meant as a URL and cannot be one.

    It names no secret that the URL holds.
    """
    for name, paths in _paths(values).items():
        sources = len(paths) - 1 if name == "src" else 0
        for place, path in enumerate(paths):
            try:
                url = url_of(path, (HUB,) if place < sources else ())
            except BadURLError as error:
                raise UsageError(str(error)) from error
            if url is not None and name in _HERE:
                raise UsageError(f"{flag(name)} {url}: is on this machine alone; give a path here")


def _paths(values: Mapping[str, Any]) -> dict[str, list[Path | str]]:
    """The settings that hold paths; of `convert` all sources, and the destination, under the name of the first."""
    found: dict[str, list[Path | str]] = {}
    for name, value in values.items():
        several = value if isinstance(value, tuple | list) else (value,)
        paths = [each for each in several if isinstance(each, Path) or (name in _TEXTS and isinstance(each, str))]
        if paths:
            found[name] = paths
    if "src" in found:
        found["src"] += [*found.pop("dst", []), *found.pop("more", [])]
    return found
