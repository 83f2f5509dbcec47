"""What the native loader would give a run that has another: tried, between two epochs, and undone.

On a CPU no counter tells what another loader costs. Its workers run on the cores that compute, whose threads wait for
each other wherever one of them has lost its core: that counts as computing, and may be more than all the waiting. On a
GPU loading and computing do not meet, and arithmetic is enough (`hints`).
"""

from dataclasses import replace

from .accounting import Window
from .data import Part, chosen_backend
from .loaders import DataError
from .memory import available, release
from .models import train_mode
from .parts import Parts
from .prepare import assemble
from .rig import Rig, real_rate
from .run import Run

SECONDS = 4.0  # on the clock
COST = 0.04  # of the time of the whole run, at most
_COPIES = 4  # of the weights: kept ones, gradients, two averages of an optimiser


def possible(run: Run) -> bool:
    """Whether there is something to try, on one process with a CPU."""
    if run.embedding is not None or run.model.text is not None or run.compilation is not None:
        return False
    other = chosen_backend(run.config.loader) not in ("native", "synthetic")
    return other and run.ranks.world_size == 1 and run.ranks.device.type == "cpu"


def worth_it(run: Run, steady: Window) -> bool:
    """Whether it takes a small part of the run, by the speed so far; and whether there is memory."""
    each = run.batch_size / max(steady.speed, 1e-9)
    planned = run.steps * run.config.grad_accum_steps * each
    weights = sum(p.numel() * p.element_size() for p in run.trained.parameters())
    return SECONDS + (_warm(run) + 1) * each <= COST * planned and _COPIES * weights < available() / 2


def native_rate(run: Run) -> float | None:
    """Samples per second of training with the native loader, as it is set up otherwise. The weights stay as they were.

    The other loader must be idle. None where the native one cannot read what there is.
    """
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
    except DataError:
        return None
    finally:
        rig.close()
        rig.run.optimizer.zero_grad(set_to_none=True)
        module.load_state_dict(kept)
        release(run.ranks.device)


def _warm(run: Run) -> int:
    """Steps that use up what slots hold."""
    return run.loader.config.prefetch + 1
