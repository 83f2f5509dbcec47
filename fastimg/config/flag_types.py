"""What stands beside the type of a field to make it a flag, and the fields of a command read as flags.

None as a default means "chosen for you": `--help` then shows no default of its own. Also the default that several
commands share, and how `--workers` is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from fastimg.errors import UsageError

MAX_PIXELS = 89_478_485  # `loaders.decode.MAX_PIXELS`, without importing the loaders: a test holds them equal
NUMBER = "NUMBER"  # among the `words` of a flag: any whole number

T = TypeVar("T")
Positional = Annotated[T, "positional"]  # given without a flag
Switch = Annotated[T, "switch"]  # a flag without a --no- twin
YamlOnly = Annotated[T, "yaml only"]  # a setting that has no flag


@dataclass(frozen=True)
class arg:
    """How a flag is written.

    aliases: further names. hidden: names that are understood, but not shown: those that a flag had before, or has in
    another command. metavar: what stands for its value in `--help`; by default its type.
    alone: the value that the flag has where none follows; words: those that may follow then, by default any. Of a flag
    with a --no- twin another word is not refused: it is the next argument.
    """

    aliases: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    metavar: str | None = None
    alone: str | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """A flag, or a positional argument, of a command."""

    field: str
    names: tuple[str, ...]  # as typed: --batch-size, -b; of a positional argument none
    hint: Any  # the type of its value
    default: Any  # dataclasses.MISSING: it must be given
    switch: bool
    mark: arg

    @property
    def understood(self) -> tuple[str, ...]:
        """Every name of the flag, also those that are not shown."""
        return (*self.names, *self.mark.hidden)

    @property
    def negatable(self) -> bool:
        """Whether it has a --no- twin: it is on or off, or off or one of several words."""
        return bool(self.names) and bool in options(self.hint) and not self.switch

    @property
    def is_toggle(self) -> bool:
        """Whether it is only on or off, whatever it is where it is not given."""
        return options(self.hint) == (bool,)

    @property
    def metavar(self) -> str:
        """What stands for the value, as in FLOAT FLOAT or {adamw,sgd}."""
        if self.mark.metavar is not None:
            return self.mark.metavar
        if not self.names:
            return self.field.upper()
        return metavar(self.hint)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that the value must be one of; empty where anything may follow."""
        literals = [option for option in options(self.hint) if get_origin(option) is Literal]
        return get_args(literals[0]) if len(literals) == len(options(self.hint)) == 1 else ()


def command_flags(kind: type[Any]) -> tuple[Flag, ...]:
    """The flags and positional arguments of a command's dataclass, in the order of its fields."""
    hashable: Any = kind  # which mypy doubts of type[Any]
    return _flags(hashable)


@cache
def _flags(kind: Any) -> tuple[Flag, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        hint = hints[field.name]
        hint, marks = (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())
        if "yaml only" in marks:
            continue
        mark = next((mark for mark in marks if isinstance(mark, arg)), arg())
        name = f"--{field.name.replace('_', '-')}"
        names = () if "positional" in marks else (name, *mark.aliases)
        found.append(Flag(field.name, names, hint, field.default, "switch" in marks, mark))
    return tuple(found)


def options(hint: Any) -> tuple[Any, ...]:
    """The types that a union consists of, without None; the type itself if it is none."""
    kinds = get_args(hint) if get_origin(hint) not in (None, Literal, tuple) else (hint,)
    return tuple(kind for kind in kinds if kind is not type(None))


def metavar(hint: Any) -> str:
    """The types of a value as `--help` shows them: INT|auto, {adamw,sgd}, FLOAT FLOAT."""
    kinds = options(hint)
    if len(kinds) == 1 and get_origin(kinds[0]) is Literal:
        return "{" + ",".join(map(str, get_args(kinds[0]))) + "}"
    words: list[str] = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            words += map(str, get_args(kind))
        elif get_origin(kind) is tuple:
            items = get_args(kind)
            words.append(f"{metavar(items[0])} ..." if items[-1] is Ellipsis else " ".join(map(metavar, items)))
        else:
            words.append(kind.__name__.upper())
    return "|".join(words)


def flag_names(flags: Sequence[Flag]) -> frozenset[str]:
    """Every name of these flags, as it is typed; with the --no- twins of those that are on or off."""
    names = {name for flag in flags for name in flag.understood}
    twins = {f"--no-{flag.names[0][2:]}" for flag in flags if flag.negatable}
    return frozenset(names | twins)


def aliases(kind: type[Any]) -> dict[str, str]:
    """The further names of a command's settings as Python writes them, such as model: the field that each means."""
    return {
        name[2:].replace("-", "_"): flag.field
        for flag in command_flags(kind)
        for name in flag.names[1:]
        if name.startswith("--")
    }


def as_arguments(settings: Mapping[str, Any], kind: type[Any]) -> tuple[str, ...]:
    """Settings of a command, by field, as what one types. Raises UsageError for one that only YAML has."""
    flags = {flag.field: flag for flag in command_flags(kind) if flag.names}
    words: list[str] = []
    for name, value in settings.items():
        if name not in flags:
            raise UsageError(f"{name}: has no flag; write it into a file, and give that as config")
        flag = flags[name].names[0]
        if value is True or value is False:
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple | list):
            words += [flag, *map(str, value)]
        else:
            words.append(f"{flag}={value}")
    return tuple(words)


def parse_workers(text: str, automatic: int) -> int:
    """The number of threads that `--workers` gives, `automatic` for `auto`. Raises UsageError."""
    if text == "auto":
        return automatic
    if not text.isascii() or not text.isdigit() or not text.strip("0"):
        raise UsageError(f"--workers {text}: give auto or a number of threads, 1 or more")
    if len(text.lstrip("0")) > 4:
        raise UsageError(f"--workers {text}: give auto or a number of threads, 9999 or less")
    return int(text)
