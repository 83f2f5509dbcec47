"""Ranks in one process: agreeing on buffers, settings that do not fit, devices, and cores."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastimg.errors import UsageError
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.models import ranks as parallel
from fastimg.models.ranks import (
    Ranks,
    agree_on_buffers,
    agreed_buffers,
    check_strategy,
    choose_device,
    gpu_addresses,
    start,
    take_buffers,
)
from fastimg.system.affinity import UNBOUND, Binding


def test_one_process_has_nothing_to_agree_on() -> None:
    ranks = Ranks(0, 1, 1, torch.device("cpu"), None)
    norm = torch.nn.BatchNorm1d(2)
    norm.running_mean = torch.tensor([1.0, 2.0])
    agree_on_buffers(norm, ranks)
    assert norm.running_mean.tolist() == [1.0, 2.0]
    assert ranks.sum(torch.ones(2)).tolist() == [1.0, 1.0]
    assert ranks.broadcast("x") == "x"


@dataclass(frozen=True)
class TwoRanks(Ranks):
    """This process and another one with known tensors."""

    other: tuple[float, ...] = ()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.add_(torch.tensor(self.other))

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor, torch.tensor(self.other)])


def test_running_statistics_become_the_mean_over_ranks() -> None:
    norm = torch.nn.BatchNorm1d(2)
    norm.running_mean, norm.running_var = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    agree_on_buffers(norm, TwoRanks(0, 2, 2, torch.device("cpu"), "gloo", other=(3.0, 2.0, 2.0, 5.0)))
    assert norm.running_mean.tolist() == [2.0, 2.0]
    assert norm.running_var.tolist() == [1.5, 4.0]


def test_a_checkpoint_has_the_means_and_the_run_goes_on_with_its_own() -> None:
    """Of running statistics and their moving averages; the values of each rank are recorded."""
    norm = torch.nn.BatchNorm1d(1)
    averages = {"weight": torch.tensor([7.0]), "running_mean": torch.tensor([4.0])}
    ranks = TwoRanks(0, 2, 2, torch.device("cpu"), "gloo", other=(2.0, 3.0, 6.0))
    with agreed_buffers(norm, ranks, averages) as each:
        assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([1.0], [2.0])
        assert averages["running_mean"].tolist() == [5.0] and averages["weight"].tolist() == [7.0]
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([0.0], [1.0])
    assert averages["running_mean"].tolist() == [4.0]
    assert each["buffers"]["running_mean"].tolist() == [[0.0], [2.0]]
    assert each["averages"]["running_mean"].tolist() == [[4.0], [6.0]]
    second = replace(ranks, rank=1)
    take_buffers(each, norm, second, averages)
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([2.0], [3.0])
    assert averages["running_mean"].tolist() == [6.0]
    take_buffers(each, norm, replace(ranks, world_size=3), averages)  # another number of ranks: the means are used
    assert norm.running_mean.tolist() == [2.0]
    with agreed_buffers(norm, second.alone(), averages) as each:
        assert each == {} and norm.running_mean.tolist() == [2.0]


@pytest.mark.parametrize(
    ("backend", "dtype", "sync_bn", "words"),
    [
        (None, None, False, "run torchrun --nproc-per-node N"),
        ("nccl", torch.float16, False, "use --amp-dtype bf16 or --no-amp"),
        ("nccl", None, True, "leave --sync-bn out"),
    ],
)
def test_settings_incompatible_with_fsdp(
    backend: str | None, dtype: torch.dtype | None, sync_bn: bool, words: str
) -> None:
    ranks = Ranks(0, 2, 2, torch.device("cpu"), backend)
    with pytest.raises(UsageError, match=words):
        check_strategy("fsdp", ranks, dtype, sync_bn)
    check_strategy("ddp", ranks, dtype, sync_bn)
    check_strategy("fsdp", Ranks(0, 1, 1, torch.device("cpu"), "gloo"), torch.bfloat16, False)


@pytest.mark.parametrize("name", ["mps", "nonsense", "cuda:99"])
def test_a_missing_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--device"):
        choose_device(name)


def test_compression_needs_several_ranks() -> None:
    with pytest.raises(UsageError, match="--grad-compression bf16: has no effect with one process"):
        check_strategy("ddp", Ranks(0, 1, 1, torch.device("cpu"), None), None, False, "bf16")
    check_strategy("ddp", Ranks(0, 2, 2, torch.device("cpu"), "gloo"), None, False, "bf16")


def test_addresses_of_the_gpus_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x1B, 0xC3)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    assert gpu_addresses("auto", 2) == gpu_addresses("cuda", 2) == ["0000:1b:00.0", "0000:c3:00.0"]
    assert gpu_addresses("cuda:1", 2) == ["0000:c3:00.0"] * 2  # they share it
    assert gpu_addresses("cuda", 3)[2] is None
    del gpus[1].pci_bus_id
    assert gpu_addresses("cuda", 2) == ["0000:1b:00.0", None]


@pytest.mark.parametrize("numa_binding", ["auto", "off"])
def test_a_rank_is_bound_to_cores_near_its_gpu_first(monkeypatch: pytest.MonkeyPatch, numa_binding: Any) -> None:
    done: list[str] = []
    bound = Binding((0,), "core 0 of NUMA node 0, beside cuda:0")

    def bind(addresses: list[str | None], local_rank: int, device: str) -> Binding:
        done.append(f"bind {addresses} {local_rank} {device}")
        return bound

    monkeypatch.setattr(parallel, "choose_device", lambda name, rank: torch.device("cuda", 0))
    monkeypatch.setattr(parallel, "gpu_addresses", lambda device, count: ["0000:1b:00.0"] * count)
    monkeypatch.setattr(parallel, "bind", bind)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append("set_device"))
    with start("cuda", numa_binding) as ranks:
        assert ranks.binding == (bound if numa_binding == "auto" else UNBOUND)
    assert done == [*(["bind ['0000:1b:00.0'] 0 cuda:0"] if numa_binding == "auto" else []), "set_device"]


def test_a_launcher_that_does_not_say_how_many_ranks_a_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    said = r"LOCAL_RANK is 3 and LOCAL_WORLD_SIZE not set: set LOCAL_WORLD_SIZE to the number of ranks"
    with pytest.raises(UsageError, match=said), start("cpu"):
        raise AssertionError
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with start("cpu") as ranks:
        assert ranks.local_world_size == 4


def test_the_cores_of_a_bound_rank_are_its_own() -> None:
    """They are not divided again among the ranks of the machine."""
    bound = Ranks(0, 64, 64, torch.device("cuda", 0), "nccl", Binding((0,), "core 0"))
    assert bound.cpus == available_cpus(1)
    assert Ranks(0, 64, 64, torch.device("cuda", 0), "nccl").cpus == 1
