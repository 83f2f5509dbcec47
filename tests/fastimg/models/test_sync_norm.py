"""Batch norm over ranks equals one process's on the whole batch: outputs, gradients and running statistics."""

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
    """One of two ranks, which are threads of this process."""

    barrier: threading.Barrier = field(kw_only=True)
    given: dict[int, torch.Tensor] = field(kw_only=True)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.given[self.rank] = tensor.clone()
        self.barrier.wait(60)
        total = self.given[0] + self.given[1]
        self.barrier.wait(60)
        return tensor.copy_(total)


def two_ranks(work: Callable[[Ranks], Any]) -> list[Any]:
    """The results of both."""
    barrier, given = threading.Barrier(2), {}
    ranks = [Meeting(rank, 2, 2, torch.device("cpu"), "gloo", barrier=barrier, given=given) for rank in (0, 1)]

    def one(rank: Ranks) -> Any:
        try:
            return work(rank)
        except Exception as error:  # noqa: BLE001 - raised below
            barrier.abort()  # so that the other one does not wait
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
    """Outputs and the gradient of the rows; the parameters' gradients are in the model."""
    rows = rows.clone().requires_grad_()
    found = model(rows)
    (found * weight).sum().backward()
    assert rows.grad is not None
    return found.detach(), rows.grad


@pytest.mark.parametrize("kind", NORMS)
def test_two_ranks_give_what_one_process_gives_on_the_whole_batch(kind: str) -> None:
    """With parts of unequal size, and a mean that is large compared with the deviation."""
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


@pytest.fixture(params=["cuda", "cpu"])
def two(request: pytest.FixtureRequest) -> Ranks:
    """One of two ranks. The converter used on GPUs needs no GPU; the norms that it inserts do, in training."""
    return Ranks(0, 2, 2, torch.device(request.param), "nccl" if request.param == "cuda" else "gloo")


ARCHS = ("efficientnet_b0", "regnety_032", "mobilenetv3_large_100", "densenet121", "test_efficientnet")


@pytest.mark.parametrize("arch", ARCHS)
def test_activations_and_outputs_stay(arch: str, two: Ranks) -> None:
    """torch's own converter drops the activations inside timm's norms: 33 in efficientnet_b0, 121 in densenet121."""
    torch.manual_seed(0)
    model = timm.create_model(arch, num_classes=3).eval()
    for norm in model.modules():
        if isinstance(norm, BatchNormAct2d):  # unlike those of a new model, which have no effect
            nn.init.uniform_(norm.running_mean, -0.2, 0.2)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    images = torch.randn(2, 3, 64, 64)
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    addresses = {name: value.data_ptr() for name, value in model.state_dict().items()}
    before = {name: type(module) for name, module in model.named_modules()}
    acts = {name: module.act for name, module in model.named_modules() if isinstance(module, BatchNormAct2d)}
    assert len([act for act in acts.values() if not isinstance(act, nn.Identity)]) >= 6
    with torch.inference_mode():
        expected = model(images)
        assert share_statistics(model, two) == len(acts)
        torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
    after = dict(model.named_modules())
    assert after.keys() == before.keys()
    for name, kind in before.items():
        if name not in acts:
            assert type(after[name]) is kind, name
        elif two.device.type == "cuda":
            assert type(after[name]) is SyncBatchNormAct and after[name].act is acts[name]
        else:
            assert isinstance(after[name], BatchNormAct2d) and after[name].act is acts[name]
    assert {name: value.data_ptr() for name, value in model.state_dict().items()} == addresses
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())


def test_what_a_norm_was_made_with_stays(two: Ranks) -> None:
    """Also for torch's own norms, for norms without weights or statistics, and for frozen ones in bf16."""
    made = nn.Sequential(
        BatchNormAct2d(3, eps=1e-3, momentum=0.01, act_layer=nn.SiLU, drop_layer=nn.Identity),
        nn.BatchNorm2d(3, eps=1e-4, momentum=None, dtype=torch.bfloat16),
        nn.BatchNorm1d(3, affine=False),
        nn.BatchNorm3d(3, track_running_stats=False),
        nn.Sequential(BatchNormAct2d(3, apply_act=False)),
    )
    made[1].requires_grad_(False).eval()
    names = ("num_features", "eps", "momentum", "affine", "track_running_stats", "training")
    kept = [{name: getattr(norm, name) for name in names} for norm in (*made[:4], made[4][0])]
    tensors = [(norm.weight, norm.running_mean, norm.num_batches_tracked) for norm in (*made[:4], made[4][0])]
    assert share_statistics(made, two) == 5
    norms = (*made[:4], made[4][0])
    assert [{name: getattr(norm, name) for name in names} for norm in norms] == kept
    for norm, values in zip(norms, tensors, strict=True):
        assert (norm.weight is values[0], norm.running_mean is values[1]) == (True, True)
        assert norm.num_batches_tracked is values[2]
    assert norms[1].weight.dtype == torch.bfloat16 and not norms[1].weight.requires_grad
    assert isinstance(norms[0].act, nn.SiLU) and isinstance(norms[4].act, nn.Identity)
    assert not hasattr(norms[1], "act")


def test_a_norm_with_a_forward_pass_of_its_own_is_refused(two: Ranks) -> None:
    class Doubled(nn.BatchNorm2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(Doubled(3)))
    with pytest.raises(
        UsageError, match=r"--sync-bn: the norm 1\.0 is a Doubled, whose statistics.*leave --sync-bn out"
    ):
        share_statistics(model, two)
    assert type(model[0]) is nn.BatchNorm2d  # nothing was changed


def test_a_model_without_batch_norm_is_refused() -> None:
    ranks = Ranks(0, 2, 2, torch.device("cpu"), "gloo")
    assert share_statistics(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), ranks) == 0
    model, config = build("test_vit", 3), Train(arch="test_vit", lr=0.1, weight_decay=0.0, sync_bn=True)
    pieces: Any = {
        "model": model,
        "preprocessing": model.preprocessing,
        "precision": None,
        "parts": None,
        "targets": None,
    }
    with pytest.raises(UsageError, match="--sync-bn has no effect: test_vit has no batch norm; leave it out"):
        assemble(Blueprint(config=config, directory=Path(), **pieces), ranks)


def test_one_process_is_refused() -> None:
    with pytest.raises(UsageError, match="--sync-bn has no effect with one process; leave it out, or start several"):
        check_strategy("ddp", Ranks(0, 1, 1, torch.device("cpu"), "gloo"), None, True)


def test_one_value_per_channel_has_no_variance() -> None:
    """With torch's wording, so that the step names the batch size. One sample on each of two ranks suffices."""
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
