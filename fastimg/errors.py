"""The errors that a person reads: one plain sentence, an exit code, never a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something outside the program is wrong: exit code 1. The message names the thing, the reason and the remedy."""

    exit_code = 1


class UsageError(UserError):
    """The command line or a configuration is wrong: exit code 2."""

    exit_code = 2


def printable(text: str) -> str:
    """Text that any terminal and any file takes; file names need not be utf-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def nearest(word: str, known: Iterable[str], n: int = 3) -> str:
    """`; did you mean a, b or c?` for the names nearest to `word`, empty where none is near."""
    names = difflib.get_close_matches(word, list(known), n=n, cutoff=0.5)
    if not names:
        return ""
    return "; did you mean " + (" or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]) + "?"
