"""Where commands print."""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fastimg.wording import for_terminal, without_cells

_UNWRAPPED = 1_000_000  # columns: wider than any table
_NARROW = 20  # columns: with fewer, the terminal breaks lines where it likes
_WORDS = re.compile(r"(\s*)([^\s`]*`[^`]*`\S*|\S+)")  # what stands between backticks is copied: it is one word
_NAME = re.compile(r"\s*(?:\S+ {2,})?")  # what the lines below a line stand behind: its indent, and a name before a gap
_NOTEBOOK = 100  # columns


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
    if in_notebook():
        return _notebook()
    stream = sys.stderr if stderr else sys.stdout
    if stream is not None and stream.isatty():
        return _Printing(stderr=stderr, markup=False, highlight=False, emoji=False)
    # Without a height, rich would use 80 columns when TERM is dumb.
    return _Printing(stderr=stderr, width=_UNWRAPPED, height=25, markup=False, highlight=False, emoji=False)


def in_notebook() -> bool:
    """Whether output is shown below a cell of Jupyter's or Colab's notebooks."""
    shells = sys.modules.get("IPython")
    return shells is not None and type(shells.get_ipython()).__name__ in ("ZMQInteractiveShell", "Shell")


def _notebook() -> Console:
    """Standard output, as standard error is red there: text, of which the last line is rewritten after a return.

    It has no colours: front ends differ in the codes that they know, and all know the return.
    """
    return _Printing(
        force_jupyter=False,
        force_terminal=True,
        color_system=None,
        width=_NOTEBOOK,
        height=25,
        markup=False,
        highlight=False,
        emoji=False,
    )


def lines_to(stream: TextIO) -> Console:
    """A console that writes to a stream as `console` does in a pipe."""
    return _Printing(file=stream, width=_UNWRAPPED, height=25, markup=False, highlight=False, emoji=False)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as is, but for cells: without markup and without automatic colours.

    On a terminal it wraps between words. In a pipe nothing wraps.
    """
    text = without_cells(text)
    if console.is_terminal and not console.is_jupyter:
        text = "\n".join(line for given in text.split("\n") for line in wrapped(given, console.width))
    _print_line(console, text, style)


def wrapped(text: str, width: int) -> list[str]:
    """A line as lines of `width` columns, broken between words.

    A longer word, such as a path or a URL, stays whole on a line of its own, and so does a command in backticks: what
    the terminal breaks itself is copied as one. One that fits into a line, but not behind a name, begins further left.
    """
    name = _NAME.match(text)
    return _wrapped(text, width, 0 if name is None or name.end() > width // 2 else name.end())


def _wrapped(text: str, width: int, behind: int) -> list[str]:
    """Lines of a text, the later ones `behind` columns."""
    text = for_terminal(text).expandtabs()
    if cell_len(text) <= width or width < _NARROW:
        return [text]
    lines = [""]
    for gap, word in _WORDS.findall(text):
        if lines[-1].strip() and cell_len(lines[-1] + gap + word) > width:
            lines.append(" " * max(0, min(behind, width - cell_len(word))) + word)
        else:
            lines[-1] += gap + word
    return lines


def print_rows(console: Console, rows: Iterable[tuple[str, str]], title: str = "", width: int = 0) -> None:
    """Print names and their values, one a line; a value that is longer than its line goes on below its beginning.

    Names take `width` columns, or as many as the longest needs.
    """
    named = list(rows)
    if title:
        say(console, title, style="italic")
    behind = max(width, *(cell_len(name) for name, _ in named)) + 2 if named else 0
    for name, value in named:
        lines = [" " * behind + without_cells(line) for line in value.split("\n")]
        lines[0] = f"{name}{lines[0][cell_len(name) :]}"
        if console.is_terminal:
            lines = [line for given in lines for line in _wrapped(given, console.width, behind)]
        for line in lines:
            _print_line(console, line.rstrip())


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(for_terminal(text), style=style), soft_wrap=True, highlight=False, emoji=False)


@contextlib.contextmanager
def telling_of_compilation(console: Console) -> Iterator[None]:
    """Inside the block, print a line when numba has to compile fastimg's JPEG code, which takes up to a minute."""
    from fastimg.loaders.runtime import compiled  # brings numba

    with compiled.telling_of_compilation(lambda: say(console, "compiling the JPEG code, once on this machine")):
        yield


def is_wider(console: Console, table: Table) -> bool:
    """Whether a table would have to break what is in its cells."""
    return console.measure(table, options=console.options.update(max_width=_UNWRAPPED)).maximum > console.width


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
