"""Weights from files: read without executing code, fitted to a model, and what they state about themselves."""

import argparse
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from timm.models._manipulate import adapt_input_conv

from fastimg.errors import UserError, reason_of
from fastimg.models.heads import HeadInit, init_head
from fastimg.wording import plural

from .model import Model, Preprocessing, head_prefixes

AVERAGE = "average"
_AVERAGES = ("state_dict_ema", "model_ema")  # timm's and torchvision's names


def weights_file(path: Path) -> Path:
    """The file that --weights names: itself, or the model in a run's or checkpoint's directory. Raises UserError."""
    inside = ("best/model.safetensors", "last/model.safetensors", "model.safetensors")
    file = next((path / name for name in inside if (path / name).exists()), path) if path.is_dir() else path
    if file.name == "training.pt" and (beside := file.with_name("model.safetensors")).exists():
        raise UserError(f"--weights {path}: contains the optimiser's state; the weights are in {beside}")
    if not file.is_file():
        reason = "a folder without model.safetensors" if file.is_dir() else "no such file"
        raise UserError(f"--weights {path}: {reason}; give a weights file, or a run directory")
    return file


def read_metadata(file: Path) -> dict[str, str]:
    """The metadata of a safetensors file; empty for any other file. Raises UserError."""
    if file.suffix != ".safetensors":
        return {}
    try:
        with safe_open(file, framework="pt") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise UserError(f"--weights {file}: not a complete safetensors file ({error}); copy it again") from error


def read_weights(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by name, and metadata, from a safetensors file or a checkpoint of plain tensors. No code is executed.

    Wrappers that trainers leave behind (`state_dict`, `model`, `module.`) are removed. Where a checkpoint also holds a
    moving average of the weights, that is taken, and AVERAGE in the metadata is its name. Raises UserError.
    """
    path = weights_file(path)
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"--weights {path}: not a complete safetensors file ({error}); copy it again") from error
    try:
        # timm's trainer stores its arguments beside the weights: a Namespace is attributes alone, and runs nothing.
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # about files that are not checkpoints; the error says so
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        readable = isinstance(error, UnpicklingError | RuntimeError | OSError)  # others describe the pickle's bytes
        reason = reason_of(error).split(". ")[0] if readable else "not written by torch.save"
        raise UserError(
            f"--weights {path}: cannot be read as plain tensors ({reason}); save it as safetensors, or with "
            "torch.save(model.state_dict(), FILE)"
        ) from error
    stated = {}
    for key in (*_AVERAGES, "state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            stated = {AVERAGE: key} if key in _AVERAGES else {}
            break
    if not isinstance(content, dict):
        raise UserError(f"--weights {path}: contains no named tensors; save a state_dict")
    tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if stated:
        tensors.pop("n_averaged", None)  # torch's own count beside an average
    if not tensors:
        raise UserError(f"--weights {path}: contains no named tensors; save a state_dict")
    for prefix in ("module.", "_orig_mod.", "model."):
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors, stated


def misfits(model: Model, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """What keeps weights from being loaded into the model, whatever its classifier is."""
    in_head = head_prefixes(model)
    trunk = {name: value for name, value in tensors.items() if not name.startswith(in_head)}
    return list(chain(*_misfits(model, trunk, strict_head=False)))


def _misfits(
    model: Model, tensors: Mapping[str, torch.Tensor], strict_head: bool
) -> tuple[list[str], list[str], list[str]]:
    """The tensors that are missing, that the model does not have, and that are of another shape, with the shapes."""
    own = model.module.state_dict()
    in_head = head_prefixes(model)
    optional = {name for name in own if name.endswith("num_batches_tracked")}
    if not strict_head:
        optional |= {name for name in own if name.startswith(in_head)}
    missing = [name for name in own if name not in tensors and name not in optional]
    unknown = [name for name in tensors if name not in own]
    shapes = [
        f"{name} {list(tensors[name].shape)} for {list(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    return missing, unknown, shapes


def load_weights(
    model: Model,
    tensors: Mapping[str, torch.Tensor],
    origin: str,
    *,
    strict_head: bool = False,
    head_init: HeadInit = "zeros",
) -> bool:
    """Copy weights into the model. A missing classifier, or one of another width, is initialised; the rest must fit.

    Returns whether the classifier came from the weights. Raises UserError.
    """
    own = model.module.state_dict()
    in_head = head_prefixes(model)
    head = [name for name in own if name.startswith(in_head)]
    kept = strict_head or all(name in tensors and tensors[name].shape == own[name].shape for name in head)
    if not kept:
        tensors = {name: value for name, value in tensors.items() if not name.startswith(in_head)}
        init_head(model.module, model.classifier, head_init)
    missing, unknown, shapes = _misfits(model, tensors, strict_head)
    mismatches = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
        if names
    ]
    if mismatches:
        size = "" if missing or unknown else ", and image size"
        raise UserError(
            f"{origin}: not the weights of {model.arch}: of {plural(len(own), 'tensor')}, {'; '.join(mismatches)}; "
            f"give the --arch (and --model-kwargs{size}) that they were trained with"
        )
    model.module.load_state_dict(tensors, strict=False)
    return kept


def folded(model: Model, tensors: dict[str, torch.Tensor], weights: Path) -> dict[str, torch.Tensor]:
    """Weights whose first convolution reads RGB, for a model of another number of channels: folded as timm folds them.

    Raises UserError for weights of one channel and a model of more.
    """
    config = getattr(model.module, "pretrained_cfg", None) or {}
    first = config.get("first_conv") or ()
    channels = model.preprocessing.channels
    own = model.module.state_dict()
    for name in (f"{layer}.weight" for layer in ((first,) if isinstance(first, str) else first)):
        if name not in tensors or name not in own or tensors[name].shape[1:] == own[name].shape[1:]:
            continue
        theirs = int(tensors[name].shape[1])
        if channels == 3 or (theirs != 3 and (channels != 1 or theirs % 3)):
            raise UserError(
                f"--weights {weights}: they read images of {plural(theirs, 'channel')}, which cannot be folded to "
                f"{channels}; add --in-chans {theirs}, or give weights for RGB"
            )
        tensors = {**tensors, name: adapt_input_conv(channels, tensors[name])}
    return tensors


def stated_classes(arch: str, metadata: Mapping[str, str], file: Path) -> tuple[str, ...] | None:
    """What the outputs stand for: in fastimg's own files, or in the config.json of `arch` that timm writes beside them.

    None where neither says so.
    """
    if "fastimg" in metadata:
        card = json.loads(metadata["fastimg"])
        targets = card.get("targets", [])
        if not targets or (len(targets) == 1 and targets[0]["kind"] == "class"):
            return tuple(card["classes"])
        return output_names((target["name"], target.get("classes", [])) for target in targets)
    try:
        config = json.loads(weights_file(file).with_name("config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or config.get("architecture") != arch.split(".")[0]:
        return None
    names = config.get("label_names")
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def output_names(targets: Iterable[tuple[str, Iterable[str]]]) -> tuple[str, ...]:
    """What the outputs of several targets stand for, by name and classes: `target=class`, or a number's `target`."""
    return tuple(name for target, classes in targets for name in [f"{target}={each}" for each in classes] or [target])


def stated_preprocessing(own: Preprocessing, metadata: Mapping[str, str], file: Path) -> Preprocessing:
    """The preprocessing that a weights file states: all of it in fastimg's own, else `mean` and `std` entries.

    Raises UserError for entries that are not a number from 0 to 1 for each channel.
    """
    if "fastimg" in metadata:
        import msgspec

        return msgspec.convert(json.loads(metadata["fastimg"])["preprocessing"], Preprocessing)
    stated: dict[str, tuple[float, ...]] = {}
    for key in (key for key in ("mean", "std") if key in metadata):
        try:
            values = tuple(float(value) for value in metadata[key].split(","))
        except ValueError:
            values = ()
        if len(values) != own.channels or not all(0 <= value <= 1 and (value or key == "mean") for value in values):
            raise UserError(
                f"{file}: states {key} {metadata[key]!r} among its metadata; the model takes "
                f"{plural(own.channels, 'number')} from 0 to 1, separated by commas; correct it or leave it out"
            )
        stated[key] = values
    return replace(own, **stated)  # type: ignore[arg-type]
