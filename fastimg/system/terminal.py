"""Where commands print."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fastimg.wording import for_terminal, without_cells

_UNWRAPPED = 1_000_000  # columns: wider than any table


class _Printing(Console):
    """A console that prints the characters of names of files, classes and columns, and never obeys them."""

    def render_str(self, text: str, **options: Any) -> Text:
        """See Console: what is printed as a string, before its width is measured."""
        return super().render_str(for_terminal(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See Console: all else. rich's own control codes are segments of their own."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                segment = segment._replace(text=for_terminal(segment.text))
            yield segment


def console(stderr: bool = False) -> Console:
    """Standard output, or standard error.

    On a terminal, lines wrap at its width. In a pipe or a file nothing wraps: each row of a table is one line, and
    paths can be searched for and copied. Text is printed as is: square brackets and colons have no special meaning.
    """
    stream = sys.stderr if stderr else sys.stdout
    if stream is not None and stream.isatty():
        return _Printing(stderr=stderr, markup=False, highlight=False, emoji=False)
    # Without a height, rich would use 80 columns when TERM is dumb.
    return _Printing(stderr=stderr, width=_UNWRAPPED, height=25, markup=False, highlight=False, emoji=False)


def lines_to(stream: TextIO) -> Console:
    """A console that writes to a stream as `console` does in a pipe."""
    return _Printing(file=stream, width=_UNWRAPPED, height=25, markup=False, highlight=False, emoji=False)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as is, but for cells: without wrapping in a pipe, without markup and without automatic colours."""
    _print_line(console, without_cells(text), style)


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(for_terminal(text), style=style), soft_wrap=True, highlight=False, emoji=False)


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
        _print_line(console, line.rstrip())
