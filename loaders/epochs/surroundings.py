"""What a loader takes from the process that it runs in, where its arguments leave it open: its ranks and its seed."""

import logging
import os
import sys
from collections.abc import Hashable
from typing import NamedTuple

import torch

_log = logging.getLogger("fastimg.loaders")


class Follows(NamedTuple):
    """What a loader takes from its process, each time that an epoch begins, and how its ranks share the last step."""

    ranks: bool = False
    seed: bool = False
    even: bool = False  # see `Slices`: loops of users' own drop rows of weight 0, and need one that is real


EXPLICIT = Follows()


def ranks_here() -> tuple[int, int]:
    """(rank, world size): torch.distributed's where it is initialised, else torchrun's variables, else (0, 1).

    Raises ValueError for variables that are no ranks.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:  # one alone says nothing: others set it, too
        return 0, 1
    try:
        found = int(rank), int(world_size)
    except ValueError:
        found = (-1, 0)
    if not 0 <= found[0] < found[1]:
        raise ValueError(
            f"the environment has RANK={rank} and WORLD_SIZE={world_size}, which are no ranks; unset them, or give "
            "rank and world_size"
        )
    return found


def seed_here(world_size: int) -> int:
    """The seed of a loader to which none was given: torch's initial one, which `torch.manual_seed` sets.

    Several ranks need the same one, and scripts often seed each of them otherwise: 0, as of a DistributedSampler.
    """
    return torch.initial_seed() & 0x7FFF_FFFF_FFFF_FFFF if world_size == 1 else 0


_begun: dict[Hashable, object] = {}  # an epoch that was begun with a seed of the process's -> whose it is
_said: list[bool] = []


def say_repeated(name: str, epoch: int, seed: int, order: Hashable, owner: object) -> None:
    """Log, once in a process, that a loader to which no seed was given repeats an epoch of another one.

    torch's DataLoaders would differ; the seed of ours has to be what a run that is resumed finds, too.
    """
    if _begun.setdefault((name, epoch, seed, order), owner) is not owner and not _said:
        _said.append(True)
        _log.warning(
            "%s: another loader of this process has read epoch %d with the same order and crops, as the seed of both "
            "is torch's, %d; give one of them seed=, or keep one loader for all epochs",
            name,
            epoch,
            seed,
        )


def gathers() -> bool:
    """Whether this process is one of several with an Accelerator of accelerate, which gathers rows: equally many."""
    state = sys.modules.get("accelerate.state")
    return state is not None and state.is_initialized() and state.PartialState().num_processes > 1
