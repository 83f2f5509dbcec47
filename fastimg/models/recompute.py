"""Activation checkpointing: blocks keep only their inputs and are recomputed for the backward pass.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), https://arxiv.org/abs/1604.06174
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from .blocks import repeated


def checkpoint_blocks(module: nn.Module) -> int:
    """Recompute each of the model's repeated blocks in the backward pass, in training; in place.

    Results stay the same: random generators and autocast are restored, and running statistics are updated once. Returns
    the number of blocks, 0 for a plain stack of layers.
    """
    blocks = repeated(module)
    for block in blocks:
        kind = type(block)
        block.__class__ = type(f"Recomputed{kind.__name__}", (_Recomputed, kind), {})
    return len(blocks)


class _Recomputed(nn.Module):
    """A mixin for the classes of blocks."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward
        if not (self.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():  # the compiler updates statistics once, whatever it recomputes
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        contexts = partial(_contexts, self)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for the forward pass and for its recomputation."""
    return nullcontext(), _statistics_apart(block)


@contextmanager
def _statistics_apart(block: nn.Module) -> Iterator[None]:
    """Let batch norms update copies of their statistics, which the forward pass has updated already."""
    norms = [norm for norm in block.modules() if isinstance(norm, _NormBase)]
    originals = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        for name, buffer in norm._buffers.items():
            norm._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for norm, buffers in zip(norms, originals, strict=True):
            norm._buffers.update(buffers)
