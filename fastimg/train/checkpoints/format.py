"""Checkpoints: a directory that appears complete or not at all.

RUN/checkpoints/00000240/model.safetensors   weights; classes and preprocessing in the metadata
RUN/checkpoints/00000240/training.pt         optimiser, position in the data, meters: what resuming needs
RUN/checkpoints/00000240/sharded/            with --strategy fsdp: weights and optimiser by name, in torch's distributed
                                             format, one file per rank; any number of ranks can read them
RUN/last, RUN/best -> checkpoints/...        links, replaced atomically
"""

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fastimg import __version__
from fastimg.data.provenance import TrainedOn
from fastimg.errors import UserError, reason_of
from fastimg.loaders.containers.atomic import give_usual_mode, sync_folder
from fastimg.models.heads import HeadKind
from fastimg.models.networks.pairs import build_pair
from fastimg.models.precision import PrecisionName
from fastimg.models.registry import Model, Preprocessing, TextSide, build, load_weights, read_weights, weights_file
from fastimg.models.tokenizer import read_tokenizer

from .model_files import MODEL as MODEL
from .model_files import find as find

TRAINING = "training.pt"
OTHER_CHECKPOINT = "to resume from another checkpoint, point `last` of the run at it: ln -sfn checkpoints/N RUN/last"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a checkpoint states about itself. More than 12 fields: they are the keys of its metadata, which is flat."""

    arch: str
    kwargs: dict[str, Any]
    classes: tuple[str, ...]
    num_classes: int
    preprocessing: Preprocessing
    step: int
    epoch: int
    metrics: dict[str, float]
    blurpool: bool = False
    head: HeadKind = "linear"
    head_hidden: int = 0
    class_counts: tuple[int, ...] = ()  # training samples per class; empty in old checkpoints
    text: dict[str, Any] | None = None  # of a text encoder: its base model, tokens and pooling
    pair: dict[str, Any] | None = None  # of a model of images and texts: the second encoder, and the combiner
    trained_on: tuple[TrainedOn, ...] | None = None  # its own training, then those of its initial weights
    precision: PrecisionName | None = None  # of the training; None in old checkpoints
    targets: tuple[dict[str, Any], ...] = ()  # of data that names them, in the order of their outputs: `Tasks.stated`

    def to_json(self) -> str:
        """For the safetensors metadata; without `targets`, `pair` or `precision` where there are none."""
        fields = asdict(self)
        if not self.targets:
            del fields["targets"]
        for name in ("pair", "precision"):
            if fields[name] is None:
                del fields[name]
        if self.preprocessing.field is None:  # as in checkpoints of earlier versions
            del fields["preprocessing"]["field"]
        if self.preprocessing.dtype == "uint8":
            del fields["preprocessing"]["dtype"]
        for record in fields["trained_on"] or ():
            if record["fold"] is None:  # as in checkpoints of earlier versions
                del record["fold"]
        return json.dumps({**fields, "fastimg": __version__})

    @classmethod
    def from_json(cls, text: str) -> "Card":
        """The inverse of `to_json`."""
        import msgspec

        fields = json.loads(text)
        fields.pop("fastimg")
        stated = fields.pop("preprocessing")
        preprocessing = msgspec.convert(stated, Preprocessing)
        trained_on = msgspec.convert(fields.pop("trained_on", None), tuple[TrainedOn, ...] | None)
        for name in ("classes", "class_counts", "targets"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields, preprocessing=preprocessing, trained_on=trained_on)


def save(
    run: Path,
    card: Card,
    tensors: Mapping[str, torch.Tensor],
    training: dict[str, Any],
    averages: Mapping[str, torch.Tensor] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write checkpoint `card.step` of a run: under a temporary name, synced, then renamed. Returns its directory.

    `tensors` are a model's state, `files` go next to its weights. With `averages` of weights, by name, the model file
    holds those, and `training["weights"]` holds the weights that training continues from.
    """
    final = unused_name(run, card.step)
    part = begin(final)
    weights = _apart(tensors)
    if averages is not None:
        training = {**training, "weights": weights}
        weights = _apart({name: averages.get(name, tensor) for name, tensor in weights.items()})
    finish(part, card, weights, training, files)
    return final


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous tensors on the host, none of which shares memory with another one: safetensors refuses such."""
    apart: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != own.nbytes
        apart[name] = own.clone() if shared else own
        seen.add(apart[name].untyped_storage().data_ptr())
    return apart


def unused_name(run: Path, step: int) -> Path:
    """The name of a new checkpoint."""
    final = run / "checkpoints" / f"{step:08d}"
    again = 1
    while final.exists():  # the same step, saved again: `last` may still point at the first one
        again += 1
        final = final.with_name(f"{step:08d}-{again}")
    return final


def partial(final: Path) -> Path:
    return final.with_name(f".{final.name}.part")


def begin(final: Path) -> Path:
    """An empty folder under the temporary name of `final`."""
    part = partial(final)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def finish(
    part: Path,
    card: Card,
    weights: dict[str, torch.Tensor],
    training: dict[str, Any],
    files: Mapping[str, bytes] | None,
) -> None:
    """Write the model and the training state, sync, and rename the folder."""
    for name, content in (files or {}).items():
        (part / name).write_bytes(content)
    save_file(weights, part / MODEL, metadata={"format": "pt", "fastimg": card.to_json()})
    give_usual_mode(part / MODEL)  # safetensors makes it readable by its owner only
    torch.save(training, part / TRAINING)
    for name in (MODEL, TRAINING, *(files or ())):
        with (part / name).open("rb") as handle:
            os.fsync(handle.fileno())
    part.rename(part.with_name(part.name.removeprefix(".").removesuffix(".part")))
    sync_folder(part.parent)


def point(run: Path, link: str, checkpoint: Path) -> None:
    """Point RUN/last or RUN/best at `checkpoint`, atomically."""
    part = run / f".{link}.part"
    part.unlink(missing_ok=True)
    part.symlink_to(checkpoint.relative_to(run))
    part.replace(run / link)
    sync_folder(run)


def prune(run: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, not counting those that `last` and `best` point at."""
    pointed = {(run / link).resolve() for link in ("last", "best")}
    spare = [path for path in sorted((run / "checkpoints").glob("[0-9]*")) if path.resolve() not in pointed]
    for path in spare[: max(0, len(spare) - keep)]:
        shutil.rmtree(path)
    for path in (run / "checkpoints").glob(".*.part"):  # from a run that was killed while saving
        shutil.rmtree(path)


def read_card(file: Path) -> Card:
    """The card of a model file. Raises UserError if fastimg did not write it."""
    try:
        with safe_open(file, framework="pt") as handle:
            metadata = handle.metadata() or {}
        return Card.from_json(metadata["fastimg"])
    except KeyError as error:
        raise UserError(
            f"{file}: weights without classes and preprocessing, not a checkpoint of fastimg; use train --weights"
        ) from error
    except (SafetensorError, OSError, ValueError, TypeError) as error:  # ValueError: msgspec's too
        raise UserError(f"{file}: not a complete checkpoint ({error}); use another one") from error


def trained_before(weights: Path | None) -> tuple[TrainedOn, ...]:
    """What the weights of --weights were trained on; empty if they do not say, as weights from elsewhere."""
    if weights is None:
        return ()
    try:
        return read_card(weights_file(weights)).trained_on or ()
    except UserError:
        return ()


def load_model(path: Path) -> tuple[Model, Card]:
    """The model of a checkpoint, ready for evaluation, on the CPU."""
    file = find(path)
    card = read_card(file)
    text = None
    if card.text is not None:
        text = TextSide(tokenizer=read_tokenizer(file.parent, card.text["length"]), settings=card.text)
    alone = card.pair is None
    model = build(
        card.arch,
        card.num_classes,
        kwargs=card.kwargs,
        img_size=card.preprocessing.val_size,
        blurpool=card.blurpool,
        head=card.head if alone else "linear",
        head_hidden=card.head_hidden if alone else 0,
        text=text,
    )
    if card.pair is not None:
        settings = card.pair["text"]
        reader = TextSide(tokenizer=read_tokenizer(file.parent, settings["length"]), settings=settings)
        second = build(card.pair["arch"], 1, text=reader)
        combiner = card.pair["combiner"]
        model = build_pair(model, second, card.num_classes, combiner, head=card.head, head_hidden=card.head_hidden)
    tensors, _ = read_weights(file)
    load_weights(model, tensors, str(file), strict_head=True)
    model.module.eval()
    return model, card


def load_training(checkpoint: Path) -> dict[str, Any]:
    """What `save` was given as `training`. Raises UserError if the file is truncated."""
    file = checkpoint / TRAINING
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a file that is not a checkpoint: the error says so
            training: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = reason_of(error)
        raise UserError(f"{file}: cannot be read ({reason}); {OTHER_CHECKPOINT}") from error
    return training
