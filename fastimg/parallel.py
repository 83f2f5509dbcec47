"""Ranks: who this process is among those that torchrun started, and what they tell each other."""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .errors import UsageError
from .loaders.cpus import available_cpus


@dataclass(frozen=True)
class Ranks:
    """This process's place. One process alone is rank 0 of 1 and has no process group."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    backend: str | None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    @property
    def cpus(self) -> int:
        """Cores that this process may use."""
        return available_cpus(self.local_world_size)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier()

    def broadcast(self, value: str) -> str:
        """Rank 0's value, on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Rank 0 runs the block before the others: it fills caches and downloads for all."""
        if not self.first:
            self.barrier()
        yield
        if self.first:
            self.barrier()


@contextmanager
def start(device: str) -> Iterator[Ranks]:
    """Join the process group that torchrun announced, if any, and choose the device: NCCL on GPUs, gloo on CPUs."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    chosen = choose_device(device, local_rank)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    backend = ("nccl" if chosen.type == "cuda" else "gloo") if world_size > 1 else None
    ranks = Ranks(rank, world_size, local_world_size, chosen, backend)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    else:
        torch.set_num_threads(ranks.cpus)
    if backend is not None:
        dist.init_process_group(backend, device_id=chosen if chosen.type == "cuda" else None)
    try:
        yield ranks
    finally:
        if backend is not None:
            dist.destroy_process_group()


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that `name` means for this process. Raises UsageError for one that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: not a device that fastimg trains on; use auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")
    index = local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"--device {name}: GPU {index} is not there ({torch.cuda.device_count()} found); "
            "use --device cpu, or start fewer processes"
        )
    return torch.device("cuda", index)


def wrap(model: nn.Module, ranks: Ranks) -> nn.Module:
    """DistributedDataParallel around a pure model; the model itself for one process.

    Buffers are not broadcast at every step: `agree_on_buffers` averages them before they are used or saved.
    """
    if ranks.world_size == 1:
        return model
    ddp = nn.parallel.DistributedDataParallel
    # torch 2.15 renamed the flag.
    known = inspect.signature(ddp.__init__).parameters
    flag = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {flag: False, "gradient_as_bucket_view": True}
    return ddp(model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None, **options)


def agree_on_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Average floating-point buffers (running statistics) over ranks, so that all evaluate and save the same model."""
    if ranks.world_size == 1:
        return
    floating = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if floating:
        flat = torch.cat([buffer.detach().float().flatten() for buffer in floating])
        ranks.sum(flat).div_(ranks.world_size)
        for buffer, part in zip(floating, torch.split(flat, [b.numel() for b in floating]), strict=True):
            buffer.copy_(part.view_as(buffer))
