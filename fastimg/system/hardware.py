"""What hardware the machine has, and how much of it this process may use. torch is imported only by `cuda`.

Functions take `root`, the folder that contains /proc and /sys, so that tests can provide their own.
"""

import os
import re
import resource
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path("/")
# Instruction sets that speed up decoding (avx2) and bf16 on a CPU (the others), by their names in Linux.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Processors. `cores` is how many fastimg uses, all its processes together."""

    model: str
    logical: int
    physical: int | None  # None if unknown
    affinity: int  # cores that this process may run on
    quota: float | None  # of the container, in cores
    cores: int
    instructions: list[str]
    load: float  # load average of the last minute


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of the host, in bytes."""

    total: int
    limit: int | None  # of the container or job
    available: int  # to this process


@dataclass(frozen=True, kw_only=True)
class Space:
    """Space on a file system, in bytes."""

    total: int
    free: int


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder that files are stored in; it need not exist yet."""

    path: str
    writable: bool
    free: int  # bytes
    reason: str = ""  # why it is not writable


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU that is visible to this process."""

    name: str
    memory: int  # bytes
    capability: str
    bf16: bool
    supported: bool  # whether this build of torch has code for it


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """CUDA as torch sees it."""

    build: str | None  # CUDA version that torch was built for; None for a CPU build
    driver: str | None  # version
    available: bool
    reason: str  # why it is not available
    hidden: bool  # by CUDA_VISIBLE_DEVICES
    gpus: list[Gpu]
    cudnn: str | None
    nccl: str | None


def cpu(root: Path = ROOT) -> Cpu:
    """The processors. Raises OSError."""
    from fastimg.loaders.runtime import cpus

    from .measurement import cpu_model

    text = (root / "proc/cpuinfo").read_text(encoding="utf-8")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    pairs = re.findall(r"^physical id\s*: (\d+)$.*?^core id\s*: (\d+)$", text, re.MULTILINE | re.DOTALL)
    groups = root / "sys/fs/cgroup"
    return Cpu(
        model=cpu_model(),
        logical=os.cpu_count() or 1,
        physical=len(set(pairs)) or None,
        affinity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        quota=cpus.cgroup_quota(groups),
        cores=cpus.available_cpus(cgroup=groups),
        instructions=[name for name in INSTRUCTIONS if name in known],
        load=round(os.getloadavg()[0], 2),
    )


def memory(root: Path = ROOT) -> Memory:
    """The memory, and the lowest limit of the cgroups that this process is in. Raises OSError."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    known = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    total = known["MemTotal"]
    available = known["MemAvailable"]
    tightest = None
    for limit, used in _memory_groups(root):
        if limit < total:
            tightest = limit if tightest is None else min(tightest, limit)
            available = min(available, max(0, limit - used))
    return Memory(total=total, limit=tightest, available=available)


def _memory_groups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes for each of this process's cgroups. Cached files do not count: they can be evicted."""
    try:
        own = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        own = []
    paths = {name: path.strip("/") for _, name, path in (line.split(":", 2) for line in own if line.count(":") > 1)}
    groups = root / "sys/fs/cgroup"
    for base, path, (most, used, cached) in (
        (groups, paths.get("", ""), ("memory.max", "memory.current", "inactive_file")),
        (
            groups / "memory",
            paths.get("memory", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ):
        for part in (path, *map(str, Path(path).parents)) if path else (".",):
            try:
                limit = int((base / part / most).read_text())
                taken = int((base / part / used).read_text())
                stat = (base / part / "memory.stat").read_text()
            except (OSError, ValueError):  # no such cgroup, or "max"
                continue
            match = re.search(rf"^{cached} (\d+)$", stat, re.MULTILINE)
            yield limit, taken - (int(match[1]) if match else 0)


def shared_memory(root: Path = ROOT) -> Space:
    """/dev/shm, through which torch's DataLoader passes batches between processes. Raises OSError."""
    status = os.statvfs(root / "dev/shm")
    return Space(total=status.f_blocks * status.f_frsize, free=status.f_bavail * status.f_frsize)


def open_files() -> int | None:
    """How many files a process may have open (`ulimit -n`). None if there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit


def folder(path: Path) -> Folder:
    """Whether files can be written to a folder. Tries it in the folder itself or its nearest existing parent."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        return Folder(path=str(path), writable=False, free=free, reason=f"{existing}: {error.strerror or error}")
    return Folder(path=str(path), writable=True, free=free)


def driver(root: Path = ROOT) -> str | None:
    """The version of the NVIDIA driver. None if there is no driver."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if match := re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text):
        return match[1]
    tool = shutil.which("nvidia-smi")
    if tool is not None:  # in some containers /proc does not say
        command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            pass
        else:
            if match := re.match(r"[\d.]+", asked.stdout):
                return match[0]
    return "of an unknown version" if (root / "dev/nvidiactl").exists() else None


def cuda(root: Path = ROOT) -> Cuda:
    """CUDA and the GPUs that are visible to this process. Raises ImportError if torch is missing."""
    import torch
    from torch.cuda import nccl

    hip = getattr(torch.version, "hip", None)
    build = torch.version.cuda or (f"ROCm {hip}" if hip else None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip() in ("", "-1")
    error = ""
    version = driver(root)
    with warnings.catch_warnings():  # `reason` says the same
        warnings.simplefilter("ignore")
        available = torch.cuda.is_available()
        if not available and build is not None and version is not None and not hidden:
            try:
                torch.cuda.init()  # type: ignore[no-untyped-call]  # the error has the reason
            except (RuntimeError, AssertionError) as failed:
                error = str(failed).splitlines()[0]
        architectures = torch.cuda.get_arch_list() if available else []
        count = torch.cuda.device_count() if available else 0
        gpus = [_gpu(torch.cuda.get_device_properties(number), architectures) for number in range(count)]
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    cudnn = torch.backends.cudnn.version() if build is not None else None  # type: ignore[no-untyped-call]
    numbers = nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    return Cuda(
        build=build,
        driver=version,
        available=available,
        reason="" if available else why_none(build, version, hidden, error),
        hidden=hidden,
        gpus=gpus,
        cudnn=None if cudnn is None else str(cudnn),
        nccl=".".join(map(str, numbers)) or None,
    )


def why_none(build: str | None, driver: str | None, hidden: bool, error: str) -> str:
    """Why torch sees no GPU."""
    if build is None:
        return "this torch is a CPU build"
    if driver is None:
        return "there is no NVIDIA driver"
    if hidden:
        return "CUDA_VISIBLE_DEVICES names no GPU"
    return error or "torch gives no reason"


def has_code(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether code for `architectures` (sm_90, compute_120) runs on a GPU. True if none of them is recognised."""
    known = [match for name in architectures if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name))]
    for kind, major, minor in ((match[1], int(match[2]), int(match[3])) for match in known):
        if (major, minor) <= capability and (kind == "compute" or major == capability[0]):
            return True
    return not known


def _gpu(properties: Any, architectures: Sequence[str]) -> Gpu:
    capability = (properties.major, properties.minor)
    return Gpu(
        name=properties.name,
        memory=properties.total_memory,
        capability=f"{properties.major}.{properties.minor}",
        bf16=capability >= (8, 0),
        supported=has_code(capability, architectures),
    )
