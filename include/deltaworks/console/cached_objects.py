"""Control objects from a cache that never makes a page wait for a storage that does not answer.

An object is read anew when its copy is older than its kind may be. One read of a key runs at a time, by threads of the
cache's own; whoever asks meanwhile waits for it, and nobody longer than `wait_seconds`. What cannot be read is served
as it was last, with the time since when. While the storage fails, nobody waits at all: whether it is back is found out
in the background.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NoReturn

from deltaworks.console.turn import waiting
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ClientTimeouts, ObjectStore, StoredObject
from deltaworks.errors import DeltaworksError, TransientError

#: How a client of the console waits: pages answer within a second whatever the storage does.
PATIENCE: Final = ClientTimeouts(connect_seconds=1.0, read_seconds=2.0, max_attempts=2, max_connections=16)
#: What changes by the second, by the last part of its key; everything else may be a minute old.
QUICK_NAMES: Final = frozenset(
    {"heartbeat.json", "stop.json", "recent.json", "verdicts.json", "health.json", "erasures.json"}
)
QUICK_SECONDS, SLOW_SECONDS = 5.0, 60.0
#: After a failure the same key is left alone for so long.
_REST_SECONDS = 5.0
_THREADS = 16
_LISTED = "list:"


@dataclass(slots=True)
class _Entry:
    """One key. `value` is what was last read, `read_at` when (monotonic and of the wall), `error` of the last try."""

    value: Any = None
    read_at: float | None = None
    read_on: datetime | None = None
    failed_at: float | None = None
    error: str = ""
    began_at: float = 0.0
    flight: Future[None] | None = None


@dataclass(slots=True)
class _Trouble:
    """What one request could not read: since when, and why."""

    since: datetime | None = None
    why: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, entry: _Entry) -> None:
        with self.lock:
            since = entry.read_on or utc_now()
            self.since = since if self.since is None else min(since, self.since)
            self.why = entry.error or "it has not answered yet"


class CachedObjects:
    """The cache of one process. `opened` opens the storage, at the first read; it is safe to use from several threads.

    Args:
        wait_seconds: what one request waits for at most, over all that it reads.
        most_entries: the least recently read are forgotten beyond it.
    """

    def __init__(
        self,
        opened: Callable[[], ObjectStore],
        *,
        wait_seconds: float = 0.6,
        most_entries: int = 4_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opened = opened
        self._wait_seconds = wait_seconds
        self._most_entries = most_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._objects: ObjectStore | None = None
        self._opening = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-reads")
        self._failing = False

    def reader(self) -> CachedReader:
        """For one request, which waits for `wait_seconds` in all."""
        return CachedReader(self, deadline=self._clock() + self._wait_seconds)

    def begin(self, keys: Iterable[str]) -> list[_Entry]:
        """Start to read those that are due; their entries, in the order of the keys."""
        now = self._clock()
        entries = []
        with self._lock:
            for key in keys:
                entry = self._entries.setdefault(key, _Entry())
                self._entries.move_to_end(key)
                if entry.flight is None and _is_due(key, entry, now):
                    entry.began_at = now
                    entry.flight = self._pool.submit(self._read, key, entry)
                entries.append(entry)
            while len(self._entries) > self._most_entries:
                self._entries.popitem(last=False)
        return entries

    def seconds_to_wait(self, entry: _Entry, deadline: float) -> float:
        """For how long a request may still wait for an entry: not for a storage that fails, nor one that is slow."""
        if self._failing:
            return 0.0
        now = self._clock()
        return max(0.0, min(deadline - now, entry.began_at + self._wait_seconds - now))

    def is_current(self, key: str, entry: _Entry) -> bool:
        """Whether what an entry has is as new as its kind must be, or was while it is being read anew."""
        grace = 2 * _most_seconds(key) + _REST_SECONDS
        return not entry.error and entry.read_at is not None and self._clock() - entry.read_at <= grace

    def _read(self, key: str, entry: _Entry) -> None:
        try:
            objects = self._storage()
            value: Any = objects.list(key.removeprefix(_LISTED)) if key.startswith(_LISTED) else objects.get(key)
        except Exception as error:  # whatever a client raises shows as age, never as a page that fails
            entry.error = error.message if isinstance(error, DeltaworksError) else str(error)
            entry.failed_at = self._clock()
            self._failing = True
        else:
            entry.value, entry.error, entry.failed_at = value, "", None
            entry.read_at, entry.read_on = self._clock(), utc_now()
            self._failing = False
        finally:
            with self._lock:
                entry.flight = None

    def _storage(self) -> ObjectStore:
        with self._opening:
            if self._objects is None:
                self._objects = self._opened()
            return self._objects


class CachedReader:
    """What one request reads. Safe to use from several threads."""

    def __init__(self, cache: CachedObjects, *, deadline: float) -> None:
        self._cache = cache
        self._deadline = deadline
        self._trouble = _Trouble()

    def fetch(self, keys: Iterable[str]) -> None:
        """Read several at once. Raises nothing."""
        entries = self._cache.begin(keys)
        flights = [entry.flight for entry in entries if entry.flight is not None]
        if flights:
            with waiting():
                wait(flights, timeout=max(self._cache.seconds_to_wait(entry, self._deadline) for entry in entries))

    def get(self, key: str) -> StoredObject | None:
        """The object, as it is or was last.

        Raises:
            TransientError: STORAGE_UNREACHABLE, nobody has been able to read it yet.
        """
        value = self._value(key)
        return value if value is None else StoredObject(value.data, value.etag)

    def etag(self, key: str) -> str | None:
        """The tag of the object, as it is or was last."""
        value = self.get(key)
        return None if value is None else value.etag

    def list(self, prefix: str) -> list[str]:
        """The keys below `prefix`, as they are or were last. For folders that stay small, such as that of alerts."""
        return list(self._value(_LISTED + prefix))

    def put(self, key: str, data: bytes) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _refused(key)

    def put_if_absent(self, key: str, data: bytes) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _refused(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _refused(key)

    def delete(self, key: str) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _refused(key)

    @property
    def stale_since(self) -> datetime | None:
        """Since when the oldest of what was read here could not be read anew."""
        return self._trouble.since

    @property
    def problem(self) -> str:
        """Why something could not be read."""
        return self._trouble.why

    def _value(self, key: str) -> Any:
        (entry,) = self._cache.begin([key])
        flight = entry.flight
        if flight is not None:
            with waiting():
                wait([flight], timeout=self._cache.seconds_to_wait(entry, self._deadline))
        if not self._cache.is_current(key, entry):
            self._trouble.note(entry)
        if entry.read_at is None:
            raise TransientError(
                "STORAGE_UNREACHABLE",
                f"Could not read {key}: {entry.error or 'the storage has not answered yet'}.",
                hint="Check the storage's endpoint, keys and permissions in include/environments.",
            )
        return entry.value


def _is_due(key: str, entry: _Entry, now: float) -> bool:
    if entry.failed_at is not None and now - entry.failed_at < _REST_SECONDS:
        return False
    return entry.read_at is None or now - entry.read_at > _most_seconds(key)


def _most_seconds(key: str) -> float:
    return QUICK_SECONDS if key.rpartition("/")[2] in QUICK_NAMES else SLOW_SECONDS


def _refused(key: str) -> PermissionError:
    return PermissionError(f"The console writes nothing, {key} neither: an act of it starts a DAG that does.")
