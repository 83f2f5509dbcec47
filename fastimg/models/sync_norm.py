"""Synchronised batch norm: each rank normalises its part of the batch with the statistics of the whole batch.

torch's nn.SyncBatchNorm has kernels for GPUs only. On GPUs timm's converter installs it, since it keeps the activation
and the dropout of timm's BatchNormAct2d, which torch's converter would drop. On CPUs the norms are kept and get a
forward pass that sums over ranks.
"""

from typing import Any

import torch
from timm.layers.norm_act import BatchNormAct2d, convert_sync_batchnorm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastimg.errors import UsageError

from .ranks import Ranks


def share_statistics(module: nn.Module, ranks: Ranks) -> int:
    """Make batch norms, in training, use the statistics over all ranks, in place. Returns how many there are.

    Evaluation, parameters and the state dict stay the same. Raises UsageError for a batch norm with a forward pass of
    its own, which the exchange would replace. Afterwards a training pass needs all ranks: what runs on one rank alone,
    such as the search for a batch size, comes first. Norms that share their statistics already are left as they are.
    """
    shared = {
        nn.BatchNorm1d: _SharedNorm1d,
        nn.BatchNorm2d: _SharedNorm2d,
        nn.BatchNorm3d: _SharedNorm3d,
        BatchNormAct2d: _SharedNormAct2d,
    }
    norms = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]
    if norms and all(isinstance(norm, nn.SyncBatchNorm | _SharedNorm) for _, norm in norms):
        return len(norms)  # by an assembly before this one
    for name, norm in norms:
        if type(norm) not in shared:
            raise UsageError(
                f"--sync-bn: the norm {name} is a {type(norm).__name__}, whose statistics cannot be shared; leave "
                "--sync-bn out"
            )
    if ranks.device.type == "cuda":
        convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        assert not any(type(layer) in shared for layer in module.modules())
        return len(norms)
    for _, norm in norms:
        norm.__class__ = shared[type(norm)]
        norm.ranks = ranks  # type: ignore[assignment]
    return len(norms)


class _Sum(torch.autograd.Function):
    """The sum over ranks. Every rank's loss depends on it, so its gradient is the sum over ranks, too."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        return ranks.sum(values.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.ranks.sum(gradients[0].clone()), None


class _SharedNorm(_BatchNorm):
    """A mixin for batch norm classes."""

    ranks: Ranks

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        others = [dim for dim in range(values.ndim) if dim != 1]
        shape = [1, -1] + [1] * (values.ndim - 2)
        rows = values.new_tensor([values.numel() / values.shape[1]])
        sums: torch.Tensor = _Sum.apply(torch.cat([values.sum(others), rows]), self.ranks)
        count = float(sums[-1].detach())
        if count <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got {list(input.shape)}")
        mean = sums[:-1] / count
        centred = values - mean.view(shape)
        # Squares of centred values: the difference of two large sums would lose the digits of a small variance.
        squares: torch.Tensor = _Sum.apply(centred.square().sum(others), self.ranks)
        variance = squares / count
        self._update_statistics(mean.detach(), variance.detach() * (count / (count - 1)))
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        normed = centred * scale.view(shape)
        if self.affine:
            normed = normed + self.bias.view(shape)
        return self._finish(normed.to(input.dtype))

    def _update_statistics(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running statistics; `variance` is the unbiased one."""
        if not self.track_running_stats:
            return
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)

    def _finish(self, normed: torch.Tensor) -> torch.Tensor:
        return normed


class _SharedNorm1d(_SharedNorm, nn.BatchNorm1d):
    pass


class _SharedNorm2d(_SharedNorm, nn.BatchNorm2d):
    pass


class _SharedNorm3d(_SharedNorm, nn.BatchNorm3d):
    pass


class _SharedNormAct2d(_SharedNorm, BatchNormAct2d):
    def _finish(self, normed: torch.Tensor) -> torch.Tensor:
        return self.act(self.drop(normed))  # type: ignore[no-any-return]
