"""Each loader in a process of its own: settings, threads and crashes of one are not the others'.

The parent asks for one epoch at a time, so that epochs of all loaders are interleaved; who is not asked is idle.
"""

import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loader_data import read_boxes
from loader_peers import PEERS, Work

_SECONDS = 600  # an answer that takes longer does not come any more


class PeerError(Exception):
    """A loader failed, or does not answer; the message says which and how."""


class Remote:
    """A loader in a child process."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = context.Pipe()
        usual = multiprocessing.get_start_method()  # a spawned process would spawn its workers, too
        self._process = context.Process(target=_serve, args=(theirs, name, usual), name=f"loader {name}")
        self._process.start()
        theirs.close()

    def ask(self, what: str, work: Work) -> Any:
        """The answer of `epoch`, `images` or `boxes`. Raises PeerError."""
        try:
            self._pipe.send((what, work))
            if not self._pipe.poll(_SECONDS):
                raise PeerError(f"{self.name}: no answer within {_SECONDS} s")
            fault, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            raise PeerError(f"{self.name}: its process died (status {self._process.exitcode})") from error
        if fault:
            raise PeerError(f"{self.name}: {fault}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def remotes(names: list[str]) -> Iterator[dict[str, Remote]]:
    """Processes of these loaders, ended in the end."""
    opened = {name: Remote(name) for name in names}
    try:
        yield dict(opened)
    finally:
        for remote in opened.values():
            remote.close()


def _serve(pipe: Connection, name: str, start_method: str) -> None:
    """The child: answer until the parent hangs up."""
    multiprocessing.set_start_method(start_method, force=True)
    opened: dict[Work, Any] = {}
    while True:
        try:
            what, work = pipe.recv()
        except EOFError:
            return
        try:
            if work not in opened:
                opened.clear()  # one loader at a time: what is not asked for holds nothing
                opened[work] = PEERS[name].open(work)
            pipe.send((None, _ANSWERS[what](opened[work])))
        except Exception:  # noqa: BLE001 - told to the parent, whatever it is
            pipe.send((traceback.format_exc(), None))


def _epoch(batches: Any) -> tuple[int, float, float]:
    """(images, seconds, seconds of all its processors) of an epoch."""
    busy, began, count = _cpu_seconds(), time.perf_counter(), 0
    for batch in batches():
        count += len(batch)
    return count, time.perf_counter() - began, _cpu_seconds() - busy


def _images(batches: Any) -> np.ndarray:
    """All images of an epoch [N, S, S, 3]."""
    return np.concatenate([_pixels(batch) for batch in batches()])


def _boxes(batches: Any) -> np.ndarray:
    """Crop boxes of an epoch of gradients [N, 5]."""
    return np.concatenate([read_boxes(_pixels(batch)) for batch in batches()])


_ANSWERS = {"epoch": _epoch, "images": _images, "boxes": _boxes}


def _pixels(batch: torch.Tensor) -> np.ndarray:
    return batch.permute(0, 2, 3, 1).numpy().copy()


def _cpu_seconds() -> float:
    """Processor time of this process and all below it that live, user and system."""
    tree, ticks = {os.getpid()}, 0
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
