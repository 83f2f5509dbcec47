"""The folder that a conversion writes into: what it may contain, and what is left after a failure."""

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fastimg.config.commands import Convert
from fastimg.errors import UsageError, UserError
from fastimg.loaders.errors import not_written

from .journal import CONTENTS, REPLACES, STAGED, DestinationState, Held, Journal, clear, is_shard, journal_options
from .shards.base import Base

_REPLACING = "holds an unfinished conversion that is to replace the dataset there"
GIVE_UP = "give it up: delete convert.json there and the shards that dataset.json does not list"
CHANGED = "was changed by another conversion meanwhile"
_APPENDING = "holds an unfinished append; continue it with its own source, --append and --resume"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, or the limit of a file


def missing_folders(folder: Path) -> list[Path]:
    """The folders that must be created for `folder`, innermost first."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UserError(f"{folder}: is a file, but the dataset needs a folder; give another destination")
    return [path for path in (folder, *folder.parents) if not os.path.exists(path)]


def admit(
    held: Held, where: Path | str, flags: Convert, options: dict[str, Any] | None = None, base: Base | None = None
) -> DestinationState:
    """The state of `where`, a folder or a URL, for a conversion with these flags, or for an append to `base`.

    Raises UserError unless it may begin, or with --resume go on, there. Without `options` they are compared later.
    """
    place = "folder" if isinstance(where, Path) else "URL"
    if held.state is DestinationState.REPLACING:
        return _replacing(held.begun or {}, where, flags, options)
    state = _appending(held, where, flags, options, base) if base and options else held.state
    if state is DestinationState.OTHER:
        raise UserError(f"{where}: not empty, and not made by fastimg convert; give a new or empty {place}")
    goes_on = flags.resume and state is DestinationState.UNFINISHED
    if state is DestinationState.EMPTY or (flags.overwrite and not goes_on):
        return state
    if not flags.resume:
        if state is DestinationState.UNFINISHED:
            raise UserError(
                f"{where}: holds an unfinished conversion; continue it with --resume, or start again with --overwrite"
            )
        raise UsageError(f"{where}: already holds a dataset; give another {place}, or replace it with --overwrite")
    if state is DestinationState.APPENDING and not base:
        raise UserError(f"{where}: {_APPENDING}")
    if options and held.begun and state is not DestinationState.DATASET:
        check_same(where, held.begun, options)
    return state


def _replacing(
    begun: dict[str, Any], where: Path | str, flags: Convert, options: dict[str, Any] | None
) -> DestinationState:
    """The state of a destination whose dataset is being replaced by a conversion that has `begun` and not finished."""
    if flags.append:
        give_up = f"give it up: delete {STAGED} there, then append again" if isinstance(where, Path) else GIVE_UP
        raise UserError(f"{where}: {_REPLACING}; continue it with --resume, or {give_up}")
    if not flags.resume and not flags.overwrite:
        raise UserError(f"{where}: {_REPLACING}; continue it with --resume, or begin another with --overwrite")
    if flags.resume and options:
        check_same(where, begun, options)
    return DestinationState.REPLACING


def _appending(held: Held, where: Path | str, flags: Convert, options: dict[str, Any], base: Base) -> DestinationState:
    """Whether an append begins, has not finished, or is complete."""
    if held.sha256 != base.sha256:
        raise UserError(f"{where}: {CHANGED}; run this again")
    if held.state is DestinationState.APPENDING:
        if not flags.resume:
            raise UserError(f"{where}: {_APPENDING}, or {GIVE_UP}")
        return held.state
    if base.holds(options):
        if not flags.resume:
            raise UserError(
                f"{where}: the same samples were already converted or appended; leave them out, or give new ones"
            )
        return DestinationState.DATASET
    # A journal that is left belongs to what is complete: what it has replaced is deleted when this begins.
    if held.begun is None and (others := set(filter(is_shard, held.names)) - base.files):
        raise UserError(
            f"{where}: {min(others)} does not belong to the dataset and would be deleted; move it elsewhere first"
        )
    return DestinationState.EMPTY


def begin_journal(
    folder: Path, options: dict[str, Any], base: Base | None, resumed: bool, delivered: Collection[str] = ()
) -> Journal:
    """The open journal; files that it does not know are deleted. The shards `delivered` are elsewhere by now."""
    if resumed:
        check_same(folder, journal_options(folder) or {}, options)
        journal = Journal.go_on(folder, delivered)
    else:
        journal = Journal.start(folder, options)
    clear(folder, keep=journal.files() | {"convert.json"} | (base.files if base else set()))
    return journal


def differing(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """The names of the options in which two conversions differ."""
    compared = there.keys() | here.keys()
    if CONTENTS not in there or there.get("listing") != here.get("listing"):  # not stated; or the listing says enough
        compared -= {CONTENTS}
    return sorted(name for name in compared if there.get(name) != here.get(name))


def check_same(where: Path | str, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise UserError if options differ from those that a conversion was started with."""
    names = differing(there, here)
    if not names:
        return
    descriptions = {
        "listing": "the source (its paths, labels or sizes)",
        CONTENTS: "the source (what is in its files)",
        "classes": "the classes",
        "fastimg": "the version of fastimg",
        "source": "the kind of source",
        "tars": "how tars are read (--key-dots, --image-member, --label-member, --classes)",
        "base": "the dataset that is appended to",
        REPLACES: "the dataset that is replaced",
    }
    what = ", ".join(
        descriptions.get(name, f"--{name.replace('_', '-')} ({there.get(name)} there, {here.get(name)} here)")
        for name in names
    )
    if "base" in there:
        raise UserError(
            f"{where}: an append was started with something else: {what}; use the same settings, or {GIVE_UP}"
        )
    raise UserError(
        f"{where}: was started with something else: {what}; use the same settings, or --overwrite without --resume"
    )


def undo(folder: Path, options: dict[str, Any], base: Base | None) -> None:
    """Delete everything that this run wrote."""
    if journal_options(folder) == options:
        clear(folder, keep=base.files if base else ())


def plain_error(folder: Path, url: str | None, error: OSError, goes_on: bool, replaces: bool = False) -> UserError:
    """An error of the file system as a sentence.

    folder: in which shards are made; they are uploaded from there if the destination is a `url`. goes_on: whether
    --resume continues. replaces: whether a dataset is there until the new one is complete.
    """
    again = "continue with the same command and --resume" if goes_on else "convert again"
    if error.errno in FULL:
        what, beside = str(folder), ""
        if url is not None:
            what += f", where shards are made for {url}"
        elif error.errno == errno.EFBIG and error.filename:
            what = str(error.filename)
        if replaces and error.errno != errno.EFBIG:
            what += ", which also holds the dataset that is to be replaced"
            beside = "; or give --overwrite --resume --delete-first, which deletes that dataset first"
        return UserError(f"{what}: {not_written(error, '')}, then {again}{beside}")
    what = f"{error.filename or folder}: {error.strerror or error}"
    return UserError(f"{what}; check the path and its permissions{f', then {again}' if goes_on else ''}")
