"""torch.compile before the first step, for every shape that training will use; compiled graphs are counted."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from fastimg.errors import UserError
from fastimg.system.memory import ran_out
from fastimg.wording import plural

_MAX_GRAPHS = 64  # per function: every size, in training and in evaluation; torch's own limit is 8


@dataclass
class Compilation:
    """What torch.compile did to a model. torch counts graphs for the whole process."""

    mode: str
    graphs: int = 0  # compiled ahead of training
    breaks: int = 0  # graph breaks, where Python runs in between
    seconds: float = 0.0
    begun: int = field(default_factory=lambda: _count()[0])

    @property
    def recompiled(self) -> int:
        """The number of graphs compiled since then, in the middle of training."""
        return _count()[0] - self.begun - self.graphs

    def describe(self) -> str:
        """A description for the configuration and the summary."""
        breaks = f", {plural(self.breaks, 'graph break')}" if self.breaks else ""
        return (
            f"{self.mode}: {plural(self.graphs, 'graph')} in {self.seconds:.0f} s{breaks}, recompiled "
            f"{plural(self.recompiled, 'time')}"
        )


@contextmanager
def compiling(mode: str | None) -> Iterator[None]:
    """Within, a run compiles its model with this mode; None: it does not.

    torch keeps graphs with the code that they were compiled from: without this, a second run of a model in one process
    would compile nothing ahead, and the CUDA graphs of the first would keep their memory. Its settings are given back.
    """
    if mode is None:
        yield
        return
    import torch._dynamo as dynamo

    torch.compiler.reset()
    kept = ("recompile_limit", "fail_on_recompile_limit_hit")
    with dynamo.config.patch({name: getattr(dynamo.config, name) for name in kept}):
        try:
            yield
        finally:
            torch.compiler.reset()


def compile_modules(modules: Iterable[nn.Module], mode: str, any_length: bool = False) -> Compilation:
    """Mark each module for compilation, in place; names and weights stay. Nothing is compiled yet.

    Each shape has a graph of its own; with `any_length`, a dimension that has had two lengths has one for all.

    With CUDA graphs, torch takes each call that follows a backward pass, or needs none, for a new step, whose outputs
    may overwrite those of the call before: so it is here. Once `cudagraph_mark_step_begin` is called, torch would rely
    on it for every call, validation's too, so it is not called.
    """
    import torch._dynamo as dynamo

    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, _MAX_GRAPHS)
    dynamo.config.fail_on_recompile_limit_hit = True  # by default torch continues uncompiled, and only logs it
    for module in modules:
        module.compile(mode=None if mode == "default" else mode, dynamic=None if any_length else False)
    return Compilation(mode)


def ahead(compilation: Compilation, module: nn.Module, passes: Sequence[Callable[[], None]]) -> None:
    """Run `passes`, each a forward (and backward) pass with a shape that training will use; buffers are restored.

    Raises UserError if nothing could be compiled.
    """
    began = time.perf_counter()
    breaks = _count()[1]
    saved = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for run_pass in passes:
        try:
            run_pass()
        except Exception as error:
            if ran_out(error):
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"--compile {compilation.mode}: the model cannot be compiled ({reason}); it takes a C++ compiler on a "
                "CPU (apt-get install g++), and Triton on a GPU: install it, try another mode, or leave --compile out"
            ) from error
        finally:
            for parameter in module.parameters():
                parameter.grad = None
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(saved[name])
    compilation.graphs = _count()[0] - compilation.begun
    compilation.breaks = _count()[1] - breaks
    compilation.seconds += time.perf_counter() - began
    if compilation.graphs == 0:
        raise UserError(
            f"--compile {compilation.mode}: torch compiled nothing; unset TORCH_COMPILE_DISABLE and "
            "TORCHDYNAMO_DISABLE if one of them is set; torch 2.11 also skips models that consist of torch's own "
            "modules only: update torch, or leave --compile out"
        )


def _count() -> tuple[int, int]:
    """(graphs, graph breaks) in this process, as counted by torch."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
