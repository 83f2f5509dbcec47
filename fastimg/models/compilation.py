"""torch.compile, before the first step, for every shape that training will bring; what was compiled is counted."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from fastimg.errors import UserError
from fastimg.system.memory import ran_out
from fastimg.wording import plural

_MOST = 64  # graphs of one function: sizes by training and evaluation; torch's own limit is 8


@dataclass
class Compilation:
    """What torch.compile has made of a model. torch counts for the whole process."""

    mode: str
    graphs: int = 0  # that were compiled ahead
    breaks: int = 0  # of the graph, where Python runs in between
    seconds: float = 0.0
    begun: int = field(default_factory=lambda: _count()[0])

    @property
    def recompiled(self) -> int:
        """Graphs that were compiled since, in the middle of training."""
        return _count()[0] - self.begun - self.graphs

    def describe(self) -> str:
        """In words, for the configuration and the summary."""
        breaks = f", {plural(self.breaks, 'graph break')}" if self.breaks else ""
        return (
            f"{self.mode}: {plural(self.graphs, 'graph')} in {self.seconds:.0f} s{breaks}, recompiled "
            f"{plural(self.recompiled, 'time')}"
        )


def compile_modules(modules: Iterable[nn.Module], mode: str) -> Compilation:
    """Let calls of each module be compiled, in place: names and weights stay. Nothing is compiled yet."""
    import torch._dynamo as dynamo

    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, _MOST)
    dynamo.config.fail_on_recompile_limit_hit = True  # else it would go on uncompiled, and say so in a log alone
    for module in modules:
        module.compile(mode=None if mode == "default" else mode, dynamic=False)
    return Compilation(mode)


def ahead(compilation: Compilation, module: nn.Module, passes: Sequence[Callable[[], None]]) -> None:
    """Run `passes`, each a forward (and backward) pass of a shape to come, and leave the module as it was.

    Raises UserError where nothing could be compiled.
    """
    began, breaks = time.perf_counter(), _count()[1]
    kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for one in passes:
        try:
            one()
        except Exception as error:
            if ran_out(error):
                raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"--compile {compilation.mode}: the model cannot be compiled ({reason}); a C++ compiler is needed on a "
                "CPU (apt-get install g++), and Triton on a GPU: install it, try another mode, or leave --compile out"
            ) from error
        finally:
            for parameter in module.parameters():
                parameter.grad = None
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(kept[name])
    compilation.graphs = _count()[0] - compilation.begun
    compilation.breaks = _count()[1] - breaks
    compilation.seconds += time.perf_counter() - began
    if compilation.graphs == 0:
        raise UserError(
            f"--compile {compilation.mode}: torch compiled nothing; unset TORCH_COMPILE_DISABLE and "
            "TORCHDYNAMO_DISABLE if the environment has one of them; torch 2.11 also passes over a model of nothing "
            "but torch's own modules: update torch, or leave --compile out"
        )


def _count() -> tuple[int, int]:
    """(graphs, graph breaks) that torch has counted in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
