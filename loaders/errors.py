"""Errors of the loader. Their messages are written for the owner of the data."""

import errno
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager

# Of a RuntimeError for an iteration that goes on after its end.
OVER = (
    "this iteration is over: the loader was closed, or iterated again; for two iterations at once make two loaders "
    "with seeds of their own"
)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CODE = re.compile(r"\bos error (\d+)\b")  # as libraries in Rust end their messages


class DataError(Exception):
    """The data is invalid or cannot be read. The message names the file, the reason and the remedy."""


class UnavailableError(DataError):
    """The data cannot be had now: a store that refuses or is silent, or a cache that cannot be written."""


class ShardError(DataError):
    """A shard, an index or dataset.json is missing, cut short or altered: nothing in it can be trusted."""


class ImageError(DataError):
    """One image cannot be decoded. The message is only the reason: the caller knows the image's name."""


class WorkerError(RuntimeError):
    """A worker thread failed on a named sample for a reason other than the data; `__cause__` is the original error."""


@contextmanager
def image_faults() -> Iterator[None]:
    """Make an ImageError of whatever a library raises about the content of a file.

    Pillow, tifffile, NumPy's reader of arrays and the codecs below them raise nearly anything for a damaged file: from
    zlib.error and tokenize.TokenError to RecursionError. A MemoryError, too, is due to what the file asks for.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise ImageError(first_line(error)) from error


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its name."""
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    text = getattr(error, "strerror", None) or str(error)
    lines = str(text).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def not_written(error: BaseException, remedy: str) -> str:
    """Why a file could not be written, and what to do: `remedy`, unless the disk or a limit is the reason."""
    code = _CODE.search(str(error))
    number = getattr(error, "errno", None) or (int(code[1]) if code else None)
    if number in _FULL:
        return "no space left on the disk; free some space"
    if number == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit == resource.RLIM_INFINITY:
            return "larger than files may be in this file system; write to another one"
        return f"larger than this process may write ({limit:,} bytes); raise that limit, as with `ulimit -f unlimited`"
    return f"{first_line(error)}; {remedy}"
