"""The health of tables over time: a Delta table with one row for each table and run, written without a JVM.

Rows are small and few, one commit a run. What a snapshot cannot see because it lies further back than a scan looks,
such as the last OPTIMIZE of a busy table, is carried over from the snapshot before.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from deltaworks.control import paths
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

OPERATION = "snapshot_health"
SNAPSHOT_SCHEMA = arrow_schema(
    {
        "taken_at": "timestamp",
        "taken_on": "date",
        "owner": "string",
        "table_name": "string",
        "kind": "string",
        "error": "string",
        "version": "long",
        "score": "int",
        "score_costs": "string",
        "files": "long",
        "bytes": "long",
        "rows": "long",
        "size_histogram": "array<long>",
        "small_files": "long",
        "small_bytes": "long",
        "partitions": "long",
        "skew": "double",
        "deletion_vector_rows": "long",
        "unordered_share": "double",
        "log_commits": "long",
        "log_bytes": "long",
        "commits_since_checkpoint": "long",
        "checkpoint_at": "timestamp",
        "unreferenced_files": "long",
        "unreferenced_bytes": "long",
        "last_write_at": "timestamp",
        "last_optimize_at": "timestamp",
        "last_vacuum_at": "timestamp",
        "would_do": "string",
        "run": "string",
    }
)
PARTITION = ("taken_on",)
#: Written from operations that a scan may not see any more.
CARRIED = ("last_write_at", "last_optimize_at", "last_vacuum_at")
#: How far back a table's last snapshot is looked for.
_CARRIED_DAYS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a table grew between its first and last snapshot of a time, a day. None where there is one snapshot only."""

    owner: str
    table: str
    snapshots: int
    days: float
    score: int | None
    score_change: int | None
    files: int
    files_a_day: float | None
    bytes: int
    bytes_a_day: float | None
    log_bytes_a_day: float | None


def write_snapshots(lake: Lake, rows: Sequence[Mapping[str, Any]], *, taken_at: dt.datetime, of: str) -> int:
    """Append one row for each table, as one commit; the version it made.

    Written twice with one time, as by a task that is tried again, rows land once.

    Args:
        rows: values by the columns of SNAPSHOT_SCHEMA but the first two and `run`.
        taken_at: when the tables were looked at, with its time zone.
        of: whose tables they are: a pipeline, or empty for all.
    """
    key, version = paths.table_snapshots(), int(taken_at.timestamp() * 1000)
    step = Step(f"table_health/{of or 'all'}", version)
    made = user_metadata(
        pipeline=of or "all", batch=version, operation=OPERATION, step=step.app_id, step_version=version
    )
    table = lake.ensure(key, SNAPSHOT_SCHEMA, user_metadata=made, partition_by=PARTITION)
    day = taken_at.astimezone(dt.UTC).date()
    stamped = {"taken_at": taken_at, "taken_on": day, "run": current_run()}
    before = last_snapshots(lake, since=day - dt.timedelta(days=_CARRIED_DAYS))
    filled = [{**row, **stamped, **_carried(row, before)} for row in rows]
    data = pa.Table.from_pylist(filled, schema=SNAPSHOT_SCHEMA)
    return lake.append(table, key, data, step=step, user_metadata=made).version


def _carried(row: Mapping[str, Any], before: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    earlier = before.get((row["owner"], row["table_name"]), {})
    # A table that was recreated has another history.
    if row.get("version") is None or (earlier.get("version") or 0) > row["version"]:
        return {}
    return {name: row.get(name) or earlier.get(name) for name in CARRIED}


def read_snapshots(
    lake: Lake, *, since: dt.date, owner: str = "", table: str = "", columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Snapshots taken on `since` or later, oldest first."""
    condition = ds.field("taken_on") >= pa.scalar(since, pa.date32())
    if owner:
        condition &= ds.field("owner") == owner
    if table:
        condition &= ds.field("table_name") == table
    rows = lake.rows(paths.table_snapshots(), columns=columns, filters=condition)
    snapshots: list[dict[str, Any]] = [] if rows is None else rows.sort_by("taken_at").to_pylist()
    return snapshots


def last_snapshots(lake: Lake, *, since: dt.date) -> dict[tuple[str, str], dict[str, Any]]:
    """The newest snapshot of each table, by owner and name."""
    columns = ["taken_at", "owner", "table_name", "version", *CARRIED]
    return {(row["owner"], row["table_name"]): row for row in read_snapshots(lake, since=since, columns=columns)}


def trends(snapshots: Iterable[Mapping[str, Any]]) -> list[Trend]:
    """How each table grew over these snapshots, which are in order of time. Those with an error do not count. Pure."""
    by_table: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in snapshots:
        if row["files"] is not None:
            by_table.setdefault((row["owner"], row["table_name"]), []).append(row)
    return [_trend(rows) for _, rows in sorted(by_table.items())]


def _trend(rows: Sequence[Mapping[str, Any]]) -> Trend:
    first, last = rows[0], rows[-1]
    days = (last["taken_at"] - first["taken_at"]).total_seconds() / 86_400

    def a_day(name: str) -> float | None:
        if not days or last[name] is None or first[name] is None:
            return None
        return float(last[name] - first[name]) / float(days)

    scores = (first["score"], last["score"])
    return Trend(
        owner=last["owner"],
        table=last["table_name"],
        snapshots=len(rows),
        days=days,
        score=last["score"],
        score_change=None if None in scores else last["score"] - first["score"],
        files=last["files"],
        files_a_day=a_day("files"),
        bytes=last["bytes"],
        bytes_a_day=a_day("bytes"),
        log_bytes_a_day=a_day("log_bytes"),
    )


def costs_text(costs: Mapping[str, float]) -> str:
    """What each part of a score cost, as the snapshot keeps it."""
    return json.dumps(dict(costs), separators=(",", ":"))
