"""What `fastimg COMMAND --help` prints, and the completion of a shell."""

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_args

from fastimg.config.flag_types import Flag, command_flags, options
from fastimg.config.flags import descriptions

from .sections import EXAMPLES, FIRST, SECTIONS, STORE, Sections

SHELLS = ("bash", "zsh", "fish")
_WIDEST = 30  # columns of flags, before their descriptions


def help_page(command: str, kind: type[Any], every_flag: bool = False) -> str:
    """The help of a command, as wide as the terminal: the flags that people need first, or all of them."""
    known = command_flags(kind)
    first = None if every_flag else FIRST.get(command)
    parser = _documented(argparse.ArgumentParser(f"fastimg {command}", **_FORM), command, kind, first)
    words = [f"[{flag.metavar}]" if _optional(flag) else flag.metavar for flag in known if not flag.names]
    parser.usage = " ".join([f"fastimg {command}", *words, "[FLAGS]"])
    lines = []
    if EXAMPLES.get(command):
        lines += ["examples:", *(f"  # {about}\n  {line}" for line, about in EXAMPLES[command])]
    if first is not None:
        number = sum(bool(flag.names) for flag in known)
        lines += [*([""] if lines else []), f"These are {len(first)} of {number} flags: `fastimg {command} --help-all`"]
    parser.epilog = "\n".join(lines)
    return parser.format_help()


def completion(commands: Mapping[str, type[Any]], shell: str) -> str:
    """A script that completes `fastimg` in bash, zsh or fish."""
    import shtab

    parser = argparse.ArgumentParser("fastimg", add_help=False)
    below = parser.add_subparsers()
    for command, kind in commands.items():
        about = str(kind.__doc__).split(". ")[0].splitlines()[0]
        _documented(below.add_parser(command, help=about, add_help=False), command, kind, None, shtab.FILE)
    return str(shtab.complete(parser, shell))


class _Form(argparse.RawDescriptionHelpFormatter):
    """Names of a flag and its value as in `-a, --arch NAME`, with each name once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_WIDEST)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        names = sorted(action.option_strings, key=lambda name: name.startswith("--"))
        return f"{', '.join(names)} {action.metavar}"


_FORM: Mapping[str, Any] = {"formatter_class": _Form, "add_help": False}


def _documented(
    parser: argparse.ArgumentParser, command: str, kind: type[Any], only: Collection[str] | None, paths: Any = None
) -> argparse.ArgumentParser:
    """`parser` with the flags of a command, by sections: all of them, or `only` these fields.

    `paths`: what shtab is told of those that take a path.
    """
    texts, known = descriptions(kind), command_flags(kind)
    parser.description = " ".join(str(kind.__doc__).split())
    sections = {"arguments": tuple(flag.field for flag in known if not flag.names)}
    flags = {flag.field: flag for flag in known}
    sections |= SECTIONS.get(command, _by_store(flag.field for flag in known if flag.names))
    for title, fields in sections.items():
        shown = [flags[field] for field in fields if only is None or field in only or not flags[field].names]
        if not shown:
            continue
        group = parser.add_argument_group(title)
        for flag in shown:
            names = flag.names or (flag.field,)
            twin = (f"--no-{flag.names[0][2:]}",) if flag.negatable and not flag.is_toggle else ()
            action: Any = group.add_argument(*twin, *names, **_value(flag), help=_text(flag, texts))
            if paths is not None and Path in (*options(flag.hint), *get_args(flag.hint)):
                action.complete = paths
    group = parser.add_argument_group("help")
    group.add_argument("-h", "--help", action="store_true", help="show this page and exit")
    group.add_argument("--help-all", action="store_true", help="show every flag and exit")
    return parser


def _by_store(fields: Iterable[str]) -> Sections:
    """The flags of a command without sections of its own: those of an object store come last."""
    named = list(fields)
    of_store = tuple(field for field in named if field in STORE)
    own = {"flags": tuple(field for field in named if field not in of_store)}
    return own | ({"data in an object store": of_store} if of_store else {})


def _value(flag: Flag) -> dict[str, Any]:
    """How argparse shows the value of a flag."""
    if not flag.names:
        return {"metavar": flag.metavar, "nargs": None if flag.default is MISSING else "*"}
    if flag.is_toggle:
        return {"action": "store_true" if flag.switch else argparse.BooleanOptionalAction}
    if flag.choices and flag.mark.metavar is None:
        return {"metavar": flag.metavar, "choices": flag.choices}
    return {"metavar": flag.metavar}


def _text(flag: Flag, texts: Mapping[str, str]) -> str:
    """The description of a flag, with its default where that is a number or a word."""
    text = texts[flag.field].replace("%", "%%")
    if flag.default in (MISSING, None, (), Path()) or flag.default is False:
        return text
    default = "on" if flag.default is True else str(flag.default).replace("%", "%%")
    return f"{text.removesuffix('.')} (default: {default})."


def _optional(flag: Flag) -> bool:
    return flag.default is not MISSING and not flag.metavar.startswith("[")
