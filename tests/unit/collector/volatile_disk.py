"""A disk that keeps synced data and, at a power failure, a random part of the rest.

kill -9 does not test syncs, because the kernel keeps what a dead process has written. Here bytes are cached until
`sync`, and names until `sync_folder`. Cached data is kept or lost at random, page by page, as a kernel writes pages
back in any order.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PAGE = 64


class PowerLossError(Exception):
    """The machine is off: every later call fails too."""


@dataclass(slots=True)
class _File:
    cached: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    named: bool = False


class VolatileFile:
    """A file of a volatile disk."""

    def __init__(self, disk: VolatileDisk, file: _File) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: memoryview) -> int:
        taken = self._disk.count("write", len(data))
        self._file.cached += data[:taken]
        return taken

    def sync(self) -> None:
        self._disk.count("sync")
        if self._disk.syncs:
            self._file.durable = bytes(self._file.cached)

    def truncate(self, size: int) -> None:
        self._disk.count("truncate")
        if self._disk.truncates:
            del self._file.cached[size:]

    def close(self) -> None:
        pass


class VolatileDisk:
    """A disk whose power can fail at any call, and whose calls can.

    Args:
        fails_at: the number of the call at which the power goes; never by default.
        fault: is called with the kind and the number of a call, and the bytes of a write; it may raise an OSError, and
            says how many bytes a write takes.
        syncs, syncs_folder: False switches a protection off: the call returns, and nothing is durable.
        truncates: False switches another one off: the call returns, and nothing is cut off.
    """

    def __init__(
        self,
        *,
        fails_at: int | None = None,
        fault: Callable[[str, int, int], int] = lambda kind, number, size: size,
        syncs: bool = True,
        syncs_folder: bool = True,
        truncates: bool = True,
    ) -> None:
        self.syncs = syncs
        self.truncates = truncates
        self.calls = 0
        self._syncs_folder = syncs_folder
        self._fails_at = fails_at
        self._fault = fault
        self._files: dict[Path, _File] = {}

    def count(self, kind: str, size: int = 0) -> int:
        """One call; how many bytes of a write are taken."""
        number, self.calls = self.calls, self.calls + 1
        if self._fails_at is not None and number >= self._fails_at:
            raise PowerLossError(kind)
        return self._fault(kind, number, size)

    def create(self, path: Path) -> VolatileFile:
        self.count("create")
        if path in self._files:
            raise FileExistsError(errno.EEXIST, str(path))
        self._files[path] = _File()
        return VolatileFile(self, self._files[path])

    def sync_folder(self, path: Path) -> None:
        self.count("sync_folder")
        if self._syncs_folder:
            for file in self._files.values():
                file.named = True

    def remove(self, path: Path) -> None:
        self.count("remove")
        self._files.pop(path, None)

    def free_percent(self, path: Path) -> float:
        return 50.0

    def lose_power(self, chance: random.Random, *, keeps: float = 0.5) -> None:
        """Write what is left to the real disk: all that was synced, and of the rest every page with some chance."""
        for path, file in self._files.items():
            if file.named or chance.random() < keeps:
                path.write_bytes(self._left_of(file, chance, keeps))

    def _left_of(self, file: _File, chance: random.Random, keeps: float) -> bytes:
        if chance.random() >= keeps or len(file.cached) < len(file.durable):
            return file.durable if chance.random() >= keeps else bytes(file.cached) or file.durable
        left = bytearray(file.cached)
        for start in range(len(file.durable) // PAGE * PAGE, len(left), PAGE):
            if chance.random() >= keeps:
                begin, end = max(start, len(file.durable)), min(start + PAGE, len(left))
                left[begin:end] = bytes(end - begin)
        return bytes(left[: chance.randint(len(file.durable), len(left))])
