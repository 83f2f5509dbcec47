"""What `hf://datasets/USER/NAME[:config][@revision]` says, and the commit at which a conversion began to read it."""

import re
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path

from fastimg.errors import UsageError

_NAME = r"[\w.-]+(?:/[\w.-]+)?"
_REFERENCE = re.compile(rf"hf:/+datasets/({_NAME})(?::([^@/:]+))?(?:@([^@:]+))?")


@dataclass(frozen=True)
class HubReference:
    """A dataset of the hub. `config` and `revision` are None where the user left them open."""

    repository: str
    config: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        config = f":{self.config}" if self.config else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://datasets/{self.repository}{config}{revision}"


def is_hub(src: str | PathLike[str]) -> bool:
    """Whether a source is a URL of the hub. A `Path` keeps one of its two slashes."""
    return re.match(r"hf:/", fspath(src)) is not None


def parse_reference(src: str | PathLike[str]) -> HubReference:
    """The dataset that a URL names. Raises UsageError."""
    found = _REFERENCE.fullmatch(fspath(src).rstrip("/"))
    if found is None:
        text = re.sub(r"^hf:/+", "hf://", fspath(src))
        raise UsageError(f"{text}: give hf://datasets/USER/NAME, with :CONFIG and @REVISION behind it if needed")
    return HubReference(*found.groups())


def as_begun(src: Path, source: object) -> Path:
    """`src` at the commit that an unfinished conversion reads, whose options state their `source`; else `src` itself.

    A branch may have moved on since then.
    """
    if not is_hub(src) or not isinstance(source, str):
        return src
    asked = parse_reference(src)
    for text in source.split(", "):
        stated = parse_reference(text) if is_hub(text) else None
        if stated is not None and stated.repository == asked.repository and asked.config in (None, stated.config):
            return Path(str(replace(stated, config=asked.config)))
    return src
