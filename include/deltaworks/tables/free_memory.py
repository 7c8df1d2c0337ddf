"""Measures the memory available to this process, on its machine and within its container's limit."""

from __future__ import annotations

from pathlib import Path

import psutil

#: Folder with a container's own limits (control groups, version 2).
CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Returns the bytes this process can still allocate without swapping, within its container's limit.

    File pages that the kernel would drop count as free, both in a container and on the machine.
    """
    machine = int(psutil.virtual_memory().available)
    container = _free_container_bytes(cgroup)
    return machine if container is None else min(machine, container)


def _free_container_bytes(cgroup: Path) -> int | None:
    """Returns the free bytes within a control group's limit; None if there is no readable limit."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(0, int(limit) - used + int(statistics.get("inactive_file", 0)))
