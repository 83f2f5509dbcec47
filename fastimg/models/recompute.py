"""Rematerialisation (activation checkpointing): blocks keep their inputs, and are computed again for the backward pass.

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
    """Let each of the model's repeated blocks be computed again in the backward pass, while it trains. In place.

    Results are the same: generators and autocast are as they were, and running statistics move once. Returns how many
    blocks there are: 0 for a plain stack of layers.
    """
    found = repeated(module)
    for block in found:
        kind = type(block)
        block.__class__ = type(f"Recomputed{kind.__name__}", (_Recomputed, kind), {})
    return len(found)


class _Recomputed(nn.Module):
    """In front of the class of a block."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward
        if not (self.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():  # the compiler writes statistics once, whatever it computes again
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        contexts = partial(_contexts, self)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For the forward pass, and for its repetition."""
    return nullcontext(), _statistics_apart(block)


@contextmanager
def _statistics_apart(block: nn.Module) -> Iterator[None]:
    """Batch norms write into copies of their statistics, which moved in the forward pass already."""
    norms = [norm for norm in block.modules() if isinstance(norm, _NormBase)]
    kept = [dict(norm._buffers) for norm in norms]
    for norm in norms:
        for name, buffer in norm._buffers.items():
            norm._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
