"""How many threads this process may keep busy."""

import os
from pathlib import Path


def cgroup_quota(root: Path) -> float | None:
    """CPU quota of the container in cores (cgroup v2, then v1), None where there is none."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def available_cpus(local_world_size: int = 1, cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that one of `local_world_size` processes may use: affinity, the container's quota, an equal share. >= 1."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = cgroup_quota(cgroup)
    if quota is not None:
        cores = min(cores, quota)
    return max(1, int(cores / local_world_size))
