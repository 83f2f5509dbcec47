"""Writes checkpoints while training continues: a thread takes a copy in host memory to disk, one at a time.

    room -> HostCopy.take -> put(snapshot, links) -> [thread: wait for the copy, write, sync, rename, link, prune]

The next checkpoint waits for the one before. What goes wrong in the thread is raised at the next call of `settle`.
"""

import errno
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError

from fastimg.config.values.durations import Interval
from fastimg.errors import UserError
from fastimg.loaders.errors import not_written
from fastimg.system.memory import ran_out
from fastimg.system.rank_failures import lost_contact

from . import format as checkpoint
from .host_copy import HostCopy
from .run_directory import going_on

_ROOM = 1 << 20  # bytes on a disk that is full: what is left is too little for a block of torch's
PAUSE = 10.0  # seconds from the beginning of a run, and between checkpoints that may wait
_UNWRITTEN = (OSError, RuntimeError, SafetensorError)  # a full disk, as each library says


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """A checkpoint that later steps do not change. Its tensors lie in `room`, or are `Writer.still`."""

    card: checkpoint.Card
    weights: Mapping[str, torch.Tensor]
    training: dict[str, Any]
    averages: Mapping[str, torch.Tensor] | None
    files: Mapping[str, bytes] | None
    room: HostCopy


class Writer:
    """What is written, and what waits for it. All methods are called by the thread that trains.

    `with writer:` ends with everything on disk, or raises why it is not; after another error it writes what it can.
    """

    def __init__(self, directory: Path, keep: int, device: torch.device) -> None:
        self._directory = directory
        self._keep = keep
        self._device = device
        self._rooms: list[HostCopy] = []  # free ones
        self._still: dict[str, torch.Tensor] = {}  # by name, in host memory
        self._copying: HostCopy | None = None  # the next optimiser's step has to wait for it
        self._waiting: dict[str, Snapshot] = {}  # by link: what `last` and `best` will be
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()  # when the thread did, or the run
        self.saved: Callable[[], None] = lambda: None  # called by whoever has written a checkpoint
        self._error: tuple[int, BaseException] | None = None  # the step of a checkpoint, and why it is not on disk

    def room(self) -> HostCopy:
        """Host memory for a snapshot: the same again, unless checkpoints wait."""
        return self._rooms.pop() if self._rooms else HostCopy(self._device)

    def still(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors that never change in a run, in host memory: each is copied from a GPU once, for all checkpoints."""
        new = {name: tensor.detach().cpu() for name, tensor in tensors.items() if name not in self._still}
        self._still |= new
        return {name: self._still[name] for name in tensors}

    def hold(self) -> None:
        """Called before the weights change: on a GPU the step's stream waits for a copy of them under way."""
        if self._copying is not None:
            self._copying.hold()
            self._copying = None

    def put(self, snapshot: Snapshot, links: Sequence[str], may_wait: bool = False) -> bool:
        """Write a snapshot, then point `links` at it: at once, or if it `may_wait`, with a later one; or at the end.

        It waits until the disk is free, and `PAUSE` has passed. A checkpoint that waits is replaced by the next one for
        the same link. Returns whether it is being written.
        """
        self._copying = snapshot.room
        before = list(self._waiting.values())
        self._waiting |= dict.fromkeys(links, snapshot)
        for replaced in before:
            if replaced not in self._waiting.values() and replaced.room not in self._rooms:
                self._rooms.append(replaced.room)
        busy = self._thread is not None and self._thread.is_alive()
        waits = may_wait and (busy or time.monotonic() - self._began < PAUSE)
        if not waits:
            self._write_waiting()
        return not waits

    def settle(self) -> None:
        """Wait until nothing is being written. Raises UserError if a checkpoint could not be."""
        self.join()
        if self._error is None:
            return
        step, error = self._error
        self._error = None
        if is_unwritten(error):
            raise unwritten(self._directory, step, error) from error
        raise error

    def join(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """Write what waits, and wait until it is written. Raises UserError if it could not be."""
        if self._waiting:
            self._write_waiting()
        self.settle()

    def complete(self) -> None:
        """Write what waits, and wait until it is written. Of a run that ends with an error of its own; raises none."""
        if self._waiting and self._error is None:
            self.join()
            self._start()
        self.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, Exception):
            self.complete()
        else:  # a second Ctrl-C: what is being written is still completed
            self.join()

    def _write_waiting(self) -> None:
        self.settle()
        self._start()

    def _start(self) -> None:
        snapshots = self._waiting
        self._waiting = {}
        self._began = time.monotonic()
        # Not a daemon: at the end of the process Python waits for it.
        self._thread = threading.Thread(target=self._work, args=(snapshots,), name="fastimg-checkpoint")
        self._thread.start()

    def _work(self, snapshots: Mapping[str, Snapshot]) -> None:
        by_step = {snapshot.card.step: snapshot for snapshot in snapshots.values()}
        for step, snapshot in sorted(by_step.items()):
            try:
                snapshot.room.arrive()
                write(self._directory, snapshot, [link for link, other in snapshots.items() if other is snapshot])
                checkpoint.prune(self._directory, self._keep)
                self.saved()
            except Exception as error:  # noqa: BLE001 - raised by `settle`
                self._error = (step, error)
                return
            finally:
                self._rooms.append(snapshot.room)


def write(directory: Path, snapshot: Snapshot, links: Sequence[str]) -> None:
    """Write one checkpoint, and then move links to it."""
    saved = checkpoint.save(
        directory, snapshot.card, snapshot.weights, snapshot.training, snapshot.averages, snapshot.files
    )
    for link in links:
        checkpoint.point(directory, link, saved)


def is_unwritten(error: BaseException) -> bool:
    """Whether an error says that files could not be written; memory and other ranks have RuntimeErrors, too."""
    return isinstance(error, _UNWRITTEN) and not ran_out(error) and lost_contact(error) is None


def unwritten(directory: Path, step: int, error: BaseException) -> UserError:
    """What to say about a checkpoint that could not be written."""
    reason = not_written(_system_error(directory, error), "see to it that it can be")
    return UserError(
        f"{directory}: the checkpoint of step {step} could not be written: {reason}, then {going_on(directory)}"
    )


def _system_error(directory: Path, error: BaseException) -> BaseException:
    """The system's error where torch, whose writer does not tell, was the first that could not write."""
    if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
        return error
    if shutil.disk_usage(directory).free < _ROOM:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return error


class Pace:
    """When the next checkpoint is due.

    Within an epoch: by steps, or by the clock since the last one. After an epoch: if the last one, or the beginning of
    the run, is `PAUSE` seconds ago, or as much as the interval if that is less.
    """

    def __init__(self, interval: Interval) -> None:
        self._interval = interval
        self.left_out = False  # whether the last epoch has ended without one
        self.saved()

    def saved(self) -> None:
        """A checkpoint is on its way, or training begins."""
        self._since = time.monotonic()

    def at(self, step: int) -> bool:
        """Whether one is due after `step`: the same on all ranks. By the clock, never."""
        return self._interval.steps is not None and step % self._interval.steps == 0

    def overdue(self) -> bool:
        """Whether one is due by this process's clock; ranks agree on rank 0's. By steps, never."""
        return self._interval.seconds is not None and time.monotonic() - self._since >= self._interval.seconds

    def after_epoch(self, step: int) -> bool:
        """Whether one is due at the end of an epoch, after `step`, by this process's clock; ranks agree on rank 0's."""
        return self.at(step) or self.overdue() or time.monotonic() - self._since >= PAUSE
