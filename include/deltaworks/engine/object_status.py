"""Status of landed objects: file event, the batch of each pipeline that read it, row counts and rejections.

It comes from the file event log, the ledgers of the reading pipelines, and their tables. Needs no JVM and no lease.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.engine.batch_history import BatchHistory, BatchSummary
from deltaworks.sources.objects.file_event_log import FileEventLog, LogReader, filter_events, message_quarantine_key
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.lake import Lake

_SEQ_CHUNK = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOutcome:
    """Result of one file event in one pipeline.

    Attributes:
        batch_id: None until a batch has read the object.
        rows: number of rows by table.
        rejected: number of quarantined rows by reason.
        object_error: why the object could not be read at all, if so.
    """

    pipeline: str
    batch_id: int | None
    rows: Mapping[str, int]
    rejected: Mapping[str, int]
    object_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """A file event and its outcome per pipeline; no outcomes if no pipeline reads the object's location."""

    event: Mapping[str, Any]
    outcomes: tuple[PipelineOutcome, ...]


class ObjectStatusReader:
    """Reads the status of objects in one relay's log. Ledgers are read once, at construction. Used by one thread."""

    def __init__(self, catalog: Catalog, relay: str) -> None:
        self._relay = relay
        storage = catalog.environment.lake
        self._lake = Lake(storage)
        self._log = FileEventLog(self._lake, relay)
        self._pipelines = {
            name: (spec, spec.source)
            for name, spec in catalog.pipelines.items()
            if isinstance(spec.source, FileSourceSpec) and spec.source.relay == relay
        }
        objects = open_objects(storage)
        self._batches = {
            name: BatchHistory(self._lake, objects, spec).completed() for name, (spec, _) in self._pipelines.items()
        }

    def newest_events(self, last: int, *, bucket: str | None = None, glob: str | None = None) -> list[ObjectStatus]:
        """Returns the newest file events with their batches, newest first, without row counts."""
        events: list[dict[str, Any]] = []
        end = self._log.last_seq()
        while end > 0 and len(events) < last:
            start = max(0, end - _SEQ_CHUNK)
            part = self._log.read(start, end)
            events += filter_events(part, bucket=bucket, glob=glob).to_pylist()
            end = start
        newest = sorted(events, key=lambda row: -row["seq"])[:last]
        return [ObjectStatus(event=row, outcomes=tuple(self._outcomes(row, counts=False))) for row in newest]

    def by_key(self, key: str, *, bucket: str | None = None) -> list[ObjectStatus]:
        """Returns all file events of an object key, oldest first, with row counts."""
        events: list[dict[str, Any]] = []
        for part in self._log.read_parts():
            matches = part.filter(ds.field("key") == key)
            events += [row for row in matches.to_pylist() if bucket in (None, row["bucket"])]
        return [ObjectStatus(event=row, outcomes=tuple(self._outcomes(row, counts=True))) for row in events]

    def quarantined_messages(self, key: str) -> list[Mapping[str, Any]]:
        """Returns quarantined messages that mention a key: `message_id`, `reason`, `received_at`."""
        rows = self._lake.rows(message_quarantine_key(self._relay))
        listed = [] if rows is None else rows.to_pylist()
        return [row for row in listed if key in row["body"]]

    def readers(self) -> list[LogReader]:
        """Returns the pipelines that read the log, with their end offsets."""
        return [
            LogReader(name, source.bucket, source.prefix, source.glob, end_seq(self._batches[name]))
            for name, (_, source) in self._pipelines.items()
        ]

    def _outcomes(self, event: Mapping[str, Any], *, counts: bool) -> list[PipelineOutcome]:
        row = self._log.read(event["seq"] - 1, event["seq"])
        outcomes = []
        for name, (spec, source) in self._pipelines.items():
            if not filter_events(row, bucket=source.bucket, prefix=source.prefix, glob=source.glob).num_rows:
                continue
            batch = _batch_of(event["seq"], self._batches[name])
            rows, rejected, object_error = (
                self._count_rows(spec, event["seq"]) if counts and batch is not None else ({}, {}, None)
            )
            outcomes.append(
                PipelineOutcome(pipeline=name, batch_id=batch, rows=rows, rejected=rejected, object_error=object_error)
            )
        return outcomes

    def _count_rows(self, spec: PipelineSpec, seq: int) -> tuple[dict[str, int], dict[str, int], str | None]:
        is_event = ds.field("_seq") == seq
        rows = {}
        for table in spec.event_tables:
            table_rows = self._lake.rows(paths.table(spec.pipeline, table.name), columns=["_seq"], filters=is_event)
            if table_rows is not None and table_rows.num_rows:
                rows[table.name] = table_rows.num_rows
        columns = ["_seq", "_position", "reasons"]
        quarantined = self._lake.rows(paths.table(spec.pipeline, "quarantine"), columns=columns, filters=is_event)
        rejected: Counter[str] = Counter()
        object_error = None
        for row in [] if quarantined is None else quarantined.to_pylist():
            rejected.update(reason["code"] for reason in row["reasons"])
            if row["_position"] == -1:
                object_error = "; ".join(f"{reason['code']}: {reason['detail']}" for reason in row["reasons"])
        return rows, dict(rejected), object_error


def end_seq(batches: Sequence[BatchSummary]) -> int:
    """Returns the last file event that these batches have read, 0 without batches."""
    return int((batches[-1].end_offset or {}).get("seq", 0)) if batches else 0


def _batch_of(seq: int, batches: Sequence[BatchSummary]) -> int | None:
    """Returns the batch that read the file event `seq`; None if no batch has read it yet."""
    ends = [int((batch.end_offset or {}).get("seq", 0)) for batch in batches]
    index = bisect_left(ends, seq)
    return batches[index].batch_id if index < len(batches) else None
