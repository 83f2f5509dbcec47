"""What runs on a node of a Ray cluster, in a worker of Ray Train: `train`, with the rank that Ray has given it."""

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from fastimg.cluster.connection import node_name
from fastimg.cluster.shared_places import SharedPlaces, unseen
from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.errors import UserError
from fastimg.loaders import DataError
from fastimg.loaders.remote.stores import url_of
from fastimg.system.rank_failures import first_rank
from fastimg.system.signals import Interrupt
from fastimg.system.terminal import lines_to
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.stored_runs import staged_runs
from fastimg.train.loop import Result, train
from fastimg.wording import with_flags

from .board import RankFault

_LOOK = 1.0  # seconds between looks for a signal


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """What every rank is given. config: without what belongs to the cluster, so that config.yaml is that of any run."""

    config: Train
    places: SharedPlaces
    board: Any  # the handle of a RankBoard


class RankEndedError(Exception):
    """Training cannot go on; the board has the reason."""


def train_rank(given: dict[str, RankJob]) -> Result | None:
    """Train as one of the ranks of Ray's process group. Returns the result on rank 0.

    Raises RankEndedError where another attempt would fail in the same way, and what was raised where it might not.
    """
    import ray

    job = given["job"]
    board = job.board
    fault = unseen(job.places, node_name())
    if fault is not None:
        ray.get(board.refuse.remote(RankFault(words=fault, exit_code=1)))
        raise RankEndedError(fault)
    os.chdir(job.places.here)
    config = job.config
    run = ray.get(board.run.remote())
    url = url_of(config.output)
    if url is not None:
        config = replace(config, resume=_resume_in_store(config, run is not None))
    elif run is not None and (run / rundir.CONFIG).exists():
        config = replace(config, resume=str(run), name=None)
    console = lines_to(_BoardStream(board)) if first_rank() else Console(quiet=True)
    try:
        with _listening(board) as interrupt:
            result = train(config, console, interrupt, begun=lambda run: ray.get(board.begin.remote(run.absolute())))
    except (UserError, DataError) as error:
        code = error.exit_code if isinstance(error, UserError) else 1
        words = with_flags(str(error))
        if url is not None:
            folder = str(staged_runs(url, config.cache_dir))
            words = words.replace(folder, f"{folder} of {node_name()}")
        ray.get(board.refuse.remote(RankFault(words=words, exit_code=code)))
        raise RankEndedError(str(error)) from error
    return result if first_rank() else None


def _resume_in_store(config: Train, begun: bool) -> str | None:
    """--resume of a run in an object store, on a node that has no directory of it; `begun`: by an earlier attempt."""
    if begun or intent.named_run(config.resume) is not None:
        return "auto"
    return config.resume


@contextmanager
def _listening(board: Any) -> Iterator[Interrupt]:
    """An interrupt that is told what the process that started the ranks has heard."""
    import ray

    interrupt = Interrupt(listens=False)
    ended = threading.Event()

    def listen() -> None:
        while not ended.wait(_LOOK) and not interrupt.signal:
            interrupt.signal = ray.get(board.signal.remote())

    if first_rank():
        threading.Thread(target=listen, name="fastimg-signals", daemon=True).start()
    try:
        yield interrupt
    finally:
        ended.set()


class _BoardStream(io.StringIO):
    """A text stream whose lines go to the board."""

    def __init__(self, board: Any) -> None:
        super().__init__()
        self._board = board
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._board.say.remote(line)
        return len(text)
