"""Reports completed batches, and writes the progress table: a row per batch, idle period and termination of the query.

A bounded queue and a separate thread decouple the stream from the table. If the storage is slow or fails, progress rows
are dropped and counted; batches are never delayed and never fail. A batch's report and Spark's progress arrive
separately and are joined here.
"""

from __future__ import annotations

import contextlib
import json
import queue
import resource
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.health.throughput import EventTotals, ThroughputWriter
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.summaries.quarantine import QuarantineCounter
from deltaworks.control.summaries.rule_warnings import RuleWarningsCounter
from deltaworks.control.summaries.stream import BatchSummary, StreamSummaryWriter, sample_by_rank
from deltaworks.engine.driver_host import DriverMetrics
from deltaworks.specs.descriptions import control_description
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.lake import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Report of one batch. Durations are by phase; a batch resumed after a crash has no prepare time.

    Attributes:
        rule_warnings: JSON with rows by `table.rule`; None without warnings. `table_rows` are all rows by table.
        over_budget: JSON with payloads by the name of the exceeded limit.
        objects_missing: number of objects that were deleted before they were read; `missing_examples` has some keys.
        events: number of events read, including rejected ones.
        quarantined_events: number of events in quarantine; one of the `quarantined` rows may stand for many.
        rejected: most frequent quarantine reasons as (code, field, events).
        rejected_events: same as (code, event name, field, events).
        arrived_us: evenly spaced sample of arrival times in microseconds since 1970; empty if the source has none.
    """

    batch_id: int
    rows: int
    quarantined: int
    files_read: int
    bytes_read: int
    files_written: int
    tables: int
    resumed: bool
    prepare_seconds: float
    commit_seconds: float
    complete_seconds: float
    rule_warnings: str | None = None
    over_budget: str | None = None
    objects_missing: int = 0
    ranges_lost: int = 0
    missing_examples: tuple[str, ...] = ()
    events: int = 0
    quarantined_events: int = 0
    rejected: tuple[tuple[str, str, int], ...] = ()
    arrived_us: tuple[int, ...] = ()
    rejected_events: tuple[tuple[str, str, str, int], ...] = ()
    table_rows: Mapping[str, int] = field(default_factory=dict)


def parse_counts(rows: Iterable[tuple[str, str, int]]) -> tuple[tuple[str, str, int], ...]:
    """Converts counts read from JSON to tuples of (code, field, events)."""
    return tuple((code, path, int(events)) for code, path, events in rows)


PROGRESS_SCHEMA = arrow_schema(
    {
        "pipeline": "string",
        "batch_id": "long",
        "run": "string",
        "owner_epoch": "long",
        "at": "timestamp",
        "rows": "long",
        "quarantined": "long",
        "files_read": "long",
        "bytes_read": "long",
        "files_written": "long",
        "tables": "long",
        "resumed": "boolean",
        "prepare_seconds": "double",
        "commit_seconds": "double",
        "complete_seconds": "double",
        "rows_per_second": "double",
        "driver_peak_bytes": "long",
        "kind": "string",
        "phases_ms": "string",
        "start_offset": "string",
        "end_offset": "string",
        "backlog_files": "long",
        "backlog_bytes": "long",
        "backlog_records": "long",
        "oldest_pending_seconds": "double",
        "driver_rss_bytes": "long",
        "jvm_heap_bytes": "long",
        "requests": "string",
        "message": "string",
        "dropped": "long",
        "rule_warnings": "string",
        "ranges_lost": "long",
        "over_budget": "string",
    }
)
_QUEUE_ROWS = 1_000
_REPORT_COLUMNS = {field.name for field in fields(BatchReport)} & set(PROGRESS_SCHEMA.names)
#: Interval of rows while no batch runs; they show that the stream is alive.
IDLE_ROW_SECONDS = 300.0
#: Maximum time that a batch's row waits for Spark's progress event.
JOIN_SECONDS = 30.0
_TERMINATION_WAIT_SECONDS = 2.0


class ProgressLog:
    """Queues progress events and appends them to the pipeline's progress table. Methods never block or raise."""

    def __init__(
        self,
        storage: StorageSpec,
        pipeline: str,
        *,
        owner_epoch: int,
        flush_seconds: float = 10.0,
        metrics: DriverMetrics | None = None,
        throughput: ThroughputWriter | None = None,
        summary: StreamSummaryWriter | None = None,
        quarantine: QuarantineCounter | None = None,
        rule_warnings: RuleWarningsCounter | None = None,
    ) -> None:
        """Creates the log; `start` begins writing.

        Args:
            throughput: writes the recent throughput for health checks, in the same thread.
            summary: writes recent batches and hours for the console, in the same thread.
            quarantine: counts quarantined rows for the console, in the same thread, at most once per minute.
            rule_warnings: counts rows that fail rules with `on_fail: warn`, as often.
        """
        self._storage = storage
        self._pipeline = pipeline
        self._epoch = owner_epoch
        self._flush_seconds = flush_seconds
        self._metrics = metrics or DriverMetrics()
        self._throughput = throughput
        self._summary = summary
        self._quarantine = quarantine
        self._rule_warnings = rule_warnings
        self._queue: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue(_QUEUE_ROWS)
        self._closed = threading.Event()
        self._terminated = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)
        self._backlog: dict[str, Any] = {}
        self._rows_awaiting_progress: dict[int, tuple[float, dict[str, Any]]] = {}
        self._complete_rows: list[dict[str, Any]] = []
        self._idle_at: float | None = None
        self._appends = 0
        self.dropped = 0

    def start(self) -> None:
        """Starts the writing thread."""
        self._thread.start()

    def add(self, report: BatchReport, *, spark_batch_id: int | None = None) -> None:
        """Queues a batch's report.

        Args:
            spark_batch_id: Spark's batch id if a Spark progress event will follow; None otherwise.
        """
        seconds = report.prepare_seconds + report.commit_seconds + report.complete_seconds
        reported = {name: value for name, value in asdict(report).items() if name in _REPORT_COLUMNS}
        row = {
            **reported,
            "kind": "batch",
            "rows_per_second": report.rows / seconds if seconds else 0.0,
            "driver_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        reasons = {(code, path): events for code, path, events in report.rejected}
        totals = EventTotals(
            events=report.events, rows=report.rows, quarantined=report.quarantined_events, reasons=reasons
        )
        self._enqueue("batch", {"row": row, "spark": spark_batch_id, "read": totals, "report": report})

    def add_spark_progress(self, progress: dict[str, Any]) -> None:
        """Queues Spark's progress of a batch."""
        self._enqueue("spark", progress)

    def add_idle(self) -> None:
        """Queues Spark's event that the query is idle."""
        self._enqueue("idle", {"kind": "idle"})

    def add_termination(self, message: str | None) -> None:
        """Queues the end of the query, with its error if it failed."""
        self._enqueue("terminated", {"kind": "terminated", "message": (message or "")[:1_000] or None})

    def set_backlog(self, fields: dict[str, Any]) -> None:
        """Sets the backlog fields of the following rows; the heartbeat has the same fields."""
        self._backlog = fields

    def await_termination(self) -> None:
        """Waits briefly for Spark's termination event."""
        self._terminated.wait(_TERMINATION_WAIT_SECONDS)

    def close(self) -> None:
        """Writes the queued events, within a time limit, and stops the thread."""
        self._closed.set()
        self._thread.join(timeout=30)

    def _enqueue(self, kind: str, event: dict[str, Any]) -> None:
        try:
            self._queue.put_nowait((kind, {**event, "at": utc_now(), "backlog": self._backlog}))
        except queue.Full:
            self.dropped += 1
        if kind == "terminated":
            self._terminated.set()

    def _loop(self) -> None:
        flush_at = time.monotonic() + self._flush_seconds
        while True:
            closing = self._closed.is_set()
            try:
                self._handle(*self._queue.get(timeout=min(0.2, self._flush_seconds)))
            except queue.Empty:
                pass
            except Exception:  # a failing progress log must not fail the stream
                self.dropped += 1
            closing = closing and self._queue.empty()
            if closing or time.monotonic() >= flush_at:
                self._flush(is_final=closing)
                flush_at = time.monotonic() + self._flush_seconds
            if closing:
                return

    def _handle(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "spark":
            self._join_spark_progress(event)
        elif kind == "batch":
            if self._throughput is not None:
                self._throughput.add(event["at"], event["read"])
            self._count(event["report"], event["at"])
            row = self._row(event["row"], event)
            row["requests"] = json.dumps(self._metrics.requests())
            self._summarize(row, event)
            self._idle_at = None
            if event["spark"] is None:
                self._complete_rows.append(row)
            else:
                self._rows_awaiting_progress[event["spark"]] = (time.monotonic(), row)
        elif kind == "terminated" or self._idle_at is None or time.monotonic() - self._idle_at >= IDLE_ROW_SECONDS:
            self._idle_at = time.monotonic()
            if self._summary is not None and event.get("message"):
                self._summary.add_problem(event["at"], str(event["message"]))
            event = dict(event)
            self._complete_rows.append(
                self._row({name: event[name] for name in ("kind", "message") if name in event}, event)
            )

    def _summarize(self, row: dict[str, Any], event: dict[str, Any]) -> None:
        """Adds a batch to the summary object, which the console reads instead of the table."""
        if self._summary is None:
            return
        at: datetime = event["at"]
        report: BatchReport = event["report"]
        self._summary.add(
            BatchSummary(
                **{name: row[name] for name in BatchSummary.model_fields if name in row and name != "at"},
                at=at.isoformat(timespec="seconds"),
                files=row["files_read"],
                bytes=row["bytes_read"],
                arrival_ages=sample_by_rank([max(0.0, at.timestamp() - micros / 1e6) for micros in report.arrived_us]),
            )
        )
        if row.get("ranges_lost"):
            self._summary.add_problem(at, f"batch {row['batch_id']}: {row['ranges_lost']} ranges expired unread")

    def _join_spark_progress(self, progress: dict[str, Any]) -> None:
        """Adds Spark's progress to the row of its batch. Progress without a batch (no new data) is ignored."""
        awaiting = self._rows_awaiting_progress.pop(int(progress["batchId"]), None)
        if awaiting is None:
            return
        row = awaiting[1]
        source = (progress.get("sources") or [{}])[0]
        row["phases_ms"] = json.dumps(progress.get("durationMs") or {})
        row["start_offset"], row["end_offset"] = (
            _offset_json(source.get(name)) for name in ("startOffset", "endOffset")
        )
        self._complete_rows.append(row)

    def _row(self, row: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
        backlog = event["backlog"]
        oldest = parse_iso(backlog.get("oldest_pending_at"))
        return {
            "pipeline": self._pipeline,
            "run": current_run(),
            "owner_epoch": self._epoch,
            "at": event["at"],
            "backlog_files": backlog.get("backlog_files"),
            "backlog_bytes": backlog.get("backlog_bytes"),
            "backlog_records": backlog.get("backlog_records"),
            "oldest_pending_seconds": (event["at"] - oldest).total_seconds() if oldest else None,
            "dropped": self.dropped,
            **self._metrics.memory(),
            **row,
        }

    def _count(self, batch: BatchReport, at: datetime) -> None:
        """Adds a batch to the counts for the console."""
        if self._quarantine is not None:
            self._quarantine.add(batch.batch_id, batch.rejected_events, at=at)
        if self._rule_warnings is not None:
            self._rule_warnings.add(batch.batch_id, batch.table_rows, json.loads(batch.rule_warnings or "{}"), at=at)

    def _flush(self, *, is_final: bool) -> None:
        for number, (since, row) in list(self._rows_awaiting_progress.items()):
            if is_final or time.monotonic() - since >= JOIN_SECONDS:
                self._complete_rows.append(row)
                del self._rows_awaiting_progress[number]
        if self._throughput is not None:
            with contextlib.suppress(Exception):  # must not fail the stream; the next write includes it
                self._throughput.write(utc_now())
        if self._summary is not None:
            with contextlib.suppress(Exception):
                self._summary.write(utc_now(), last=is_final)
        if self._quarantine is not None:
            with contextlib.suppress(Exception):  # a failure must not affect the stream
                self._quarantine.write(utc_now(), force=is_final)
        if self._rule_warnings is not None:
            with contextlib.suppress(Exception):
                self._rule_warnings.write(utc_now(), force=is_final)
        rows, self._complete_rows = self._complete_rows, []
        if not rows:
            return
        try:
            self._append(rows)
        except Exception:  # a failing progress log must not fail the stream
            self.dropped += len(rows)

    def _append(self, rows: list[dict[str, Any]]) -> None:
        lake = Lake(self._storage)
        key = paths.pipeline_control(self._pipeline, "progress")
        # Batches are counted here, because idle and termination rows have none.
        self._appends += 1
        step = Step(f"{self._pipeline}/progress/{self._epoch}", self._appends)
        batches = [row["batch_id"] for row in rows if row.get("batch_id") is not None]
        metadata = user_metadata(
            pipeline=self._pipeline,
            batch=batches[-1] if batches else "none",
            operation="progress",
            step=step.app_id,
            step_version=step.version,
        )
        table = ensure_described(lake, key, PROGRESS_SCHEMA, control_description("progress"), user_metadata=metadata)
        lake.append(table, key, pa.Table.from_pylist(rows, schema=PROGRESS_SCHEMA), step=step, user_metadata=metadata)


def _offset_json(offset: Any) -> str | None:
    """Returns an offset as JSON text. Spark passes it as text or as parsed objects."""
    return offset if offset is None or isinstance(offset, str) else json.dumps(offset)
