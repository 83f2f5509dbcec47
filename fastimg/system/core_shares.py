"""Cores for one of several processes that share a machine, and are no ranks of one training."""

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .affinity import processor
from .hardware import ROOT


def even_share(place: int, count: int, root: Path = ROOT) -> tuple[int, ...]:
    """The cores of one of `count` processes: an even part of those allowed, of whole processors where that fits.

    Neighbouring places have neighbouring cores, as GPUs and NUMA nodes are usually numbered alike. Empty for all cores:
    of one process, or where there are fewer cores than processes.
    """
    cores = allowed(root)
    if count < 2 or len(cores) < count:
        return ()
    return tuple(sorted(cores[len(cores) * place // count : len(cores) * (place + 1) // count]))


def allowed(root: Path = ROOT) -> list[int]:
    """The cores that this process may run on; those of one physical processor stand side by side."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0), key=lambda core: (processor(core, root), core))


class CoreClaim:
    """Some cores of this machine, which no other claim has, as long as there are enough.

    A claim is a locked file per core, and ends with the process that made it, however that ends. cores: empty for all,
    where as many as there are were asked for.
    """

    def __init__(self, count: int, cores: Sequence[int] | None = None, folder: Path | None = None) -> None:
        cores = allowed() if cores is None else cores
        folder = folder or Path(tempfile.gettempdir()) / f"fastimg-cores-{os.getuid()}"
        self.cores: tuple[int, ...] = ()
        self._handles: list[int] = []
        if not 0 < count < len(cores):
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        taken = [core for core in cores if len(self._handles) < count and self._take(folder / str(core))]
        rest = [core for core in cores if core not in taken]  # more was promised than there is: share these
        self.cores = tuple(sorted([*taken, *rest[: count - len(taken)]]))

    def _take(self, file: Path) -> bool:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._handles.append(handle)
        return True

    def release(self) -> None:
        """Let others have them."""
        while self._handles:
            os.close(self._handles.pop())
