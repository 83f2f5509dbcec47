"""The number of CPU cores that this process may use."""

import os
from pathlib import Path


def cgroup_quota(root: Path) -> float | None:
    """The container's CPU quota in cores (cgroup v2, then v1); None if there is none."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def available_cpus(local_world_size: int = 1, cgroup: Path = Path("/sys/fs/cgroup"), *, bound: bool = False) -> int:
    """Cores for each of `local_world_size` processes, at least 1: affinity and the container's quota, split equally.

    A process that is `bound` has cores of its own, and shares only the quota.
    """
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = cgroup_quota(cgroup)
    if quota is not None:
        cores = min(cores, quota / local_world_size if bound else quota)
    return max(1, int(cores if bound else cores / local_world_size))
