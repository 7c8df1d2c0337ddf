"""The file operations of a spool. Tests replace them to lose unsynced writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from collector.spool_folder import sync_folder


class SegmentFile(Protocol):
    """A file that one thread appends to."""

    def write(self, data: memoryview) -> int:
        """Appends part or all of the data; returns the number of appended bytes."""
        ...

    def sync(self) -> None:
        """Makes written data durable. Never retried after a failure, because the kernel may have dropped the unsynced
        data.
        """
        ...

    def truncate(self, size: int) -> None:
        """Truncates the file to `size` and continues to write there."""
        ...

    def close(self) -> None:
        """Closes the file without a sync."""
        ...


class Disk(Protocol):
    """Creates and removes files durably."""

    def create(self, path: Path) -> SegmentFile:
        """Creates a file. Raises FileExistsError if it exists."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Makes the directory entries of a folder durable."""
        ...

    def remove(self, path: Path) -> None:
        """Removes a file."""
        ...

    def free_percent(self, path: Path) -> float:
        """Returns the free space of the disk in percent."""
        ...


class LocalFile:
    """A segment file in a local file system."""

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
    """File operations in a local file system."""

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
    """Writes all data, in as many calls as necessary."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[file.write(remaining) :]
