"""Tars of other writers in an object store: those that a URL names by braces, or that its folder holds.

`s3://bucket/path/train-{0000..0099}.tar` is what webdataset's users write; `{a,b}` names alternatives.
"""

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from fastimg.loaders.errors import DataError

from .stores import NotThereError, RemoteFolder, StoredObject

_GROUP = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LOOKS = 16  # requests at once
_MOST = 100_000  # names


def named_tars(url: str) -> tuple[str, str | None]:
    """The folder of a URL, and the pattern of tars in it if the URL names some: its last part ends in .tar.

    Raises DataError for braces anywhere else, and for a file that is not read by itself.
    """
    folder, _, last = url.rpartition("/")
    if last == "dataset.json" or last.endswith(".beton"):
        raise DataError(f"{url}: is a file of a dataset; give the folder that it is in, {folder}")
    named = last.endswith(".tar") and not folder.endswith("/")
    if "{" in (folder if named else url) or "}" in (folder if named else url):
        raise DataError(f"{url}: braces stand in the names of tars alone, as in s3://bucket/train-{{0000..0099}}.tar")
    return (folder, last) if named else (url, None)


def expanded(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for, in order. Raises ValueError."""
    pieces = _GROUP.split(pattern)  # text, group, text, group, ..., text
    choices = [[piece] if place % 2 == 0 else list(_choices(piece)) for place, piece in enumerate(pieces)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MOST:
        raise ValueError(f"{count:,} names; give at most {_MOST:,}")
    names = ["".join(parts) for parts in itertools.product(*choices)]
    if any("{" in name or "}" in name for name in names):
        raise ValueError("its braces do not match")
    return names


def _choices(group: str) -> Iterator[str]:
    found = _RANGE.fullmatch(group)
    if found is None:
        if "," not in group:
            raise ValueError(f"{{{group}}} is neither a range as {{0000..0099}} nor a list as {{a,b}}")
        yield from group.split(",")
        return
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise ValueError(f"{{{group}}} ends before it begins")
    width = len(found[1]) if found[1].startswith("0") else 0
    if last - first >= _MOST:
        raise ValueError(f"{last - first + 1:,} names; give at most {_MOST:,}")
    for number in range(first, last + 1):
        yield str(number).zfill(width)


def stored_tars(remote: RemoteFolder, pattern: str | None) -> list[StoredObject]:
    """The tars that are named, each of which must be there; or all of the folder, by name. Raises DataError."""
    if pattern is None:
        if remote.url.startswith("http"):
            raise DataError(
                f"{remote.address('dataset.json')}: not found; the folder must be one that `fastimg convert` has "
                f"written; or name tars, as in {remote.url}/{{0000..0099}}.tar, as a web server lists none"
            )
        found = remote.contents()
        if any(each.name == "convert.json" for each in found):  # otherwise its finished shards would be read as others'
            raise DataError(
                f"{remote.url}: a conversion that did not finish; run the same conversion again with resume=True"
            )
        return [each for each in found if each.name.endswith(".tar") and not each.name.startswith(".")]
    try:
        names = expanded(pattern)
    except ValueError as error:
        raise DataError(f"{remote.address(pattern)}: {error}") from error
    with ThreadPoolExecutor(min(_LOOKS, max(len(names), 1)), "fastimg-look") as pool:
        try:
            return list(pool.map(remote.look, names))
        except NotThereError:
            pool.shutdown(cancel_futures=True)
            raise
