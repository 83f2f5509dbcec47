"""Values of a YAML file as a field's type: what is in quotes is taken as a flag would be."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fastimg.errors import nearest
from fastimg.wording import shortened

_WHOLE = re.compile(r"[-+]?\d{1,4000}")  # of more digits Python makes no number
_WORDS = {"true": True, "false": False}
_ABOUT: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


MOST_WHOLE, MOST = 2**63 - 1, 3.4e38  # what int64 and float32 hold; an infinite number is left to each flag's rule


class Unfit(ValueError):
    """A value that is not of a field's type; in words, what is expected and what was found."""


def converted(value: Any, hint: Any) -> Any:
    """`value` as `hint`, a type of a dataclass's field. Raises Unfit."""
    found, result = _fitted(value, hint)
    if found and is_too_large(result):
        raise Unfit(too_large(result))
    if not found:
        raise Unfit(f"expected {expected(hint)}, not {_shown(value)}{_help(value, hint)}")
    return result


def is_too_large(value: Any) -> bool:
    """Whether a number, or one in a tuple, is more than compiled code and tensors hold."""
    if isinstance(value, tuple):
        return any(map(is_too_large, value))
    if isinstance(value, int):
        return abs(value) > MOST_WHOLE
    return isinstance(value, float) and MOST < abs(value) < math.inf


def too_large(value: Any) -> str:
    """Why a number that is too large is refused, and what to give."""
    largest = next(number for number in (value if isinstance(value, tuple) else (value,)) if is_too_large(number))
    words = f"whole numbers go up to {MOST_WHOLE:,}" if isinstance(largest, int) else f"numbers go up to {MOST:g}"
    return f"{shortened(str(largest), 40)} is too large; {words}"


def expected(hint: Any) -> str:
    """What a field takes, in words."""
    options = [option for option in _options(hint) if option is not NoneType]
    words = [_about(option) for option in options]
    return " or ".join(words)


def _options(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def _about(hint: Any) -> str:
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if kinds[-1] is Ellipsis:
            return "a list such as [name=value]" if kinds[0] is str else "a list of numbers"
        return f"a list of {len(kinds)} numbers"
    return _ABOUT.get(hint, "a list")


def _fitted(value: Any, hint: Any) -> tuple[bool, Any]:
    """(whether it fits, the value), the option that fits as it stands before one that fits without quotes."""
    options = _options(hint)
    if value is None:
        return NoneType in options, None
    for fit in (_exactly, _unquoted):
        for option in options:
            found, result = fit(value, option)
            if found:
                return True, result
    return False, None


def _exactly(value: Any, hint: Any) -> tuple[bool, Any]:
    if get_origin(hint) is Literal:
        return value in get_args(hint) and not isinstance(value, bool), value
    if get_origin(hint) is tuple:
        return _items(value, get_args(hint), _fitted) if isinstance(value, list) else (False, None)
    if hint is bool:
        return isinstance(value, bool), value
    if isinstance(value, bool) and hint in (int, float, str, Path):
        return False, None
    if hint is int:
        return isinstance(value, int), value
    if hint is float:
        return _as_float(value) if isinstance(value, int | float) else (False, None)
    if hint is str:
        return _is_text(value), str(value)
    if hint is Path:
        return _is_text(value), Path(str(value))
    import msgspec

    try:
        return True, msgspec.convert(value, hint, strict=True)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: half a surrogate pair
        return False, None


def _is_text(value: Any) -> bool:
    """Whether a value is a text, or a number in its place; half a surrogate pair, as "\\ud800", stands for nothing."""
    try:
        return isinstance(value, str | int | float) and os.fsencode(str(value)) is not None
    except UnicodeEncodeError:
        return False


def _unquoted(value: Any, hint: Any) -> tuple[bool, Any]:
    """A quoted number, or true and false, as the flags would take them; a list's one entry without brackets."""
    if get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis and isinstance(value, str):
        found, item = _fitted(value, get_args(hint)[0])
        return found, (item,)
    if not isinstance(value, str):
        return False, None
    text = value.strip()
    if hint is bool:
        return text.lower() in _WORDS, _WORDS.get(text.lower())
    if hint is int:
        return (True, int(text)) if _WHOLE.fullmatch(text) and len(text) < 100 else (False, None)
    if hint is float:
        try:
            return not math.isnan(float(text)), float(text)
        except ValueError:
            return False, None
    return False, None


def _as_float(value: float) -> tuple[bool, Any]:
    """A number as a float; one that no float holds stays what it is, and is refused as too large."""
    try:
        return True, float(value)
    except OverflowError:
        return True, value


def _items(value: list[Any], kinds: tuple[Any, ...], fit: Callable[[Any, Any], tuple[bool, Any]]) -> tuple[bool, Any]:
    """A list as a tuple of these types."""
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        return False, None
    fitted = [fit(item, kind) for item, kind in zip(value, kinds, strict=True)]
    return all(found for found, _ in fitted), tuple(result for _, result in fitted)


def _shown(value: Any) -> str:
    """As it stands in the file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return shortened(f"the text '{value}'" if isinstance(value, str) else str(value), 120)


def _help(value: Any, hint: Any) -> str:
    """What to write instead, where that can be guessed."""
    choices = [str(choice) for option in _options(hint) if get_origin(option) is Literal for choice in get_args(option)]
    if isinstance(value, str) and (near := nearest(value, choices, 1)):
        return near
    if bool in _options(hint) and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if str in _options(hint) and isinstance(value, bool):
        return "; put it in quotes if it is meant as text"
    return ""
