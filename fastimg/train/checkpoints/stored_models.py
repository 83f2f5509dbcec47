"""Models in an object store: the runs and files of weights that flags name by URLs, brought to this machine.

A run comes as its best checkpoint (`stored_runs`), a file as it is. Each process of a machine asks for both; the first
one fetches them, while the others wait for its lock. Imports nothing that takes time.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fastimg.config.commands import Embed, Train
from fastimg.loaders.remote.origins import fetched_from, note_origin, origin_of
from fastimg.loaders.remote.stores import url_of

from .model_files import find
from .stored_runs import Tell, fetch_file, fetch_model

FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")  # of weights; any other URL is a run's
_NAMES = ("weights", "teacher", "teacher_weights")  # settings that may name a model

_Settings = TypeVar("_Settings", bound=Train | Embed)


def local_model(model: Path, settings: Any, tell: Tell | None = None) -> Path:
    """The directory of a run, or the file of weights, that a URL names; a path on this machine is given back.

    `tell` gets a sentence before something is fetched. Raises UserError and DataError.
    """
    url = url_of(model)
    if url is None:
        return model
    path = (fetch_file if url.endswith(FILES) else fetch_model)(model, settings, tell)
    note_origin(path, url)
    return path


def names_models(config: Train | Embed) -> bool:
    """Whether settings name a model by a URL."""
    given = (getattr(config, name, None) for name in _NAMES)
    return any(path is not None and url_of(path) is not None for path in given)


def with_local_models(config: _Settings, tell: Tell | None = None) -> _Settings:
    """The settings with what --weights, --teacher and --teacher-weights name on this machine: see `local_model`."""
    changes: dict[str, Any] = {}
    for name in _NAMES:
        given = getattr(config, name, None)
        if given is not None and url_of(given) is not None:
            path = local_model(Path(given), config, tell)
            changes[name] = str(path) if name == "teacher" else path
    return replace(config, **changes) if changes else config


def versions(config: Train) -> str:
    """What tells the models of `with_local_models` from others: ranks that fetched at other times have the same."""
    paths = (Path(getattr(config, name)) for name in _NAMES if getattr(config, name) is not None)
    return " ".join(_sha256(find(path)) for path in paths if origin_of(path))


def setting_of(model: Path) -> Path:
    """A path to a model as a setting that is written down: the URL that it came from, or the absolute path."""
    url = origin_of(model)
    return model.resolve() if url is None else Path(url)


def brought_here(model: Path) -> Path:
    """The inverse of `setting_of`, of what this process has fetched; any other path is given back."""
    url = url_of(model)
    path = None if url is None else fetched_from(url)
    return model if path is None else Path(path)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
