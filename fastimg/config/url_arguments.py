"""URLs among the values of settings: those that no command reads or writes are refused before anything is done."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastimg.errors import UsageError
from fastimg.loaders.remote.urls import BadURLError, url_of, without_secrets

from .rules import flag

HUB = "hf"  # the scheme of the Hugging Face hub, from which `convert` reads
_HERE = ("cache_dir", "scratch")  # what is on this machine alone, whichever command has it
_TEXTS = ("resume",)  # settings that may be URLs and are no paths

_SECRETS = (  # in names of options
    *("secret", "token", "password", "access_key", "account_key", "master_key", "customer_key", "encryption_key"),
    *("private_key", "credential_key", "authorization", "sas"),
)


def refuse_urls(values: Mapping[str, Any]) -> None:
    """Raises UsageError for the first of a command's settings that is meant as a URL and cannot be one.

    It names no secret that the URL holds. See `refuse_options`, too.
    """
    refuse_options(values.get("storage_option") or ())
    for name, paths in _paths(values).items():
        sources = len(paths) - 1 if name == "src" else 0
        for place, path in enumerate(paths):
            try:
                url = url_of(path, (HUB,) if place < sources else ())
            except BadURLError as error:
                raise UsageError(str(error)) from error
            if url is not None and name in _HERE:
                raise UsageError(f"{flag(name)} {url}: is on this machine alone; give a path here")


def refuse_options(options: Sequence[str]) -> None:
    """Raises UsageError for an option of a store that is none, or holds a secret. It repeats no value."""
    for option in options:
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise UsageError("--storage-option: give NAME=VALUE, as in region=eu-west-1")
        if any(word in name.lower() for word in _SECRETS):
            raise UsageError(
                f"--storage-option {name}: is written down with the run; give it in the environment, as in "
                "AWS_SECRET_ACCESS_KEY"
            )
        if without_secrets(value) != value:
            raise UsageError(
                f"--storage-option {name}: is written down with the run, and holds a name or a password; give the "
                "address in the environment, as in AWS_ENDPOINT_URL or HTTPS_PROXY"
            )


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
