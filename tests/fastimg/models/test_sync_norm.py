"""Batch norm over ranks equals one process's on the whole batch: outputs, gradients, running statistics."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d, SyncBatchNormAct
from torch import nn

from fastimg.config.commands import Train
from fastimg.errors import UsageError
from fastimg.models.ranks import Ranks, check_strategy
from fastimg.models.registry import build
from fastimg.models.sync_norm import share_statistics
from fastimg.train.assembly import Blueprint, assemble


@dataclass(frozen=True)
class Meeting(Ranks):
    """One of two ranks that are threads of this process."""

    barrier: threading.Barrier = field(kw_only=True)
    given: dict[int, torch.Tensor] = field(kw_only=True)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.given[self.rank] = tensor.clone()
        self.barrier.wait(60)
        total = self.given[0] + self.given[1]
        self.barrier.wait(60)
        return tensor.copy_(total)


def two_ranks(work: Callable[[Ranks], Any]) -> list[Any]:
    """What both return."""
    barrier, given = threading.Barrier(2), {}
    ranks = [Meeting(rank, 2, 2, torch.device("cpu"), "gloo", barrier=barrier, given=given) for rank in (0, 1)]

    def one(rank: Ranks) -> Any:
        try:
            return work(rank)
        except Exception as error:  # noqa: BLE001 - raised below
            barrier.abort()  # the other one need not wait
            return error

    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(one, ranks))
    for found in done:
        if isinstance(found, Exception) and not isinstance(found, threading.BrokenBarrierError):
            raise found
    return done


def act() -> BatchNormAct2d:
    return BatchNormAct2d(3, act_layer=nn.SiLU, drop_layer=nn.Identity)


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(3), (8, 3)),
    "1d of sequences": (lambda: nn.BatchNorm1d(3), (8, 3, 5)),
    "2d": (lambda: nn.BatchNorm2d(3), (8, 3, 4, 5)),
    "2d, cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (8, 3, 4, 5)),
    "2d, plain": (lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False), (8, 3, 4, 5)),
    "3d": (lambda: nn.BatchNorm3d(3), (8, 3, 2, 2, 2)),
    "timm's with activation": (act, (8, 3, 4, 5)),
    "a model": (lambda: timm.create_model("test_efficientnet", num_classes=3), (8, 3, 32, 32)),
}


def trained(model: nn.Module, rows: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and the gradient of the rows; those of parameters are in the model."""
    rows = rows.clone().requires_grad_()
    found = model(rows)
    (found * weight).sum().backward()
    assert rows.grad is not None
    return found.detach(), rows.grad


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", NORMS)
def test_two_ranks_give_what_one_process_gives_on_the_whole_batch(kind: str) -> None:
    """Of unequal parts, with a mean that is large beside the deviation."""
    torch.manual_seed(0)
    make, shape = NORMS[kind]
    model = make().train()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5 if name.endswith("weight") else -0.5, 1.5)
    batch = torch.randn(shape) * 2 + 50
    kept = copy.deepcopy(model).eval()
    weight = torch.randn_like(kept(batch))
    copies = [copy.deepcopy(model) for _ in range(2)]
    expected, gradient = trained(model, batch, weight)
    parts, weights = batch.split((5, 3)), weight.split((5, 3))

    def work(ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
        own = nn.Sequential(copies[ranks.rank])
        assert share_statistics(own, ranks) > 0
        return trained(own, parts[ranks.rank], weights[ranks.rank])

    done = two_ranks(work)
    close = {"rtol": 1e-4, "atol": 2e-4}
    torch.testing.assert_close(torch.cat([found for found, _ in done]), expected, **close)
    torch.testing.assert_close(torch.cat([slope for _, slope in done]), gradient, **close)
    for (name, parameter), *shared in zip(model.named_parameters(), *(one.parameters() for one in copies), strict=True):
        total = shared[0].grad + shared[1].grad
        scale = float(parameter.grad.abs().max().clamp(min=1))
        torch.testing.assert_close(total / scale, parameter.grad / scale, rtol=1e-3, atol=1e-4, msg=name)
    for one in copies:
        assert one.state_dict().keys() == model.state_dict().keys()
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(dict(one.named_buffers())[name], buffer, rtol=1e-4, atol=1e-4)
        assert isinstance(one, type(kept))
        one.load_state_dict(kept.state_dict())
        assert torch.equal(one.eval()(batch), kept(batch))


def test_norms_keep_their_types_activations_and_dropout() -> None:
    model = timm.create_model("test_efficientnet", num_classes=3)
    before = {name: type(module) for name, module in model.named_modules()}
    norms = {name: norm for name, norm in model.named_modules() if isinstance(norm, BatchNormAct2d)}
    acts = {name: (norm.act, norm.drop) for name, norm in norms.items()}
    assert share_statistics(model, Ranks(0, 2, 2, torch.device("cpu"), "gloo")) == len(norms) > 0
    for name, module in model.named_modules():
        assert isinstance(module, before[name])
    for name, norm in norms.items():
        assert model.get_submodule(name) is norm and (norm.act, norm.drop) == acts[name]


def test_on_gpus_it_is_torchs_with_timms_activations() -> None:
    """The converter needs no GPU; the norms that it puts in place do, in training."""
    model = timm.create_model("test_efficientnet", num_classes=3).eval()
    images, names = torch.randn(2, 3, 32, 32), set(model.state_dict())
    expected = model(images)
    assert share_statistics(model, Ranks(0, 2, 2, torch.device("cuda"), "nccl")) > 0
    assert any(isinstance(module, SyncBatchNormAct) for module in model.modules())
    assert set(model.state_dict()) == names
    assert torch.equal(model(images), expected)


def test_a_model_without_batch_norm_has_none_to_share() -> None:
    ranks = Ranks(0, 2, 2, torch.device("cpu"), "gloo")
    assert share_statistics(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), ranks) == 0
    model, config = build("test_vit", 3), Train(arch="test_vit", lr=0.1, weight_decay=0.0, sync_bn=True)
    pieces: Any = {"model": model, "preprocessing": model.preprocessing, "precision": None, "parts": None}
    with pytest.raises(UsageError, match="--sync-bn has no effect: test_vit has no batch norm; leave it out"):
        assemble(Blueprint(config=config, directory=Path(), **pieces), ranks)


def test_one_process_has_nobody_to_share_with() -> None:
    with pytest.raises(UsageError, match="--sync-bn has no effect with one process; leave it out, or start several"):
        check_strategy("ddp", Ranks(0, 1, 1, torch.device("cpu"), "gloo"), None, True)


def test_one_value_per_channel_has_no_variance() -> None:
    """As torch says it, so that the step names the batch size. One on each of two ranks has."""
    norm = nn.Sequential(nn.BatchNorm1d(2))
    share_statistics(norm, Ranks(0, 1, 1, torch.device("cpu"), None))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.ones(1, 2))

    def work(ranks: Ranks) -> torch.Tensor:
        own = nn.Sequential(nn.BatchNorm1d(2))
        share_statistics(own, ranks)
        return own(torch.full((1, 2), float(ranks.rank)))

    low, high = two_ranks(work)
    torch.testing.assert_close(low, -high)
    assert high.min() > 0.9


def test_mixed_precision_keeps_its_type() -> None:
    norm = nn.Sequential(nn.BatchNorm2d(3))
    share_statistics(norm, Ranks(0, 1, 1, torch.device("cpu"), None))
    assert norm(torch.randn(4, 3, 2, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert norm[0].running_mean.dtype == torch.float32
