"""Detect what separates the columns of a CSV or TSV: the default for its extension, unless its first rows disagree."""

from collections.abc import Callable
from pathlib import Path

from fastimg.errors import UsageError

from .tables import first_records, own_delimiter, stated_delimiter

DELIMITERS = (",", ";", "\t", "|")

_SAMPLED_ROWS = 100
_ENOUGH_ROWS = 10  # that many texts are unlikely to have the same number of semicolons by chance


def parse_delimiter(text: str) -> str:
    """Parse the value of --delimiter. Raises UsageError."""
    delimiter = {"tab": "\t", "\\t": "\t"}.get(text.lower(), text)
    if len(delimiter) != 1 or delimiter.isalnum() or delimiter in "\"'\r\n":
        raise UsageError(f"--delimiter {text!r}: give one character, such as ',' ';' or '|', or tab")
    return delimiter


def spelled(delimiter: str) -> str:
    """Format a delimiter for a message."""
    return "tabs" if delimiter == "\t" else repr(delimiter)


def find_delimiter(src: Path, recognised: Callable[[list[str]], bool]) -> str:
    """Detect the delimiter of a CSV or TSV.

    `recognised` tells whether a first row makes sense, because it has known column names or the path of an image.

    The default for the extension wins if it gives a first row that makes sense, or rows of equal length. Otherwise
    another delimiter that does so is used; equal lengths alone count only if the default does not occur in the first
    row, or if at least ten rows agree. If nothing fits, the default is returned and reading the rows reports the
    problem. Raises UsageError if two delimiters fit equally well.
    """
    if stated := stated_delimiter(src):
        return stated
    own = own_delimiter(src)
    cut = {delimiter: first_records(src, delimiter, _SAMPLED_ROWS) for delimiter in (own, *DELIMITERS)}
    several = {delimiter: records for delimiter, records in cut.items() if records and len(records[0]) > 1}
    sensible = [delimiter for delimiter, records in several.items() if recognised(records[0])]
    even = [delimiter for delimiter, records in several.items() if len(set(map(len, records))) == 1]
    if own in sensible:
        return own
    fitting = [delimiter for delimiter in sensible if delimiter in even]
    if not fitting and own in even:
        return own
    if own in several:
        even = [delimiter for delimiter in even if len(several[delimiter]) >= _ENOUGH_ROWS]
    fitting = fitting or sensible or even
    if len(fitting) > 1:
        raise UsageError(
            f"{src}: its columns may be separated by {' or '.join(map(spelled, fitting))}; choose one with --delimiter"
        )
    return fitting[0] if fitting else own
