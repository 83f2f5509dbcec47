"""Rules between settings: which values a field may have, and what excludes, needs or replaces what.

A rule is a row of a table in `rule_tables`. Every reader takes the same rows: `refuse` stops at the first rule that a
configuration breaks, `without_effect` names the fields that resolving leaves unset, and `dropped` names the settings of
a file or a recipe that give way to what is given above it.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any

from fastimg.errors import UsageError
from fastimg.loaders.remote.stores import shown

Condition = Callable[[Any], bool]  # of a configuration


def flag(field: str) -> str:
    """How a user writes a field: --batch-size, or the key of a setting that only YAML has."""
    return f"{field}: (YAML)" if field in ("augmentation", "kornia") else f"--{field.replace('_', '-')}"


def is_set(config: Any, field: str) -> bool:
    """Whether a field has another value than its default. `--aa none` and an empty list ask for nothing."""
    value = getattr(config, field)
    kind: Any = type(config)
    return value != _defaults(kind)[field] and value not in ("none", [])


def written(config: Any, field: str) -> str:
    """A flag with its value, as on the command line."""
    value = getattr(config, field)
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([flag(field), *map(_written, values)])


def _written(value: Any) -> str:
    if isinstance(value, PurePath):
        return shown(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


@dataclass(frozen=True)
class Range:
    """The values that a field may have. None, where a field is left open, is always one of them."""

    field: str
    allows: Callable[[Any], bool]
    words: str  # what to give instead

    def fault(self, config: Any) -> str | None:
        """Why `config` breaks the rule; None where it does not. So it is for every rule."""
        value = getattr(config, self.field)
        return None if value is None or self.allows(value) else f"{written(config, self.field)}: give {self.words}"


@dataclass(frozen=True)
class Excludes:
    """Two fields that say the same thing in different ways. Whichever is given above a file drops the other in it."""

    field: str
    other: str

    def fault(self, config: Any) -> str | None:
        """See `Range.fault`."""
        if is_set(config, self.field) and is_set(config, self.other):
            return f"{flag(self.field)} has no effect with {flag(self.other)}; leave one of them out"
        return None


@dataclass(frozen=True)
class Idle:
    """A field that has no effect under a condition."""

    field: str
    when: Condition
    words: str | Callable[[Any], str]  # the condition in words: "with --no-aug"
    remedy: str = "leave one of them out"
    given: Condition | None = None  # whether the field is asked for; by default where it is set

    def useless(self, config: Any) -> bool:
        """Whether the field has no effect, be it set or not."""
        return self.when(config)

    def fault(self, config: Any) -> str | None:
        """See `Range.fault`."""
        given = is_set(config, self.field) if self.given is None else self.given(config)
        if not given or not self.when(config):
            return None
        words = self.words if isinstance(self.words, str) else self.words(config)
        return f"{flag(self.field)} has no effect {words}; {self.remedy}"


@dataclass(frozen=True)
class Needs:
    """A field that has an effect only under a condition."""

    field: str
    condition: Condition
    words: str  # what to add: "--freeze"

    def useless(self, config: Any) -> bool:
        """Whether the field has no effect, be it set or not."""
        return not self.condition(config)

    def fault(self, config: Any) -> str | None:
        """See `Range.fault`."""
        if is_set(config, self.field) and not self.condition(config):
            return f"{flag(self.field)} has no effect without {self.words}; add that, or leave it out"
        return None


@dataclass(frozen=True)
class Check:
    """Anything else that a field's value must agree with: a function that returns the fault, or raises UsageError."""

    field: str
    find: Callable[[Any], str | None]

    def fault(self, config: Any) -> str | None:
        """See `Range.fault`."""
        fault = self.find(config)
        return None if fault is None else f"{written(config, self.field)}: {fault}"


@dataclass(frozen=True)
class Replaces:
    """Fields of a file, or of a recipe only, that `field` replaces where it is given above them."""

    field: str
    others: Collection[str]
    in_recipes: bool = False

    def fault(self, _config: Any) -> str | None:
        """None: on one level they go together."""
        return None


Rule = Range | Excludes | Idle | Needs | Check | Replaces


@dataclass(frozen=True)
class Device:
    """A value that is for CUDA devices only."""

    field: str
    applies: Callable[[Any], bool]  # to a value
    words: str  # with {device}: the type of the run's device

    def fault(self, config: Any, device: str) -> str | None:
        """Why `config` cannot run on a device of this type; None where it can."""
        if device == "cuda" or not self.applies(getattr(config, self.field)):
            return None
        return f"{written(config, self.field)}: {self.words.format(device=device)}"


def refuse(config: Any, rules: Sequence[Rule]) -> None:
    """Raises UsageError for the first rule that `config` breaks. Rules of fields that it does not have are skipped."""
    for rule in rules:
        if hasattr(config, rule.field) and (fault := rule.fault(config)):
            raise UsageError(fault)


def refuse_device(config: Any, device: str, rules: Sequence[Device]) -> None:
    """Raises UsageError for the first setting that a device of this type cannot have."""
    for rule in rules:
        if hasattr(config, rule.field) and (fault := rule.fault(config, device)):
            raise UsageError(fault)


def refuse_set(config: Any, fields: Collection[str], words: str) -> None:
    """Raises UsageError for the first of `fields` that is set and has no effect, in `words`: "on texts"."""
    refuse(config, [Idle(field, lambda _: True, words, "leave it out") for field in fields])


def without_effect(config: Any, rules: Sequence[Rule]) -> dict[str, Any]:
    """The fields that have no effect in `config`, and their defaults."""
    kind: Any = type(config)
    defaults = _defaults(kind)
    return {
        rule.field: defaults[rule.field] for rule in rules if isinstance(rule, Idle | Needs) and rule.useless(config)
    }


def dropped(
    make: Callable[..., Any],
    below: Mapping[str, Any],
    above: Mapping[str, Any],
    rules: Sequence[Rule],
    recipe: bool = False,
) -> set[str]:
    """The settings of `below`, a file or a recipe, that those `above` replace, exclude or leave without effect.

    `make` makes a configuration of settings; under those of a file there may be a recipe's.
    A setting that has no effect in `below` alone stays, so that `refuse` names it.
    """
    new = {name for name, value in above.items() if below.get(name) != value}
    concerned = [rule for rule in rules if not isinstance(rule, Idle | Needs) or rule.field in below]
    alone = make(**below)
    lost: set[str] = set()
    while new:
        merged = make(**{name: value for name, value in below.items() if name not in lost} | dict(above))
        losers = {name for rule in concerned for name in _losers(rule, merged, alone, new, recipe)}
        losers = (losers & below.keys()) - lost - above.keys()
        if not losers:
            return lost
        lost |= losers  # what they made useful may now be useless in turn
    return lost


def _losers(rule: Rule, merged: Any, alone: Any, new: Collection[str], recipe: bool) -> Collection[str]:
    """The fields that give way by one rule; some of them may not be set below."""
    match rule:
        case Replaces(field, others, in_recipes):
            value = getattr(merged, field)
            given = field in new and value is not None and value is not False and value != "none"
            return others if given and (recipe or not in_recipes) else ()
        case Excludes(field, other):
            if rule.fault(merged) is None:
                return ()
            return [loser for winner, loser in ((field, other), (other, field)) if winner in new]
        case Idle(field=field) | Needs(field=field):
            return (field,) if rule.fault(merged) and not rule.fault(alone) else ()
        case _:
            return ()
