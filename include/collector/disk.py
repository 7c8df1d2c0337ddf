"""The disk under a spool, as few calls: what a test replaces to lose what was never synced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from collector.spool_folder import sync_folder


class SegmentFile(Protocol):
    """A file that is appended to by one thread."""

    def write(self, data: memoryview) -> int:
        """Append some of the data; how much."""
        ...

    def sync(self) -> None:
        """Make what was written durable. After a failure nobody knows what is: it is never tried again."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file at `size`, and write on from there."""
        ...

    def close(self) -> None:
        """Close it, durable or not."""
        ...


class Disk(Protocol):
    """The calls that make files and their names durable."""

    def create(self, path: Path) -> SegmentFile:
        """A new file. Raises FileExistsError where there is one."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file."""
        ...

    def free_percent(self, path: Path) -> float:
        """What of the disk is free."""
        ...


class LocalFile:
    """A file of the machine."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, data: memoryview) -> int:
        return os.write(self._descriptor, data)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def close(self) -> None:
        os.close(self._descriptor)


class LocalDisk:
    """The machine's own disk."""

    def create(self, path: Path) -> SegmentFile:
        return LocalFile(path)

    def sync_folder(self, path: Path) -> None:
        sync_folder(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def free_percent(self, path: Path) -> float:
        stat = os.statvfs(path)
        return 100 * stat.f_bavail / max(1, stat.f_blocks)


def write_all(file: SegmentFile, data: bytes) -> None:
    """Write all of it, however little the disk takes at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
