"""Checkpoints: a directory that appears complete or not at all.

RUN/checkpoints/00000240/model.safetensors   weights; classes and preprocessing in the metadata
RUN/checkpoints/00000240/training.pt         optimiser, position in the data, meters: what going on needs
RUN/last, RUN/best -> checkpoints/...        links, replaced in one step
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from . import __version__
from .errors import UserError
from .loaders.tar import sync_folder
from .models import Model, Preprocessing, build, load_weights, read_weights

MODEL = "model.safetensors"
TRAINING = "training.pt"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a checkpoint says of itself."""

    arch: str
    kwargs: dict[str, Any]
    classes: tuple[str, ...]
    num_classes: int
    preprocessing: Preprocessing
    step: int
    epoch: int
    metrics: dict[str, float]

    def to_json(self) -> str:
        """As it stands in the safetensors metadata."""
        return json.dumps({**asdict(self), "fastimg": __version__})

    @classmethod
    def from_json(cls, text: str) -> "Card":
        """The inverse of `to_json`."""
        fields = json.loads(text)
        fields.pop("fastimg")
        stated = fields.pop("preprocessing")
        preprocessing = msgspec.convert(stated, Preprocessing)
        return cls(**{**fields, "classes": tuple(fields["classes"]), "preprocessing": preprocessing})


def save(run: Path, card: Card, module: nn.Module, training: dict[str, Any]) -> Path:
    """Write checkpoint `card.step` of a run: to a temporary name, synced, then renamed. Returns its directory."""
    final = run / "checkpoints" / f"{card.step:08d}"
    again = 1
    while final.exists():  # the same step, saved again: `last` may point at the first, which stays until it does not
        again += 1
        final = final.with_name(f"{card.step:08d}-{again}")
    part = final.with_name(f".{final.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    save_file(tensors, part / MODEL, metadata={"format": "pt", "fastimg": card.to_json()})
    torch.save(training, part / TRAINING)
    for file in part.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    part.rename(final)
    sync_folder(final.parent)
    return final


def point(run: Path, link: str, checkpoint: Path) -> None:
    """Let RUN/last or RUN/best be `checkpoint`, in one step."""
    part = run / f".{link}.part"
    part.unlink(missing_ok=True)
    part.symlink_to(checkpoint.relative_to(run))
    part.replace(run / link)
    sync_folder(run)


def prune(run: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, those that `last` and `best` point at aside."""
    pointed = {(run / link).resolve() for link in ("last", "best")}
    spare = [path for path in sorted((run / "checkpoints").glob("[0-9]*")) if path.resolve() not in pointed]
    for path in spare[: max(0, len(spare) - keep)]:
        shutil.rmtree(path)
    for path in (run / "checkpoints").glob(".*.part"):  # of a run that was killed while it saved
        shutil.rmtree(path)


def find(path: Path) -> Path:
    """The model file that a path means: a run (its best checkpoint, else its last), a checkpoint, or the file."""
    if path.is_file():
        return path
    for candidate in (path / "best" / MODEL, path / "last" / MODEL, path / MODEL):
        if candidate.is_file():
            return candidate
    reason = "no checkpoint in it" if path.exists() else "no such file or folder"
    raise UserError(f"{path}: {reason}; give a run directory or a model.safetensors")


def read_card(file: Path) -> Card:
    """The card of a model file. Raises UserError where it is not one of ours."""
    try:
        with safe_open(file, framework="pt") as handle:
            metadata = handle.metadata() or {}
        return Card.from_json(metadata["fastimg"])
    except KeyError as error:
        raise UserError(
            f"{file}: weights without classes and preprocessing, not a checkpoint of fastimg; use train --weights"
        ) from error
    except (SafetensorError, OSError, ValueError, TypeError, msgspec.ValidationError) as error:
        raise UserError(f"{file}: not a complete checkpoint ({error}); use another one") from error


def load_model(path: Path) -> tuple[Model, Card]:
    """The model of a checkpoint, ready for evaluation, on the CPU."""
    file = find(path)
    card = read_card(file)
    model = build(card.arch, card.num_classes, kwargs=card.kwargs, img_size=card.preprocessing.val_size)
    tensors, _ = read_weights(file)
    load_weights(model, tensors, str(file), strict_head=True)
    model.module.eval()
    return model, card


def load_training(checkpoint: Path) -> dict[str, Any]:
    """What `save` was given as `training`. Raises UserError where it is cut short."""
    file = checkpoint / TRAINING
    try:
        training: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file}: cannot be read ({reason}); resume from another checkpoint of the run") from error
    return training
