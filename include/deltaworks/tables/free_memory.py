"""How much memory this process may still take, on its machine and within the limit of its container."""

from __future__ import annotations

from pathlib import Path

import psutil

#: Where a container sees its own limits (control groups, version 2).
CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Bytes this process may still allocate without swapping, within the limit of its container.

    File pages that the kernel would drop count as free, in a container as on the machine.
    """
    machine = int(psutil.virtual_memory().available)
    container = _free_container_bytes(cgroup)
    return machine if container is None else min(machine, container)


def _free_container_bytes(cgroup: Path) -> int | None:
    """The bytes that the limit of a control group leaves; None without a limit that can be read."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(0, int(limit) - used + int(statistics.get("inactive_file", 0)))
