"""Errors that are shown to the user as one sentence, and their exit codes."""

import difflib
import re
from collections.abc import Iterable


class UserError(Exception):
    """A failure outside the program, with exit code 1. The message names what failed, why, and what to do."""

    exit_code = 1


class UsageError(UserError):
    """A wrong command line or configuration, with exit code 2."""

    exit_code = 2


def printable(text: str) -> str:
    """Text that can be printed anywhere: bytes of file names that are not UTF-8 are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def reason_of(error: BaseException) -> str:
    """The first line of a library's error, without advice to run code that comes with a file."""
    text = str(error)
    if "weights_only" in text:  # torch.load, of a file that holds more than tensors
        found = re.search(r"GLOBAL ([\w.]+)", text)
        if found is not None:
            return f"it holds Python objects ({found[1]}), and reading them would run code"
        if "TorchScript" in text:
            return "it is a TorchScript program"
        return "torch.load finds no plain tensors in it"
    if "trust_remote_code" in text:  # transformers
        return "it comes with Python code, which is not run"
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def nearest(word: str, known: Iterable[str], n: int = 3, cutoff: float = 0.5) -> str:
    """`; did you mean a, b or c?` for the names most like `word`; empty if none is."""
    names = difflib.get_close_matches(word, list(known), n=n, cutoff=cutoff)
    if not names:
        return ""
    return "; did you mean " + (" or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]) + "?"
