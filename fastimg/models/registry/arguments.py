"""Arguments of models and optimisers as `name=value`: read, and refused where they contradict a flag."""

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any

from fastimg.errors import UsageError

_EXAMPLES = {"--model-kwargs": "pad_type=same", "--opt-kwargs": "nesterov=True"}  # of arguments
_RUN_CODE = {  # arguments that would let a file execute code
    "checkpoint_path": "older versions of timm execute code in such files; use --weights FILE instead",
    "trust_remote_code": "fastimg does not execute code that comes with a model; choose a model that needs none",
}


def parse_kwargs(pairs: Iterable[str], flag: str = "--model-kwargs") -> dict[str, Any]:
    """Parse `name=value` pairs; values are Python literals, or else strings. Raises UsageError naming `flag`."""
    kwargs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{flag} {pair}: give name=value, such as {_EXAMPLES[flag]}")
        if name in _RUN_CODE:
            raise UsageError(f"{flag} {pair}: {_RUN_CODE[name]}")
        try:
            kwargs[name] = ast.literal_eval(value)
            json.dumps(kwargs[name])  # checkpoints store them as JSON
        except (ValueError, SyntaxError):
            kwargs[name] = value
        except TypeError as error:
            raise UsageError(f"{flag} {pair}: not a number, string, list or dict; give one of them") from error
    return kwargs


def check_kwargs(kwargs: Mapping[str, Any], img_size: int | None, size_flag: str) -> None:
    """Refuse arguments that contradict the input fastimg provides, or have a flag of their own. Raises UsageError."""
    if kwargs.get("in_chans", 3) not in (1, 3):
        raise UsageError(
            f"--model-kwargs in_chans={kwargs['in_chans']}: images have 3 channels, or 1 of gray; give one of them"
        )
    for name, flag in (("num_classes", "--num-classes"), ("pretrained", "--pretrained")):
        if name in kwargs:
            raise UsageError(f"--model-kwargs {name}={kwargs[name]}: there is a flag for it; use {flag} instead")
    if img_size is not None and kwargs.get("img_size", img_size) not in (img_size, (img_size, img_size)):
        raise UsageError(
            f"--model-kwargs img_size={kwargs['img_size']} contradicts {size_flag} {img_size}; remove img_size"
        )
