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

from deltaworks.console.render_lock import release_while_waiting
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ClientTimeouts, ObjectStore, StoredObject
from deltaworks.errors import DeltaworksError, TransientError

#: How a client of the console waits: pages answer within a second whatever the storage does.
CLIENT_TIMEOUTS: Final = ClientTimeouts(connect_seconds=1.0, read_seconds=2.0, max_attempts=2, max_connections=16)
#: What changes by the second, by the last part of its key; everything else may be a minute old.
FAST_CHANGING_NAMES: Final = frozenset(
    {"heartbeat.json", "stop.json", "recent.json", "verdicts.json", "health.json", "erasures.json"}
)
FAST_TTL_SECONDS, DEFAULT_TTL_SECONDS = 5.0, 60.0
#: After a failure the same key is left alone for so long.
_RETRY_DELAY_SECONDS = 5.0
_THREADS = 16
_LIST_PREFIX = "list:"


@dataclass(slots=True)
class _Entry:
    """One key. `value` is what was last read, `read_at` when (monotonic and of the wall), `error` of the last try."""

    value: Any = None
    read_at: float | None = None
    read_at_utc: datetime | None = None
    failed_at: float | None = None
    error: str = ""
    started_at: float = 0.0
    pending_read: Future[None] | None = None


@dataclass(slots=True)
class _ReadProblem:
    """What one request could not read: since when, and why."""

    since: datetime | None = None
    reason: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, entry: _Entry) -> None:
        with self.lock:
            since = entry.read_at_utc or utc_now()
            self.since = since if self.since is None else min(since, self.since)
            self.reason = entry.error or "it has not answered yet"


class CachedObjects:
    """The cache of one process. `opened` opens the storage, at the first read; it is safe to use from several threads.

    Args:
        wait_seconds: what one request waits for at most, over all that it reads.
        most_entries: the least recently read are forgotten beyond it.
    """

    def __init__(
        self,
        open_storage: Callable[[], ObjectStore],
        *,
        wait_seconds: float = 0.6,
        max_entries: int = 4_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_storage = open_storage
        self._wait_seconds = wait_seconds
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._objects: ObjectStore | None = None
        self._open_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-reads")
        self._is_failing = False

    def reader(self) -> CachedReader:
        """For one request, which waits for `wait_seconds` in all."""
        return CachedReader(self, deadline=self._clock() + self._wait_seconds)

    def start_reads(self, keys: Iterable[str]) -> list[_Entry]:
        """Start to read those that are due; their entries, in the order of the keys."""
        now = self._clock()
        entries = []
        with self._lock:
            for key in keys:
                entry = self._entries.setdefault(key, _Entry())
                self._entries.move_to_end(key)
                if entry.pending_read is None and _is_due(key, entry, now):
                    entry.started_at = now
                    entry.pending_read = self._pool.submit(self._read, key, entry)
                entries.append(entry)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        return entries

    def seconds_to_wait(self, entry: _Entry, deadline: float) -> float:
        """For how long a request may still wait for an entry: not for a storage that fails, nor one that is slow."""
        if self._is_failing:
            return 0.0
        now = self._clock()
        return max(0.0, min(deadline - now, entry.started_at + self._wait_seconds - now))

    def is_current(self, key: str, entry: _Entry) -> bool:
        """Whether what an entry has is as new as its kind must be, or was while it is being read anew."""
        grace = 2 * _ttl_seconds(key) + _RETRY_DELAY_SECONDS
        return not entry.error and entry.read_at is not None and self._clock() - entry.read_at <= grace

    def _read(self, key: str, entry: _Entry) -> None:
        try:
            objects = self._storage()
            value: Any = objects.list(key.removeprefix(_LIST_PREFIX)) if key.startswith(_LIST_PREFIX) else objects.get(key)
        except Exception as error:  # whatever a client raises shows as age, never as a page that fails
            entry.error = error.message if isinstance(error, DeltaworksError) else str(error)
            entry.failed_at = self._clock()
            self._is_failing = True
        else:
            entry.value, entry.error, entry.failed_at = value, "", None
            entry.read_at, entry.read_at_utc = self._clock(), utc_now()
            self._is_failing = False
        finally:
            with self._lock:
                entry.pending_read = None

    def _storage(self) -> ObjectStore:
        with self._open_lock:
            if self._objects is None:
                self._objects = self._open_storage()
            return self._objects


class CachedReader:
    """What one request reads. Safe to use from several threads."""

    def __init__(self, cache: CachedObjects, *, deadline: float) -> None:
        self._cache = cache
        self._deadline = deadline
        self._read_problem = _ReadProblem()

    def fetch(self, keys: Iterable[str]) -> None:
        """Read several at once. Raises nothing."""
        entries = self._cache.start_reads(keys)
        pending_reads = [entry.pending_read for entry in entries if entry.pending_read is not None]
        if pending_reads:
            with release_while_waiting():
                wait(pending_reads, timeout=max(self._cache.seconds_to_wait(entry, self._deadline) for entry in entries))

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
        return list(self._value(_LIST_PREFIX + prefix))

    def put(self, key: str, data: bytes) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _read_only_error(key)

    def put_if_absent(self, key: str, data: bytes) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _read_only_error(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _read_only_error(key)

    def delete(self, key: str) -> NoReturn:
        """Refused: the console writes nothing."""
        raise _read_only_error(key)

    @property
    def stale_since(self) -> datetime | None:
        """Since when the oldest of what was read here could not be read anew."""
        return self._read_problem.since

    @property
    def problem(self) -> str:
        """Why something could not be read."""
        return self._read_problem.reason

    def _value(self, key: str) -> Any:
        (entry,) = self._cache.start_reads([key])
        pending_read = entry.pending_read
        if pending_read is not None:
            with release_while_waiting():
                wait([pending_read], timeout=self._cache.seconds_to_wait(entry, self._deadline))
        if not self._cache.is_current(key, entry):
            self._read_problem.record(entry)
        if entry.read_at is None:
            raise TransientError(
                "STORAGE_UNREACHABLE",
                f"Could not read {key}: {entry.error or 'the storage has not answered yet'}.",
                hint="Check the storage's endpoint, keys and permissions in include/environments.",
            )
        return entry.value


def _is_due(key: str, entry: _Entry, now: float) -> bool:
    if entry.failed_at is not None and now - entry.failed_at < _RETRY_DELAY_SECONDS:
        return False
    return entry.read_at is None or now - entry.read_at > _ttl_seconds(key)


def _ttl_seconds(key: str) -> float:
    return FAST_TTL_SECONDS if key.rpartition("/")[2] in FAST_CHANGING_NAMES else DEFAULT_TTL_SECONDS


def _read_only_error(key: str) -> PermissionError:
    return PermissionError(f"The console writes nothing, {key} neither: an act of it starts a DAG that does.")
