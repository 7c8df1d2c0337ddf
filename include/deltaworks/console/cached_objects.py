"""Reads control objects and the catalog through caches, so that slow storage or loading does not block pages.

An object is read again when its copy is older than its TTL. Only one read per key runs at a time, in threads of the
cache; concurrent requests wait for it, each for `wait_seconds` at most. If a read fails, the last value is served with
its age. While the storage fails, requests do not wait at all; recovery is detected in the background.

The catalog is loaded again only when a file changed, because loading it takes a tenth of a second per pipeline.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from deltaworks.console.table_reads import release_while_waiting
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ClientTimeouts, ObjectStore, StoredObject
from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.specs.project_folder import declaration_files, project_root

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: Timeouts of the console's client. A page takes about a second, even if the storage does not answer.
CLIENT_TIMEOUTS: Final = ClientTimeouts(connect_seconds=1.0, read_seconds=2.0, max_attempts=2, max_connections=16)
#: Names of objects that change every few seconds; all others may be a minute old.
FAST_CHANGING_NAMES: Final = frozenset(
    {"heartbeat.json", "stop.json", "recent.json", "verdicts.json", "health.json", "erasures.json"}
)
FAST_TTL_SECONDS, DEFAULT_TTL_SECONDS = 5.0, 60.0
#: Seconds before a failed key is read again.
_RETRY_DELAY_SECONDS = 5.0
_THREADS = 16
_LIST_PREFIX = "list:"


@dataclass(slots=True)
class _Entry:
    """A cached key: the last value that was read, its times (monotonic and UTC), and the last error."""

    value: Any = None
    read_at: float | None = None
    read_at_utc: datetime | None = None
    failed_at: float | None = None
    error: str = ""
    started_at: float = 0.0
    pending_read: Future[None] | None = None


@dataclass(slots=True)
class _ReadProblem:
    """The first failed read of a request: since when its value is stale, and why."""

    since: datetime | None = None
    reason: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, entry: _Entry) -> None:
        with self.lock:
            since = entry.read_at_utc or utc_now()
            self.since = since if self.since is None else min(since, self.since)
            self.reason = entry.error or "no answer yet"


class CachedObjects:
    """The object cache of a process. The storage is opened at the first read, by `open_storage`. Thread-safe.

    Args:
        wait_seconds: the maximum wait of one request over all its reads.
        max_entries: maximum number of entries; the least recently read ones are dropped.
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
        """Returns a reader for one request, which waits for `wait_seconds` in total."""
        return CachedReader(self, deadline=self._clock() + self._wait_seconds)

    def start_reads(self, keys: Iterable[str]) -> list[_Entry]:
        """Starts reads of expired keys and returns the entries in the order of the keys."""
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
        """Returns how long a request may still wait for an entry; 0 while the storage fails."""
        if self._is_failing:
            return 0.0
        now = self._clock()
        return max(0.0, min(deadline - now, entry.started_at + self._wait_seconds - now))

    def is_current(self, key: str, entry: _Entry) -> bool:
        """Returns whether an entry is within its TTL, plus a grace period for a running read."""
        grace = 2 * _ttl_seconds(key) + _RETRY_DELAY_SECONDS
        return not entry.error and entry.read_at is not None and self._clock() - entry.read_at <= grace

    def _read(self, key: str, entry: _Entry) -> None:
        try:
            objects = self._storage()
            value: Any = (
                objects.list(key.removeprefix(_LIST_PREFIX)) if key.startswith(_LIST_PREFIX) else objects.get(key)
            )
        except Exception as error:  # any error of the client only makes the shown data older; the page must not fail
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
    """Reads control objects for one request through the cache. Thread-safe."""

    def __init__(self, cache: CachedObjects, *, deadline: float) -> None:
        self._cache = cache
        self._deadline = deadline
        self._read_problem = _ReadProblem()

    def fetch(self, keys: Iterable[str]) -> None:
        """Reads several keys in parallel. Raises nothing."""
        entries = self._cache.start_reads(keys)
        pending_reads = [entry.pending_read for entry in entries if entry.pending_read is not None]
        if pending_reads:
            with release_while_waiting():
                wait(
                    pending_reads, timeout=max(self._cache.seconds_to_wait(entry, self._deadline) for entry in entries)
                )

    def get(self, key: str) -> StoredObject | None:
        """Returns the object, possibly from the cache.

        Raises:
            TransientError: it has never been read: STORAGE_UNREACHABLE after a failed read, otherwise NOT_READ_YET.
        """
        value = self._value(key)
        return value if value is None else StoredObject(value.data, value.etag)

    def etag(self, key: str) -> str | None:
        """Returns the object's ETag, possibly from the cache."""
        value = self.get(key)
        return None if value is None else value.etag

    def list(self, prefix: str) -> list[str]:
        """Returns the keys below `prefix`, possibly from the cache. Suitable only for small folders, such as that of
        alerts.
        """
        return list(self._value(_LIST_PREFIX + prefix))

    def put(self, key: str, data: bytes) -> NoReturn:
        """Always raises: the console writes nothing."""
        raise _read_only_error(key)

    def put_if_absent(self, key: str, data: bytes) -> NoReturn:
        """Always raises: the console writes nothing."""
        raise _read_only_error(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> NoReturn:
        """Always raises: the console writes nothing."""
        raise _read_only_error(key)

    def delete(self, key: str) -> NoReturn:
        """Always raises: the console writes nothing."""
        raise _read_only_error(key)

    @property
    def stale_since(self) -> datetime | None:
        """The time of the oldest value that could not be read again."""
        return self._read_problem.since

    @property
    def problem(self) -> str:
        """Why an object could not be read."""
        return self._read_problem.reason

    def _value(self, key: str) -> Any:
        (entry,) = self._cache.start_reads([key])
        pending_read = entry.pending_read
        if pending_read is not None:
            with release_while_waiting():
                wait([pending_read], timeout=self._cache.seconds_to_wait(entry, self._deadline))
        if not self._cache.is_current(key, entry):
            self._read_problem.record(entry)
        if entry.read_at is None and not entry.error:
            raise TransientError("NOT_READ_YET", f"The storage has not answered yet: {key} is still being read.")
        if entry.read_at is None:
            raise TransientError(
                "STORAGE_UNREACHABLE",
                f"Could not read {key}: {entry.error}.",
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
    return PermissionError(f"The console does not write {key}: its actions start DAGs that write.")


def _read() -> Catalog:
    from deltaworks.specs.project import load_catalog

    return load_catalog(skip_invalid=True)


class CatalogCache:
    """The cached catalog of a process. Thread-safe: while one thread reloads it, others get the previous catalog.

    Args:
        check_seconds: the interval of checks for changed files.
    """

    def __init__(self, read: Callable[[], Catalog] = _read, *, check_seconds: float = 5.0) -> None:
        self._read = read
        self._check_seconds = check_seconds
        self._lock = threading.Lock()
        self._catalog: Catalog | None = None
        self._files: frozenset[tuple[str, int, int]] = frozenset()
        self._checked_at = float("-inf")

    def current(self) -> Catalog:
        """Returns the catalog, or the last valid one while the environment is invalid.

        Raises:
            ConfigError: the environment is invalid and no catalog was loaded before.
        """
        catalog = self._catalog
        if catalog is not None and time.monotonic() - self._checked_at < self._check_seconds:
            return catalog
        if not self._lock.acquire(blocking=catalog is None):
            assert catalog is not None
            return catalog
        try:
            return self._reload()
        finally:
            self._lock.release()

    def _reload(self) -> Catalog:
        state = declaration_files(project_root())
        if self._catalog is None or state != self._files:
            try:
                self._catalog, self._files = self._read(), state
            except Exception:  # a file may be in the middle of a write; the next check reads it again
                if self._catalog is None:
                    raise
        self._checked_at = time.monotonic()
        return self._catalog
