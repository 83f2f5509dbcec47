"""`fastimg search`: by stages within a time, or over the values of flags."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fastimg.config.searching import Search
from fastimg.errors import UsageError
from fastimg.system import terminal
from fastimg.system.progress import spent
from fastimg.system.signals import sigterm_exits
from fastimg.wording import plural

from .hosts.machine import LocalHosts
from .hosts.process import TrialHosts
from .places.folder import locked, remembered
from .places.stored_search import stored_search
from .pool import TrialPool
from .records import TIME_OVER
from .request import SearchRequest, request

if TYPE_CHECKING:
    from .leaderboard import Leaderboard


def search(settings: Search, console: Console, errors: Console) -> "Leaderboard":
    """Search, print the leaderboard, and leave it in the folder. With --json all other lines go to standard error.

    Raises UsageError, UserError and DataError; KeyboardInterrupt after what is known has been written.
    """
    asked = request(settings)
    lines = errors if settings.json else console

    def say(text: str) -> None:
        terminal.say(lines, text)

    say(f"starting    fastimg search in {asked.place}; importing torch takes a few seconds")
    began = time.monotonic()
    from .leaderboard import print_board
    from .plots import draw

    devices = devices_of(settings.device, settings.jobs) if settings.backend == "local" else []
    with sigterm_exits(), ExitStack() as stack:
        lock = stack.enter_context(locked(asked.folder))
        if asked.store is not None:
            stack.enter_context(stored_search(asked.store, asked.folder, say))
        hosts = LocalHosts(devices, inherited=(lock,)) if devices else _ray_hosts(asked, stack)
        stack.enter_context(remembered(asked.folder, asked.remembered))
        pool = stack.enter_context(TrialPool(hosts, None, say))
        if asked.seconds is not None:
            pool.deadline = began + asked.seconds
        board = _searched(asked, pool, say, lines, hosts.device != "cpu", began)
        board = replace(board, folder=asked.place)
        for remark in draw(board, asked.folder):
            say(remark)
    pruned = sum(board.pruned.values())
    if settings.json:
        print(json.dumps(board.as_json()))
        return board
    print_board(board, console)
    for reason, count in list(board.pruned.items())[:3]:
        more = "; more --max-time goes on with it" if reason.startswith(TIME_OVER) else ""
        say(f"ended early {plural(count, 'trial')}: {reason}{more}")
    assert board.winner is not None
    say(
        f"{plural(len(board.rows), 'model')}, {plural(pruned, 'trial')} ended early, in "
        f"{spent(time.monotonic() - began)}; the best is {asked.place}/best, whose config.yaml trains it again"
    )
    return board


def _ray_hosts(asked: SearchRequest, stack: ExitStack) -> TrialHosts:
    """The nodes of a Ray cluster, with which the stack stays connected."""
    settings = asked.asked
    from .hosts.cluster import ClusterRequest, connected

    if settings.json:  # Ray prints its messages to whatever standard output is
        stack.enter_context(redirect_stdout(sys.stderr))

    cluster = ClusterRequest(
        address=settings.address,
        amounts=asked.amounts,
        jobs=settings.jobs,
        device=settings.device,
        memory=settings.limit_gpu_memory,
        data=asked.data,
        folder=asked.folder,
    )
    hosts = stack.enter_context(connected(cluster))
    if hosts.device == "cuda" and not asked.parameters and not _gpus():
        raise UsageError(
            "search --max-time: encoders are measured where the search starts, which has no GPU, and trials have one; "
            "start it on a machine of the cluster that has one, or search with --param"
        )
    return hosts


def _searched(
    asked: SearchRequest, pool: TrialPool, say: Any, lines: Console, gpu: bool, began: float
) -> "Leaderboard":
    """The leaderboard, and the curves of the best run."""
    if asked.parameters:
        from .param_search import search_parameters

        with _live(lines) as progress:
            board = search_parameters(asked, pool, say, progress, began)
    else:
        from .staged.stages import search_by_stages
        from .staged.trials import StagedSearch

        assert asked.seconds is not None
        settings = asked.asked
        staged = StagedSearch(
            data=asked.data,
            folder=asked.folder,
            seconds=asked.seconds,
            shared=asked.shared,
            metric=settings.metric,
            archs=asked.archs,
            weights=settings.weights,
            device=settings.device,
            gpu=gpu,
            seed=settings.seed,
            storage=settings.storage,
            keep=settings.keep,
        )
        board = search_by_stages(staged, pool, say, began=began)
    if board.winner is not None:
        _draw_curves(asked.folder / board.winner.run, board.metric, say)
    return board


def _draw_curves(run: Path, metric: str, say: Callable[[str], None]) -> None:
    """The curves of a run that was trained without drawing them."""
    from fastimg.config.commands import Train
    from fastimg.config.yaml_file import load
    from fastimg.train.checkpoints.run_directory import CONFIG, read_log
    from fastimg.train.reporting.summary import draw_curves

    records = read_log(run, say)
    epoch = next((record for record in records if record["kind"] == "epoch"), None)
    if epoch is None:
        return
    if metric == "loss":  # is drawn anyway; of targets, the first score that validations tell stands beside it
        told = (name for record in records if record["kind"] == "val" for name in record)
        metric = next((name for name in told if name == "top1" or ("." in name and not name.endswith(".loss"))), metric)
    draw_curves(run, load(run / CONFIG, Train), metric, records, max(1, epoch["step"] // epoch["epoch"]))


def devices_of(device: str, jobs: int | None) -> list[str]:
    """A device for each process: every GPU that is visible, or the CPU; as many as there are to be trials at a time.

    GPUs are named as in CUDA_VISIBLE_DEVICES. Raises UsageError for a GPU that is not there.
    """
    names = [] if device == "cpu" else _gpus()
    if device.startswith("cuda:"):
        number = device.removeprefix("cuda:")
        if not number.isdigit() or int(number) >= len(names):
            raise UsageError(f"--device {device}: {plural(len(names), 'GPU')} can be used here; choose another device")
        names = [names[int(number)]]
    elif device == "cuda" and not names:
        raise UsageError("--device cuda: no GPU can be used here; `fastimg doctor` says why")
    elif device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {device}: give auto, cpu, cuda or cuda:N")
    found = [f"cuda:{name}" for name in names] or ["cpu"]
    return [found[number % len(found)] for number in range(jobs or len(found))]


def _gpus() -> list[str]:
    """The visible GPUs, by the names that CUDA_VISIBLE_DEVICES has for them."""
    import torch

    count = torch.cuda.device_count()
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[:count] or [str(number) for number in range(count)]


@contextmanager
def _live(console: Console) -> Iterator[Any]:
    """The line that says how far the search is; only on a terminal."""
    if not console.is_terminal:
        yield lambda _text: None
        return
    with console.status("") as status:
        yield status.update
