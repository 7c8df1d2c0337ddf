"""The log of queries: one row per query of the SQL server in a Delta table, by date.

Rows wait in a bounded queue and are committed in batches by one thread, so that no query waits for the storage. When
the queue is full, rows are dropped and counted. A crash loses the rows that wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

_LOGGER = logging.getLogger(__name__)
#: Name of the log as a table of the schema `deltaworks`.
QUERIES_TABLE: Final = "queries"
COMMIT_SECONDS: Final = 15.0
_MAX_WAITING: Final = 20_000
_MAX_COMMIT: Final = 5_000
_MAX_TEXT: Final = 32_768
_UPKEEP_SECONDS: Final = 24 * 3600.0
_MIN_FILES: Final = 200
_TARGET_BYTES: Final = 64 << 20
_RETENTION_HOURS: Final = 168
_ATTEMPTS: Final = 5
SCHEMA: Final = pa.schema(
    [
        pa.field("query_date", pa.date32()),
        pa.field("started_at", pa.timestamp("us", "UTC")),
        pa.field("query_id", pa.string()),
        pa.field("user", pa.string()),
        pa.field("peer", pa.string()),
        pa.field("statement", pa.string()),
        pa.field("tables", pa.list_(pa.string())),
        pa.field("outcome", pa.string()),
        pa.field("condition", pa.string()),
        pa.field("message", pa.string()),
        pa.field("waited_seconds", pa.float64()),
        pa.field("seconds", pa.float64()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
Outcome = Literal["succeeded", "refused", "failed", "cancelled", "limited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRecord:
    """One query of the log.

    Args:
        started_at: its begin. user: who sent it. peer: address of the client.
        statement: its text, cut after 32,768 characters. tables: what it reads.
        outcome: `refused` before it ran, `limited` by a limit of time, rows or memory.
        waited_seconds: for a free slot. seconds: from then until its end.
        rows: rows that were sent. bytes: their size in memory.
    """

    started_at: datetime
    query_id: str
    user: str
    peer: str
    statement: str
    tables: tuple[str, ...] = ()
    outcome: Outcome
    condition: str = ""
    message: str = ""
    waited_seconds: float = 0.0
    seconds: float = 0.0
    rows: int = 0
    bytes: int = 0


class QueryLog:
    """Writes the log in a thread of its own. Thread-safe.

    Args:
        keep_days: days after which rows are deleted, once a day.
        commit_seconds: how long a row waits for others at most.
    """

    def __init__(self, storage: StorageSpec, *, keep_days: int, commit_seconds: float = COMMIT_SECONDS) -> None:
        self._lake, self._keep_days, self._commit_seconds = Lake(storage), keep_days, commit_seconds
        self._waiting: queue.Queue[QueryRecord] = queue.Queue(_MAX_WAITING)
        self._stopping = threading.Event()
        self._step = 0
        self._app_id = f"sql_server-{uuid.uuid4().hex}"
        self._upkeep_at = time.monotonic() + 60
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="query-log", daemon=True)
        self._thread.start()

    def add(self, record: QueryRecord) -> None:
        """Adds a row; drops and counts it if too many wait. Never blocks."""
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Commits the waiting rows and ends."""
        self._stopping.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self._commit_seconds)
            self._commit_waiting()
            if time.monotonic() >= self._upkeep_at:
                self._upkeep_at = time.monotonic() + _UPKEEP_SECONDS
                self._upkeep()
        self._commit_waiting()

    def _commit_waiting(self) -> None:
        while not self._waiting.empty():
            records: list[QueryRecord] = []
            while len(records) < _MAX_COMMIT and not self._waiting.empty():
                records.append(self._waiting.get_nowait())
            self._commit_with_retries(records)
        if self.dropped:
            _LOGGER.warning("The log dropped %d queries since the start: too many waited", self.dropped)

    def _commit_with_retries(self, records: list[QueryRecord]) -> None:
        # A failed commit may have reached the log: records that give up keep their step, so that the next ones do not
        # count as already committed.
        self._step += 1
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._commit(records)
                return
            except Exception as error:  # a log that cannot be written must not stop queries
                _LOGGER.warning("The query log cannot be written (attempt %d): %s", attempt, error)
                if self._stopping.wait(min(30.0, 2.0**attempt)) and attempt > 1:
                    break
        self.dropped += len(records)

    def _commit(self, records: list[QueryRecord]) -> None:
        metadata = user_metadata(pipeline="deltaworks", batch=self._step, operation="log_queries")
        table = self._lake.ensure(
            paths.sql_query_log(), SCHEMA, user_metadata=metadata, partition_by=["query_date"]
        )  # fmt: skip
        rows = pa.Table.from_pylist([_row(record) for record in records], schema=SCHEMA)
        step = Step(self._app_id, self._step)
        self._lake.append(table, paths.sql_query_log(), rows, step=step, user_metadata=metadata)

    def _upkeep(self) -> None:
        """Deletes old rows, compacts small files, and deletes unused ones after a week. Retries errors the next day."""
        try:
            table = self._lake.open(paths.sql_query_log())
            if table is not None:
                _maintain(table, self._keep_days)
        except Exception as error:
            _LOGGER.warning("The query log was not maintained: %s", error)


def _maintain(table: DeltaTable, keep_days: int) -> None:
    metadata = user_metadata(pipeline="deltaworks", batch=table.version(), operation="maintain_query_log")
    properties = CommitProperties(custom_metadata={"userMetadata": metadata})
    first = utc_now().date() - timedelta(days=keep_days)
    table.delete(f"query_date < '{first.isoformat()}'", commit_properties=properties)
    if len(table.file_uris()) >= _MIN_FILES:
        table.optimize.compact(target_size=_TARGET_BYTES, commit_properties=properties)
    table.vacuum(_RETENTION_HOURS, dry_run=False, commit_properties=properties)


def _row(record: QueryRecord) -> dict[str, object]:
    row = asdict(record)
    row["tables"] = list(record.tables)
    row["statement"], row["message"] = record.statement[:_MAX_TEXT], record.message[:_MAX_TEXT]
    return {"query_date": record.started_at.date(), **row}
