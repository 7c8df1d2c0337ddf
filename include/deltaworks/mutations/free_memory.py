"""How much memory this process may still take: of the machine, and of the container that bounds it."""

from __future__ import annotations

from pathlib import Path

import psutil

#: Where a container sees its own bounds, by version 2 of control groups.
CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Bytes that are free without swapping, or less where a container's limit leaves less.

    Pages of files that the kernel would drop count as free, in a container as on the machine.
    """
    machine = int(psutil.virtual_memory().available)
    container = _free_in(cgroup)
    return machine if container is None else min(machine, container)


def _free_in(cgroup: Path) -> int | None:
    """What the limit of a control group leaves; None where there is no limit, or it is told otherwise."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        counted = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None
    return max(0, int(limit) - used + int(counted.get("inactive_file", 0)))
