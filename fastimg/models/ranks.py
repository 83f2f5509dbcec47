"""Ranks: this process's place among those that torchrun started, and communication between them."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fastimg.errors import UsageError
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.system import rank_exchange
from fastimg.system.affinity import UNBOUND, Binding, bind
from fastimg.system.memory import keep_freed
from fastimg.system.rank_exchange import RankExchange


@dataclass(frozen=True)
class Ranks:
    """This process's rank. A process not started by torchrun is rank 0 of 1, without a process group."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    backend: str | None
    binding: Binding = UNBOUND  # to cores beside the GPU
    exchange: RankExchange | None = field(default=None, compare=False, repr=False)  # None for one process

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @property
    def cpus(self) -> int:
        """The number of cores that this process may use: its own, or its share of those of all ranks here."""
        return available_cpus(self.local_world_size, bound=bool(self.binding.cores))

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def begin_sum(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin the sum over all ranks, in place, behind the work of the current stream.

        What is returned waits for it and gives the tensor: on a GPU the stream that is current then waits, else the
        host. All ranks begin their collectives in the same order.
        """
        if self.world_size == 1:
            return lambda: tensor
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None

        def summed() -> torch.Tensor:
            work.wait()
            return tensor

        return summed

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor, on every rank: [ranks, *shape]."""
        if self.world_size == 1:
            return tensor[None]
        every = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(every, tensor)
        return torch.stack(every)

    def barrier(self) -> None:
        """Wait for all ranks on the host, for hours if need be: see `RankExchange`. It does not wait for the device."""
        self.gather("")

    def broadcast(self, value: str) -> str:
        """Rank 0's value, on every rank; it waits as `barrier` does."""
        return self.gather(value if self.first else "")[0]

    def gather(self, value: str) -> list[str]:
        """Every rank's value, on every rank; it waits as `barrier` does."""
        if self.world_size == 1:
            return [value]
        assert self.exchange is not None
        return self.exchange.gather(value)

    def agree(self, fact: bool) -> bool:
        """Whether `fact` is true on every rank."""
        return all(value == "1" for value in self.gather("1" if fact else ""))

    def alone(self) -> "Ranks":
        """This process by itself, on the same device and cores: nothing is exchanged."""
        return replace(self, rank=0, world_size=1, backend=None, exchange=None)

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Run the block on rank 0 before the other ranks, so that it can fill caches and download for all.

        Either may take hours. At the end all ranks meet, so that no collective has to wait for the slowest.
        """
        if not self.first:
            self.barrier()
        yield
        if self.first:
            self.barrier()
        self.barrier()


def compute_here(threads: int) -> None:
    """Compute with so many threads of this process, and without a GPU."""
    torch.set_num_threads(threads)
    keep_freed()


_ANNOUNCED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}  # set by torchrun, even for a single rank


@contextmanager
def start(device: str, numa_binding: Literal["auto", "off"] = "off") -> Iterator[Ranks]:
    """Choose the device and join the process group that torchrun announced, if any: NCCL on GPUs, gloo on CPUs.

    A group that exists already, as Ray Train's, is used and left as it is. With `numa_binding` a rank on a GPU first
    moves to cores beside it: threads and pinned memory come later. A rank that fails leaves without destroying the
    process group, which could wait for ranks that wait for this one.
    """
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    chosen = choose_device(device, local_rank)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    announced = world_size > 1 or os.environ.keys() >= _ANNOUNCED
    backend = ("nccl" if chosen.type == "cuda" else "gloo") if announced else None
    if local_rank >= local_world_size:
        raise UsageError(
            f"LOCAL_RANK is {local_rank} and LOCAL_WORLD_SIZE {os.environ.get('LOCAL_WORLD_SIZE', 'not set')}: set "
            "LOCAL_WORLD_SIZE to the number of ranks on this machine, or start the ranks with torchrun, which does"
        )
    binding = UNBOUND
    if chosen.type == "cuda" and numa_binding == "auto":
        binding = bind(gpu_addresses(device, local_world_size), local_rank, str(chosen))
    ranks = Ranks(rank, world_size, local_world_size, chosen, backend, binding)
    joined = dist.is_initialized()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    else:
        compute_here(ranks.cpus)
    if backend is not None:
        ranks = replace(ranks, exchange=_join(ranks, backend))
    try:
        yield ranks
    except BaseException:
        if backend is not None and world_size == 1 and not joined:
            dist.destroy_process_group()
        raise
    finally:
        if ranks.exchange is not None:
            ranks.exchange.close()
    if backend is not None and not joined:
        dist.destroy_process_group()


def _join(ranks: Ranks, backend: str) -> RankExchange | None:
    """Join the process group, and where there are other ranks the exchange beside it.

    When torchrun restarts ranks, it keeps their store, with the old addresses (pytorch issue 135712). On one node,
    where all ranks count restarts alike, each restart gets a prefix of its own; on several nodes, set
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 instead.
    """
    device = ranks.device if ranks.device.type == "cuda" else None
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    generation = restarts if ranks.local_world_size == ranks.world_size else "0"
    if dist.is_initialized():
        pass
    elif generation == "0":
        dist.init_process_group(backend, device_id=device)
    else:
        store, rank, world_size = next(rendezvous("env://"))
        store = PrefixStore(f"restart {restarts}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, device_id=device)
    return None if ranks.world_size == 1 else rank_exchange.join(ranks.rank, ranks.world_size, generation)


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that `name` means for this process. Raises UsageError if there is no such device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: not a supported device; use auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")
    index = local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"--device {name}: there is no GPU {index} ({torch.cuda.device_count()} found); "
            "use --device cpu, or start fewer processes"
        )
    return torch.device("cuda", index)


def gpu_addresses(device: str, local_world_size: int) -> list[str | None]:
    """The PCI addresses of the GPUs of this machine's ranks, by local rank; None where torch does not tell one."""
    index = torch.device("cuda" if device == "auto" else device).index
    addresses: list[str | None] = []
    for local_rank in range(local_world_size):
        number = local_rank if index is None else index
        properties = torch.cuda.get_device_properties(number) if number < torch.cuda.device_count() else None
        domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
        known = domain is not None and bus is not None and slot is not None
        addresses.append(f"{domain:04x}:{bus:02x}:{slot:02x}.0" if known else None)
    return addresses


def check_strategy(
    strategy: str, ranks: Ranks, dtype: torch.dtype | None, sync_bn: bool, compression: str | None = None
) -> None:
    """Raise UsageError if `strategy` is not possible here.

    fsdp needs torchrun, and supports neither a gradient scaler nor --sync-bn; --sync-bn and --grad-compression need
    several ranks. `dtype` is autocast's, None for float32.
    """
    if compression is not None and ranks.world_size == 1:
        raise UsageError(
            f"--grad-compression {compression}: has no effect with one process, which exchanges no gradients; leave it "
            "out, or start several with torchrun"
        )
    if sync_bn and ranks.world_size == 1:
        raise UsageError("--sync-bn has no effect with one process; leave it out, or start several with torchrun")
    if strategy != "fsdp":
        return
    if ranks.backend is None:
        raise UsageError(
            "--strategy fsdp: shards a model over the processes that torchrun starts; run "
            "torchrun --nproc-per-node N -m fastimg train ..."
        )
    if dtype == torch.float16:
        raise UsageError(
            "--strategy fsdp: does not support the gradient scaler of fp16; use --amp-dtype bf16 or --no-amp"
        )
    if sync_bn:
        raise UsageError("--strategy fsdp: does not support --sync-bn; use --strategy ddp, or leave --sync-bn out")


def wrap(
    model: nn.Module,
    ranks: Ranks,
    strategy: str = "ddp",
    *,
    blocks: Sequence[nn.Module] = (),
    dtype: torch.dtype | None = None,
    static_graph: bool = False,
    compression: Literal["bf16", "fp16"] | None = None,
    agreed: bool = False,
) -> nn.Module:
    """Wrap a pure model for data parallelism: in DistributedDataParallel, or for "fsdp" sharded in place.

    Buffers are not broadcast at every step; `agree_on_buffers` averages them before they are used or saved. `dtype` is
    autocast's; FSDP2 gathers one of the `blocks` at a time. Create optimisers afterwards, as FSDP2 makes parameters
    DTensors. DistributedDataParallel may take the graph to be the same in every step, and exchange gradients as bf16 or
    fp16 (`compression`). It gives all ranks the weights and buffers of rank 0, unless ranks have `agreed` on weights:
    within an epoch their buffers may differ.
    """
    if strategy == "fsdp":
        return _shard(model, ranks, blocks, dtype)
    if ranks.world_size == 1:
        return model
    ddp = nn.parallel.DistributedDataParallel
    # Before torch 2.15, broadcast_buffers also decided whether buffers are those of rank 0 at first.
    known = inspect.signature(ddp.__init__).parameters
    flag = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {flag: False, "init_sync": not agreed}
    options |= {"gradient_as_bucket_view": True, "static_graph": static_graph}
    match_strides(model)
    wrapped = ddp(model, device_ids=[ranks.device] if ranks.device.type == "cuda" else None, **options)
    if compression is not None:
        wrapped.register_comm_hook(None, _HOOKS[compression])
    return wrapped


_HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}


def match_strides(model: nn.Module) -> None:
    """Let gradients have the strides of their weights where a layout has several ways to write them.

    The weight of a 1x1 or a depthwise convolution is contiguous and channels-last at once, as steps along dimensions of
    size 1 do not matter. Images come channels-last, so gradients may have the strides of that layout where weights,
    with --no-channels-last, have those of the other; DistributedDataParallel compares the numbers and would warn
    (pytorch issue 47163). Weights that were made channels-last have its strides already.
    """
    for parameter in model.parameters():
        both = parameter.ndim == 4 and parameter.is_contiguous()
        if not both or not parameter.requires_grad or not parameter.is_contiguous(memory_format=torch.channels_last):
            continue
        own = parameter.stride()
        if own != torch.empty(parameter.shape, device="meta", memory_format=torch.channels_last).stride():
            parameter.register_hook(partial(_restrided, own))  # type: ignore[no-untyped-call]


def _restrided(strides: Sequence[int], gradient: torch.Tensor) -> torch.Tensor:
    """The same bytes in the same order, by other numbers. A gradient of another layout stays as it is."""
    if gradient.stride() == strides or not gradient.is_contiguous():
        return gradient
    return gradient.as_strided(gradient.shape, strides)


def _shard(model: nn.Module, ranks: Ranks, blocks: Sequence[nn.Module], dtype: torch.dtype | None) -> nn.Module:
    """Apply FSDP2 to each block, then to the rest; weights are gathered in `dtype`, gradients reduced in float32.

    Batch norms need weights in the type of their statistics, so a model with batch norms is gathered in float32, and
    autocast does the casting.
    """
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise UsageError(f"--strategy fsdp: torch does not shard scalar weights ({scalars[0]}); use --strategy ddp")
    model.to(memory_format=torch.contiguous_format)  # FSDP2 requires it of weights; activations stay channels-last
    normed = any(isinstance(module, _BatchNorm) for module in model.modules())
    policy = MixedPrecisionPolicy(param_dtype=None if normed else dtype, reduce_dtype=torch.float32)
    mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
    # Reshard after every forward pass, the root included: otherwise an evaluation would leave gathered weights behind,
    # which `parameters()` would return instead of the trained ones.
    for module in (*blocks, model):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        # Buffers are created at the first gathering; created in inference mode they could not be used for training.
        sharded.unshard()
        sharded.reshard()
    return model


@contextmanager
def accumulate(parallel: nn.Module, last: bool) -> Iterator[None]:
    """Wraps a forward and backward pass: gradients accumulate, and ranks exchange them only after the `last` pass."""
    if isinstance(parallel, FSDPModule):
        parallel.set_requires_gradient_sync(last)
        yield
    elif isinstance(parallel, nn.parallel.DistributedDataParallel) and not last:
        with parallel.no_sync():
            yield
    else:
        yield


def local_shards(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's part of each tensor, as plain tensors that share its memory; unsharded tensors are returned whole."""
    with torch.no_grad():
        return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


@torch.no_grad()
def laid_out(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor as one of its shape is laid out: sharded over the ranks, or with its strides; others as they are.

    Every rank has the whole tensor: nothing is exchanged.
    """
    if whole.shape != like.shape:
        return whole
    if isinstance(like, DTensor):
        return distribute_tensor(whole.contiguous(), like.device_mesh, like.placements, src_data_rank=None)
    return whole if whole.stride() == like.stride() else torch.empty_like(like, dtype=whole.dtype).copy_(whole)


@torch.no_grad()
def scale_gradients(parameters: Iterable[nn.Parameter], factor: float | torch.Tensor) -> None:
    """Multiply all gradients, in place."""
    gradients = local_shards(p.grad for p in parameters if p.grad is not None)
    if gradients:
        torch._foreach_mul_(gradients, factor)


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale gradients down to a total norm, over all parameters and ranks. Returns the norm before; no device sync."""
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


def agree_on_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Average floating-point buffers (running statistics) over ranks, so that all evaluate the same model.

    Buffers of frozen modules are skipped: they are the same on every rank, and a mean would round them.
    """
    if ranks.world_size == 1:
        return
    floating = list(_own_buffers(model).values())
    if floating:
        flat = torch.cat([buffer.detach().float().flatten() for buffer in floating])
        _spread(ranks.sum(flat).div_(ranks.world_size), floating)


@contextmanager
def agreed_buffers(
    model: nn.Module, ranks: Ranks, averages: Mapping[str, torch.Tensor] | None = None
) -> Iterator[dict[str, dict[str, torch.Tensor]]]:
    """Within the block, floating-point buffers are their mean over ranks; afterwards each rank has its own again.

    So a checkpoint holds one model, and a run does not depend on when checkpoints are written. Gives each rank's own
    values, {"buffers" or "averages": {name: [ranks, *shape]}}, for `take_buffers`; empty if there is nothing to agree
    on. `averages` holds the buffers' moving averages by name. All ranks call it; no device sync.
    """
    groups = {"buffers": _own_buffers(model)} if ranks.world_size > 1 else {}
    if groups and averages is not None:
        groups["averages"] = {name: averages[name] for name in groups["buffers"] if name in averages}
    tensors = [tensor.detach() for group in groups.values() for tensor in group.values()]
    if not tensors:
        yield {}
        return
    own = torch.cat([tensor.flatten().float() for tensor in tensors])
    rows = ranks.rows(own)  # [ranks, n]
    _spread(rows.sum(dim=0).div_(ranks.world_size), tensors)
    parts = iter(torch.split(rows, [tensor.numel() for tensor in tensors], dim=1))
    try:
        yield {
            kind: {name: next(parts).reshape(len(rows), *tensor.shape) for name, tensor in group.items()}
            for kind, group in groups.items()
        }
    finally:
        _spread(own, tensors)


def take_buffers(
    stated: Mapping[str, Mapping[str, torch.Tensor]],
    model: nn.Module,
    ranks: Ranks,
    averages: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Give this rank the buffers that it had when they were stated, if there are as many ranks as there were then."""
    targets = {"buffers": dict(model.named_buffers()), "averages": averages or {}}
    for kind, group in stated.items():
        for name, rows in group.items():
            if len(rows) == ranks.world_size and name in targets[kind]:
                targets[kind][name].copy_(rows[ranks.rank])


def _own_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Floating-point buffers by name, without those of frozen modules."""
    frozen = {
        id(buffer)
        for module in model.modules()
        if (own := list(module.parameters())) and not any(p.requires_grad for p in own)
        for buffer in module.buffers()
    }
    return {name: b for name, b in model.named_buffers() if b.is_floating_point() and id(b) not in frozen}


def _spread(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy the parts of `flat` to tensors."""
    for tensor, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
