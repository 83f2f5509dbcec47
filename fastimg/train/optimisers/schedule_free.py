"""Schedule-free SGD and AdamW (Defazio et al., 2024): no decay of the rate, but an average of weights instead."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class ScheduleFree(torch.optim.Optimizer):
    """Three sequences of weights: z takes the steps, x is their average, and gradients are taken at y between them.

        y = (1 - beta) z + beta x;  z -= lr * (grad(y) + decay * y);  x += c * (z - x)

    A step's share c in the average is lr_max ** 2 over the sum of all steps' so far, lr_max being the highest rate yet:
    warm-up counts less. With `beta2` (AdamW) the gradient is divided by the root of its second moment. The parameters
    are y, the state has z, and x follows from both (`ScheduleFreeAverage`). Step and average of a group are counted in
    the group, so all of its parameters must learn from the first step on.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        beta: float = 0.9,
        beta2: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0.0 < beta < 1.0:
            raise ValueError(f"the share of the average in y is {beta}; it lies between 0 and 1, both excluded")
        if beta2 is not None and not 0.0 <= beta2 < 1.0:
            raise ValueError(f"the second beta is {beta2}; it is 0 or more and below 1")
        defaults = {"lr": lr, "beta": beta, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "steps": 0, "lr_max": 0.0, "lr_sum": 0.0, "foreach": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient. No sync."""
        assert closure is None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            lr = group["lr"]
            beta = group["beta"]
            group["steps"] += 1
            group["lr_max"] = max(lr, group["lr_max"])
            group["lr_sum"] += group["lr_max"] ** 2
            share = group["lr_max"] ** 2 / group["lr_sum"]
            gradients = self._gradients(group, params)
            z = [self.state[p]["z"] for p in params]
            torch._foreach_lerp_(params, z, share)
            torch._foreach_add_(params, gradients, alpha=lr * (beta * (1.0 - share) - 1.0))
            torch._foreach_sub_(z, gradients, alpha=lr)

    def _gradients(self, group: dict[str, Any], params: list[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients that z follows; makes the state of parameters that have none."""
        adam = group["beta2"] is not None
        for p in params:
            if not self.state[p]:
                self.state[p]["z"] = p.detach().clone()
                if adam:
                    self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        gradients: list[torch.Tensor] = [p.grad for p in params if p.grad is not None]
        if adam:
            squares = [self.state[p]["exp_avg_sq"] for p in params]
            torch._foreach_mul_(squares, group["beta2"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - group["beta2"])
            scales = torch._foreach_div(squares, 1.0 - group["beta2"] ** group["steps"])
            torch._foreach_sqrt_(scales)
            torch._foreach_add_(scales, group["eps"])
            gradients = list(torch._foreach_div(gradients, scales))
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, params, alpha=group["weight_decay"]))
        return gradients


class ScheduleFreeAverage:
    """The average x of a schedule-free optimiser: what is validated and saved, as a moving average is (`Ema`)."""

    def __init__(self, module: nn.Module, optimizer: ScheduleFree) -> None:
        self._module = module
        self._optimizer = optimizer

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The averages by name, made anew; parameters that do not learn are their own."""
        averages = {id(p): x for p, x in self._averages()}
        return {name: averages.get(id(p), p.detach()) for name, p in self._module.named_parameters()}

    def update(self, step: int) -> None:
        """Nothing: the optimiser's own step moves the average."""

    @contextmanager
    @torch.no_grad()
    def swapped(self, module: nn.Module) -> Iterator[None]:
        """Within the block, the module holds the averages; afterwards it has its own weights back, to the bit."""
        assert module is self._module
        pairs = list(self._averages())
        own = [p.detach().clone() for p, _ in pairs]
        for p, average in pairs:
            p.copy_(average)
        try:
            yield
        finally:
            for (p, _), before in zip(pairs, own, strict=True):
                p.copy_(before)

    @torch.no_grad()
    def _averages(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                state = self._optimizer.state.get(p)
                if state:  # x = z + (y - z) / beta
                    yield p, torch.lerp(state["z"], p.detach(), 1.0 / group["beta"])
