"""What became of an object: seen when and by whom, in which batch of which pipeline, how many rows, or why not.

Reads the file event log, the ledgers of the pipelines that read it, and their tables. Needs no JVM and no lease.
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
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.tables.lake import Lake

_SEQ_CHUNK = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOutcome:
    """What one pipeline made of a file event. `batch_id` is None while it waits to be read.

    `rows` by table; `rejected`, rows in quarantine by reason; `whole` says why nothing of the object could be read.
    """

    pipeline: str
    batch_id: int | None
    rows: Mapping[str, int]
    rejected: Mapping[str, int]
    object_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """One file event and what became of it. `readings` is empty where no pipeline reads its place."""

    event: Mapping[str, Any]
    outcomes: tuple[PipelineOutcome, ...]


class ObjectStatusReader:
    """Answers about the objects of one relay. A snapshot is taken of each ledger on first use. For one thread."""

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
        """The newest file events of the log, newest first, without counts of rows."""
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
        """Every file event of a key, oldest first, with the rows that became of it."""
        events: list[dict[str, Any]] = []
        for part in self._log.read_parts():
            same = part.filter(ds.field("key") == key)
            events += [row for row in same.to_pylist() if bucket in (None, row["bucket"])]
        return [ObjectStatus(event=row, outcomes=tuple(self._outcomes(row, counts=True))) for row in events]

    def quarantined_messages(self, key: str) -> list[Mapping[str, Any]]:
        """Quarantined messages that name a key: `message_id`, `reason`, `received_at`."""
        rows = self._lake.rows(message_quarantine_key(self._relay))
        listed = [] if rows is None else rows.to_pylist()
        return [row for row in listed if key in row["body"]]

    def readers(self) -> list[LogReader]:
        """The pipelines that read the log, with how far each of them is."""
        return [
            LogReader(name, source.bucket, source.prefix, source.glob, _end_seq(self._batches[name]))
            for name, (_, source) in self._pipelines.items()
        ]

    def _outcomes(self, event: Mapping[str, Any], *, counts: bool) -> list[PipelineOutcome]:
        row = self._log.read(event["seq"] - 1, event["seq"])
        readings = []
        for name, (spec, source) in self._pipelines.items():
            if not filter_events(row, bucket=source.bucket, prefix=source.prefix, glob=source.glob).num_rows:
                continue
            batch = _batch_of(event["seq"], self._batches[name])
            rows, rejected, whole = (
                self._count_rows(spec, event["seq"]) if counts and batch is not None else ({}, {}, None)
            )
            readings.append(
                PipelineOutcome(pipeline=name, batch_id=batch, rows=rows, rejected=rejected, object_error=whole)
            )
        return readings

    def _count_rows(self, spec: PipelineSpec, seq: int) -> tuple[dict[str, int], dict[str, int], str | None]:
        of_event = ds.field("_seq") == seq
        rows = {}
        for table in spec.event_tables:
            landed = self._lake.rows(paths.table(spec.pipeline, table.name), columns=["_seq"], filters=of_event)
            if landed is not None and landed.num_rows:
                rows[table.name] = landed.num_rows
        columns = ["_seq", "_position", "reasons"]
        held = self._lake.rows(paths.table(spec.pipeline, "quarantine"), columns=columns, filters=of_event)
        rejected: Counter[str] = Counter()
        whole = None
        for row in [] if held is None else held.to_pylist():
            rejected.update(reason["code"] for reason in row["reasons"])
            if row["_position"] == -1:
                whole = "; ".join(f"{reason['code']}: {reason['detail']}" for reason in row["reasons"])
        return rows, dict(rejected), whole


def _end_seq(batches: Sequence[BatchSummary]) -> int:
    return int((batches[-1].end_offset or {}).get("seq", 0)) if batches else 0


def _batch_of(seq: int, batches: Sequence[BatchSummary]) -> int | None:
    """The batch whose slice holds `seq`; None where none has come so far."""
    ends = [int((batch.end_offset or {}).get("seq", 0)) for batch in batches]
    at = bisect_left(ends, seq)
    return batches[at].batch_id if at < len(batches) else None
