"""The folder of a search: what was asked, the study, a run per trial; and a lock: one search at a time."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.errors import not_written

ASKED = "search.json"
RUNS = "runs"
STUDY = "study.db"
JOURNAL = "trials.jsonl"
FREED = "freed.jsonl"
BOARD = "leaderboard.json"
LOCK = "lock"
_PATIENCE = 10.0  # seconds: the processes of a search that was killed end in a moment


def whole_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON objects, if it exists; a last one that a kill cut off is removed.

    Raises UserError for a damaged line: without it the search would not know what it has done.
    """
    if not file.exists():
        return []
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with file.open("r+b") as opened:
            opened.truncate(len(whole))
    return [_object(line, file, number) for number, line in enumerate(whole.split(b"\n")[:-1], start=1)]


def _object(line: bytes, file: Path, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise damaged_line(file, number)
    return found


def damaged_line(file: Path, number: int) -> UserError:
    """The error for a line of a search's own files that cannot be used."""
    return UserError(
        f"{file}: line {number} is damaged, and without it the search does not know what it has done; restore the "
        "file, or give another --output"
    )


def add_line(file: Path, line: Mapping[str, Any]) -> None:
    """Append a line of JSON."""
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(line) + "\n")


def run_name(number: int) -> str:
    """The name of a trial's run directory."""
    return f"{number:04d}"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder; the handle of its lock, which the processes of the search inherit, and which dies with the last.

    Raises UserError where another search has it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{folder}: {not_written(error, 'give another --output')}") from error
    try:
        _take(handle, folder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield handle
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    """Lock it. Where the search that had it is dead, its processes are ending: wait for them."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            owner = os.pread(handle, 20, 0).decode()
            if _lives(owner) or time.monotonic() > end:
                words = f"the process {owner}" if owner else "another process"
                raise UserError(f"{folder}: {words} is searching here; wait for it, or give another --output") from None
            time.sleep(0.02)


def _lives(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def remembered(folder: Path, asked: Mapping[str, Any]) -> Iterator[None]:
    """What is asked is written down, unless it is refused before the first trial: then the folder is as it was.

    Raises UsageError where the folder's search was asked for something else.
    """
    file = folder / ASKED
    if file.exists():
        _compare(folder, file, asked)
        yield
        return
    replace_file(file, (json.dumps(asked, indent=2) + "\n").encode())
    try:
        yield
    except UsageError:
        if not (folder / RUNS).exists() and not (folder / BOARD).exists():
            for name in (ASKED, STUDY, JOURNAL):
                (folder / name).unlink(missing_ok=True)
        raise


def _compare(folder: Path, file: Path, asked: Mapping[str, Any]) -> None:
    try:
        before = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        before = None
    if not isinstance(before, dict):
        raise UserError(f"{file}: is damaged, and says no longer what was asked; restore it, or give another --output")
    for name in (*asked, *before):
        if before.get(name) != asked.get(name):
            raise UsageError(
                f"{folder}: its search began with {name} {_told(before.get(name))}, and this one has "
                f"{_told(asked.get(name))}; give the same again, or another --output"
            )


def _told(value: Any) -> str:
    return "none" if value in (None, [], {}) else json.dumps(value).replace('"', "")
