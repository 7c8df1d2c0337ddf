"""Finds events that a collector acknowledged but that never arrived, by gaps in their sequence numbers.

A collector process numbers its events without gaps. So the catch-all tables and the quarantine of its pipelines contain
all numbers, except those of events dropped on purpose (opt-out, erasure), which are recorded. A number that is missing
an hour after it was assigned belongs to an event that is lost or late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.collector import HourCounts, LostEvents, MissingRange, read_hour_counts
from deltaworks.control.records.erasure import ErasureWindows
from deltaworks.control.records.reprocess import replaced_collector_numbers_since
from deltaworks.control.records.store import RecordStore
from deltaworks.events.collector_sequence_numbers import (
    RAW_COLLECTOR_PATTERN,
    RAW_SEQ_PATTERN,
    CollectorSequenceNumbers,
)
from deltaworks.events.task_findings import DROPPED_SEQUENCE_NUMBERS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import QUARANTINE, connect
from deltaworks.tables.steps import CHECKPOINT_STORE


def dropped_sequence_numbers(
    catalog: Catalog, objects: ObjectStore, pipelines: Sequence[str], since: datetime
) -> CollectorSequenceNumbers:
    """Returns the sequence numbers of events of these pipelines dropped since a time.

    Raises:
        ContractError: COLLECTOR_RECORD_UNREADABLE, ERASURE_UNREADABLE.
    """
    numbers = CollectorSequenceNumbers()
    lake = Lake(catalog.environment.lake)
    specs = [catalog.pipeline(name) for name in pipelines]
    personal = {spec.pipeline: spec.privacy.namespace for spec in specs if spec.privacy is not None}
    for name in personal:
        for packed in _numbers_dropped_by_batches(lake, name, since):
            numbers.add_encoded(packed)
    for namespace in sorted(set(personal.values())):
        for packed in ErasureWindows(objects, namespace).collector_numbers_since(since):
            numbers.add_encoded(packed)
    if personal:
        for packed in replaced_collector_numbers_since(objects, since):
            numbers.add_encoded(packed)
    return numbers


def _numbers_dropped_by_batches(lake: Lake, pipeline: str, since: datetime) -> Iterator[Mapping[str, str]]:
    key, recent = paths.pipeline_control(pipeline, CHECKPOINT_STORE), ds.field("completed_at") >= ds.scalar(since)
    rows = lake.rows(key, columns=["source_metadata"], filters=recent)
    if rows is None:
        return
    for text in rows.column("source_metadata").to_pylist():
        packed = json.loads(text or "{}").get(DROPPED_SEQUENCE_NUMBERS)
        if packed:
            yield packed


#: Younger events may still be in transit.
MAX_TRANSIT_TIME = timedelta(hours=1)
_COLLECTOR_PATH, _SEQ_PATH = "_collector.collector", "_collector.seq"
_MAX_RANGES = 200


@dataclass(frozen=True, slots=True)
class CollectorTable:
    """A pipeline's catch-all table with collector sequence numbers, and the columns that contain them."""

    pipeline: str
    table: str
    collector_column: str
    seq_column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """The lost events of one collector. `unverifiable_pipelines` store no sequence numbers."""

    collector: str
    events: int
    missing: tuple[MissingRange, ...] = ()
    unverifiable_pipelines: tuple[str, ...] = ()


def find_collected_table(spec: PipelineSpec) -> CollectorTable | None:
    """Returns the catch-all table with `_collector.collector` and `_collector.seq`, or None."""
    for table in spec.tables:
        columns = {column.path: column.name for column in table.columns}
        if table.catch_all is True and _COLLECTOR_PATH in columns and _SEQ_PATH in columns:
            return CollectorTable(spec.pipeline, table.name, columns[_COLLECTOR_PATH], columns[_SEQ_PATH])
    return None


def find_lost_events(
    catalog: Catalog, objects: ObjectStore, collector: str, *, accept_losses: bool = False, now: datetime | None = None
) -> LossReport:
    """Finds missing sequence numbers of a collector and records them.

    Idempotent; safe at any time. If two runs are concurrent, only one record is kept; both are correct.

    Args:
        accept_losses: write off the missing numbers, so they are not checked again.
    """
    now = now or utc_now()
    pipelines = sorted({source.pipeline for source in catalog.collector(collector).sources.values()})
    if not set(pipelines) <= set(catalog.pipelines):
        # The collector also numbers events of pipelines that are not selected here.
        catalog = load_catalog(
            catalog.environment.environment, root=catalog.root, skip_invalid=True, only=[*catalog.pipelines, *pipelines]
        )
    specs = catalog.pipelines
    tables = [find_collected_table(specs[name]) if name in specs else None for name in pipelines]
    unverifiable_pipelines = tuple(name for name, table in zip(pipelines, tables, strict=True) if table is None)
    if unverifiable_pipelines:
        return LossReport(collector=collector, events=0, unverifiable_pipelines=unverifiable_pipelines)
    store = RecordStore(objects, LostEvents)
    before = store.read(paths.lost_events(collector)) or LostEvents(checked_at=now.isoformat())
    counts = read_hour_counts(objects, collector)
    bounds = assigned_ranges(counts, before.checked_up_to, now=now)
    ranges = [
        *before.missing,
        *(MissingRange(id=process, first=low, last=high) for process, (low, high) in bounds.items()),
    ]
    missing: list[MissingRange] = []
    if ranges:
        connection = _connect_tables(catalog, [table for table in tables if table is not None])
        missing = _gaps(connection, ranges)
        if missing:  # drops are rare and reading their records is expensive
            since = _earliest_hour(counts, missing)
            _load_dropped(connection, dropped_sequence_numbers(catalog, objects, pipelines, since))
            missing = _gaps(connection, ranges)
    counted = before.checked_up_to | {process: last for process, (_, last) in bounds.items()}
    if not accept_losses:
        counted |= _truncated_at(missing, before.checked_up_to)
    losses = LostEvents(
        checked_at=now.isoformat(), checked_up_to=counted, missing=() if accept_losses else tuple(missing)
    )
    objects.put(paths.lost_events(collector), losses.encode())
    return LossReport(collector=collector, events=sum(seq_range.events for seq_range in ranges), missing=tuple(missing))


def assigned_ranges(
    counts: Iterable[HourCounts], counted_up_to: dict[str, int], *, now: datetime
) -> dict[str, tuple[int, int]]:
    """Returns the range of numbers to check by process: from the last checked number to the last one assigned an hour
    ago.
    """
    bounds: dict[str, tuple[int, int]] = {}
    for record in counts:
        hour = parse_iso(f"{record.hour}:00:00+00:00")
        if hour is None or hour + timedelta(hours=1) + MAX_TRANSIT_TIME > now:
            continue
        first, last = bounds.get(record.id, (record.first_seq, record.next_seq - 1))
        bounds[record.id] = min(first, record.first_seq), max(last, record.next_seq - 1)
    open_bounds = {
        process: (max(first, counted_up_to.get(process, 0) + 1), last) for process, (first, last) in bounds.items()
    }
    return {process: (first, last) for process, (first, last) in open_bounds.items() if first <= last}


def _connect_tables(catalog: Catalog, tables: Sequence[CollectorTable]) -> duckdb.DuckDBPyConnection:
    """Opens a DuckDB connection with the view `arrived(collector, seq)` of all sequence numbers that arrived."""
    words = " ".join(f"{table.pipeline}.{table.table} {table.pipeline}.{QUARANTINE}" for table in tables)
    connection, tables_read = connect(catalog, statement=words)
    parts = ["SELECT NULL::VARCHAR AS collector, NULL::BIGINT AS seq WHERE false"]
    for table in tables:
        if f"{table.pipeline}.{table.table}" in tables_read:
            parts.append(
                f'SELECT "{table.collector_column}" AS collector, CAST("{table.seq_column}" AS BIGINT) AS seq '
                f'FROM "{table.pipeline}"."{table.table}"'
            )
        if f"{table.pipeline}.{QUARANTINE}" in tables_read:
            parts.append(
                f"SELECT regexp_extract(raw, '{RAW_COLLECTOR_PATTERN}', 1) AS collector, "
                f"TRY_CAST(regexp_extract(raw, '{RAW_SEQ_PATTERN}', 1) AS BIGINT) AS seq "
                f'FROM "{table.pipeline}"."{QUARANTINE}"'
            )
    connection.execute("CREATE TABLE dropped_ranges (process VARCHAR, low BIGINT, high BIGINT)")
    connection.execute(f"CREATE VIEW arrived AS {' UNION ALL '.join(parts)}")
    return connection


def _load_dropped(connection: duckdb.DuckDBPyConnection, dropped: CollectorSequenceNumbers) -> None:
    """Loads the numbers of events dropped on purpose into the table `dropped_ranges`."""
    connection.execute("DELETE FROM dropped_ranges")
    for process, ranges in dropped.ranges().items():
        rows = pa.table({"low": ranges[:, 0], "high": ranges[:, 1]})
        connection.register("ranges", rows)
        connection.execute("INSERT INTO dropped_ranges SELECT $process, low, high FROM ranges", {"process": process})
        connection.unregister("ranges")


def _gaps(connection: duckdb.DuckDBPyConnection, ranges: Sequence[MissingRange]) -> list[MissingRange]:
    """Returns the missing numbers as ordered ranges, at most `_MAX_RANGES` per process."""
    if not ranges:
        return []
    connection.execute("CREATE OR REPLACE TABLE checked (process VARCHAR, first BIGINT, last BIGINT)")
    connection.executemany(
        "INSERT INTO checked VALUES (?, ?, ?)",
        [(seq_range.id, seq_range.first, seq_range.last) for seq_range in ranges],
    )
    query = f"""
        WITH accounted AS (
            SELECT DISTINCT process, first, last, seq AS low, seq AS high
            FROM arrived JOIN checked ON collector = process AND seq BETWEEN first AND last
            WHERE seq BETWEEN $least AND $most
            UNION ALL
            SELECT process, first, last, greatest(low, first), least(high, last)
            FROM checked JOIN dropped_ranges USING (process) WHERE low <= last AND high >= first
            UNION ALL SELECT process, first, last, last + 1, last + 1 FROM checked
        ), steps AS (
            SELECT process, low, coalesce(
                max(high) OVER (
                    PARTITION BY process, first ORDER BY low, high ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ),
                first - 1
            ) AS before FROM accounted
        )
        SELECT process, before + 1, low - 1 FROM steps WHERE low > before + 1
        QUALIFY row_number() OVER (PARTITION BY process ORDER BY low) <= {_MAX_RANGES} ORDER BY 1, 2
    """
    lowest, highest = min(seq_range.first for seq_range in ranges), max(seq_range.last for seq_range in ranges)
    rows = connection.execute(query, {"least": lowest, "most": highest}).fetchall()
    return [MissingRange(id=process, first=int(low), last=int(high)) for process, low, high in rows]


def _truncated_at(missing: Sequence[MissingRange], counted: Mapping[str, int]) -> dict[str, int]:
    """Returns the last checked number of each process whose missing ranges were truncated at the limit."""
    by_process: dict[str, list[MissingRange]] = {}
    for missing_range in missing:
        by_process.setdefault(missing_range.id, []).append(missing_range)
    return {
        process: max(ranges[-1].last, counted.get(process, 0))
        for process, ranges in by_process.items()
        if len(ranges) >= _MAX_RANGES
    }


def _earliest_hour(counts: Sequence[HourCounts], missing: Sequence[MissingRange]) -> datetime:
    """Returns the earliest hour in which the missing numbers may have been assigned."""
    hours = [
        parse_iso(f"{record.hour}:00:00+00:00")
        for record in counts
        if any(
            missing_range.id == record.id
            and record.first_seq <= missing_range.last
            and record.next_seq > missing_range.first
            for missing_range in missing
        )
    ]
    return min((hour for hour in hours if hour is not None), default=datetime.min.replace(tzinfo=UTC))
