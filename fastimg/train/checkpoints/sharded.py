"""Checkpoints of a model that FSDP2 has sharded, in torch's distributed format.

Imported only for runs with --strategy fsdp and their checkpoints: torch's module for them takes time to import.
"""

import json
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor

from fastimg.errors import UserError, reason_of
from fastimg.loaders.containers.atomic import sync_folder
from fastimg.models.ranks import Ranks

from .format import OTHER_CHECKPOINT, Card, begin, finish, partial, unused_name

SHARDED = "sharded"


def save_sharded(
    run: Path,
    card: Card,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: dict[str, Any],
    ranks: Ranks,
    averages: Mapping[str, torch.Tensor] | None = None,
    files: Mapping[str, bytes] | None = None,
    beside: Sequence[nn.Parameter] = (),
) -> Path:
    """`save` for a module that FSDP2 has sharded: every rank calls it and writes its shards of the trained tensors.

    All nodes must see `run` under the same path, on a shared file system. No rank holds more than one whole tensor on
    its device; rank 0 collects the model in host memory. `training` and `card` are taken from rank 0. What the
    optimiser knows of parameters `beside` the module, which every rank has whole, is saved too, they themselves are
    not. Raises OSError for shards that cannot be written.
    """
    final = Path(ranks.broadcast(str(unused_name(run, card.step)) if ranks.first else ""))
    part = begin(final) if ranks.first else partial(final)
    ranks.barrier()
    folder = part / SHARDED
    try:
        save_shards(_state(module, optimizer, averages, beside), storage_writer=FileSystemWriter(folder))
    except CheckpointException as error:
        raise OSError(_first_reason(error)) from error
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
        finish(part, card, weights, {**training, "shards": shards}, files)
    return final


def load_sharded(
    checkpoint: Path,
    training: dict[str, Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    averages: Mapping[str, torch.Tensor] | None = None,
    beside: Sequence[nn.Parameter] = (),
    *,
    apart: bool = True,
) -> None:
    """The inverse of `save_sharded`, in place, by any number of ranks; every rank calls it.

    `apart`: the module is sharded. Otherwise each rank reads all of it.
    Raises UserError for a missing or damaged file; the ranks share the work of checking them.
    """
    folder = checkpoint / SHARDED
    stated = sorted(training["shards"].items())[ranks.rank :: ranks.world_size]
    faults = [fault for name, sums in stated if (fault := _fault(folder / name, sums))]
    reported = [fault for fault in ranks.gather(faults[0] if faults else "") if fault]
    if reported:
        raise UserError(f"{reported[0]}; {OTHER_CHECKPOINT}")
    reader = FileSystemReader(folder)
    parameters = _learning(module, beside)
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
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # it is not asked to be
            load_shards(state, storage_reader=reader, no_dist=not apart)
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: cannot be read ({_first_reason(error)}); {OTHER_CHECKPOINT}") from error
    names = {parameter: name for name, parameter in parameters.items()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    states = {place: state["optimizer"][name] for place, name in enumerate(ordered) if name in state["optimizer"]}
    fresh = optimizer.state_dict()
    optimizer.load_state_dict({**fresh, "state": fresh["state"] | states})


def _learning(module: nn.Module, beside: Sequence[nn.Parameter]) -> dict[str, nn.Parameter]:
    """All parameters by name."""
    return {**dict(module.named_parameters()), **{f"beside {n}": parameter for n, parameter in enumerate(beside)}}


def _state(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Mapping[str, torch.Tensor] | None,
    beside: Sequence[nn.Parameter],
) -> dict[str, Any]:
    """What is sharded over the ranks, by name: the tensors in use, not copies."""
    states = {
        name: {key: value for key, value in optimizer.state[parameter].items() if isinstance(value, torch.Tensor)}
        for name, parameter in _learning(module, beside).items()
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


def _first_reason(error: BaseException) -> str:
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
