"""Where commands print."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg.errors import printable

_UNWRAPPED = 1_000_000  # columns: wider than any table


def console(stderr: bool = False) -> Console:
    """Standard output, or standard error.

    On a terminal, lines wrap at its width. In a pipe or a file nothing wraps: each row of a table is one line, and
    paths can be searched for and copied. Text is printed as is: square brackets and colons have no special meaning.
    """
    stream = sys.stderr if stderr else sys.stdout
    if stream is not None and stream.isatty():
        return Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    # Without a height, rich would use 80 columns when TERM is dumb.
    return Console(stderr=stderr, width=_UNWRAPPED, height=25, markup=False, highlight=False, emoji=False)


def lines_to(stream: TextIO) -> Console:
    """A console that writes to a stream as `console` does in a pipe."""
    return Console(file=stream, width=_UNWRAPPED, height=25, markup=False, highlight=False, emoji=False)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as is: without wrapping in a pipe, without markup and without automatic colours."""
    console.print(Text(printable(text), style=style), soft_wrap=True, highlight=False, emoji=False)


@contextlib.contextmanager
def telling_of_compilation(console: Console) -> Iterator[None]:
    """Inside the block, print a line when numba has to compile fastimg's JPEG code, which takes up to a minute."""
    from fastimg.loaders.runtime import compiled  # brings numba

    with compiled.telling_of_compilation(lambda: say(console, "compiling the JPEG code, once on this machine")):
        yield


def print_table(console: Console, table: Table, title: str = "") -> None:
    """Print a table, with its title on a separate line, as rich would wrap it. In a pipe, no line ends in blanks."""
    if title:
        say(console, title, style="italic")
    if console.is_terminal:
        console.print(table, highlight=False, markup=False, emoji=False)
        return
    with console.capture() as printed:
        console.print(table, highlight=False, markup=False, emoji=False)
    for line in printed.get().splitlines():
        say(console, line.rstrip())
