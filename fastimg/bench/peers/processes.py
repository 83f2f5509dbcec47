"""Each loader in a process of its own: settings, threads and crashes of one are not the others'.

The parent asks for one epoch at a time, so that epochs of all loaders are interleaved; who is not asked is idle. Each
process leads a session: Ctrl-C is the parent's to obey, and what a loader has started ends with it.
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
from .pipelines import Batches, Peer, Work

_SECONDS = 600  # an answer that takes longer does not come any more
_PATIENCE = 20  # seconds that a loader may take to end
_LONGEST = 300  # characters of a fault


class PeerError(Exception):
    """A loader failed, or does not answer. The message says how; a note has the loader's own traceback."""

    def __init__(self, message: str, of_data: bool = False) -> None:
        super().__init__(message)
        self.of_data = of_data  # a sentence about DATA, by fastimg


class Epoch(NamedTuple):
    """What an epoch took."""

    images: int
    seconds: float
    processor: float | None  # seconds of all processors; None where the system does not tell


class Remote:
    """A loader in a child process. What it is asked for raises PeerError."""

    def __init__(self, name: str, peer: Peer, threads: int) -> None:
        self.name, self.peer = name, peer
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        usual = multiprocessing.get_start_method()  # a spawned process would spawn its workers, too
        self._process = context.Process(target=_serve, args=(theirs, peer, usual), name=f"loader {name}")
        self._ended = False
        try:
            with _surroundings(threads):
                self._process.start()
            theirs.close()
        except BaseException:
            self.close(0)
            raise

    def make(self, sources: Sources) -> None:
        """What the loader reads of `sources`."""
        if self.peer.make is not None:
            self._ask("make", sources)

    def epoch(self, work: Work) -> Epoch:
        """One epoch, timed."""
        epoch: Epoch = self._ask("epoch", work)
        if epoch.images != len(work.sources.files):
            raise PeerError(f"gave {plural(epoch.images, 'image')} in an epoch of {len(work.sources.files)}")
        return epoch

    def images(self, work: Work) -> npt.NDArray[np.uint8]:
        """All images of an epoch [N, S, S, 3]."""
        images: npt.NDArray[np.uint8] = self._ask("images", work)
        return images

    def boxes(self, work: Work) -> npt.NDArray[np.float64]:
        """Crop boxes of an epoch of gradients [N, 5]."""
        boxes: npt.NDArray[np.float64] = self._ask("boxes", work)
        return boxes

    def hang_up(self) -> None:
        """Tell the process to end."""
        self._pipe.close()

    def close(self, patience: float = _PATIENCE) -> None:
        """End the process, and what it has started; by force after `patience` seconds."""
        self.hang_up()
        if self._process.pid is None or self._ended:
            return
        try:
            connection.wait([self._process.sentinel], patience)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # nobody has waited for it: the number is still its own
            self._process.kill()  # where it leads no session yet
            self._process.join()
            self._ended = True

    def _ask(self, what: str, argument: Sources | Work) -> Any:
        try:
            self._pipe.send((what, argument))
            # Both: a child of the process that holds the pipe may outlive it.
            if not connection.wait([self._pipe, self._process.sentinel], _SECONDS):
                raise PeerError(f"no answer within {_SECONDS} s")
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
    """Processes of these loaders, with up to so many threads, ended in the end: at once where it is an error."""
    opened: dict[str, Remote] = {}
    patience = 0.0
    try:
        for name, peer in peers.items():
            opened[name] = Remote(name, peer, threads)
        yield dict(opened)
        patience = _PATIENCE
    finally:
        for remote in opened.values():  # all of them before any is awaited
            remote.hang_up()
        with ExitStack() as stack:  # goes on where an interrupt strikes
            for remote in opened.values():
                stack.callback(remote.close, patience)


@contextmanager
def _surroundings(threads: int) -> Iterator[None]:
    """What a process inherits: what is read when numba and tqdm are imported; and no Ctrl-C."""
    # A ceiling for FFCV's threads; no bars of FFCV's writer.
    settings = {"NUMBA_NUM_THREADS": str(max(available_cpus(), threads)), "TQDM_DISABLE": "1"}
    before = {name: os.environ.get(name) for name in settings}
    resource_tracker.ensure_running()  # else the first start does, and lets signals through again
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
    """The child: answer until the parent hangs up."""
    os.setsid()
    os.dup2(2, 1)  # standard output is the parent's: what a library prints is no result
    warnings.simplefilter("ignore")  # of libraries whose users are not here
    if peer.module is not None:  # numba's finalizers fail on what FFCV compiles for each of its loaders
        sys.unraisablehook = lambda _: None
    multiprocessing.set_start_method(start_method, force=True)
    opened: dict[Work, Batches] = {}
    while True:
        try:
            what, argument = pipe.recv()
        except EOFError:
            return
        answer, fault = None, None
        try:
            if isinstance(argument, Sources):
                assert peer.make is not None
                peer.make(argument)
            else:
                if argument not in opened:
                    opened.clear()  # one loader at a time: what is not asked for holds nothing
                    opened[argument] = peer.open(argument)
                answer = _ANSWERS[what](opened[argument], argument.size)
        except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
            fault = (_sentence(error), isinstance(error, DataError), traceback.format_exc())
        try:
            pipe.send((fault, answer))
        except BrokenPipeError:  # the parent hung up meanwhile
            return


def _sentence(error: Exception) -> str:
    """What a library says, in a line: where it says much, the last that speaks of a fault, else the last."""
    if isinstance(error, DataError):
        return str(error)
    lines = [re.sub(r"^\[/[^\]]*\]\s*", "", line.strip()) for line in str(error).splitlines()]
    lines = [line for line in lines if line]
    told = [line for line in lines if re.search("error|fail", line, re.IGNORECASE) and line[-1] not in ",:"]
    line = lines[0] if len(lines) == 1 else (told or lines or [""])[-1]
    return f"{type(error).__name__}: {line}"[:_LONGEST]


def _epoch(batches: Batches, size: int) -> Epoch:
    busy, began, count = _cpu_seconds(), time.perf_counter(), 0
    for batch in batches():
        _check(batch, size)
        count += len(batch)
    seconds, after = time.perf_counter() - began, _cpu_seconds()
    return Epoch(count, seconds, None if busy is None or after is None else after - busy)


def _images(batches: Batches, size: int) -> npt.NDArray[np.uint8]:
    return np.concatenate([_pixels(batch, size) for batch in batches()])


def _boxes(batches: Batches, size: int) -> npt.NDArray[np.float64]:
    return np.concatenate([read_boxes(_pixels(batch, size)) for batch in batches()])


_ANSWERS = {"epoch": _epoch, "images": _images, "boxes": _boxes}


def _pixels(batch: torch.Tensor, size: int) -> npt.NDArray[np.uint8]:
    _check(batch, size)
    return batch.permute(0, 2, 3, 1).numpy().copy()


def _check(batch: torch.Tensor, size: int) -> None:
    if batch.shape[1:] != (3, size, size) or batch.dtype != torch.uint8:
        raise ValueError(f"a batch of {batch.dtype} {list(batch.shape)}, not of uint8 [B, 3, {size}, {size}]")


def _cpu_seconds() -> float | None:
    """Processor time of this process and all below it that live, user and system. None where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    tree = {os.getpid()}
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            stats[int(entry.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    while True:
        found = {pid for pid, (parent, _) in stats.items() if parent in tree} - tree
        if not found:
            break
        tree |= found
    ticks = sum(stats[pid][1] for pid in tree if pid in stats)
    return ticks / os.sysconf("SC_CLK_TCK")
