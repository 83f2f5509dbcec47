"""Ranks: who this process is among those that torchrun started, and what they tell each other."""

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from fastimg.errors import UsageError
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.system.memory import keep_freed


@dataclass(frozen=True)
class Ranks:
    """This process's place. One that was not started by torchrun is rank 0 of 1 and has no process group."""

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

    def gather(self, value: str) -> list[str]:
        """Every rank's value, on every rank."""
        if self.world_size == 1:
            return [value]
        values = [""] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def agree(self, fact: bool) -> bool:
        """Whether it holds on every rank."""
        return all(value == "1" for value in self.gather("1" if fact else ""))

    def alone(self) -> "Ranks":
        """This process by itself, on the same device and cores: nothing is exchanged."""
        return replace(self, rank=0, world_size=1, backend=None)

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Rank 0 runs the block before the others: it fills caches and downloads for all."""
        if not self.first:
            self.barrier()
        yield
        if self.first:
            self.barrier()


_ANNOUNCED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # what torchrun tells, one rank too


@contextmanager
def start(device: str) -> Iterator[Ranks]:
    """Join the process group that torchrun announced, if any, and choose the device: NCCL on GPUs, gloo on CPUs.

    A rank that fails leaves without destroying the process group, which could wait for ranks that wait for this one.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    chosen = choose_device(device, local_rank)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    announced = world_size > 1 or os.environ.keys() >= _ANNOUNCED
    backend = ("nccl" if chosen.type == "cuda" else "gloo") if announced else None
    ranks = Ranks(rank, world_size, local_world_size, chosen, backend)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    else:
        torch.set_num_threads(ranks.cpus)
        keep_freed()
    if backend is not None:
        _join(ranks, backend)
    try:
        yield ranks
    except BaseException:
        if backend is not None and world_size == 1:
            dist.destroy_process_group()
        raise
    if backend is not None:
        dist.destroy_process_group()


def _join(ranks: Ranks, backend: str) -> None:
    """Join the process group.

    torchrun keeps the store of the ranks that it restarts, with their addresses (pytorch issue 135712): on one node,
    where all ranks count restarts alike, those of each time stand apart. On several nodes
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 does the same.
    """
    device = ranks.device if ranks.device.type == "cuda" else None
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0" or ranks.local_world_size != ranks.world_size:
        dist.init_process_group(backend, device_id=device)
        return
    store, rank, world_size = next(rendezvous("env://"))
    store = PrefixStore(f"restart {restarts}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=device)


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


def check_strategy(strategy: str, ranks: Ranks, dtype: torch.dtype | None, sync_bn: bool) -> None:
    """Raise UsageError where `strategy` cannot be had: fsdp needs torchrun, and goes with neither scaler nor --sync-bn.

    `dtype` is autocast's, None for float32. --sync-bn needs several ranks.
    """
    if sync_bn and ranks.world_size == 1:
        raise UsageError("--sync-bn has no effect on one process; leave it out, or start several with torchrun")
    if strategy != "fsdp":
        return
    if ranks.backend is None:
        raise UsageError(
            "--strategy fsdp: shares a model among the processes that torchrun starts; start it with "
            "torchrun --nproc-per-node N -m fastimg train ..."
        )
    if dtype == torch.float16:
        raise UsageError(
            "--strategy fsdp: fp16's gradient scaler does not go with it; use --amp-dtype bf16 or --no-amp"
        )
    if sync_bn:
        raise UsageError("--strategy fsdp: --sync-bn does not go with it; use --strategy ddp, or leave --sync-bn out")


def wrap(
    model: nn.Module,
    ranks: Ranks,
    strategy: str = "ddp",
    *,
    blocks: Sequence[nn.Module] = (),
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """What is called instead of a pure model: DistributedDataParallel around it; for "fsdp" itself, sharded in place.

    Buffers are not broadcast at every step: `agree_on_buffers` averages them before they are used or saved. `dtype` is
    autocast's, and `blocks` are what FSDP2 gathers at a time. Optimisers are made afterwards: parameters are DTensors.
    """
    if strategy == "fsdp":
        return _shard(model, ranks, blocks, dtype)
    if ranks.world_size == 1:
        return model
    ddp = nn.parallel.DistributedDataParallel
    # torch 2.15 renamed the flag.
    known = inspect.signature(ddp.__init__).parameters
    flag = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {flag: False, "gradient_as_bucket_view": True}
    return ddp(model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None, **options)


def _shard(model: nn.Module, ranks: Ranks, blocks: Sequence[nn.Module], dtype: torch.dtype | None) -> nn.Module:
    """FSDP2: each block, then what is left, gathered in `dtype` and reduced in float32.

    Batch norms want weights of their statistics' type: a model with them is gathered in float32, and autocast casts.
    """
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise UsageError(f"--strategy fsdp: torch does not shard scalar weights ({scalars[0]}); use --strategy ddp")
    model.to(memory_format=torch.contiguous_format)  # what FSDP2 asks of weights; activations stay channels-last
    normed = any(isinstance(module, _BatchNorm) for module in model.modules())
    policy = MixedPrecisionPolicy(param_dtype=None if normed else dtype, reduce_dtype=torch.float32)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    # Resharded after every forward pass, the root too: else an evaluation would leave gathered weights behind, which
    # `parameters()` gives instead of the trained ones.
    for module in (*blocks, model):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        # Buffers are made at the first gathering: in inference mode they would not be good for training afterwards.
        sharded.unshard()
        sharded.reshard()
    return model


@contextmanager
def accumulate(parallel: nn.Module, last: bool) -> Iterator[None]:
    """Around a batch's forward and backward pass: gradients add up, and ranks exchange them with the `last` alone."""
    if isinstance(parallel, FSDPModule):
        parallel.set_requires_gradient_sync(last)
        yield
    elif isinstance(parallel, nn.parallel.DistributedDataParallel) and not last:
        with parallel.no_sync():
            yield
    else:
        yield


def local_shards(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's part of each tensor, as plain tensors that share memory; the whole of what is not sharded."""
    with torch.no_grad():
        return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


@torch.no_grad()
def scale_gradients(parameters: Iterable[nn.Parameter], factor: float | torch.Tensor) -> None:
    """Multiply all gradients, in place."""
    gradients = local_shards(p.grad for p in parameters if p.grad is not None)
    if gradients:
        torch._foreach_mul_(gradients, factor)


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients down to this norm over all of them and all ranks. Returns the norm before; no sync."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    sharded = next((gradient for gradient in gradients if isinstance(gradient, DTensor)), None)
    if sharded is None:
        return nn.utils.clip_grad_norm_(parameters, max_norm)
    local = local_shards(gradients)
    squares = torch.stack(torch._foreach_norm(local)).square().sum()
    dist.all_reduce(squares, group=sharded.device_mesh.get_group())
    norm = squares.sqrt()
    torch._foreach_mul_(local, (max_norm / (norm + 1e-6)).clamp(max=1.0))  # as nn.utils.clip_grad_norm_ does
    return norm


def agree_on_buffers(model: nn.Module, ranks: Ranks, averages: Mapping[str, torch.Tensor] | None = None) -> None:
    """Average floating-point buffers (running statistics) over ranks, so that all evaluate and save the same model.

    So are their moving averages, which `averages` holds by name. Those of frozen modules are the same everywhere, and a
    mean would round them.
    """
    if ranks.world_size == 1:
        return
    still = {
        id(buffer)
        for module in model.modules()
        if (own := list(module.parameters())) and not any(p.requires_grad for p in own)
        for buffer in module.buffers()
    }
    named = [(name, b) for name, b in model.named_buffers() if b.is_floating_point() and id(b) not in still]
    floating = [buffer for _, buffer in named]
    if averages is not None:
        floating += [averages[name] for name, _ in named if name in averages]
    if floating:
        flat = torch.cat([buffer.detach().float().flatten() for buffer in floating])
        ranks.sum(flat).div_(ranks.world_size)
        for buffer, part in zip(floating, torch.split(flat, [b.numel() for b in floating]), strict=True):
            buffer.copy_(part.view_as(buffer))
