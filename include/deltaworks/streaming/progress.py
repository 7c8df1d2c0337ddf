"""Progress: one row per batch in a Delta table, written out of band.

A bounded queue and a thread of its own stand between the stream and the table: a slow or failing storage drops
progress rows and counts them, and never delays or fails a batch.
"""

from __future__ import annotations

import queue
import resource
import threading
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.specs.storage import StorageSpec
from deltaworks.streaming.batches import BatchReport
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

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
    }
)
_QUEUE_ROWS = 1_000


class ProgressLog:
    """Takes batch reports and appends them to the pipeline's progress table."""

    def __init__(self, storage: StorageSpec, pipeline: str, *, owner_epoch: int, flush_seconds: float = 10.0) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self._epoch = owner_epoch
        self._flush_seconds = flush_seconds
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue(_QUEUE_ROWS)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="progress", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def add(self, report: BatchReport) -> None:
        """Take a report; never blocks."""
        seconds = report.prepare_seconds + report.commit_seconds + report.complete_seconds
        row = {
            **asdict(report),
            "pipeline": self._pipeline,
            "run": current_run(),
            "owner_epoch": self._epoch,
            "at": utc_now(),
            "rows_per_second": report.rows / seconds if seconds else 0.0,
            "driver_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        try:
            self._queue.put_nowait(row)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued, within a bound, and stop."""
        self._closed.set()
        self._thread.join(timeout=30)

    def _loop(self) -> None:
        while True:
            closing = self._closed.wait(self._flush_seconds)
            rows = []
            while not self._queue.empty():
                rows.append(self._queue.get_nowait())
            if rows:
                try:
                    self._append(rows)
                except Exception:  # out of band by design
                    self.dropped += len(rows)
            if closing:
                return

    def _append(self, rows: list[dict[str, Any]]) -> None:
        lake = Lake(self._storage)
        key = paths.pipeline_control(self._pipeline, "progress")
        last = rows[-1]["batch_id"]
        step = Step(f"{self._pipeline}/progress/{self._epoch}", last)
        metadata = user_metadata(
            pipeline=self._pipeline, batch=last, operation="progress", step=step.app_id, step_version=step.version
        )
        table = lake.ensure(key, PROGRESS_SCHEMA, user_metadata=metadata)
        lake.append(table, key, pa.Table.from_pylist(rows, schema=PROGRESS_SCHEMA), step=step, user_metadata=metadata)
