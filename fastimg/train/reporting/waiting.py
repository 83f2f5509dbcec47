"""Tells a run that waits, for its data or for launches: in one line while it trains, and in the summary."""

from dataclasses import replace
from pathlib import Path

import torch
from rich.markup import escape

from fastimg.config import intent
from fastimg.data.datasets import chosen_backend
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.remote.stores import url_of
from fastimg.system.progress import Display
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.graphs import why_not
from fastimg.train.run import Run

from . import accounting
from .accounting import TrainingTime, overall
from .hints import LIMIT, WaitingFacts, hint, started_slowly
from .report import shown


def warn(run: Run, display: Display) -> None:
    """Show the verdict once, as soon as the run is seen to wait. Rank 0 calls this after each progress line."""
    evidence = run.accounting.account.evidence()
    if evidence is None or run.accounting.warned:
        return
    advice = hint(_facts(run, evidence))
    if advice is not None:
        run.accounting.warned = True
        display.say(escape(advice.text))


def verdict(run: Run) -> str | None:
    """The verdict on the whole run. None if it waited little, or was too short to tell."""
    steady = run.accounting.account.steady
    advice = hint(_facts(run, steady)) if accounting.settled(steady) else None
    if advice is None:
        return _slow_starts(run)
    if advice.kind == "launch-bound":
        return advice.text
    whole = overall(rundir.train_records(run.setup.directory))
    alike = f"{steady.wait_share:.0%}" == f"{whole.wait_share:.0%}"
    return advice.text if alike else f"{advice.text}; not counting the first batches of each epoch"


def _slow_starts(run: Run) -> str | None:
    """The verdict on a run whose epochs, after the first, wait for their first batches but not for later ones."""
    account = run.accounting.account
    steady = account.steady
    starting = account.starting
    later = steady + starting
    if account.starts < accounting.STARTS or later.seconds < accounting.LONG:
        return None
    if not steady.wait_share <= LIMIT < later.wait_share:
        return None
    facts = replace(_facts(run, steady), wait=later.wait_share)
    return (
        None
        if facts.backend in ("synthetic", "resident")
        else started_slowly(facts, starting.wait / account.starts).text
    )


def _facts(run: Run, window: TrainingTime) -> WaitingFacts:
    setup = run.setup
    loader = run.setup.data.loader
    config = setup.config
    ranks = setup.ranks
    data = setup.config.data or Path()
    encoded = setup.data.embedding is None and setup.model.text is None
    return WaitingFacts(
        wait=window.wait_share,
        speed=window.speed,
        data=shown(data),
        backend=("resident" if config.resident else chosen_backend(config.loader)) if encoded else "native",
        unit=setup.stepped,
        encoded=encoded,
        ranks=ranks.world_size,
        workers=loader.workers,
        cores=ranks.cpus,
        threads=torch.get_num_threads(),
        prefetch=loader.slots,
        cuda=ranks.device.type == "cuda",
        folder=url_of(data) is None and is_plain_folder(data),
        order=intent.order(config),
        decode="gpu" if config.decode == "gpu" else "cpu",
        gpu_decoder=nvcodec.installed(),
        busy=window.busy_share,
        read=window.read_share,
        copy=window.copy_share,
        network=window.network_share,
        drained=window.drained_share,
        compile=config.compile,
        accumulates=config.grad_accum_steps > 1,
        graphs=ranks.device.type == "cuda" and not why_not(setup),
    )
