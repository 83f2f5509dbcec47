"""What a weights file states about its model: architecture, arguments, preprocessing.

Flags take precedence, and a sentence reports what is taken from the file. A fastimg checkpoint states all of it in its
card. Any other safetensors file may have the text entries `arch`, `model_kwargs`, `mean` and `std` in its metadata;
`model_kwargs` is a JSON object or name=value pairs.
"""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastimg.config.commands import Embed, Train
from fastimg.config.intent import ARCH
from fastimg.config.training import HF_PREFIX
from fastimg.errors import UserError
from fastimg.models.precision import PrecisionName
from fastimg.models.registry import Preprocessing, TextSide, parse_kwargs, read_metadata, weights_file
from fastimg.models.tokenizer import read_tokenizer
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints.format import Card
from fastimg.train.reporting.report import shown

_Config = TypeVar("_Config", bound=Train | Embed)

_OURS = ("num_classes", "pretrained")  # determined by the dataset and by flags
_OF_THE_RUN = ("img_size", "drop_path_rate")  # arguments that come from a run's own flags


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What is taken from a weights file; by default nothing."""

    arch: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    blurpool: bool = False
    preprocessing: Preprocessing | None = None  # only from a checkpoint
    precision: PrecisionName | None = None  # of its training
    text: TextSide | None = None
    pair: TextSide | None = None  # what reads the texts, of a model of images and texts
    text_arch: str | None = None
    combiner: Literal["concat", "gated"] | None = None

    def image_size(self) -> int | None:
        """The side that the model was trained with."""
        return None if self.preprocessing is None or self.text is not None else self.preprocessing.train_size


def adopted(config: _Config) -> tuple[_Config, Stated, str]:
    """`config` completed by what its weights state, what they state, and a sentence about what is taken (may be empty).

    Raises UserError for weights that cannot be read or have invalid metadata.
    """
    if config.weights is None or config.pretrained:  # giving both is refused elsewhere
        return replace(config, arch=config.arch or ARCH), Stated(), ""
    stated = _read(config.weights, config.max_length)
    name = shown(config.weights)
    if stated.arch is None:
        return replace(config, arch=config.arch or ARCH), Stated(), ""
    if config.arch is not None and _base(config.arch) != _base(stated.arch):
        sentence = f"{name} states --arch {stated.arch}, which --arch {config.arch} overrules"
        return config, Stated(), sentence
    given = parse_kwargs(config.model_kwargs)
    taken: dict[str, Any] = {key: value for key, value in stated.kwargs.items() if key not in given}
    parts: list[str] = [] if config.arch is not None else [f"--arch {stated.arch}"]
    changes: dict[str, Any] = {}
    if isinstance(config, Train) and (channels := taken.pop("in_chans", 3)) != 3 and config.in_chans is None:
        parts.append(f"--in-chans {channels}")
        changes["in_chans"] = channels
    if isinstance(config, Train) and stated.preprocessing is not None and config.image_field is None:
        field, depth = stated.preprocessing.field, stated.preprocessing.depth
        if field is not None:
            parts.append(f"--image-field {field}")
            changes["image_field"] = field
        elif depth == 16 and config.depth is None:
            parts.append(f"--depth {depth}")
            changes["depth"] = depth
    parts += [f"--model-kwargs {' '.join(map(_pair, taken.items()))}"] if taken else []
    blurpool = stated.blurpool and not getattr(config, "blurpool", False)
    parts += ["--blurpool"] if blurpool else []
    if (size := stated.image_size()) is not None and not _sized(config):
        parts.append(f"images of {size} pixels")
    sentence = f"{name} states {', '.join(parts)}" if parts else ""
    for key in given.keys() & stated.kwargs.keys():
        if given[key] != stated.kwargs[key]:
            overruled = f"--model-kwargs {_pair((key, given[key]))} overrules its {_pair((key, stated.kwargs[key]))}"
            sentence = f"{sentence or name}; {overruled}"
    kwargs = (*map(_pair, taken.items()), *config.model_kwargs)
    arch = config.arch or stated.arch
    if stated.text is not None and given:  # the encoder is loaded by its name, with the arguments that were given
        stated = replace(stated, text=None)
    if blurpool and isinstance(config, Train):
        changes["blurpool"] = True
    if stated.pair is not None:
        if not isinstance(config, Train):
            raise UserError(
                f"{name}: a model of images and texts, and this command reads one of them; give other weights"
            )
        if config.text_arch not in (None, stated.text_arch):
            raise UserError(f"--text-arch {config.text_arch}: {name} has {stated.text_arch}; leave it out")
        changes |= {"text_arch": stated.text_arch, "combiner": config.combiner or stated.combiner}
    return replace(config, arch=arch, model_kwargs=kwargs, **changes), stated, sentence


def _sized(config: Train | Embed) -> bool:
    """Whether a flag sets the size of images."""
    names = ("img_size", "train_crop_size", "val_crop_size", "progressive")
    return any(getattr(config, name, None) is not None for name in names)


def _base(arch: str) -> str:
    """An architecture without the tag that timm appends for published weights."""
    return arch if arch.startswith((HF_PREFIX, "torchvision/")) else arch.split(".")[0]


def _pair(item: tuple[str, Any]) -> str:
    """The argument as --model-kwargs accepts it."""
    key, value = item
    plain = f"{key}={value}"
    return plain if parse_kwargs([plain]) == {key: value} else f"{key}={value!r}"


def _read(path: Path, max_length: int | None) -> Stated:
    file = weights_file(path)
    metadata = read_metadata(file)
    if "fastimg" in metadata:
        return _of_card(checkpoint.read_card(file), file, max_length)
    arch = metadata.get("arch")
    kwargs = _arguments(file, metadata["model_kwargs"]) if metadata.get("model_kwargs") else {}
    if kwargs and arch is None:
        raise UserError(f"--weights {file}: its metadata has model_kwargs, but no arch that they are for; add arch")
    return Stated(arch=arch, kwargs=kwargs)


def _of_card(card: Card, file: Path, max_length: int | None) -> Stated:
    kwargs = {key: value for key, value in card.kwargs.items() if key not in _OF_THE_RUN}
    text = None
    if card.text is not None:
        length = max_length or card.text["length"]
        settings = {**card.text, "length": length}
        text = TextSide(tokenizer=read_tokenizer(file.parent, length), settings=settings)
    stated = Stated(
        arch=card.arch,
        kwargs=kwargs,
        blurpool=card.blurpool,
        preprocessing=card.preprocessing,
        precision=card.precision,
        text=text,
    )
    if card.pair is None:
        return stated
    length = max_length or card.pair["text"]["length"]
    reader = TextSide(tokenizer=read_tokenizer(file.parent, length), settings={**card.pair["text"], "length": length})
    second = card.pair["arch"]
    return replace(stated, pair=reader, text_arch=second, combiner=card.pair["combiner"])


def _arguments(file: Path, text: str) -> dict[str, Any]:
    """`model_kwargs` of a file's metadata. Raises UserError if it is neither JSON nor name=value pairs."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        try:
            parsed = _python(text) or parse_kwargs(re.split(r"[\s,]+(?=[A-Za-z_]\w*=)", text.strip()))
        except UserError:
            parsed = None
    if not isinstance(parsed, dict) or not all(str(key).isidentifier() for key in parsed):
        raise UserError(
            f"--weights {file}: model_kwargs {text!r} in its metadata is neither a JSON object nor name=value pairs; "
            "correct the metadata"
        )
    if parsed.get("in_chans", 3) not in (1, 3):
        raise UserError(
            f"--weights {file}: its metadata says in_chans={parsed['in_chans']}, and images have 3 channels, or 1 of "
            "gray; give other weights"
        )
    return {key: value for key, value in parsed.items() if key not in _OURS}


def _python(text: str) -> Any:
    """A dict written as a Python literal; None for anything else."""
    try:
        return ast.literal_eval(text) if text.lstrip().startswith("{") else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
