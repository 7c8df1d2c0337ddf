"""Snapshots of tables that all sessions share, refreshed by version within a freshness bound.

Opening a table reads its log; a small query would take most of its time for that. So a table stays open, and a query
reads the snapshot that was last checked, if that was within `fresh_seconds`. Tables that were queried recently are
checked in the background, so that queries rarely wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from deltaworks.errors import ContractError
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import refresh
from deltaworks.tables.features import needs_scan
from deltaworks.tables.lake import Lake, duckdb_source

_LOGGER = logging.getLogger(__name__)
_THREADS: Final = 8
#: Tables that were not queried for so long are no longer checked in the background.
_RECENT_SECONDS: Final = 600.0
_REOPEN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One version of a table, which can be scanned repeatedly and by several sessions.

    Args:
        key: of the table in the lake.
        version: id of the table and its version.
        schema: its columns as they are registered.
        source: what DuckDB registers.
        problem: why the table cannot be read; empty if it can.
    """

    key: str
    version: tuple[str, int]
    schema: pa.Schema
    source: Any = field(repr=False)
    problem: str = ""


@dataclass(slots=True)
class _Entry:
    """An open table. `lock` is held while it is opened or checked."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    table: DeltaTable | None = None
    snapshot: Snapshot | None = None
    opened_at: float = 0.0
    checked_at: float = float("-inf")
    used_at: float = 0.0


class TableSnapshots:
    """The newest snapshots of the lake's tables. Thread-safe.

    Args:
        fresh_seconds: a snapshot contains every commit that was completed so long before the query began.
    """

    def __init__(self, storage: StorageSpec, *, fresh_seconds: float) -> None:
        self._storage, self._fresh_seconds = storage, fresh_seconds
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshots")
        self._local = threading.local()
        self._stopping = threading.Event()
        self._refresher = threading.Thread(target=self._refresh_recent, name="refresh-snapshots", daemon=True)
        self._refresher.start()

    def close(self) -> None:
        """Ends the background work."""
        self._stopping.set()
        self._refresher.join(30)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def current(self, keys: Collection[str]) -> Mapping[str, Snapshot]:
        """Returns fresh snapshots of the existing tables among `keys`; opens and checks several concurrently.

        Raises:
            OSError, DeltaError: the storage does not answer.
        """
        now = time.monotonic()
        entries = {key: self._entry(key) for key in keys}
        for entry in entries.values():
            entry.used_at = now
        stale = [key for key, entry in entries.items() if now - entry.checked_at > self._fresh_seconds]
        if len(stale) == 1:
            self._check(stale[0], entries[stale[0]], now)
        elif stale:
            list(self._pool.map(lambda key: self._check(key, entries[key], now), stale))
        return {key: entry.snapshot for key, entry in entries.items() if entry.snapshot is not None}

    def _entry(self, key: str) -> _Entry:
        with self._lock:
            return self._entries.setdefault(key, _Entry())

    def _check(self, key: str, entry: _Entry, needed_at: float) -> None:
        """Brings the entry up to date for a query at `needed_at`, unless another thread just did."""
        with entry.lock:
            if needed_at - entry.checked_at <= self._fresh_seconds:
                return
            started = time.monotonic()
            try:
                newest = self._newest(key, entry)
            except (ContractError, DeltaError, pa.ArrowException) as error:
                entry.table = None
                text = str(error) if isinstance(error, ContractError) else f"{type(error).__name__}: {error}"
                newest = Snapshot(key, ("", -1), pa.schema([]), None, problem=" ".join(text.split()))
            if newest is None or entry.snapshot is None or newest.version != entry.snapshot.version or newest.problem:
                entry.snapshot = newest
            entry.checked_at = started

    def _newest(self, key: str, entry: _Entry) -> Snapshot | None:
        """Returns the newest snapshot, which is the entry's own if the table has not changed."""
        lake, now = self._lake(), time.monotonic()
        # A table that was dropped and created again starts at version 0, which a refresh does not notice.
        if entry.table is None or now - entry.opened_at > _REOPEN_SECONDS:
            entry.table, entry.opened_at = lake.open(key), now
        else:
            refresh(entry.table)
        if entry.table is None:
            return None
        version = (str(entry.table.metadata().id), entry.table.version())
        if entry.snapshot is not None and entry.snapshot.version == version:
            return entry.snapshot
        return _snapshot(lake, key, entry.table, version)

    def _lake(self) -> Lake:
        lake: Lake | None = getattr(self._local, "lake", None)
        if lake is None:
            lake = self._local.lake = Lake(self._storage)
        return lake

    def _refresh_recent(self) -> None:
        while not self._stopping.wait(max(0.25, self._fresh_seconds / 2)):
            now = time.monotonic()
            with self._lock:
                recent = [
                    (key, entry)
                    for key, entry in self._entries.items()
                    if now - entry.used_at < _RECENT_SECONDS and now - entry.checked_at > self._fresh_seconds / 3
                ]
            for key, entry in recent:
                if self._stopping.is_set():
                    return
                try:
                    # As needed by a query at the end of the bound, so that the entry counts as stale now.
                    self._check(key, entry, time.monotonic() + self._fresh_seconds)
                except Exception as error:  # the next query reports it
                    _LOGGER.warning("Table %s cannot be checked: %s", key, error)


def _snapshot(lake: Lake, key: str, table: DeltaTable, version: tuple[str, int]) -> Snapshot:
    if needs_scan(table):
        # Its scan reads the open table when a query runs, so it needs one that is never refreshed.
        own = lake.open(key)
        if own is not None:
            table, version = own, (str(own.metadata().id), own.version())
    source = duckdb_source(lake, table)
    schema = source.schema if hasattr(source, "schema") else pa.schema(table.schema().to_arrow())
    return Snapshot(key, version, schema, source)
