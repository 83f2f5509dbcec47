"""Runs each loader in its own process, so that its settings, threads and crashes do not affect the others.

The parent requests one epoch at a time, so epochs of all loaders are interleaved. A loader answers when it is idle, so
that batches which it prepares for its next epoch take no cores from the others. Each
process leads a session: only the parent handles Ctrl-C, and whatever a loader has started ends with its process.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastimg.loaders import DataError
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.wording import plural

from .data import Sources, read_boxes
from .pipelines import Batches, Peer, Workload

_TIMEOUT = 600  # seconds to wait for an answer
_PATIENCE = 20  # seconds that a loader may take to exit
_AHEAD = 5.0  # seconds that a loader may go on after an epoch, with batches of the next one
_LOOK = 0.1  # seconds between two looks at whether it still does
_IDLE = 0.2  # of a core
_MAX_CHARACTERS = 300  # of a fault


class PeerError(Exception):
    """A loader failed, or did not answer. The message says how; a note has the loader's own traceback."""

    def __init__(self, message: str, of_data: bool = False) -> None:
        super().__init__(message)
        self.of_data = of_data  # the message is fastimg's own, about DATA


class Epoch(NamedTuple):
    """The measurements of one epoch."""

    images: int
    seconds: float
    processor: float | None  # CPU seconds over all cores; None if the system does not report them


class Remote:
    """A loader in a child process. All requests may raise PeerError."""

    def __init__(self, name: str, peer: Peer, threads: int) -> None:
        self.name = name
        self.peer = peer
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        method = multiprocessing.get_start_method()  # for its workers; a spawned process would spawn them, too
        self._process = context.Process(target=_serve, args=(theirs, peer, method), name=f"loader {name}")
        self._ended = False
        try:
            with _child_environment(threads):
                self._process.start()
            theirs.close()
        except BaseException:
            self.close(0)
            raise

    def make(self, sources: Sources) -> None:
        """Write the loader's input."""
        if self.peer.make is not None:
            self._ask("make", sources)

    def epoch(self, work: Workload) -> Epoch:
        """Time one epoch."""
        epoch: Epoch = self._ask("epoch", work)
        if epoch.images != len(work.sources.files):
            raise PeerError(f"returned {plural(epoch.images, 'image')} in an epoch of {len(work.sources.files)}")
        return epoch

    def images(self, work: Workload) -> npt.NDArray[np.uint8]:
        """All images of an epoch [N, S, S, 3]."""
        images: npt.NDArray[np.uint8] = self._ask("images", work)
        return images

    def boxes(self, work: Workload) -> npt.NDArray[np.float64]:
        """Crop boxes of an epoch of gradients [N, 5]."""
        boxes: npt.NDArray[np.float64] = self._ask("boxes", work)
        return boxes

    def hang_up(self) -> None:
        """Tell the process to exit."""
        self._pipe.close()

    def close(self, patience: float = _PATIENCE) -> None:
        """End the process and everything it has started, after waiting up to `patience` seconds for it to exit."""
        self.hang_up()
        if self._process.pid is None or self._ended:
            return
        try:
            connection.wait([self._process.sentinel], patience)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # not waited for yet, so the id cannot be reused
            self._process.kill()  # in case it does not lead a session yet
            self._process.join()
            self._ended = True

    def _ask(self, what: str, argument: Sources | Workload) -> Any:
        try:
            self._pipe.send((what, argument))
            # Wait for both, since a child that holds the pipe may outlive the process.
            if not connection.wait([self._pipe, self._process.sentinel], _TIMEOUT):
                raise PeerError(f"no answer within {_TIMEOUT} s")
            if not self._pipe.poll():
                raise EOFError
            fault, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self.close(5)
            raise PeerError(f"its process died (status {self._process.exitcode})") from error
        if fault is not None:
            sentence, of_data, details = fault
            wrong = PeerError(sentence, of_data)
            wrong.add_note(details)
            raise wrong
        return answer


@contextmanager
def remotes(peers: Mapping[str, Peer], threads: int) -> Iterator[dict[str, Remote]]:
    """Start a process for each loader, for up to `threads` threads; they end with the block, at once after an error."""
    opened: dict[str, Remote] = {}
    patience = 0.0
    try:
        for name, peer in peers.items():
            opened[name] = Remote(name, peer, threads)
        yield dict(opened)
        patience = _PATIENCE
    finally:
        for remote in opened.values():  # all of them, before waiting for any
            remote.hang_up()
        with ExitStack() as stack:  # closes all of them, even after an interrupt
            for remote in opened.values():
                stack.callback(remote.close, patience)


@contextmanager
def _child_environment(threads: int) -> Iterator[None]:
    """Set what a child process inherits: variables that numba and tqdm read when imported, and SIGINT blocked."""
    # An upper limit for FFCV's threads, and no progress bars from FFCV's writer.
    settings = {"NUMBA_NUM_THREADS": str(max(available_cpus(), threads)), "TQDM_DISABLE": "1"}
    before = {name: os.environ.get(name) for name in settings}
    resource_tracker.ensure_running()  # otherwise the first start would do it, and unblock signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(pipe: connection.Connection, peer: Peer, start_method: str) -> None:
    """The child process: answers requests until the parent hangs up."""
    os.setsid()
    os.dup2(2, 1)  # standard output belongs to the parent; what libraries print goes to standard error
    warnings.simplefilter("ignore")  # warnings of other libraries are not for the user of bench
    if peer.module is not None:  # numba's finalizers fail on functions that FFCV compiles for its loaders
        sys.unraisablehook = lambda _: None
    multiprocessing.set_start_method(start_method, force=True)
    opened: dict[Workload, Batches] = {}
    while True:
        try:
            what, argument = pipe.recv()
        except EOFError:
            return
        answer = None
        fault = None
        try:
            if isinstance(argument, Sources):
                assert peer.make is not None
                peer.make(argument)
            else:
                if argument not in opened:
                    opened.clear()  # one loader at a time: the previous one releases its resources
                    opened[argument] = peer.open(argument)
                answer = _ANSWERS[what](opened[argument], argument.size, peer.dtype)
        except Exception as error:  # noqa: BLE001 - any error is sent to the parent
            fault = (_sentence(error), isinstance(error, DataError), traceback.format_exc())
        try:
            pipe.send((fault, answer))
        except BrokenPipeError:  # the parent hung up in the meantime
            return


def _sentence(error: Exception) -> str:
    """A library's error in one line: of a long message the last line that mentions an error, else the last line."""
    if isinstance(error, DataError):
        return str(error)
    lines = [re.sub(r"^\[/[^\]]*\]\s*", "", line.strip()) for line in str(error).splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if re.search("error|fail", line, re.IGNORECASE) and line[-1] not in ",:"]
    line = lines[0] if len(lines) == 1 else (errors or lines or [""])[-1]
    return f"{type(error).__name__}: {line}"[:_MAX_CHARACTERS]


def _epoch(batches: Batches, size: int, dtype: torch.dtype = torch.uint8) -> Epoch:
    count = 0
    before = _cpu_seconds()
    began = time.perf_counter()
    for batch in batches():
        _check(batch, size, dtype)
        count += len(batch)
    seconds = time.perf_counter() - began
    after = _cpu_seconds()
    _settle()
    return Epoch(count, seconds, None if before is None or after is None else after - before)


def _settle() -> None:
    """Wait until what a loader does ahead of its next epoch is done: it would take cores from the loader after it."""
    end = time.monotonic() + _AHEAD
    busy = _cpu_seconds()
    while busy is not None and time.monotonic() < end:
        time.sleep(_LOOK)
        before, busy = busy, _cpu_seconds()
        if busy is None or busy - before <= _IDLE * _LOOK:
            return


def _images(batches: Batches, size: int, dtype: torch.dtype = torch.uint8) -> npt.NDArray[np.uint8]:
    return np.concatenate([_pixels(batch, size, dtype) for batch in batches()])


def _boxes(batches: Batches, size: int, dtype: torch.dtype = torch.uint8) -> npt.NDArray[np.float64]:
    return np.concatenate([read_boxes(_pixels(batch, size, dtype)) for batch in batches()])


_ANSWERS = {"epoch": _epoch, "images": _images, "boxes": _boxes}


def _pixels(batch: torch.Tensor, size: int, dtype: torch.dtype) -> npt.NDArray[np.uint8]:
    _check(batch, size, dtype)
    levels = batch if dtype == torch.uint8 else (255 * batch).round().to(torch.uint8)
    return levels.permute(0, 2, 3, 1).numpy().copy()


def _check(batch: torch.Tensor, size: int, dtype: torch.dtype) -> None:
    if batch.shape[1:] != (3, size, size) or batch.dtype != dtype:
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"a batch is {batch.dtype} {list(batch.shape)}, not {name} [B, 3, {size}, {size}]")


def _cpu_seconds() -> float | None:
    """User and system CPU time of this process and its living descendants. None on systems without /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    tree = {os.getpid()}
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended in the meantime
                continue
            stats[int(entry.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    while True:
        children = {pid for pid, (parent, _) in stats.items() if parent in tree} - tree
        if not children:
            break
        tree |= children
    ticks = sum(stats[pid][1] for pid in tree if pid in stats)
    return ticks / os.sysconf("SC_CLK_TCK")
