"""What the native loader would give a run that has another: tried, between two epochs, and undone.

On a CPU no counter tells what another loader costs. Its workers run on the cores that compute, whose threads wait for
each other wherever one of them has lost its core: that counts as computing, and may be more than all the waiting. On a
GPU loading and computing do not meet, and arithmetic is enough (`hints`).
"""

from dataclasses import replace

from fastimg.bench.rig import Rig, real_rate
from fastimg.data.datasets import Part, chosen_backend
from fastimg.loaders import DataError
from fastimg.models.registry import train_mode
from fastimg.system.memory import available, ran_out, release
from fastimg.train.reporting.accounting import TrainingTime

from .parts import Parts
from .run import Run
from .setup import assemble

SECONDS = 4.0  # on the clock
COST = 0.04  # of the time of the whole run, at most
_COPIES = 4  # of the weights: kept ones, gradients, two averages of an optimiser


def possible(run: Run) -> bool:
    """Whether there is something to try, on one process with a CPU."""
    plain = run.parallel is run.trained and run.compilation is None  # else it would be wrapped or compiled again
    images = run.embedding is None and run.model.text is None
    other = chosen_backend(run.config.loader) not in ("native", "synthetic")
    return plain and images and other and run.ranks.world_size == 1 and run.ranks.device.type == "cpu"


def worth_it(run: Run, steady: TrainingTime) -> bool:
    """Whether it takes a small part of the run, by the speed so far; and whether there is memory."""
    each = run.batch_size / max(steady.speed, 1e-9)
    planned = run.steps * run.config.grad_accum_steps * each
    weights = sum(p.numel() * p.element_size() for p in run.trained.parameters())
    return SECONDS + (_warm(run) + 1) * each <= COST * planned and _COPIES * weights < available() / 2


class Failed(Exception):
    """A trial that came to nothing, and why. The run can go on as it is."""


def native_rate(run: Run) -> float:
    """Samples per second of training with the native loader, as it is set up otherwise. The weights stay as they were.

    The other loader must be idle. Raises Failed where the native one cannot read what there is, or memory runs out.
    """
    try:
        return _measured(run)
    except Exception as error:
        if isinstance(error, DataError) or ran_out(error):
            raise Failed("memory ran out" if ran_out(error) else str(error)) from error
        raise
    finally:
        release(run.ranks.device)


def _measured(run: Run) -> float:
    config = replace(run.config, loader="native", decode="cpu")
    parts = Parts(Part(run.loader.dataset, run.loader.indices, config.train_split), None, None)
    module = run.model.module
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    rig = Rig(assemble(config, run.ranks, run.directory, run.model, run.preprocessing, run.precision, parts, False))
    try:
        if run.progressive is not None:
            rig.loader.set_size(run.progressive.size(run.epoch))
        train_mode(rig.run.trained)
        return real_rate(rig, _warm(run), seconds=SECONDS)
    finally:
        rig.close()
        rig.run.optimizer.zero_grad(set_to_none=True)
        module.load_state_dict(kept)


def _warm(run: Run) -> int:
    """Steps that use up what slots hold."""
    return run.loader.config.prefetch + 1
