"""Reads control objects and the catalog through caches, so that slow storage or loading does not block pages.

An object is read again when its copy is older than its TTL. Only one read per key runs at a time, in threads of the
cache; concurrent requests wait for it, each for `wait_seconds` at most. A copy is then in one of three states:

- `fresh`: it is not older than its kind may be, and is served.
- `reading`: it is older, or was never read, and its read has not ended. It is not served: a page that judged a
  heartbeat of ten minutes ago by the clock of now would report troubles that do not exist.
- `failed`: its last read failed or timed out. It is served with its age, and the reader reports the problem. While the
  storage fails, requests do not wait at all; recovery is detected in the background.

The catalog is loaded again only when a file changed, because loading it takes a tenth of a second per pipeline.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from deltaworks.console.table_reads import release_while_waiting
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ClientTimeouts, ObjectStore, StoredObject
from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.specs.project_folder import DeclarationState, declaration_state, project_root

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: Timeouts of the console's client. A page takes about a second, even if the storage does not answer.
CLIENT_TIMEOUTS: Final = ClientTimeouts(connect_seconds=1.0, read_seconds=2.0, max_attempts=2, max_connections=16)
#: Names of objects that change every few seconds; all others may be a minute old.
FAST_CHANGING_NAMES: Final = frozenset(
    {"heartbeat.json", "stop.json", "recent.json", "verdicts.json", "health.json", "erasures.json"}
)
FAST_TTL_SECONDS, DEFAULT_TTL_SECONDS = 5.0, 60.0
#: The greatest age of a copy that is served although its read has not failed; a background pass reads it each 20 s.
_MAX_AGE_SECONDS: Final = {FAST_TTL_SECONDS: 45.0, DEFAULT_TTL_SECONDS: 150.0}
#: Seconds before a failed key is read again.
_RETRY_DELAY_SECONDS = 5.0
#: A read without an answer for this long counts as failed. The client of S3 ends its reads earlier.
_TIMEOUT_SECONDS = 8.0
_THREADS = 16
_LIST_PREFIX = "list:"
_ALERT_LIST: Final = _LIST_PREFIX + paths.alerts("state/")
_EntryState = Literal["fresh", "reading", "failed"]


@dataclass(slots=True)
class _Entry:
    """A cached key: the last value that was read, and the last error.

    A read is requested at `started_at` and begins at `began_at`, when a thread is free; None if none is running. The
    first of the failed reads since the last successful one began at `failing_since`.
    """

    value: Any = None
    read_at: float | None = None
    failed_at: float | None = None
    failing_since: datetime | None = None
    error: str = ""
    started_at: float = 0.0
    began_at: float | None = None
    pending_read: Future[None] | None = None


@dataclass(slots=True)
class _ReadProblem:
    """What a request could not read: keys that are still being read, and the first failed read with its reason.

    The oldest copy that was served although it is too old to be judged by the current time has the age `age_seconds`.
    """

    reading: set[str] = field(default_factory=set)
    since: datetime | None = None
    reason: str = ""
    age_seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, key: str, entry: _Entry, state: _EntryState, failure: tuple[datetime, str], age: float) -> None:
        with self.lock:
            (self.reading.add if state == "reading" else self.reading.discard)(key)
            if state == "failed":
                since, self.reason = failure
                self.since = since if self.since is None else min(since, self.since)
            if entry.read_at is not None and age > 2 * _ttl_seconds(key) + _RETRY_DELAY_SECONDS:
                self.age_seconds = max(self.age_seconds, age)


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
        self._running: dict[str, float] = {}
        self._objects: ObjectStore | None = None
        self._open_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="console-reads")
        self._failure: tuple[datetime, str] | None = None
        self._slowest_seconds = 0.0

    def reader(self) -> CachedReader:
        """Returns a reader for one request, which waits for `wait_seconds` in total."""
        return CachedReader(self, deadline=self._clock() + self._wait_seconds)

    def start_reads(self, keys: Iterable[str], *, ttl_seconds: float | None = None) -> list[_Entry]:
        """Starts reads of expired keys and returns the entries in the order of the keys."""
        now = self._clock()
        entries = []
        with self._lock:
            for key in keys:
                entry = self._entries.setdefault(key, _Entry())
                self._entries.move_to_end(key)
                if entry.pending_read is None and _is_due(entry, now, ttl_seconds or _ttl_seconds(key)):
                    entry.started_at, entry.began_at = now, None
                    entry.pending_read = self._pool.submit(self._read, key, entry)
                entries.append(entry)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        return entries

    def seconds_to_wait(self, entry: _Entry, deadline: float) -> float:
        """Returns how long a request may still wait for an entry; 0 while the storage fails."""
        if self._failure is not None:
            return 0.0
        now = self._clock()
        return max(0.0, min(deadline - now, entry.started_at + self._wait_seconds - now))

    def check(self, key: str, entry: _Entry, problem: _ReadProblem) -> _EntryState:
        """Returns the state of an entry, and records in `problem` what a page has to report."""
        now = self._clock()
        age = float("inf") if entry.read_at is None else now - entry.read_at
        state, failure = self._state(key, entry, age, now)
        problem.record(key, entry, state, failure, age)
        return state

    def _state(self, key: str, entry: _Entry, age: float, now: float) -> tuple[_EntryState, tuple[datetime, str]]:
        began_at, failing_since = entry.began_at, entry.failing_since
        if failing_since is not None:
            return "failed", (failing_since, entry.error)
        if began_at is not None and now - began_at > _TIMEOUT_SECONDS:
            return "failed", self._timed_out(began_at, now)
        # If storage is slow for many keys, a copy is older by the time that the slowest of them needs.
        if age <= _MAX_AGE_SECONDS[_ttl_seconds(key)] + self._slowest_seconds:
            return "fresh", _NO_FAILURE
        failure = self._failure or self._hanging_since(now)
        # A read that waits for a thread of a storage that does not answer will not be answered either.
        return ("reading", _NO_FAILURE) if failure is None or began_at is not None else ("failed", failure)

    def _hanging_since(self, now: float) -> tuple[datetime, str] | None:
        with self._lock:
            first = min(self._running.values(), default=now)
        return self._timed_out(first, now) if now - first > _TIMEOUT_SECONDS else None

    def _timed_out(self, began_at: float, now: float) -> tuple[datetime, str]:
        return utc_now() - timedelta(seconds=now - began_at), f"no answer for {now - began_at:.0f} s"

    def _read(self, key: str, entry: _Entry) -> None:
        began_at_utc = utc_now()
        with self._lock:
            entry.began_at = self._running[key] = self._clock()
        try:
            objects = self._storage()
            value: Any = (
                objects.list(key.removeprefix(_LIST_PREFIX)) if key.startswith(_LIST_PREFIX) else objects.get(key)
            )
        except Exception as error:  # any error of the client only makes the shown data older; the page must not fail
            entry.error = error.message if isinstance(error, DeltaworksError) else str(error)
            entry.failed_at = self._clock()
            entry.failing_since = entry.failing_since or began_at_utc
            self._failure = self._failure or (began_at_utc, entry.error)
        else:
            # The value is that of the time at which its read began.
            entry.value, entry.read_at = value, entry.began_at
            entry.error, entry.failed_at, entry.failing_since = "", None, None
            self._slowest_seconds = max(self._clock() - entry.started_at, 0.9 * self._slowest_seconds)
            self._failure = None
        finally:
            with self._lock:
                self._running.pop(key, None)
                entry.pending_read = entry.began_at = None

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

    def fetch(self, keys: Iterable[str], *, ttl_seconds: float | None = None) -> None:
        """Reads several keys in parallel. Raises nothing.

        Args:
            ttl_seconds: read copies that are older than this again, instead of those older than their TTL.
        """
        entries = self._cache.start_reads(keys, ttl_seconds=ttl_seconds)
        pending_reads = [entry.pending_read for entry in entries if entry.pending_read is not None]
        if pending_reads:
            with release_while_waiting():
                wait(
                    pending_reads, timeout=max(self._cache.seconds_to_wait(entry, self._deadline) for entry in entries)
                )

    def get(self, key: str) -> StoredObject | None:
        """Returns the object, possibly from the cache.

        Raises:
            TransientError: NOT_READ_YET while it is being read, STORAGE_UNREACHABLE if it could never be read.
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
    def is_reading(self) -> bool:
        """Whether a key of this request is still being read, so that nothing can be said yet."""
        return bool(self._read_problem.reading)

    @property
    def age_seconds(self) -> float:
        """The age of the oldest copy that is too old to be judged by the current time; 0 if there is none."""
        return self._read_problem.age_seconds

    @property
    def stale_since(self) -> datetime | None:
        """The begin of the first failed read since the last successful one."""
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
        state = self._cache.check(key, entry, self._read_problem)
        if state == "reading":
            raise TransientError("NOT_READ_YET", f"{key} is still being read.")
        if entry.read_at is None:
            raise TransientError(
                "STORAGE_UNREACHABLE",
                f"Could not read {key}: {self._read_problem.reason}.",
                hint="Check the storage's endpoint, keys and permissions in include/environments.",
            )
        return entry.value


_NO_FAILURE: Final = (datetime.max.replace(tzinfo=UTC), "")


def _is_due(entry: _Entry, now: float, ttl_seconds: float) -> bool:
    if entry.failed_at is not None and now - entry.failed_at < _RETRY_DELAY_SECONDS:
        return False
    return entry.read_at is None or now - entry.read_at > ttl_seconds


def _ttl_seconds(key: str) -> float:
    is_fast = key.rpartition("/")[2] in FAST_CHANGING_NAMES or key == _ALERT_LIST
    return FAST_TTL_SECONDS if is_fast else DEFAULT_TTL_SECONDS


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
        self._files: DeclarationState = frozenset()
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
        state = declaration_state(project_root())
        if self._catalog is None or state != self._files:
            try:
                self._catalog, self._files = self._read(), state
            except Exception:  # a file may be in the middle of a write; the next check reads it again
                if self._catalog is None:
                    raise
        self._checked_at = time.monotonic()
        return self._catalog
