"""Looks for events that a collector acknowledged and that are nowhere: gaps in the numbers it gave them.

Numbers have no gaps within a process. So the numbers in the catch-all tables and the quarantine of all pipelines that a
collector feeds are, together, all of them: what is missing an hour after it was taken is lost, or on its way for too
long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import duckdb

from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.collector import HourCounts, Losses, MissingRange, losses_key, read_counts
from deltaworks.control.records.store import RecordStore
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.query import QUARANTINE, connect

#: What was taken within the last hour may still be on its way.
ON_THE_WAY = timedelta(hours=1)
_COLLECTOR_PATH, _SEQ_PATH = "_collector.collector", "_collector.seq"
_MOST_RANGES = 200
# The stamp is the first member of an event, so a raw value that was cut has it too; within a request of API Gateway,
# its quotes are escaped.
_RAW_SEQ = r'_collector\\?":\{\\?"v\\?":\d+,\\?"seq\\?":(\d+)'
_RAW_COLLECTOR = r'\\?"collector\\?":\\?"([0-9a-f]{32})'


@dataclass(frozen=True, slots=True)
class CollectedTable:
    """The catch-all table of a pipeline that has a collector's numbers, by its columns."""

    pipeline: str
    table: str
    collector: str
    seq: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """What a look has found of one collector. `unprovable` names pipelines whose tables keep no numbers."""

    collector: str
    events: int
    missing: tuple[MissingRange, ...] = ()
    unprovable: tuple[str, ...] = ()


def collected_table(spec: PipelineSpec) -> CollectedTable | None:
    """The catch-all table that keeps `_collector.collector` and `_collector.seq`; None where none does."""
    for table in spec.tables:
        columns = {column.path: column.name for column in table.columns}
        if table.catch_all is True and _COLLECTOR_PATH in columns and _SEQ_PATH in columns:
            return CollectedTable(spec.pipeline, table.name, columns[_COLLECTOR_PATH], columns[_SEQ_PATH])
    return None


def find_lost_events(
    catalog: Catalog, objects: ObjectStore, collector: str, *, accept: bool = False, now: datetime | None = None
) -> LossReport:
    """Look for numbers of a collector that are nowhere, and put on record what was found.

    Idempotent. May run beside anything; of two at once one record stands, and both are true.

    Args:
        accept: write off what is missing, so that it is not looked for again.
    """
    now = now or utc_now()
    pipelines = sorted({source.pipeline for source in catalog.collector(collector).sources.values()})
    specs = catalog.pipelines
    tables = [collected_table(specs[name]) if name in specs else None for name in pipelines]
    unprovable = tuple(name for name, table in zip(pipelines, tables, strict=True) if table is None)
    if unprovable:
        return LossReport(collector=collector, events=0, unprovable=unprovable)
    store = RecordStore(objects, Losses)
    before = store.read(losses_key(collector)) or Losses(looked_at=now.isoformat())
    counted = dict(before.counted_up_to)
    missing: list[MissingRange] = []
    events = 0
    bounds = numbers_given(read_counts(objects, collector), counted, now=now)
    if bounds:
        connection = _connected(catalog, [table for table in tables if table is not None])
        for process, (first, last) in bounds.items():
            gaps = [
                MissingRange(id=process, first=low, last=high) for low, high in _gaps(connection, process, first, last)
            ]
            events += last - first + 1
            missing += gaps
            counted[process] = last if accept or not gaps else gaps[0].first - 1
    losses = Losses(looked_at=now.isoformat(), counted_up_to=counted, missing=() if accept else tuple(missing))
    objects.put(losses_key(collector), losses.encode())
    return LossReport(collector=collector, events=events, missing=tuple(missing))


def numbers_given(
    counts: Iterable[HourCounts], counted_up_to: dict[str, int], *, now: datetime
) -> dict[str, tuple[int, int]]:
    """Of each process the numbers to look for: behind those counted before, up to those given an hour ago or more."""
    bounds: dict[str, tuple[int, int]] = {}
    for record in counts:
        hour = parse_iso(f"{record.hour}:00:00+00:00")
        if hour is None or hour + timedelta(hours=1) + ON_THE_WAY > now:
            continue
        first, last = bounds.get(record.id, (record.first_seq, record.next_seq - 1))
        bounds[record.id] = min(first, record.first_seq), max(last, record.next_seq - 1)
    open_bounds = {
        process: (max(first, counted_up_to.get(process, 0) + 1), last) for process, (first, last) in bounds.items()
    }
    return {process: (first, last) for process, (first, last) in open_bounds.items() if first <= last}


def _connected(catalog: Catalog, tables: Sequence[CollectedTable]) -> duckdb.DuckDBPyConnection:
    """A connection with `given(collector, seq)`: every number that is somewhere."""
    words = " ".join(f"{table.pipeline}.{table.table} {table.pipeline}.{QUARANTINE}" for table in tables)
    connection, there = connect(catalog, statement=words)
    parts = ["SELECT NULL::VARCHAR AS collector, NULL::BIGINT AS seq WHERE false"]
    for table in tables:
        if f"{table.pipeline}.{table.table}" in there:
            parts.append(
                f'SELECT "{table.collector}" AS collector, CAST("{table.seq}" AS BIGINT) AS seq '
                f'FROM "{table.pipeline}"."{table.table}"'
            )
        if f"{table.pipeline}.{QUARANTINE}" in there:
            parts.append(
                f"SELECT regexp_extract(raw, '{_RAW_COLLECTOR}', 1) AS collector, "
                f"TRY_CAST(regexp_extract(raw, '{_RAW_SEQ}', 1) AS BIGINT) AS seq "
                f'FROM "{table.pipeline}"."{QUARANTINE}"'
            )
    connection.execute(f"CREATE VIEW given AS {' UNION ALL '.join(parts)}")
    return connection


def _gaps(connection: duckdb.DuckDBPyConnection, process: str, first: int, last: int) -> list[tuple[int, int]]:
    """The ranges of numbers from `first` to `last` that are nowhere, in order."""
    query = f"""
        WITH here AS (
            SELECT DISTINCT seq FROM given WHERE collector = $process AND seq BETWEEN $first AND $last
            UNION ALL SELECT $last + 1
        ), steps AS (SELECT seq, lag(seq, 1, $first - 1) OVER (ORDER BY seq) AS before FROM here)
        SELECT before + 1, seq - 1 FROM steps WHERE seq > before + 1 ORDER BY 1 LIMIT {_MOST_RANGES}
    """
    rows = connection.execute(query, {"process": process, "first": first, "last": last}).fetchall()
    return [(int(low), int(high)) for low, high in rows]
