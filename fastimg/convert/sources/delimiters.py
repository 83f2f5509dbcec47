"""What separates the columns of a csv or tsv: what its ending says, unless its first rows are cut by something else."""

from collections.abc import Callable
from pathlib import Path

from fastimg.errors import UsageError

from .tables import first_records, own_delimiter, stated_delimiter

DELIMITERS = (",", ";", "\t", "|")

_ROWS = 100  # that are looked at
_ENOUGH = 10  # rows: so many texts hardly have the same number of semicolons by chance


def parse_delimiter(text: str) -> str:
    """The character that --delimiter names. Raises UsageError."""
    delimiter = {"tab": "\t", "\\t": "\t"}.get(text.lower(), text)
    if len(delimiter) != 1 or delimiter.isalnum() or delimiter in "\"'\r\n":
        raise UsageError(f"--delimiter {text!r}: give one character, such as ',' ';' or '|', or tab")
    return delimiter


def spelled(delimiter: str) -> str:
    """A delimiter as a person reads it."""
    return "tabs" if delimiter == "\t" else repr(delimiter)


def find_delimiter(src: Path, recognised: Callable[[list[str]], bool]) -> str:
    """The delimiter of a csv or tsv. `recognised`: whether a first row makes sense, by names of columns or a path.

    The ending's own is preferred wherever it gives a first row that makes sense, or rows of one length. Another one is
    taken where it does that and the own one does not; by the length of rows alone only if the own one is not in the
    first, or ten rows agree. What fits nothing is left to the own one, and refused when its rows are read. Raises
    UsageError where two others fit equally well.
    """
    if stated := stated_delimiter(src):
        return stated
    own = own_delimiter(src)
    cut = {delimiter: first_records(src, delimiter, _ROWS) for delimiter in (own, *DELIMITERS)}
    several = {delimiter: records for delimiter, records in cut.items() if records and len(records[0]) > 1}
    sensible = [delimiter for delimiter, records in several.items() if recognised(records[0])]
    even = [delimiter for delimiter, records in several.items() if len(set(map(len, records))) == 1]
    if own in sensible:
        return own
    fitting = [delimiter for delimiter in sensible if delimiter in even]
    if not fitting and own in even:
        return own
    if own in several:
        even = [delimiter for delimiter in even if len(several[delimiter]) >= _ENOUGH]
    fitting = fitting or sensible or even
    if len(fitting) > 1:
        raise UsageError(
            f"{src}: its columns may be separated by {' or '.join(map(spelled, fitting))}; say which with --delimiter"
        )
    return fitting[0] if fitting else own
