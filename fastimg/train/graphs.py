"""Whole optimiser steps as CUDA graphs: the host launches two graphs instead of each kernel.

    step 1 to 3     the same work as without graphs, on the stream that is recorded later: what is allocated, compiled
                    and chosen once is there afterwards
    step 4 and 5    recorded, which does nothing, then replayed: one pair of graphs for each of two sets of inputs
    from step 6 on  replayed

A pair is `step.forward_backward` and `step.update_weights`. Between and behind them runs what moves with the run: the
wait for a checkpoint's copy, the rate, lookahead and the moving average. A graph reads and writes fixed addresses: the
inputs of its pair, the weights and the optimiser's state, the meter, the denominator of the loss and the rates.

Augmentation fills one set of inputs on its own stream while the step before reads the other. Both pairs share a memory
pool. Nothing in it outlives a pair: gradients are made by its first graph and dropped by its second, which always
follows. So it does not matter that the other pair, recorded after they were dropped, uses the same memory.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import torch

from fastimg.config.training import CUDA_GRAPH_MODES
from fastimg.errors import reason_of
from fastimg.loaders import Batch
from fastimg.system.memory import ran_out

from .optimisers.construction import implementation
from .run import Run, Setup
from .step import EagerWork, forward_backward, update_weights
from .tasks.task import Truth
from .work import MicroBatch, StepWork


def why_not(setup: Setup) -> str:
    """Why a run on a GPU does not replay its steps; empty where it does."""
    config = setup.config
    optimizer = setup.optimisation.optimizer
    if config.cuda_graphs == "off":
        return "--cuda-graphs off"
    if setup.ranks.world_size > 1:
        return "several ranks exchange gradients within a step"
    if config.strategy == "fsdp":
        return "--strategy fsdp moves the weights"
    if config.grad_accum_steps > 1:
        return f"--grad-accum-steps {config.grad_accum_steps} adds up gradients, and graphs write them anew"
    if config.compile in CUDA_GRAPH_MODES:
        return f"--compile {config.compile} has graphs of its own"
    if setup.model.pair is not None or (setup.model.text is not None and setup.data.embedding is None):
        return "batches of texts differ in length"
    if config.grad_checkpointing:
        return "--grad-checkpointing reads the state of random generators, which a graph cannot"
    capturable = isinstance(optimizer, torch.optim.SGD | torch.optim.Adam)  # AdamW is an Adam
    if not capturable or implementation(optimizer) != "fused":
        return f"the step of --opt {config.opt} is not fused"
    return ""


def work_of(run: Run) -> StepWork:
    """What runs the parts of a run's steps: graphs on a GPU, where they are possible."""
    device = run.setup.ranks.device
    if device.type != "cuda" or why_not(run.setup):
        return EagerWork(run)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return StepGraphs(run, partial(CudaRecorder, device, stream))


class Recorder(Protocol):
    """What records work of a device, to repeat it."""

    def beside(self) -> AbstractContextManager[None]:
        """Work in this context runs on the stream that is recorded, between what comes before and after it."""

    def unrepeatable(self) -> Callable[[], str]:
        """Called before work; what it returns is called after it, and says why replaying would not repeat the work."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work without doing it. Returns what does it. Raises RuntimeError for work that cannot be recorded."""

    def moment(self) -> Callable[[], None]:
        """Now, on the current stream. What is returned lets the stream that is current then wait for it."""


class CudaRecorder:
    """Records CUDA graphs on a stream, with one pool of memory.

    A run has one such stream: freed memory stays with the stream that it was allocated on, and so do the workspaces of
    cuBLAS.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """See Recorder. torch's pages ask for a few such steps: libraries keep workspaces for each stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def unrepeatable(self) -> Callable[[], str]:
        """See Recorder. A graph would repeat what was drawn on the host when it was recorded."""
        before = torch.get_rng_state()

        def why() -> str:
            drawn = not torch.equal(before, torch.get_rng_state())
            return "the model draws random numbers on the host" if drawn else ""

        return why

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Recorder. Threads of the loader and of checkpoints go on using CUDA meanwhile ("thread_local")."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        with (
            torch.cuda.stream(current),  # some versions of torch leave a recording that failed on its own stream
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            work()
        return graph.replay

    def moment(self) -> Callable[[], None]:
        """See Recorder."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))

        def wait() -> None:
            torch.cuda.current_stream(self._device).wait_event(event)

        return wait


@dataclass(eq=False)
class _Pair:
    """The two graphs of a step, and the inputs that they read."""

    inputs: MicroBatch | None = None
    read: Callable[[], None] = lambda: None  # waits until the last step that read the inputs has done so
    passes: Callable[[], None] | None = None
    update: Callable[[], None] | None = None


@dataclass(eq=False)
class _Shape:
    """Batches of one shape: how many steps they have had, and two pairs that take turns."""

    steps: int = 0
    pairs: tuple[_Pair, _Pair] = field(default_factory=lambda: (_Pair(), _Pair()))

    @property
    def pair(self) -> _Pair:
        """The pair of the next step."""
        return self.pairs[self.steps % 2]


class StepGraphs:
    """Runs steps as the module says; see `StepWork`.

    Each shape of a batch has graphs of its own. A model that cannot be recorded, or that draws random numbers on the
    host, goes on without graphs, and `say` is told why.
    """

    WARM: ClassVar[int] = 3
    warm: ClassVar[int] = WARM + 2

    def __init__(self, run: Run, new_recorder: Callable[[], Recorder]) -> None:
        self._run = run
        self._new_recorder = new_recorder
        self._recorder = new_recorder()
        self._shapes: dict[tuple[int, ...], _Shape] = {}
        self._shape = _Shape()  # of the step that runs
        self._say: Callable[[str], None] = lambda words: None
        columns = run.setup.data.targets.columns
        self._lack = [column is not None and not bool(column.present.all()) for column in columns]
        groups = run.setup.optimisation.optimizer.param_groups
        self._rates = [torch.zeros((), device=run.setup.ranks.device) for _ in groups]
        self._filled = [0.0] * len(groups)

    def tell(self, say: Callable[[str], None]) -> None:
        """See StepWork."""
        self._say = say

    def forget(self) -> None:
        """See StepWork. The pool goes with its last graph."""
        self._shapes.clear()
        self._shape = _Shape()
        self._recorder = self._new_recorder()

    def room(self, batch: Batch) -> torch.Tensor | None:
        """See StepWork. Waits for the step that read the same memory, the last but one."""
        shape = tuple(batch.inputs.shape)
        if any(other[1:] != shape[1:] for other in self._shapes):  # larger crops; only a last batch has fewer rows
            self.forget()
        self._shape = self._shapes.setdefault(shape, _Shape())
        pair = self._shape.pair
        pair.read()
        images = None if pair.inputs is None else pair.inputs.images
        fits = images is not None and images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last)
        return images if fits else None

    def inputs(self, made: MicroBatch) -> MicroBatch:
        """See StepWork. Everything that is not there already is copied on the current stream."""
        pair = self._shape.pair
        made = replace(made, targets=tuple(map(_stated, made.targets, self._lack)))
        if pair.inputs is None:
            pair.inputs = made.mapped(torch.clone)
            return pair.inputs
        for own, tensor in zip(pair.inputs.tensors, made.tensors, strict=True):
            if own is not tensor:
                own.copy_(tensor)
        return pair.inputs

    def forward_backward(self, batch: MicroBatch) -> None:
        """See StepWork."""
        run = self._run
        pair = self._shape.pair
        if self._shape.steps < self.WARM:
            why = self._recorder.unrepeatable()
            with self._recorder.beside():
                forward_backward(run, batch, run.accounting.backlog.mark)
            pair.read = self._recorder.moment()
            if words := why():
                self._give_up(words)
            return
        run.progress.counts.denominator()  # filled before the graph reads it
        if pair.passes is None and not self._recorded(pair, batch):
            run.progress.work.forward_backward(batch)
            return
        assert pair.passes is not None
        pair.passes()
        pair.read = self._recorder.moment()

    def update_weights(self) -> None:
        """See StepWork."""
        shape = self._shape
        pair = shape.pair
        shape.steps += 1
        if pair.update is None:
            with self._recorder.beside():
                update_weights(self._run)
            return
        self._fill_rates()
        pair.update()
        self._run.accounting.backlog.mark()  # if this is done before the next step's graph is launched, the GPU waits

    def _recorded(self, pair: _Pair, batch: MicroBatch) -> bool:
        """Record a pair's graphs. Returns whether that was possible."""
        setup = self._run.setup
        try:
            pair.passes = self._recorder.record(partial(forward_backward, self._run, batch))
            pair.update = self._recorder.record(self._update_at_rates)
        except RuntimeError as error:
            # Nothing was done: gradients, and what the scaler noted of them, are those of no step.
            optimiser, scaler = setup.optimisation.optimizer, setup.optimisation.scaler
            optimiser.zero_grad(set_to_none=True)
            scaler.update(scaler.scale(torch.ones((), device=setup.ranks.device)))
            for note in ("grad_scale", "found_inf"):  # a step that failed leaves them, and the next multiplies by them
                vars(optimiser).pop(note, None)
            pair.passes = pair.update = None
            self._give_up(_cause(error))
            return False
        return True

    def _give_up(self, reason: str) -> None:
        """Go on without graphs. The memory of those that there are is free for the step that has begun."""
        self._run.progress.work = EagerWork(self._run)
        self._shapes.clear()
        self._shape = _Shape()
        self._say(f"steps go on without CUDA graphs: {reason}")

    def _update_at_rates(self) -> None:
        with _groups_with(self._run.setup.optimisation.optimizer, self._rates):
            update_weights(self._run)

    def _fill_rates(self) -> None:
        """Bring the groups' rates to where the graphs read them. Two launches, whatever the number of groups."""
        rates = [float(group["lr"]) for group in self._run.setup.optimisation.optimizer.param_groups]
        if rates != self._filled:
            torch._foreach_zero_(self._rates)
            torch._foreach_add_(self._rates, rates)
            self._filled = rates


def _cause(error: BaseException) -> str:
    """Why a recording ended: the first error. As it closes the recording, torch raises one more that names no reason.

    No variable of the caller may keep that error: its traceback has what the passes left in memory.
    """
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    if ran_out(error):
        return "there is no memory for them beside what steps without graphs have taken"
    return reason_of(error)


def _stated(truth: Truth, lacks: bool) -> Truth:
    """A target that some samples of the data lack, with the rows that have it, although in this batch all do."""
    if not lacks or truth.present is not None:
        return truth
    return replace(truth, present=torch.ones(len(truth.values), dtype=torch.bool, device=truth.values.device))


@contextmanager
def _groups_with(optimizer: torch.optim.Optimizer, rates: list[torch.Tensor]) -> Iterator[None]:
    """Within, groups read their rate from memory, and may be captured, which torch's Adam asks for."""
    before: list[Mapping[str, Any]] = [dict(group) for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, kept in zip(optimizer.param_groups, before, strict=True):
            group.update({name: kept[name] for name in ("lr", "capturable") if name in kept})
