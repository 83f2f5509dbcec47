"""What `--param` asks for, as ranges and choices; checked before anything starts. Nothing here imports torch."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from fastimg.config import yaml_file
from fastimg.config.commands import Train
from fastimg.config.flag_types import Flag, command_flags, options
from fastimg.config.flags import suggestion
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import Range, refuse, without_effect
from fastimg.errors import UsageError

Kind = Literal["number", "integer", "choice"]
NONE = "none"  # a choice: the flag's default
# Flags that a search sets for each trial, or that say nothing about one.
OURS = (
    *("data", "output", "name", "resume", "dry_run", "config", "recipe", "verbose", "metric", "log"),
    *("backend", "address", "num_workers", "resources_per_worker", "elastic", "max_failures"),
)
_COMBINATIONS = 512  # of choices that are tried against the rules
_PREFIX = re.compile(r"(log|int):")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A flag of `train`, and the values that a trial may have for it.

    low, high, step, log: of numbers; both ends belong to the range. choices: of a choice.
    """

    name: str  # the field of Train
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def flag(self) -> str:
        """As it is typed, without dashes."""
        return self.name.replace("_", "-")

    @property
    def values(self) -> tuple[Any, ...] | None:
        """Every value; None of a range without steps."""
        if self.kind == "choice":
            return self.choices
        step = self.step if self.step is not None else (1 if self.kind == "integer" and not self.log else None)
        if step is None:
            return None
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        numbers = [self.low + index * step for index in range(count)]
        return tuple(int(number) if self.kind == "integer" else float(f"{number:.12g}") for number in numbers)

    def at(self, share: float) -> Any:
        """The value at a share of the range or of the choices, from 0 to below 1; by orders of magnitude with log."""
        if (values := self.values) is not None:
            return values[int(share * len(values))]
        if not self.log:
            return self.low + share * (self.high - self.low)
        value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return min(max(round(value), int(self.low)), int(self.high)) if self.kind == "integer" else value

    @property
    def corners(self) -> tuple[Any, ...]:
        """What is checked against the rules: the ends of a range, or every choice."""
        if self.kind == "choice":
            return self.choices
        return (int(self.low), int(self.high)) if self.kind == "integer" else (self.low, self.high)

    def __str__(self) -> str:
        """As a user writes it."""
        if self.kind == "choice":
            return f"{self.flag}={','.join(map(str, self.choices))}"
        prefix = "log:" * self.log + "int:" * (self.kind == "integer")
        return f"{self.flag}={prefix}{self.low:g}:{self.high:g}{'' if self.step is None else f':{self.step:g}'}"


def read(texts: Sequence[str], base: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """The parameters that --param names, for trials that share the settings `base`, a recipe by its name.

    Raises UsageError for one that is no flag, for values that are none of it, and for what `train` would refuse.
    """
    found = [_read(text) for text in texts]
    for index, parameter in enumerate(found):
        if parameter.name in [other.name for other in found[:index]]:
            raise UsageError(f"--param {parameter.flag}: given twice; write its values in one")
    parameters = tuple(found)
    _refuse(parameters, base)
    return parameters


def settings(drawn: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """What a trial sets for what was drawn: fields of Train, with YAML's values.

    A parameter is left out where it has no effect beside the others, as momentum beside `--opt adamw`.
    """
    chosen = {name: _yaml_value(value, _flag(name)) for name, value in drawn.items() if not _left_out(name, value)}
    config = merged(base, chosen)
    idle = without_effect(config, TRAIN)
    return {name: value for name, value in chosen.items() if name not in idle}


def trial_config(drawn: Mapping[str, Any], base: Mapping[str, Any]) -> Train:
    """What a trial trains with: what was drawn for it, over the settings that all share. Raises UsageError."""
    return merged(base, settings(drawn, base))


def merged(base: Mapping[str, Any], chosen: Mapping[str, Any]) -> Train:
    """The settings that trials share, and over them a trial's own, as flags lie over a file, and both over a recipe,
    whose settings are then the trial's; its name tells which of them nobody gave. Raises UsageError.
    """
    return yaml_file.combined(base, yaml_file.fitted(chosen, Train))


def differing(config: Train) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    defaults = Train()
    return {name: value for name, value in vars(config).items() if value != getattr(defaults, name)}


def combinations(parameters: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    """Every combination of values, the last changing fastest. Raises UsageError for a range without steps."""
    for parameter in parameters:
        if parameter.values is None:
            raise UsageError(
                f"--algorithm grid: --param {parameter} has no steps; give them, as in {parameter.flag}="
                f"{parameter.low:g}:{parameter.high:g}:{(parameter.high - parameter.low) / 4:g}, or name the values"
            )
    names = [parameter.name for parameter in parameters]
    for values in itertools.product(*(parameter.values or () for parameter in parameters)):
        yield dict(zip(names, values, strict=True))


def _read(text: str) -> Parameter:
    """One --param. Raises UsageError."""
    name, equals, values = text.partition("=")
    flag = _flag(name.strip())
    words = _words(flag, values.strip() if equals else "")
    prefixes, rest = _prefixes(words[0]) if len(words) == 1 else (set(), "")
    numbers = [option for option in options(flag.hint) if option in (int, float)]
    if prefixes or (numbers and rest.count(":") in (1, 2)):
        if not numbers:
            raise UsageError(f"--param {text}: --{_shown(flag)} takes no numbers; name its values, as a,b,c")
        return _range(text, flag, prefixes, rest, whole=numbers == [int])
    choices = tuple(_choice(text, flag, word) for word in words)
    if len(set(choices)) < len(choices):
        raise UsageError(f"--param {text}: a value is named twice; name each once")
    if len(choices) < 2:
        raise UsageError(
            f"--param {text}: one value is nothing to search; name several, or give it to all trials, behind `--`"
        )
    return Parameter(name=flag.field, kind="choice", choices=choices)


def _flag(name: str) -> Flag:
    """The flag of `train` that is called so, with or without its dashes. Raises UsageError with the nearest."""
    word = name.lstrip("-").replace("_", "-")
    known = {alias.lstrip("-"): flag for flag in command_flags(Train) for alias in flag.names}
    flag = known.get(word)
    if flag is None:
        near = suggestion(word, known)
        hint = f"; did you mean {near}?" if near else "; `fastimg train --help-all` lists its flags"
        raise UsageError(f"--param {name}: train has no flag --{word}{hint}")
    if flag.field in OURS:
        raise UsageError(f"--param {name}: a search sets --{word} itself; search another flag of train")
    return flag


def _words(flag: Flag, values: str) -> list[str]:
    """The values, one by one. Of what is on or off, both where none is named."""
    if bool in options(flag.hint) and not values:
        return ["true", "false"]
    if not values:
        raise UsageError(f"--param {_shown(flag)}: its values are missing; write {_shown(flag)}={_example(flag)}")
    return [word.strip() for word in values.split(",")]


def _prefixes(word: str) -> tuple[set[str], str]:
    """The `log:` and `int:` before a range, and the rest."""
    found = set()
    while match := _PREFIX.match(word):
        found.add(match[1])
        word = word[match.end() :]
    return found, word


def _range(text: str, flag: Flag, prefixes: set[str], rest: str, whole: bool) -> Parameter:
    """A range of numbers. Raises UsageError for one that is empty or cannot be."""
    ends = rest.split(":")
    try:
        numbers = [float(end) for end in ends]
    except ValueError:
        numbers = [math.nan]
    if len(numbers) not in (2, 3) or not all(map(math.isfinite, numbers)):
        raise UsageError(f"--param {text}: write a range of numbers as A:B, log:A:B, int:A:B or A:B:STEP")
    low, high = numbers[:2]
    step = numbers[2] if len(numbers) == 3 else None
    if low >= high:
        order = f"{high:g}:{low:g}" if low > high else "two ends that differ"
        raise UsageError(f"--param {text}: the range is empty; write {order}")
    if "log" in prefixes and low <= 0:
        raise UsageError(f"--param {text}: a range by orders of magnitude has ends above 0; give another, or drop log:")
    if "log" in prefixes and step is not None:
        raise UsageError(f"--param {text}: a range by orders of magnitude has no steps; leave {ends[2]} out")
    integer = whole or "int" in prefixes
    if integer and not all(number.is_integer() for number in numbers):
        raise UsageError(f"--param {text}: --{_shown(flag)} takes whole numbers here; give whole ends")
    if step is not None and not 0 < step <= high - low:
        raise UsageError(f"--param {text}: give a step above 0 and up to {high - low:g}")
    kind: Kind = "integer" if integer else "number"
    return Parameter(name=flag.field, kind=kind, low=low, high=high, step=step, log="log" in prefixes)


def _left_out(name: str, value: Any) -> bool:
    """Whether a choice leaves the flag at its default: `none`, where the flag has no value of that name."""
    return bool(value == NONE) and NONE not in (word for kind in options(_flag(name).hint) for word in get_args(kind))


def _choice(text: str, flag: Flag, word: str) -> Any:
    """A choice: a number where it is one, else the word. Raises UsageError for what the flag does not take."""
    if _left_out(flag.field, word):
        return NONE
    try:
        typed = yaml_file.fitted({flag.field: _yaml_value(word, flag)}, Train)[flag.field]
    except UsageError as error:
        raise UsageError(f"--param {text}: {error}") from error
    return typed if isinstance(typed, bool | int | float) else word


def _yaml_value(value: Any, flag: Flag) -> Any:
    """A value that was drawn, as YAML has it: several numbers of one flag are a list."""
    several = [option for option in options(flag.hint) if get_origin(option) is tuple]
    return value.split() if several and isinstance(value, str) else value


def _refuse(parameters: Sequence[Parameter], base: Mapping[str, Any]) -> None:
    """Raises UsageError for an end or a choice that `train` refuses, whatever the other parameters are."""
    for parameter in parameters:
        for value in parameter.corners:
            faults = []
            others = [other for other in parameters if other is not parameter]
            for drawn in itertools.islice(_corners(others), _COMBINATIONS):
                fault = _fault({**drawn, parameter.name: value}, base, parameter.name)
                if fault is None:
                    break
                faults.append(fault)
            else:
                told = f"{value:g}" if isinstance(value, float) else value
                raise UsageError(f"--param {parameter}: with {parameter.flag} {told}, train refuses it: {faults[0]}")


def _corners(parameters: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    names = [parameter.name for parameter in parameters]
    for values in itertools.product(*(parameter.corners for parameter in parameters)):
        yield dict(zip(names, values, strict=True))


def _fault(drawn: Mapping[str, Any], base: Mapping[str, Any], name: str) -> str | None:
    """Why `train` refuses what was drawn, or why a parameter has no effect in it; None where it trains."""
    try:
        chosen = settings(drawn, base)
        if not _left_out(name, drawn[name]) and name not in chosen:
            refuse(merged(base, {name: _yaml_value(drawn[name], _flag(name))}), TRAIN)
        config = merged(base, chosen)
        rules = TRAIN if config.weights is None else [rule for rule in TRAIN if isinstance(rule, Range)]
        refuse(config, rules)
    except UsageError as error:
        return str(error)
    return None


def _shown(flag: Flag) -> str:
    return flag.names[0].lstrip("-")


def _example(flag: Flag) -> str:
    return ",".join(flag.choices[:3]) if flag.choices else "0.1:0.2 or a,b"
