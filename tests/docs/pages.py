"""The pages of docs/ and README as data (fenced blocks, links, headings), and functions to run them."""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastimg.cli import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"(?P<comment><!-- not run: [^>]+ -->\n\n?)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_FRAME = str.maketrans("", "", "│┃┏┓┗┛┡┩┌┐└┘├┤┬┴┼━─╇┳╈┻╋┷┿")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text and position, and whether it is marked `<!-- not run: WHY -->`."""

    language: str
    text: str
    line: int
    marked: bool


@dataclass(frozen=True)
class Command:
    """A line that begins with `$`, and the output shown below it."""

    line: str
    shown: str
    code: int  # the exit code in a comment `# exit code 2` after the command, else 0


def name_of(page: Path) -> str:
    """A page's path relative to the project."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start()) + 1, found["comment"] is not None)
        for found in _FENCE.finditer(text)
    ]


def prose_of(page: Path) -> str:
    """A page's text without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block and their shown output."""
    parts = re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.M)
    assert parts[0].strip() == "", f"line {block.line}: a console block begins with `$ `"
    commands = []
    for line, _, shown in (part.partition("\n") for part in parts[1:]):
        typed, _, comment = line.partition("  #")
        code = re.search(r"exit code (\d+)", comment)
        commands.append(Command(typed.strip(), shown, int(code[1]) if code else 0))
    return commands


def arguments_of(line: str) -> list[str] | None:
    """The arguments of a `fastimg` command, also under torchrun; None for another program."""
    words = shlex.split(line, comments=True)
    for starts in (["fastimg"], ["uv", "run", "fastimg"], ["python", "-m", "fastimg"]):
        if words[: len(starts)] == starts:
            return words[len(starts) :]
    if words[:1] == ["torchrun"] and "fastimg" in words:
        return words[words.index("fastimg") + 1 :]
    return None


def script_of(line: str) -> list[str]:
    """The words of a command that runs a script of the project, from the script on; none for another command."""
    words = shlex.split(line)
    return words[1:] if words[:1] == ["python"] and (ROOT / words[1]).is_file() else []


def run_script(words: list[str]) -> int:
    """Run a script of the project in this process. Returns the exit code."""
    before, sys.argv = sys.argv, words
    try:
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    finally:
        sys.argv = before
    return 0


def words(output: str) -> str:
    """Output without frames, widths and numbers: the part that is the same on any machine."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(?:[.,:]\d+)*", "#", output.translate(_FRAME))).strip()


def missing(shown: str, output: str) -> list[str]:
    """The parts of the shown lines, between `...`, that are missing in the output."""
    have = words(output)
    parts = [words(part) for line in shown.splitlines() for part in line.split("...")]
    return [part for part in parts if part and part not in have]


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[io.StringIO]:
    """Work in a folder and capture the output, on a terminal that does not wrap lines."""
    said, before, columns = io.StringIO(), Path.cwd(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "400"
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield said
    finally:
        os.chdir(before)
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns


def run_page(page: Path, folder: Path, smaller: Mapping[str, str] = {}) -> None:
    """Run the blocks of a page in order, with other words where commands would take long.

    Raises AssertionError if a command fails or its output differs.
    """
    names: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for block in blocks_of(page):
        where = f"{name_of(page)}:{block.line}"
        if block.language == "text" and printed:  # the output of the Python block above
            assert missing(block.text, printed) == [], f"{where}\n{printed}"
        printed = ""
        if block.marked:
            continue
        if block.language == "python":
            with inside(folder) as said:
                exec(compile(block.text, where, "exec"), names)
            printed = said.getvalue()
        elif block.language == "console":
            for command in commands_of(block):
                line = command.line
                for words, others in smaller.items():
                    line = line.replace(words, others)
                arguments, script, moves = arguments_of(line), script_of(line), line.split()[0] in ("mv", "rm")
                assert arguments is not None or script or moves, f"{where}: {line} is not run by a test; mark it"
                with inside(folder) as said:
                    if moves:
                        code = subprocess.call(line, shell=True)
                    else:
                        code = run_script(script) if arguments is None else run(arguments)
                output = said.getvalue()
                assert code == command.code, f"{where}: {command.line}\n{output}"
                assert missing(command.shown, output) == [], f"{where}: {command.line}\n{output}"
