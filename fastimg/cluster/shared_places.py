"""Folders that all nodes of a cluster must see as the machine sees them on which a command was started."""

import contextlib
import heapq
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastimg import __version__

ATTEMPTS = ".attempts"  # the folder in which tasks write, each in a folder of its own
_ENTRIES = 100  # of a source that are looked for on each node


@dataclass(frozen=True, kw_only=True)
class SeenSource:
    """Data, and the names of some entries where it is a folder."""

    path: Path
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SharedPlaces:
    """What a node has to see.

    job: what runs, in messages: search, conversion. token, word: a file in the job's folder, and what is written in it;
    None where the folder is in an object store. here: the folder from which relative paths count.
    """

    job: str
    version: str
    sources: tuple[SeenSource, ...]
    token: Path | None
    word: str
    here: Path


@contextlib.contextmanager
def shared_places(job: str, sources: Sequence[Path], folder: Path | None) -> Iterator[SharedPlaces]:
    """What this process sees. While the block lasts, a token lies in `folder`, where there is one."""
    word = secrets.token_hex(8)
    token = None
    try:
        if folder is not None:
            handle, name = tempfile.mkstemp(prefix=".seen-", dir=folder.resolve())
            token = Path(name)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(word)
        seen = tuple(SeenSource(path=path.resolve(), entries=_entries(path)) for path in sources)
        yield SharedPlaces(job=job, version=__version__, sources=seen, token=token, word=word, here=Path.cwd())
    finally:
        if token is not None:
            token.unlink(missing_ok=True)


def unseen(places: SharedPlaces, node: str) -> str | None:
    """What is missing on this node, a sentence; None if nothing is."""
    job = places.job
    if places.version != __version__:
        return f"{node}: has fastimg {__version__}, and the {job} {places.version}; install the same on all nodes"
    remedy = f"a {job} on a cluster needs a folder that all nodes share"
    for source in places.sources:
        if not source.path.exists():
            return f"{node}: does not see the data, {source.path}; {remedy}"
        if not all((source.path / name).exists() for name in source.entries):
            return f"{node}: has other files in {source.path} than the machine that started the {job}; {remedy}"
    if places.token is not None and (fault := _unseen_folder(places, places.token, node, remedy)):
        return fault
    if not places.here.is_dir():
        return (
            f"{node}: does not see {places.here}, from which relative paths count; start the {job} in a shared folder"
        )
    return None


def _unseen_folder(places: SharedPlaces, token: Path, node: str, remedy: str) -> str | None:
    folder = token.parent
    try:
        word = token.read_text(encoding="ascii")
        tempfile.TemporaryFile(dir=folder).close()
    except FileNotFoundError:
        return f"{node}: does not see the folder of the {places.job}, {folder}; {remedy}"
    except OSError as error:
        return f"{node}: cannot write to the folder of the {places.job}, {folder}: {error.strerror or error}"
    if word != places.word:
        return f"{node}: has another folder at {folder} than the machine that started the {places.job}; {remedy}"
    return None


def _entries(data: Path) -> tuple[str, ...]:
    """Names in a folder, the first of them; none of a file."""
    return tuple(heapq.nsmallest(_ENTRIES, os.listdir(data))) if data.is_dir() else ()
