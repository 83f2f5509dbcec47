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
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor

from fastimg import __version__
from fastimg.data.provenance import TrainedOn
from fastimg.errors import UserError, reason_of
from fastimg.loaders.containers.atomic import give_usual_mode, sync_folder
from fastimg.models.heads import HeadKind
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Model, Preprocessing, TextSide, build, load_weights, read_weights, weights_file
from fastimg.models.tokenizer import read_tokenizer

from .model_files import MODEL as MODEL
from .model_files import find as find

TRAINING = "training.pt"
SHARDED = "sharded"


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
    trained_on: tuple[TrainedOn, ...] | None = None  # its own training, then those of its initial weights

    def to_json(self) -> str:
        """For the safetensors metadata."""
        return json.dumps({**asdict(self), "fastimg": __version__})

    @classmethod
    def from_json(cls, text: str) -> "Card":
        """The inverse of `to_json`."""
        fields = json.loads(text)
        fields.pop("fastimg")
        stated = fields.pop("preprocessing")
        preprocessing = msgspec.convert(stated, Preprocessing)
        trained_on = msgspec.convert(fields.pop("trained_on", None), tuple[TrainedOn, ...] | None)
        for name in ("classes", "class_counts"):
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
    final = _unused(run, card.step)
    part = _begin(final)
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    if averages is not None:
        training = {**training, "weights": weights}
        weights = {name: averages.get(name, tensor).detach().cpu().contiguous() for name, tensor in weights.items()}
    _finish(part, card, weights, training, files)
    return final


def save_sharded(
    run: Path,
    card: Card,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: dict[str, Any],
    ranks: Ranks,
    averages: Mapping[str, torch.Tensor] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """`save` for a module that FSDP2 has sharded: every rank calls it and writes its shards of the trained tensors.

    All nodes must see `run` under the same path, on a shared file system. No rank holds more than one whole tensor on
    its device; rank 0 collects the model in host memory. `training` and `card` are taken from rank 0.
    """
    final = Path(ranks.broadcast(str(_unused(run, card.step)) if ranks.first else ""))
    part = _begin(final) if ranks.first else _part(final)
    ranks.barrier()
    folder = part / SHARDED
    save_shards(_state(module, optimizer, averages), storage_writer=FileSystemWriter(folder))
    own = [*folder.glob(f"__{ranks.rank}_*"), *(folder.glob(".metadata") if ranks.first else ())]
    sums = ranks.gather(json.dumps({file.name: _checksum(file) for file in own}))
    weights = {}
    for name, own_tensor in module.state_dict().items():
        tensor = (averages or {}).get(name, own_tensor)
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor  # by all ranks
        if ranks.first:
            weights[name] = whole.detach().cpu().contiguous().clone()
    if ranks.first:
        sync_folder(folder)
        shards = {name: stated for line in sums for name, stated in json.loads(line).items()}
        _finish(part, card, weights, {**training, "shards": shards}, files)
    return final


def _unused(run: Path, step: int) -> Path:
    """The name of a new checkpoint."""
    final = run / "checkpoints" / f"{step:08d}"
    again = 1
    while final.exists():  # the same step, saved again: `last` may still point at the first one
        again += 1
        final = final.with_name(f"{step:08d}-{again}")
    return final


def _part(final: Path) -> Path:
    return final.with_name(f".{final.name}.part")


def _begin(final: Path) -> Path:
    """An empty folder under the temporary name of `final`."""
    part = _part(final)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def _finish(
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


def _state(
    module: nn.Module, optimizer: torch.optim.Optimizer, averages: Mapping[str, torch.Tensor] | None
) -> dict[str, Any]:
    """What is sharded over the ranks, by name: the tensors in use, not copies."""
    states = {
        name: {key: value for key, value in optimizer.state[parameter].items() if isinstance(value, torch.Tensor)}
        for name, parameter in module.named_parameters()
        if parameter in optimizer.state
    }
    return {"weights": module.state_dict(), "optimizer": states, "averages": dict(averages or {})}


def _checksum(file: Path) -> list[int]:
    """[size in bytes, CRC-32]."""
    size = 0
    crc = 0
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            size = size + len(block)
            crc = zlib.crc32(block, crc)
    return [size, crc]


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
    except (SafetensorError, OSError, ValueError, TypeError, msgspec.ValidationError) as error:
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
    model = build(
        card.arch,
        card.num_classes,
        kwargs=card.kwargs,
        img_size=card.preprocessing.val_size,
        blurpool=card.blurpool,
        head=card.head,
        head_hidden=card.head_hidden,
        text=text,
    )
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
        raise UserError(f"{file}: cannot be read ({reason}); resume from another checkpoint of the run") from error
    return training


def load_sharded(
    checkpoint: Path,
    training: dict[str, Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    averages: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """The inverse of `save_sharded`, in place, by any number of ranks; every rank calls it.

    Raises UserError for a missing or damaged file; the ranks share the work of checking them.
    """
    folder = checkpoint / SHARDED
    stated = sorted(training["shards"].items())[ranks.rank :: ranks.world_size]
    faults = [fault for name, sums in stated if (fault := _fault(folder / name, sums))]
    reported = [fault for fault in ranks.gather(faults[0] if faults else "") if fault]
    if reported:
        raise UserError(f"{reported[0]}; resume from another checkpoint of the run")
    reader = FileSystemReader(folder)
    parameters = dict(module.named_parameters())
    state: dict[str, Any] = {"weights": module.state_dict(), "optimizer": {}, "averages": dict(averages or {})}
    for path, stored in reader.read_metadata().state_dict_metadata.items():
        part, _, rest = path.partition(".")
        name, _, key = rest.rpartition(".")
        if part == "optimizer" and isinstance(stored, TensorStorageMetadata):
            shape = stored.size
            dtype = stored.properties.dtype
            of_weights = key != "step" and shape == parameters[name].shape
            empty = torch.zeros_like(parameters[name], dtype=dtype) if of_weights else torch.zeros(shape, dtype=dtype)
            state["optimizer"].setdefault(name, {})[key] = empty.detach()
    try:
        load_shards(state, storage_reader=reader)
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder}: cannot be read ({first_reason(error)}); resume from another checkpoint of the run"
        ) from error
    names = {parameter: name for name, parameter in parameters.items()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    states = {place: state["optimizer"][name] for place, name in enumerate(ordered) if name in state["optimizer"]}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def first_reason(error: BaseException) -> str:
    """The first line of an error; if ranks saved or loaded together, of the first rank that failed."""
    while isinstance(error, CheckpointException) and error.failures:
        error = min(error.failures.items())[1][0]
    return reason_of(error)


def _fault(file: Path, stated: list[int]) -> str | None:
    """What is wrong with a file that should have this size and checksum."""
    try:
        actual = _checksum(file)
    except OSError as error:
        return f"{file}: cannot be read ({error.strerror or error})"
    if actual[0] != stated[0]:
        return f"{file}: has {actual[0]} bytes instead of {stated[0]}"
    return None if actual == stated else f"{file}: is damaged (its checksum is not the one that was saved)"
