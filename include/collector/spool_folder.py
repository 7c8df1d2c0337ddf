"""The folder of a spool: who has it, the collector's id, the numbers of its sources, its segments.

```
LOCK          held by the one process that writes and drains here
id            16 random bytes, made once: the collector, in segments and in `_collector.collector` as 32 hex digits
sources.json  names of sources by number, only ever added to: a frame says a number
seg-*.wal     segments
progress.json how far sinks are (`collector.drain`)
```
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import orjson

from collector.segments import parse_segment_name
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.specs.collector import MAX_SOURCES

ID_BYTES: Final = 16
DAMAGED_SUFFIX: Final = ".damaged"


class SpoolFolder:
    """A folder of a spool that this process has, until `close`.

    The lock is the kernel's: it is let go of however the process ends, and a folder whose lock nobody holds may be
    drained by whoever takes it.
    """

    def __init__(self, path: Path, *, lock: int, collector_id: bytes, sources: list[str]) -> None:
        self.path = path
        self.collector = collector_id
        self._lock = lock
        self._sources = sources

    @classmethod
    def acquire(cls, path: Path) -> Self:
        """Take a folder, and make what is not there yet.

        Raises:
            ConcurrencyError: SPOOL_LOCKED, another process has it.
            ContractError: SPOOL_FOLDER_DAMAGED, its id or its sources cannot be read.
        """
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(path, lock=lock, collector_id=_read_or_create_id(path), sources=_read_sources(path))
        except BlockingIOError as error:
            os.close(lock)
            raise ConcurrencyError(
                "SPOOL_LOCKED",
                f"Another process has the spool {path}.",
                hint="End it, or give this one a folder of its own.",
            ) from error
        except BaseException:
            os.close(lock)
            raise

    @property
    def collector_hex(self) -> str:
        """The collector's id as events carry it."""
        return self.collector.hex()

    def source_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """The number of each source; new ones get the next, which is durable before this returns.

        Raises:
            ContractError: SPOOL_FOLDER_DAMAGED, there have been more sources than a byte counts.
        """
        new = [name for name in dict.fromkeys(names) if name not in self._sources]
        if new:
            if len(self._sources) + len(new) > MAX_SOURCES:
                raise _damaged_error(self.path / "sources.json", f"holds {MAX_SOURCES} sources already")
            self._sources = [*self._sources, *new]
            replace_durably(self.path / "sources.json", orjson.dumps(self._sources))
        return {name: number for number, name in enumerate(self._sources)}

    def source_name(self, number: int) -> str | None:
        """The source that a frame means; None for a number nobody was given."""
        return self._sources[number] if number < len(self._sources) else None

    def segments(self) -> list[Path]:
        """Its segments, the oldest first; damaged ones that were put aside are none."""
        return sorted(path for path in self.path.iterdir() if parse_segment_name(path.name) is not None)

    def size_bytes(self) -> int:
        """What its segments take, damaged ones included."""
        names = (path for path in self.path.iterdir() if path.name.startswith("seg-"))
        return sum(file_size(path) for path in names)

    def oldest_age_seconds(self, now: float) -> float:
        """How long ago the oldest segment was last written to; 0 where there is none."""
        oldest = next(iter(self.segments()), None)
        with contextlib.suppress(FileNotFoundError):
            return max(0.0, now - oldest.stat().st_mtime) if oldest is not None else 0.0
        return 0.0

    def close(self) -> None:
        """Let go of the folder; afterwards nothing of it may be written."""
        os.close(self._lock)


def file_size(path: Path) -> int:
    """The length of a file; nothing where it has been removed meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def sync_folder(path: Path) -> None:
    """Make names in a folder durable: files that were made, renamed or removed there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes) -> None:
    """Put a file's content, so that after any crash it is the old or the new one, whole, and the new one from here on.

    One writer at a time.
    """
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


def _read_or_create_id(path: Path) -> bytes:
    file = path / "id"
    if not file.exists():
        replace_durably(file, secrets.token_bytes(ID_BYTES))
    content = file.read_bytes()
    if len(content) != ID_BYTES:
        raise _damaged_error(file, f"has {len(content)} bytes instead of {ID_BYTES}")
    return content


def _read_sources(path: Path) -> list[str]:
    file = path / "sources.json"
    if not file.exists():
        return []
    try:
        names = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise _damaged_error(file, "is no JSON") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _damaged_error(file, "is no list of names")
    return names


def _damaged_error(file: Path, problem: str) -> ContractError:
    return ContractError(
        "SPOOL_FOLDER_DAMAGED",
        f"{file} {problem}.",
        hint="Put it back from a copy, or start with a new folder and leave this one to be drained.",
    )
