"""Starts the ranks of a training on a Ray cluster, prints what rank 0 says, and starts all again when one is lost."""

import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fastimg.cluster.connection import alive, check_installed, joined, room, usual
from fastimg.cluster.head import ClusterHead
from fastimg.cluster.shared_places import SharedPlaces, shared_places
from fastimg.config.commands import Train
from fastimg.config.values.trial_resources import parse, parse_range, written
from fastimg.errors import UsageError, UserError, reason_of
from fastimg.loaders.remote.stores import url_of
from fastimg.system.signals import Interrupt
from fastimg.system.terminal import say
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.stored_runs import fetch_run, manifest_of, options_of
from fastimg.train.loop import Result
from fastimg.wording import plural

from .board import RankBoard
from .group import GroupEnd, GroupRequest, RankGroup, settings_of_ray_train
from .rank import RankJob

MAX_FAILURES = 3
_GOES_ON = "start the same command with --resume auto, and the run goes on"
_ROOM = 600.0  # seconds to wait for the cluster to have room
_ENDING = 30.0  # seconds in which a group ends of which a rank has failed
_LOOK = 0.2  # seconds between looks at what the ranks say
_HEAD_LOOK = 1.0  # seconds between looks at the cluster's head


class _Attempt:
    """A worker group of Ray Train, from its start to its end, waited for by an actor beside this process.

    No thread of this process waits: one that does when the connection ends can take the process with it.
    """

    def __init__(self, ray: Any, near: Any, asked: GroupRequest) -> None:
        self._ray = ray
        environment = {"env_vars": settings_of_ray_train()}
        options = {"num_cpus": 0, "scheduling_strategy": near, "runtime_env": environment}
        self._actor = ray.remote(RankGroup).options(**options).remote()
        self._end = self._actor.run.remote(asked)

    def ended(self, seconds: float) -> bool:
        """Whether it ends within these seconds."""
        return bool(self._ray.wait([self._end], timeout=seconds)[0])

    def end(self) -> GroupEnd:
        """How it ended. Raises RayError where its actor is lost."""
        end: GroupEnd = self._ray.get(self._end)
        return end

    def stop(self) -> None:
        """End it, wherever it is; or let go of its actor."""
        self._ray.kill(self._actor)


def train_on_cluster(config: Train, console: Console, signals: bool = True) -> Result:
    """Train as `config` says, with --backend ray. Raises as `train` does, and UserError where the cluster is lost."""
    check_installed("train")
    here = [] if config.data is None or url_of(config.data) is not None else [config.data]
    shared = config.output if url_of(config.output) is None else None
    with ExitStack() as stack:
        if shared is None:  # Ray Train's own files are read by its controller alone, which runs on this machine
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastimg-ray-")))
        else:
            shared.mkdir(parents=True, exist_ok=True)
            folder = shared.resolve() / f".ray-{secrets.token_hex(8)}"
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ray = stack.enter_context(joined("train", config.address))
        places = stack.enter_context(shared_places("training", here, shared))
        return _Launch(ray, config, console, places, folder).run(signals)


class _Launch:
    """One training, by one worker group after the other."""

    def __init__(self, ray: Any, config: Train, console: Console, places: SharedPlaces, folder: Path) -> None:
        self._ray = ray
        self._config = config
        self._console = console
        self._places = places
        self._folder = folder
        self._amounts = _amounts(config, alive(ray))
        self._head = ClusterHead(ray, "train --backend ray", f"when there is one again, {_GOES_ON}")
        node = ray.get_runtime_context().get_node_id()
        self._near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        self._board = ray.remote(RankBoard).options(num_cpus=0, scheduling_strategy=self._near).remote()

    def run(self, signals: bool) -> Result:
        """Train to the end, over as many failures as may be."""
        limit = MAX_FAILURES if self._config.max_failures is None else self._config.max_failures
        most = self._most()
        try:
            with Interrupt(signals) as interrupt:
                for failures in range(1, limit + 2):
                    count = self._fitting(most, interrupt)
                    say(self._console, f"ray         {plural(count, 'rank')}, each with {written(self._amounts)}")
                    end = self._attempted(count, interrupt)
                    if end.result is not None:
                        return self._as_seen_here(end.result)
                    self._stop_if_asked(interrupt)
                    if failures <= limit:
                        words = f"ray         {end.reason}; training goes on from its last checkpoint"
                        say(self._console, words, style="yellow")
        except self._ray.exceptions.RayError as error:
            raise UserError(
                f"train --backend ray: this machine's part of the cluster is lost ({reason_of(error)}); {_GOES_ON}"
            ) from error
        raise UserError(f"train --backend ray: {end.reason}, and --max-failures {limit} allows no more; {_GOES_ON}")

    def _most(self) -> int:
        """The number of ranks that training starts with, if there is room for them."""
        config = self._config
        if config.num_workers is not None:
            return config.num_workers
        there = room(alive(self._ray), self._amounts)
        if config.elastic is not None:
            return parse_range(config.elastic)[1]
        if there == 0:
            raise UsageError(
                f"no node of the cluster has {written(self._amounts)} for a rank; ask for less with "
                "--resources-per-worker, or give --num-workers N to wait for larger nodes"
            )
        return there

    def _fitting(self, count: int, interrupt: Interrupt) -> int:
        """How many ranks to start now, waiting for room if need be. Raises UserError where none comes."""
        fewest = count if self._config.elastic is None else parse_range(self._config.elastic)[0]
        began = time.monotonic()
        asked = False
        run = None if fewest == count else self._run_here()
        try:
            while True:
                self._stop_if_asked(interrupt)
                there = min(count, room(alive(self._ray), self._amounts)) if self._head.answers(_HEAD_LOOK) else 0
                for number in range(there, fewest - 1, -1):
                    if run is None or _shares_evenly(run, self._config, number):
                        return number
                if time.monotonic() - began > _ROOM:
                    raise UserError(
                        f"train --backend ray: the cluster has had no room for {plural(fewest, 'rank')} with "
                        f"{written(self._amounts)} each for {round(_ROOM / 60)} minutes; {_GOES_ON}"
                    )
                if not asked:
                    asked = True
                    _ask_for([dict(self._amounts)] * fewest)
                    say(self._console, f"ray         waiting for room for {plural(fewest, 'rank')}")
                time.sleep(_LOOK)
        finally:
            if asked and self._head.there:
                _ask_for([])

    def _run_here(self) -> Path | None:
        """The directory of the run that ranks have begun, as this machine sees it: of a store it is fetched."""
        run: Path | None = self._ray.get(self._board.run.remote())
        url = url_of(self._config.output)
        if run is None or url is None:
            return run
        stored, options = f"{url}/{run.name}", options_of(self._config)
        return None if manifest_of(stored, options) is None else fetch_run(stored, options, self._config.cache_dir)

    def _as_seen_here(self, result: Result) -> Result:
        """The result of rank 0, whose node has the directory of a run that is in a store: here it is the URL."""
        url = url_of(self._config.output)
        return result if url is None or result.run is None else replace(result, run=Path(url) / result.run.name)

    def _attempted(self, count: int, interrupt: Interrupt) -> GroupEnd:
        """Train with so many ranks, to the end of their group. Raises UserError and UsageError for their faults."""
        plain = replace(
            self._config,
            backend="local",
            address=None,
            num_workers=None,
            resources_per_worker=None,
            elastic=None,
            max_failures=None,
            device="cuda" if "GPU" in self._amounts else "cpu",
        )
        job = RankJob(config=plain, places=self._places, board=self._board)
        name = f"ranks-{time.monotonic_ns()}"
        asked = GroupRequest(job=job, count=count, amounts=self._amounts, folder=self._folder, name=name)
        attempt = _Attempt(self._ray, self._near, asked)
        try:
            self._watch(attempt, interrupt)
            self._print()
            self._raise_fault()
            return attempt.end()
        finally:
            if self._head.there:  # without it this would wait; the actor ends with the connection
                attempt.stop()

    def _watch(self, attempt: _Attempt, interrupt: Interrupt) -> None:
        """Print what rank 0 says, and pass a signal on to it, until the worker group has ended."""
        told = 0
        while not attempt.ended(_LOOK):
            self._head.answers(_HEAD_LOOK)
            self._print()
            if interrupt.signal and self._ray.get(self._board.run.remote()) is None:
                self._stop_if_asked(interrupt)  # no rank trains yet: there is nothing to save
            if interrupt.signal and not told:
                told = interrupt.signal
                self._ray.get(self._board.stop.remote(told))
            if self._ray.get(self._board.fault.remote()) is not None:
                attempt.ended(_ENDING)  # the rank has failed: Ray Train ends the others
                break

    def _stop_if_asked(self, interrupt: Interrupt) -> None:
        """Where no rank trains: end as other commands do, if there was a signal."""
        if not interrupt.signal:
            return
        if self._ray.get(self._board.run.remote()) is not None:
            say(self._console, f"ray         interrupted; {_GOES_ON}")
        if interrupt.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + interrupt.signal)

    def _print(self) -> None:
        for line in self._ray.get(self._board.lines.remote()):
            say(self._console, line)

    def _raise_fault(self) -> None:
        fault = self._ray.get(self._board.fault.remote())
        if fault is not None:
            raise (UsageError if fault.exit_code == UsageError.exit_code else UserError)(fault.words)


def _ask_for(bundles: list[dict[str, float]]) -> None:
    """Ask for nodes that have these amounts, where the cluster can grow; for none instead of what was asked before."""
    from ray.autoscaler import sdk

    sdk.request_resources(bundles=bundles)


def _amounts(config: Train, nodes: list[dict[str, float]]) -> Mapping[str, float]:
    """What a rank takes. Raises UsageError where --device says something else."""
    if config.resources_per_worker is not None:
        amounts: Mapping[str, float] = parse(config.resources_per_worker, "--resources-per-worker", "rank")
    else:
        amounts = usual(nodes, config.device)
    if config.device == "cuda" and "GPU" not in amounts:
        raise UsageError("--device cuda: a rank has no GPU; add gpu=1 to --resources-per-worker")
    if config.device == "cpu" and "GPU" in amounts:
        raise UsageError("--device cpu: a rank has a GPU; leave gpu out of --resources-per-worker")
    return amounts


def _shares_evenly(run: Path, config: Train, ranks: int) -> bool:
    """Whether so many ranks can go on with a run, whose steps keep their images."""
    if not (run / rundir.CONFIG).exists():
        return True
    try:
        rundir.batch_of_before(run, config, ranks)
    except UsageError:
        return False
    return True
