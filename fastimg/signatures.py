"""Signatures and pages of `help` for the functions of `api`, made from the commands' dataclasses."""

import functools
import inspect
import json
import operator
import os
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fastimg.config.flag_types import aliases
from fastimg.config.flags import descriptions

F = TypeVar("F", bound=Callable[..., Any])
_NUMBERS_TOO = ("workers", "freeze", "cache_embeddings", "save_interval", "tile")  # text that may be a whole number
_COLUMNS = 96


class CallSignature(inspect.Signature):
    """Every setting as a parameter, for completion and `bind`; as text, where it would be a wall, the first ones."""

    def __str__(self) -> str:
        return self.format()

    def format(self, **_: Any) -> str:
        """What `help` shows above the description, which lists the settings."""
        first = [p.replace(annotation=p.empty) for p in self.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        rest = inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)
        return str(inspect.Signature([*first, rest]))


def takes_settings_of(
    kind: type[Any], positional: Sequence[str], without: Sequence[str] = (), accepts: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Give a function the signature of a command's dataclass, and its page the descriptions of the fields.

    `without` are fields that only a command line needs; `accepts` are types that differ from the fields'.
    """

    def complete(function: F) -> F:
        hints = get_type_hints(kind) | dict(accepts or {})
        parameters = []
        for field in sorted(fields(kind), key=lambda field: field.name not in positional):
            if field.name in without:
                continue
            first = field.name in positional
            where = inspect.Parameter.POSITIONAL_OR_KEYWORD if first else inspect.Parameter.KEYWORD_ONLY
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            hint = hints[field.name] if field.name in (accepts or ()) else _accepted(field.name, hints[field.name])
            parameters.append(inspect.Parameter(field.name, where, default=default, annotation=hint))
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        by_name = {parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
        others = [by_name[field].replace(name=name) for name, field in aliases(kind).items() if field in by_name]
        signature = CallSignature([*parameters, *own, *others], return_annotation=function.__annotations__["return"])
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__module__ = "fastimg"
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_page(kind, parameters)}\n"
        return function

    return complete


def _accepted(name: str, hint: Any) -> Any:
    """The type of a keyword, by that of its field: any path, any sequence of texts, whole numbers where they fit."""
    kinds: list[Any] = []
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if option is Path:
            kinds += [str, os.PathLike[str]]
        elif get_origin(option) is tuple and get_args(option)[-1] is Ellipsis:
            kinds.append(Sequence[str])
        elif option is str and name in _NUMBERS_TOO:
            kinds += [str, int]
        else:
            kinds.append(option)
    return functools.reduce(operator.or_, kinds)


def written(hint: Any) -> str:
    """A type as one writes it."""
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(written(option) for option in get_args(hint))
    if hint is None or hint is NoneType:
        return "None"
    if get_origin(hint) is Literal:
        return f"Literal[{', '.join(json.dumps(choice) for choice in get_args(hint))}]"
    if get_args(hint):
        return f"{get_origin(hint).__name__}[{', '.join(written(item) for item in get_args(hint))}]"
    return "..." if hint is Ellipsis else str(getattr(hint, "__name__", hint))


def _page(kind: type[Any], parameters: Sequence[inspect.Parameter]) -> str:
    """A paragraph for each setting: its name, type and default, and its description."""
    texts = descriptions(kind)
    names = {parameter.name for parameter in parameters}
    others: dict[str, list[str]] = {}
    for alias, field in aliases(kind).items():
        others.setdefault(field, []).append(alias)
    lines = ["Settings:", ""]
    for parameter in parameters:
        default = "" if parameter.default is parameter.empty else f" = {shown(parameter.default)}"
        lines.append(f"{parameter.name}: {written(parameter.annotation)}{default}")
        also = f" Also called {' and '.join(others[parameter.name])}." if parameter.name in others else ""
        lines += textwrap.wrap(
            _without_dashes(texts.get(parameter.name, "The same as in YAML."), names) + also,
            _COLUMNS,
            initial_indent="    ",
            subsequent_indent="    ",
        )
    return "\n".join(lines)


def shown(default: Any) -> str:
    """A default as one writes it; a path as text."""
    return (
        json.dumps(default)
        if isinstance(default, str)
        else repr(str(default))
        if isinstance(default, Path)
        else repr(default)
    )


def _without_dashes(text: str, names: Collection[str]) -> str:
    """A description with `batch_size` where it has `--batch-size`."""

    def name(found: re.Match[str]) -> str:
        setting = found[1].replace("-", "_")
        return setting if setting in names else found[0]

    return re.sub(r"(?<!`)--([a-z][a-z0-9-]*[a-z0-9])", name, text)
