"""How many processors this process may use: what the container allows, not what the machine has."""

import os
from pathlib import Path


def available_cpus() -> int:
    """At least 1: the affinity mask, cut to the cgroup's quota (v2, then v1) where there is one."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, min(count, int(quota))) if quota else count


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
