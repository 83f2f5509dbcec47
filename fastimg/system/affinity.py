"""Cores for a rank: those of the NUMA node that its GPU is attached to, read from /sys. Does not import torch.

Linux puts memory on the node of the thread that touches it first, so a rank that runs beside its GPU also has its
pinned memory there. Functions take `root`, the folder that contains /proc and /sys: tests provide their own.
"""

import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastimg.wording import plural

from .hardware import ROOT

LEAST = 0.8  # of its even share: with fewer cores a rank stays unbound, since decoding needs cores more than nearness


@dataclass(frozen=True)
class Binding:
    """The cores that a process was bound to, none if it was not, and about that in words; empty if there is no news."""

    cores: tuple[int, ...] = ()
    words: str = ""


UNBOUND = Binding()


@dataclass(frozen=True)
class _Place:
    """Where a GPU is attached."""

    node: int
    cores: frozenset[int]


def bind(addresses: Sequence[str | None], local_rank: int, device: str, root: Path = ROOT) -> Binding:
    """Move this process, with all its threads, to its share of the cores beside its GPU.

    `addresses` are the PCI addresses of the GPUs of this machine's ranks. A process whose cores somebody else has
    chosen stays where it is, and so does one that would leave cores idle. Later threads inherit the cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        return UNBOUND
    chosen = plan(addresses, local_rank, device, frozenset(os.sched_getaffinity(0)), root)
    if not chosen.cores:
        return chosen
    try:
        os.sched_setaffinity(0, chosen.cores)
    except OSError as error:
        return Binding(words=f"not bound to {chosen.words}: {error.strerror}")
    for thread in _threads(root):
        with suppress(OSError):  # it has ended, or is the kernel's
            os.sched_setaffinity(thread, chosen.cores)
    return chosen


def plan(
    addresses: Sequence[str | None], local_rank: int, device: str, allowed: frozenset[int], root: Path = ROOT
) -> Binding:
    """What `bind` does to a process that may run on the `allowed` cores. Every rank plans alike, for all ranks."""
    whole = machine_cores(root)
    if whole and allowed != whole:
        return Binding(words=f"{spans(allowed)}, to which this process was restricted from outside")
    places = [None if address is None else _place(address, root) for address in addresses]
    own = places[local_rank]
    known = [place for place in places if place is not None]
    if own is None or len(known) < len(places):
        return Binding(words=f"not bound: the machine does not tell the NUMA node of {device} or of another rank's GPU")
    shares = [_share(known, rank, allowed, root) for rank in range(len(known))]
    even = len(allowed) / len(known)
    fewest = min(map(len, shares))
    if fewest < max(1.0, LEAST * even):
        return Binding(
            words=f"not bound to NUMA nodes: some rank would have {fewest} of the {plural(len(allowed), 'core')}, and "
            f"{plural(len(known), 'rank')} can have {even:.3g} each"
        )
    if frozenset(shares[local_rank]) == allowed:
        return UNBOUND
    return Binding(shares[local_rank], f"{spans(shares[local_rank])} of NUMA node {own.node}, beside {device}")


def machine_cores(root: Path = ROOT) -> frozenset[int]:
    """The cores that are online and in this process's cpuset; nothing if neither is known.

    A process that may run on fewer was restricted by taskset, numactl, torchrun or a batch system.
    """
    online = _cores(root / "sys/devices/system/cpu/online")
    groups = root / "sys/fs/cgroup"
    own = ""
    controlled = ""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                own = path.strip("/")
            elif "cpuset" in controllers.split(","):
                controlled = path.strip("/")
    for folder, name in ((groups / own, "cpuset.cpus.effective"), (groups, "cpuset.cpus.effective")):
        if cores := _cores(folder / name):
            return cores & online if online else cores
    for folder in (groups / "cpuset" / controlled, groups / "cpuset"):
        for name in ("cpuset.effective_cpus", "cpuset.cpus"):
            if cores := _cores(folder / name):
                return cores & online if online else cores
    return online


def parse_list(text: str) -> frozenset[int]:
    """0, 1, 2, 3 and 8 for "0-3,8", as Linux writes lists of cores."""
    cores: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cores |= set(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def spans(cores: Collection[int]) -> str:
    """ "cores 0-3,8", the other way round."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    words = ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
    return f"{'core' if len(cores) == 1 else 'cores'} {words}"


def _place(address: str, root: Path) -> _Place | None:
    """Where a GPU is attached; None where the machine does not tell, as many virtual ones do not."""
    folder = root / "sys/bus/pci/devices" / address
    try:
        node = int((folder / "numa_node").read_text(encoding="ascii"))
        cores = parse_list((folder / "local_cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return _Place(node, cores) if node >= 0 and cores else None


def _share(places: Sequence[_Place], rank: int, allowed: frozenset[int], root: Path) -> tuple[int, ...]:
    """A rank's part of the cores of its node: whole processors where there are enough, beside its GPU's other ranks."""
    mates = [other for other, place in enumerate(places) if place.node == places[rank].node]
    cores = sorted(places[rank].cores & allowed, key=lambda core: (processor(core, root), core))
    at = mates.index(rank)
    return tuple(sorted(cores[len(cores) * at // len(mates) : len(cores) * (at + 1) // len(mates)]))


def processor(core: int, root: Path) -> int:
    """The first of the cores that share a physical processor with this one."""
    siblings = _cores(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    return min(siblings, default=core)


def _cores(file: Path) -> frozenset[int]:
    try:
        return parse_list(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def _threads(root: Path) -> list[int]:
    """The threads of this process."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(root / "proc/self/task") if name.isdigit()]
    return []
