"""The commands of the pages, in fenced and indented blocks and in backticks: parsed, as far as that needs no run."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

from fastimg import cli
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import refuse
from fastimg.errors import UsageError

from .pages import ROOT, blocks_of, commands_of, prose_of

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_EXTRAS = set(_PROJECT["project"]["optional-dependencies"])
_GROUPS = set(_PROJECT["dependency-groups"])
_OPERATORS = ";&|<>"
_STARTS = r"(?:fastimg|torchrun|uv|pip|pipx|python|docker|srun|scripts/\w+) "  # of what is a command in backticks
_VALUES = {"fastimg dataset"}  # in backticks like a command, and the value of a key in a file
# Programs that are not ours, and the words of a shell around commands.
_OTHERS = {
    *("apt-get", "bash", "cd", "curl", "for", "git", "mv", "optuna-dashboard", "pytest", "rm", "scontrol", "uvicorn"),
}


def commands_in(page: Path) -> Iterator[str]:
    """The lines of a page's blocks of commands, and commands in backticks. Marked `sh` blocks are other programs'."""
    for block in blocks_of(page):
        if block.language == "console":
            yield from (command.line for command in commands_of(block) if not command.code)
        elif block.language in ("sh", "bash") and not block.marked:
            yield from re.sub(r"\\\n\s*", " ", block.text).splitlines()
    prose = prose_of(page)
    yield from re.findall(rf"^    ({_STARTS}.*?)(?:  .*)?$", prose, re.M)  # what it is for follows after spaces
    inline = re.findall(rf"`({_STARTS}[^`]*)`", re.sub(r"\s*\n\s*", " ", prose))
    yield from (line for line in inline if line not in _VALUES)


def fault_in(line: str) -> str | None:
    """What is wrong with a line of a shell, in words; None for one that could run."""
    for words in _split(line):
        try:
            fault = _fault(words)
        except UsageError as error:
            # prose names a command without its arguments: `fastimg predict`, `fastimg convert --format beton`
            incomplete = "is missing; write" in str(error) or ": expected " in str(error)
            named = "..." in words or "".join(words[2:3])[:2] in ("", "--")
            fault = None if incomplete and named else str(error)
        if fault is not None:
            return fault
    return None


def _split(line: str) -> Iterator[list[str]]:
    """The words of each simple command of a line, without redirections, assignments and the words of loops.

    Of alternatives, `onnx|pt2`, the first is taken; a variable of the shell is 0.
    """
    line = re.sub(r"^export \w+=.*|(?<=\w)(\|[\w-]+)+(?= |$)", "", line.strip())
    line = re.sub(r"\$\w+", "0", line)
    reader = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    reader.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in [*reader, ";"]:
        if set(word) <= set("<>"):
            redirected = True
        elif set(word) <= set(_OPERATORS):
            if words and words != ["done"]:
                yield words
            words = []
        elif not redirected and not (not words and (word == "do" or re.match(r"\w+=", word))):
            words.append(word)
        else:
            redirected = False


def _fault(words: list[str]) -> str | None:
    """What is wrong with a command, in words. Raises UsageError of fastimg's own parser."""
    match words:
        case ["uv", "run", *rest] | ["srun" | "sudo", *rest]:
            start = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
            return None if start is None else _fault(rest[start:])
        case (
            ["fastimg", *_, "--help" | "--help-all" | "--version"]
            | ["fastimg", "--print-completion", _]
            | ["pytest", *_]
        ):
            return None
        case ["fastimg", *rest] | ["python", "-m", "fastimg", *rest]:
            return _of_fastimg(rest)
        case ["torchrun", *rest] if "-m" in rest:
            return _fault(["python", *rest[rest.index("-m") :]])
        case ["docker", "run", *rest] if "fastimg" in rest:  # the image, and then the program in it
            after = rest[rest.index("fastimg") + 1 :]
            return _fault(after) if after else None
        case ["docker", *_]:
            return None
        case ["uv", "sync", *rest]:
            return _unknown("extra", _after("--extra", rest), _EXTRAS) or _unknown(
                "group", _after("--group", rest), _GROUPS
            )
        case ["pip" | "uv" | "pipx", *rest]:
            return _of_pip(rest)
        case ["python", "-c", *_]:
            return None
        case [program, *rest] if program == "python" or program.endswith("/python"):
            file = next((word for word in rest if word.endswith(".py")), None)
            return f"{' '.join(words)}: which file?" if file is None else _of_script(file, rest[rest.index(file) + 1 :])
        case [program, *_] if program.startswith("scripts/"):
            return None if (ROOT / program).is_file() else f"{program} does not exist"
        case [program, *_]:
            return None if program in _OTHERS else f"{program} is neither run nor parsed"
    return None


def _of_fastimg(arguments: list[str]) -> str | None:
    """Parse the arguments of the program without its settings file, which does not exist."""
    arguments = [word for word in arguments if word != "..."]
    if not arguments or arguments[0] not in cli._COMMANDS:
        return f"fastimg has no command {' '.join(arguments[:1])}"
    if "--config" in arguments:
        at = arguments.index("--config")
        del arguments[at : at + 2]
    settings = cli._parse(arguments[0], arguments[1:])
    if arguments[0] == "train" and settings.weights is None:  # a file of weights states further settings
        refuse(settings, TRAIN)
    if arguments[0] == "search":
        cli._parse("train", list(settings.shared))
    return None


def _of_pip(words: list[str]) -> str | None:
    """Extras have to exist, and fastimg itself comes from a clone or an address: no package index has it."""
    for word in words:
        named = re.match(r"(fastimg|\.)(?:\[([\w,-]+)\])?( ?@ ?\S+)?$", word)
        if named is None:
            continue
        if named[1] == "fastimg" and not named[3] and words[:1] != ["run"] and "--spec" not in words:
            return f"{word}: no package index has fastimg; write '.[EXTRA]', or 'fastimg[EXTRA] @ ADDRESS'"
        if fault := _unknown("extra", (named[2] or "").split(",") if named[2] else [], _EXTRAS):
            return fault
    return None


def _of_script(file: str, arguments: list[str]) -> str | None:
    """A script exists, and its source has the flags."""
    path = ROOT / file
    if not path.is_file():
        return f"{file} does not exist"
    source = "".join(each.read_text(encoding="utf-8") for each in (path, *path.parent.glob("*.py")))
    flags = {word for word in arguments if word.startswith("--")}
    return next((f"{file} has no {flag}" for flag in sorted(flags) if f'"{flag}"' not in source), None)


def _after(flag: str, words: list[str]) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word == flag]


def _unknown(kind: str, names: list[str], known: set[str]) -> str | None:
    return next((f"pyproject.toml has no {kind} {name}" for name in names if name not in known), None)
