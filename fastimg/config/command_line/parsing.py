"""A command's arguments as the values of its dataclass, by argparse."""

import argparse
import functools
import itertools
import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from fastimg.config import flags
from fastimg.config.flag_types import NUMBER, Flag, command_flags, options
from fastimg.config.yaml_values import expected, is_too_large, too_large
from fastimg.errors import UsageError, nearest

_WORDS = "arguments"  # where argparse puts what is not a flag
_NEGATIVE = re.compile(r"-[\d.]+[eE][-+]?\d+")  # which argparse takes for a flag


def parse(command: str, kind: type[Any], arguments: Sequence[str], others: Mapping[str, type[Any]]) -> dict[str, Any]:
    """The fields of `kind` that the arguments of `command` set, and their values.

    Arguments:
        command: the name of the command, for messages.
        kind: its dataclass.
        arguments: what follows the command's name.
        others: the dataclasses of all commands, to tell which of them has a flag that this one lacks.

    Raises UsageError that names the flag and what it takes.
    """
    flags.check(command, kind, arguments, others)
    known = command_flags(kind)
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    parser = _parser(command, known)
    found = vars(parser.parse_intermixed_args(_complete(arguments[:end], known)))
    words = [*found.pop(_WORDS, []), *arguments[end + 1 :]]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return values | _positional(command, kind, words)


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        found = re.match(r"argument ([^:]+): (.*)", message)
        if found is not None:
            names = found[1].split("/")  # the first one in full is how the flag is called
            message = f"{next((name for name in names if name.startswith('--')), names[0])}: {found[2]}"
        raise UsageError(f"{message}; `{self.prog} --help` lists its flags")


def _parser(command: str, known: Sequence[Flag]) -> argparse.ArgumentParser:
    """A parser that sets only what is given, and leaves what is not a flag in a list."""
    parser = _Parser(f"fastimg {command}", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for flag in known:
        if flag.names:
            parser.add_argument(*flag.understood, **_how(flag))
        if flag.negatable and not flag.is_toggle:
            parser.add_argument(f"--no-{flag.names[0][2:]}", dest=flag.field, action="store_false")
    parser.add_argument(_WORDS, nargs="*")
    return parser


def _how(flag: Flag) -> dict[str, Any]:
    """What argparse must know of a flag."""
    if flag.is_toggle:
        action = "store_true" if flag.switch else argparse.BooleanOptionalAction
        return {"dest": flag.field, "action": action}
    kinds = [option for option in options(flag.hint) if get_origin(option) is tuple]
    if not kinds:
        return {"dest": flag.field, "type": _reader(flag, flag.hint)}
    items = get_args(kinds[0])
    if items[-1] is Ellipsis:
        return {"dest": flag.field, "type": _reader(flag, items[0]), "nargs": "+", "action": "extend"}
    return {"dest": flag.field, "type": _reader(flag, items[0]), "nargs": len(items)}


def _reader(flag: Flag, hint: Any) -> Any:
    """A function from a word to a value of the flag."""
    return lambda word: _read(word, hint, flag.names[0])


def _read(word: str, hint: Any, name: str) -> Any:
    """A word as a value of this type. Raises UsageError that names the flag and what it takes."""
    kinds = options(hint)
    for kind in kinds:
        if get_origin(kind) is Literal and word in get_args(kind):
            return word
        if kind in (int, float):
            try:
                number = kind(word)
            except ValueError:
                continue
            if is_too_large(number):
                raise UsageError(f"{name}: {too_large(number)}")
            return number
        if kind in (str, Path):
            return kind(word)
    choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    typed = functools.reduce(operator.or_, (kind for kind in kinds if kind is not bool))
    raise UsageError(f"{name} {word}: give {expected(typed)}{nearest(word, choices) if choices else ''}")


def _complete(arguments: Sequence[str], known: Sequence[Flag]) -> list[str]:
    """The arguments as argparse understands all of them.

    A flag that stands alone gets its value, one that is followed by -1e-3 is joined with it, and the name of a flag has
    `-` in place of `_`.
    """
    by_name = {name: flag for flag in known for name in flag.understood}
    arguments = _parted(arguments, by_name)
    complete: list[str] = []
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        if complete and complete[-1].endswith("=") and _NEGATIVE.fullmatch(argument):
            complete[-1] += argument
            continue
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            argument = f"{name.replace('_', '-')}{equals}{value}"
        flag = by_name.get(argument)
        if flag is not None and flag.mark.alone is not None and not _belongs(flag, following):
            argument = f"{argument}={flag.mark.alone}"
        elif flag is not None and argument.startswith("--") and following and _NEGATIVE.fullmatch(following):
            argument += "="
        complete.append(argument)
    return complete


def _parted(arguments: Sequence[str], by_name: Mapping[str, Flag]) -> list[str]:
    """The arguments with a flag's name before each of its numbers: where any number may follow, DATA is not one."""
    parted: list[str] = []
    name = ""  # of the flag whose numbers are read
    numbers = 0
    for argument in [*arguments, None]:
        if name and argument is not None and _is_number(argument):
            parted.append(f"{name}={argument}")
            numbers += 1
            continue
        if name and not numbers:
            parted.append(name)  # argparse says that a number is missing
        flag = by_name.get(argument or "")
        name, numbers = "", 0
        if flag is not None and argument is not None and (float, ...) in map(get_args, options(flag.hint)):
            name = argument
        elif argument is not None:
            parted.append(argument)
    return parted


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _belongs(flag: Flag, following: str | None) -> bool:
    """Whether the word after a flag that may stand alone is its value. Raises UsageError for one that cannot be."""
    words = flag.mark.words
    if following is None:
        return False
    if NUMBER in words:
        return following in words or following.lstrip("-").isdecimal()
    if following.startswith("-"):
        return False
    if flag.negatable:  # as of flags that are only on or off, DATA may follow
        return following in words
    if words and following not in words:
        raise _no_mode(flag, following, words)
    return True


def _no_mode(flag: Flag, word: str, words: Collection[str]) -> UsageError:
    name, alone = flag.names[0], flag.mark.alone
    near = nearest(word, words) or f"; where DATA follows, write {name}={alone}"
    return UsageError(f"{name} {word}: give {', '.join(words)}, or nothing, which is {alone}{near}")


def _positional(command: str, kind: type[Any], words: Sequence[str]) -> dict[str, Any]:
    """The positional arguments, in their order. Raises UsageError for one that is missing or too many."""
    known = [flag for flag in command_flags(kind) if not flag.names]
    values: dict[str, Any] = {}
    left = list(words)
    for flag in known:
        if get_origin(flag.hint) is tuple:
            if left:
                values[flag.field] = tuple(_read(word, get_args(flag.hint)[0], flag.metavar) for word in left)
            left = []
        elif left:
            values[flag.field] = _read(left.pop(0), flag.hint, flag.metavar)
        elif flag.default is MISSING:
            usage = " ".join(flag.metavar for flag in known)
            raise UsageError(f"{command}: {flag.metavar} is missing; write `fastimg {command} {usage}`")
    if left:
        if (meant := flags.assigned(left[0], kind)) is not None:
            raise UsageError(f"{command}: unexpected argument {left[0]!r}; did you mean {meant}?")
        raise UsageError(
            f"{command}: unexpected argument {left[0]!r}; `fastimg {command} --help` shows what it takes, and a flag "
            "takes only the values in its description"
        )
    return values
