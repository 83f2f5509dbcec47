"""The errors that a person reads: one plain sentence, an exit code, never a traceback."""

import difflib
import re
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


def reason_of(error: BaseException) -> str:
    """The first line of what a library says, without its advice to run code that a file brings with it."""
    text = str(error)
    if "weights_only" in text:  # torch.load, of a file that holds more than tensors
        found = re.search(r"GLOBAL ([\w.]+)", text)
        if found is not None:
            return f"it holds Python objects ({found[1]}), and to read those is to run code"
        if "TorchScript" in text:
            return "it is a TorchScript program"
        return "torch.load reads no plain tensors from it"
    if "trust_remote_code" in text:  # transformers
        return "it brings Python code of its own, which is not run"
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def nearest(word: str, known: Iterable[str], n: int = 3) -> str:
    """`; did you mean a, b or c?` for the names nearest to `word`, empty where none is near."""
    names = difflib.get_close_matches(word, list(known), n=n, cutoff=0.5)
    if not names:
        return ""
    return "; did you mean " + (" or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]) + "?"
