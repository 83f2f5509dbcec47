"""The folder that a conversion writes into: what may be there, what it is left with when things go wrong."""

import errno
import os
from pathlib import Path
from typing import Any

from fastimg.config.commands import Convert
from fastimg.errors import UserError

from .description import Base
from .journal import DestinationState, Journal, clear, journal_options, shards_in, state_of

FULL = (errno.ENOSPC, errno.EDQUOT)


def missing_folders(folder: Path) -> list[Path]:
    """The folders that have to be made for `folder`, innermost first."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f"{folder}: a file, where the dataset's folder is to be; give another destination")
    return [path for path in (folder, *folder.parents) if not os.path.exists(path)]


def admit(
    folder: Path, flags: Convert, options: dict[str, Any] | None = None, base: Base | None = None
) -> DestinationState:
    """What is in the destination; of an append, with `options` and `base`, of that. Raises UserError unless allowed."""
    state = _appending(folder, flags, options, base) if base and options else state_of(folder)
    if state is DestinationState.OTHER:
        raise UserError(f"{folder}: not empty, and nothing that fastimg convert made; give a new or empty folder")
    if state is DestinationState.DATASET and not (flags.resume or flags.overwrite):
        raise UserError(f"{folder}: holds a dataset already; give another folder, or replace it with --overwrite")
    if state is DestinationState.UNFINISHED and not (flags.resume or flags.overwrite):
        raise UserError(
            f"{folder}: holds a conversion that did not finish; go on with --resume, or start again with --overwrite"
        )
    return state


def _appending(folder: Path, flags: Convert, options: dict[str, Any], base: Base) -> DestinationState:
    """Whether an append has begun, or is done."""
    if base.holds(options):
        if not flags.resume:
            raise UserError(
                f"{folder}: these very samples were appended or converted already; leave them out, or give what is new"
            )
        return DestinationState.DATASET
    there = journal_options(folder)
    if there is None and (others := shards_in(folder) - base.files):
        raise UserError(
            f"{folder}: {min(others)} is there and not of the dataset, and would be deleted; move it elsewhere first"
        )
    return DestinationState.UNFINISHED if there and "base" in there else DestinationState.EMPTY


def begin_journal(folder: Path, options: dict[str, Any], base: Base | None, resumed: bool) -> Journal:
    """The journal to write to, and a folder without what it does not know of."""
    if resumed:
        check_same(folder, journal_options(folder) or {}, options)
        journal = Journal.go_on(folder)
    else:
        journal = Journal.start(folder, options)
    clear(folder, keep=journal.files() | {"convert.json"} | (base.files if base else set()))
    return journal


def check_same(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise UserError where options differ from those that a conversion began with."""
    names = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if not names:
        return
    told = {
        "listing": "the source (its paths, labels or sizes)",
        "classes": "the classes",
        "fastimg": "the version of fastimg",
        "source": "the kind of source",
        "base": "the dataset that is appended to",
    }
    what = ", ".join(
        told.get(name, f"--{name.replace('_', '-')} ({there.get(name)} there, {here.get(name)} here)") for name in names
    )
    raise UserError(f"{folder}: began with something else: {what}; give what it began with, or use --overwrite")


def undo(folder: Path, options: dict[str, Any], base: Base | None) -> None:
    """Leave nothing behind of a conversion that this run began."""
    if journal_options(folder) == options:
        clear(folder, keep=base.files if base else ())


def plain_error(folder: Path, error: OSError) -> UserError:
    """What went wrong with the disk, as a sentence."""
    if error.errno in FULL:
        goes_on = " go on with the same command and --resume" if journal_options(folder) else " convert again"
        return UserError(f"{folder}: no space left on the disk; free some, then{goes_on}")
    return UserError(f"{error.filename or folder}: {error.strerror or error}; check the path and its permissions")
