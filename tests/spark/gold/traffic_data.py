"""Test data of CDN traffic at minute grain, with plain Python as the oracle.

Requests arrive late, duplicated, out of order and without statistics; files are compacted, rows deleted and restored.
After each step gold must equal a full rebuild.
"""

from __future__ import annotations

import datetime as dt
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.testing import present

TRAFFIC = """\
pipeline: traffic
description: requests of edges
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event: {name: {path: name}, time: {path: time}, id: id}
tables:
  - name: requests
    catch_all: true
    columns: [{name: edge, path: edge, type: string}]
gold:
  dedupe: {by: event_id, within_days: 1, within_hours: 1}
  tables:
    - name: edge_minutes
      sql: gold/edge_minutes.sql
      reads: [requests]
      partition_by: event_date
      grain: {column: minute, part: hour}
      lag: 15s
    - name: edge_trend
      sql: gold/edge_trend.sql
      reads: [requests]
      partition_by: event_date
      grain: {column: minute}
      affects: {hours: [0, 1]}
"""
EDGE_MINUTES = """\
SELECT event_date, date_trunc('MINUTE', event_time) AS minute, edge, count(*) AS requests
FROM requests GROUP BY event_date, date_trunc('MINUTE', event_time), edge
"""
#: With the requests of the same edge within 60 minutes.
EDGE_TREND = """\
WITH minutes AS (
  SELECT event_date, date_trunc('MINUTE', event_time) AS minute, edge, count(*) AS requests
  FROM requests GROUP BY event_date, date_trunc('MINUTE', event_time), edge
)
SELECT m.event_date, m.minute, m.edge, m.requests, CAST(coalesce(sum(o.requests), 0) AS BIGINT) AS before
FROM minutes m LEFT JOIN minutes o
  ON o.edge = m.edge AND o.minute < m.minute AND o.minute >= m.minute - INTERVAL '60' MINUTE
GROUP BY m.event_date, m.minute, m.edge, m.requests
"""
SQL = {"gold/edge_minutes.sql": EDGE_MINUTES, "gold/edge_trend.sql": EDGE_TREND}
TABLES = ("edge_minutes", "edge_trend")
KEY = paths.table("traffic", "requests")
FIRST = dt.datetime(2025, 3, 2, tzinfo=dt.UTC)
ACROSS_HOURS = 1
Row = dict[str, Any]
#: By minute and edge: requests, and those within 60 minutes before.
Answer = dict[tuple[dt.datetime, str], tuple[int, int]]


def request(hours: float, event_id: str | None, edge: str = "FRA", **more: Any) -> Row:
    """Returns a request some hours after FIRST."""
    return {"event_id": event_id, "event_time": FIRST + dt.timedelta(hours=hours), "edge": edge, **more}


def hours_named(*hours: int) -> tuple[str, ...]:
    """Returns labels of hours counted from FIRST."""
    return tuple(f"{FIRST + dt.timedelta(hours=number):%Y-%m-%dT%H}" for number in hours)


class Traffic(ABC):
    """A project with the pipeline. Requests are changed without Spark; subclasses build its gold."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.lake = Lake(catalog.environment.lake)
        self._batches = 0

    @abstractmethod
    def build(self, table: str) -> tuple[str, ...] | None:
        """Brings a gold table up to date; returns the rebuilt parts, None for all."""

    def land(self, rows: Sequence[Row], *, statistics: bool = True) -> None:
        """Lands rows in one commit like a stream: one file per date."""
        self._batches += 1
        schema = arrow_schema(self.catalog.pipeline("traffic").table("requests").column_types())
        made = user_metadata(pipeline="traffic", batch=self._batches, operation="ingest")
        opened = self.lake.ensure(KEY, schema, user_metadata=made, partition_by=["event_date"])
        filled = [self._filled(row, position) for position, row in enumerate(rows)]
        step = Step("traffic/1/requests", self._batches)
        data = pa.Table.from_pylist(filled, schema=schema)
        version = self.lake.append(opened, KEY, data, step=step, user_metadata=made).version
        if not statistics:
            self._forget_statistics(version)

    def _filled(self, row: Row, position: int) -> Row:
        own = {"event_name": "request", "event_date": row["event_time"].date(), "_batch_id": self._batches}
        arrival = {"_ingested_at": FIRST, "_seq": self._batches, "_position": position}
        return {**own, **arrival, **row}

    def _forget_statistics(self, version: int) -> None:
        path = Path(self.lake.storage.prefix) / KEY / "_delta_log" / f"{version:020d}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        path.write_text("\n".join(map(json.dumps, actions)))

    def optimize(self) -> None:
        """Compacts small files."""
        assert self._opened().optimize.compact()["numFilesRemoved"] > 1

    def delete(self, event_id: str) -> None:
        """Deletes the rows of an event."""
        assert self._opened().delete(f"event_id = '{event_id}'")["num_deleted_rows"]

    def restore(self, version: int) -> None:
        """Restores the table of requests to an older version."""
        self._opened().restore(version)

    def version(self) -> int:
        """Returns the newest version of the table of requests."""
        return int(self._opened().version())

    def _opened(self) -> Any:
        return present(self.lake.open(KEY))

    def requests(self) -> list[Row]:
        """Returns all current rows."""
        rows = self.lake.rows(KEY)
        return [] if rows is None else rows.to_pylist()

    def answer(self, table: str) -> Answer:
        """Returns a gold table; an edge must have each minute once."""
        listed = present(self.lake.rows(paths.table("traffic", table))).to_pylist()
        answer = {(row["minute"], row["edge"]): (row["requests"], row.get("before", 0)) for row in listed}
        assert len(answer) == len(listed)
        return answer

    def holds(self, table: str) -> None:
        """Compares a gold table with the oracle."""
        assert self.answer(table) == expected(self.requests(), trend=table == "edge_trend")


def expected(rows: Sequence[Row], *, trend: bool) -> Answer:
    """Oracle: compares every row with every other and counts everything."""
    kept = deduplicated(rows)
    counts = Counter((row["event_time"].replace(second=0, microsecond=0), row["edge"]) for row in kept)
    hour = dt.timedelta(hours=1)
    before = {
        (minute, edge): sum(n for (at, own), n in counts.items() if own == edge and minute - hour <= at < minute)
        for minute, edge in counts
    }
    return {place: (count, before[place] if trend else 0) for place, count in counts.items()}


def deduplicated(rows: Sequence[Row]) -> list[Row]:
    """A row is a duplicate if an earlier row of its id lies at most ACROSS_HOURS hours away."""

    def is_copy_of(row: Row, other: Row) -> bool:
        return (
            row["event_id"] is not None
            and other["event_id"] == row["event_id"]
            and abs(hour_number(other) - hour_number(row)) <= ACROSS_HOURS
            and (other["_seq"], other["_position"]) < (row["_seq"], row["_position"])
        )

    return [row for row in rows if not any(is_copy_of(row, other) for other in rows)]


def hour_number(row: Row) -> int:
    """Returns the hours from FIRST to a row's hour."""
    return int((row["event_time"] - FIRST) // dt.timedelta(hours=1))


def live_through(traffic: Traffic) -> None:
    """Runs all scenarios on requests; compares each build with the oracle."""

    def builds(minutes: tuple[str, ...] | None, trend: tuple[str, ...] | None) -> None:
        for table, parts in zip(TABLES, (minutes, trend), strict=True):
            assert traffic.build(table) == parts, table
            traffic.holds(table)

    traffic.land([request(hour + 0.3, f"{hour}-{edge}", edge) for hour in range(20) for edge in ("FRA", "BOM")])
    builds(None, None)
    builds((), ())

    traffic.land([request(19.7, "now")])
    builds(hours_named(18, 19, 20), hours_named(18, 19, 20, 21))
    traffic.land([request(3.1, "late")])
    builds(hours_named(2, 3, 4), hours_named(2, 3, 4, 5))
    traffic.land([request(9.2, "out of order"), request(6.9, "still later")])
    builds(hours_named(*range(5, 11)), hours_named(*range(5, 12)))

    # A duplicate that arrived earlier, as after a repair: the counted row moves to another hour.
    traffic.land([request(12.99, "moved"), request(12.98, "moved")])
    builds(hours_named(11, 12, 13), hours_named(11, 12, 13, 14))
    traffic.land([request(13.01, "moved", _seq=0)])
    builds(hours_named(12, 13, 14), hours_named(12, 13, 14, 15))
    assert (FIRST + dt.timedelta(hours=13), "FRA") in traffic.answer("edge_minutes")

    traffic.land([request(23.995, "at midnight"), request(24.005, "at midnight")])
    builds(hours_named(22, 23, 24, 25), hours_named(22, 23, 24, 25, 26))

    before = traffic.version()
    traffic.optimize()
    builds((), ())

    day, around = ("2025-03-02",), (hours_named(-1), hours_named(24))
    traffic.land([request(5.5, "without statistics")], statistics=False)
    builds((*around[0], *day, *around[1]), (*around[0], *day, *around[1], *hours_named(25)))
    traffic.delete("without statistics")
    builds((*around[0], *day, *around[1]), (*around[0], *day, *around[1], *hours_named(25)))
    traffic.restore(before)
    assert traffic.build("edge_minutes") is not None
    assert traffic.build("edge_trend") is not None
    for table in TABLES:
        traffic.holds(table)
