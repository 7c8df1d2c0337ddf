"""The folder of a spool: its lock, the collector's id, the numbers of its sources, and its segments.

```
LOCK          locked by the one process that writes and drains the folder id            16 random bytes, created once:
the collector, in segments and, as hex, in `_collector.collector` sources.json  source names by number, append-only:
frames contain the number seg-*.wal     segments progress.json delivery progress (`collector.drain`)
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
#: Beginning of the names of files with events that a sink rejects permanently.
DEAD_LETTER_PREFIX: Final = "dead-letters-"


class SpoolFolder:
    """A spool folder that this process has locked, until `close`.

    The kernel releases the lock when the process ends. Any process may lock and drain an unlocked folder.
    """

    def __init__(self, path: Path, *, lock: int, collector_id: bytes, sources: list[str]) -> None:
        self.path = path
        self.collector = collector_id
        self._lock = lock
        self._sources = sources

    @classmethod
    def acquire(cls, path: Path) -> Self:
        """Locks a folder and creates missing files.

        Raises:
            ConcurrencyError: SPOOL_LOCKED, another process has locked it.
            ContractError: SPOOL_FOLDER_DAMAGED, its id or its sources cannot be read.
        """
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(path, lock=lock, collector_id=_read_or_create_id(path), sources=_read_sources(path))
        except BlockingIOError as error:
            os.close(lock)
            raise ConcurrencyError("SPOOL_LOCKED", f"Another process has locked the spool {path}.") from error
        except BaseException:
            os.close(lock)
            raise

    @property
    def collector_hex(self) -> str:
        """The collector's id as hex digits, as in events."""
        return self.collector.hex()

    def source_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the number of each source; numbers of new sources are durable on return.

        Raises:
            ContractError: SPOOL_FOLDER_DAMAGED, there are more sources than one byte can number.
        """
        new_names = [name for name in dict.fromkeys(names) if name not in self._sources]
        if new_names:
            if len(self._sources) + len(new_names) > MAX_SOURCES:
                raise _damaged_error(self.path / "sources.json", f"holds {MAX_SOURCES} sources already")
            self._sources = [*self._sources, *new_names]
            replace_durably(self.path / "sources.json", orjson.dumps(self._sources))
        return {name: number for number, name in enumerate(self._sources)}

    def source_name(self, number: int) -> str | None:
        """Returns the source with this number; None for an unknown number."""
        return self._sources[number] if number < len(self._sources) else None

    def segments(self) -> list[Path]:
        """Returns the segments, oldest first, without damaged ones that were replaced."""
        return sorted(path for path in self.path.iterdir() if parse_segment_name(path.name) is not None)

    def size_bytes(self) -> int:
        """Returns the total size of the segments, including damaged ones, and of the dead-letter files."""
        names = (path for path in self.path.iterdir() if path.name.startswith(("seg-", DEAD_LETTER_PREFIX)))
        return sum(file_size(path) for path in names)

    def oldest_age_seconds(self, now: float) -> float:
        """Returns the time since the oldest segment was last written; 0 without segments."""
        oldest = next(iter(self.segments()), None)
        with contextlib.suppress(FileNotFoundError):
            return max(0.0, now - oldest.stat().st_mtime) if oldest is not None else 0.0
        return 0.0

    def close(self) -> None:
        """Releases the lock; the folder must not be written afterwards."""
        os.close(self._lock)


def file_size(path: Path) -> int:
    """Returns the length of a file; 0 if it was removed meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def sync_folder(path: Path) -> None:
    """Makes created, renamed and removed directory entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes) -> None:
    """Replaces a file's content durably: after a crash it is either the old or the new content.

    One writer at a time.
    """
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
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
        raise _damaged_error(file, "is not valid JSON") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _damaged_error(file, "is not a list of names")
    return names


def _damaged_error(file: Path, problem: str) -> ContractError:
    return ContractError("SPOOL_FOLDER_DAMAGED", f"{file} {problem}.")
