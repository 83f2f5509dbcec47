"""`--batch-size auto`: doubles the batch, with the real loader and whole steps, as long as that is faster."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from rich.console import Console

from fastimg.config.commands import Train
from fastimg.errors import UserError
from fastimg.loaders import Batch, BatchSource
from fastimg.models.freezing import train_mode
from fastimg.models.ranks import Ranks
from fastimg.system.memory import advice, available, pinned, ran_out, release
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.run import Run
from fastimg.train.step import optimiser_step
from fastimg.wording import plural

START = 8  # the first batch
SHARE = 0.2  # the largest batch, as a share of the dataset (as in Ludwig)
WARM = 2  # steps before the clock starts
STEPS = 8  # steps that are timed; fewer if they take longer than SECONDS
SECONDS = 4.0
GAIN = 1.03  # how much faster a doubled batch has to be: larger batches learn less from each image
_HOST_SHARE = 0.8  # share of the available memory that the next batch may need


@dataclass(frozen=True)
class Trial:
    """A batch size that was tried: images per second over all ranks, 0 where memory ran out."""

    batch_size: int
    rate: float
    host_bytes: int  # by how much the process grew; on a GPU, the batches that its loaders keep in pinned memory


def find_batch_size(config: Train, trial: Callable[[int], Run], samples: int, ranks: Ranks, console: Console) -> int:
    """The smallest batch per rank that is about as fast as the fastest. `trial` builds a run with a given batch size.

    Tries 8 images, or a ghost batch, and doubles up to a fifth of the dataset; stops when memory runs out, or would, or
    when a doubled batch is no faster. The weights are restored afterwards. All ranks try the same sizes, each on its
    own, and combine their results. Raises UserError if not even the smallest batch fits, or the data is too small.
    """
    most = max(1, int(SHARE * samples / ranks.world_size))
    multiple = config.ghost_bn
    if multiple is not None and multiple > most:
        raise UserError(
            f"--ghost-bn {multiple}: --batch-size auto tries up to {SHARE:.0%} of the {plural(samples, 'image')} on "
            f"each rank, which is {most}; give a smaller --ghost-bn, or a --batch-size"
        )
    size = multiple or min(START, most)
    done: list[Trial] = []
    why = ""
    while not why:
        tried = _agreed(_try(trial, size, ranks.device), ranks)
        done.append(tried)
        console.print(f"batch size {size:>6}   {_shown(tried)}", highlight=False)
        before = max((other.rate for other in done[:-1]), default=0.0)
        if tried.rate == 0 and len(done) == 1 and size > 1 and multiple is None:
            done = []
            size //= 2  # smaller than the first batch
        elif tried.rate == 0:
            why = "memory ran out"
        elif tried.rate < before * GAIN:
            why = "a doubled batch is no faster"
        elif 2 * size > most:
            why = f"more would be over {SHARE:.0%} of the {plural(samples, 'image')}"
        elif _would_not_fit(tried, ranks):
            why = "the next would not fit into the host's memory"
        else:
            size *= 2
    fitting = [candidate for candidate in done if candidate.rate > 0]
    if not fitting:
        raise UserError(f"--batch-size auto: not even a batch of {size} fits into memory; {advice(config)}")
    fastest = max(candidate.rate for candidate in fitting)
    best = next(candidate for candidate in fitting if candidate.rate * GAIN >= fastest)
    console.print(f"batch size {best.batch_size:>6}   chosen: {why}", highlight=False)
    return best.batch_size


def _try(trial: Callable[[int], Run], batch_size: int, device: torch.device) -> Trial:
    """Train for a few steps, then restore the weights. Memory may run out where the run is made, too."""
    try:
        tried = _measured(trial, batch_size)
    except Exception as error:
        if not ran_out(error):
            raise
        tried = Trial(batch_size, 0.0, 0)
    release(device)
    return tried


def _measured(trial: Callable[[int], Run], batch_size: int) -> Trial:
    with _restored(trial(batch_size)) as run:
        before = _resident()
        rate = _rate(run)
        on_host = run.setup.ranks.device.type == "cpu"
        return Trial(batch_size, rate, max(0, _resident() - before) if on_host else _pinned(run))


@contextmanager
def _restored(run: Run) -> Iterator[Run]:
    """Within, the run may train; afterwards its loaders are closed, and its model is as it was."""
    try:
        module = run.setup.model.module
        kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        try:
            yield run
        finally:
            run.setup.optimisation.optimizer.zero_grad(set_to_none=True)
            module.load_state_dict(kept)
    finally:
        for loader in run.setup.data.loaders:
            loader.close()


def _pinned(run: Run) -> int:
    """Bytes of the batches that loaders keep in pinned memory."""
    return sum(loader.slots * pinned(loader.slot_bytes) for loader in run.setup.data.loaders)


def _rate(run: Run) -> float:
    """Images per second of whole steps, after a few warm-up steps. The clock waits for the device."""
    setup = run.setup
    train_mode(setup.trained)
    accumulate = setup.config.grad_accum_steps
    source = batches(setup.data.loader)
    stream = AugmentStream(setup.ranks.device, setup.config.augment_stream)
    for _ in range(WARM):
        optimiser_step(run, source, accumulate, stream)
    _synchronise(setup.ranks)
    began = time.perf_counter()
    timed = 0
    while timed < 2 or (timed < STEPS and time.perf_counter() - began <= SECONDS):
        optimiser_step(run, source, accumulate, stream)
        timed += 1
    _synchronise(setup.ranks)
    return timed * setup.nominal_batch / (time.perf_counter() - began)


def batches(loader: BatchSource) -> Iterator[Batch]:
    """The batches of one epoch after another, without end."""
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader


def _synchronise(ranks: Ranks) -> None:
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)


def _agreed(tried: Trial, ranks: Ranks) -> Trial:
    """The trial over all ranks: the sum of their rates, 0 if one ran out of memory, and the largest growth."""
    trials = [tuple(map(float, line.split())) for line in ranks.gather(f"{tried.rate} {tried.host_bytes}")]
    rates = [rate for rate, _ in trials]
    rate = sum(rates) if min(rates) > 0 else 0.0
    return Trial(tried.batch_size, rate, int(max(grown for _, grown in trials)))


def _would_not_fit(tried: Trial, ranks: Ranks) -> bool:
    """Whether a doubled batch might not fit in the host's memory. Linux would kill a process that takes too much."""
    left = [int(line) for line in ranks.gather(str(available()))]
    return 2 * tried.host_bytes * ranks.local_world_size > _HOST_SHARE * min(left)


def _resident() -> int:
    """The peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _shown(tried: Trial) -> str:
    return f"{tried.rate:,.1f} img/s" if tried.rate else "out of memory"
