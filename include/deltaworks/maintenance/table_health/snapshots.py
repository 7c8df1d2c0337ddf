"""Table health over time: a Delta table with one row per table and run. Needs no JVM.

Each run makes one commit. Values that are older than the commits a run reads, such as the last OPTIMIZE of a busy
table, are copied from the previous snapshot. Trends are also drawn as one self-contained HTML page.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from deltaworks.charts.drawing import ChartOptions
from deltaworks.charts.page import section, with_legend, write_page
from deltaworks.charts.plots import line_chart
from deltaworks.charts.scales import MAX_SERIES, named_series
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.maintenance.table_health.measure import LastOperation, TableHealth
from deltaworks.maintenance.table_health.report import TableReport, report_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import control_description
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from deltaworks.tables.descriptions import ensure_described
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
        "planned_action": "string",
        "run": "string",
    }
)
PARTITION = ("taken_on",)
#: Columns that are copied from the previous snapshot, if a run does not read far enough back to find the operation.
CARRIED_OVER = ("last_write_at", "last_optimize_at", "last_vacuum_at")
#: Maximum age in days of the previous snapshot.
_CARRY_OVER_DAYS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The growth of a table per day between two snapshots. Values are None with a single snapshot."""

    owner: str
    table: str
    snapshots: int
    days: float
    score: int | None
    score_change: int | None
    files: int
    files_per_day: float | None
    bytes: int
    bytes_per_day: float | None
    log_bytes_per_day: float | None


def write_snapshots(lake: Lake, rows: Sequence[Mapping[str, Any]], *, taken_at: dt.datetime, pipeline: str) -> int:
    """Appends one row per table in one commit; returns the version. Idempotent per time.

    Args:
        rows: values by column of SNAPSHOT_SCHEMA, without the first two and `run`.
        taken_at: timezone-aware.
        pipeline: the pipeline of the tables; empty for all.
    """
    key, version = paths.table_snapshots(), int(taken_at.timestamp() * 1000)
    step = Step(f"table_health/{pipeline or 'all'}", version)
    metadata = user_metadata(
        pipeline=pipeline or "all", batch=version, operation=OPERATION, step=step.app_id, step_version=version
    )
    table = ensure_described(
        lake,
        key,
        SNAPSHOT_SCHEMA,
        control_description("table_snapshots"),
        user_metadata=metadata,
        partition_by=PARTITION,
    )
    day = taken_at.astimezone(dt.UTC).date()
    stamped = {"taken_at": taken_at, "taken_on": day, "run": current_run()}
    before = last_snapshots(lake, since=day - dt.timedelta(days=_CARRY_OVER_DAYS))
    filled = [{**row, **stamped, **_carry_over(row, before)} for row in rows]
    data = pa.Table.from_pylist(filled, schema=SNAPSHOT_SCHEMA)
    return lake.append(table, key, data, step=step, user_metadata=metadata).version


def _carry_over(row: Mapping[str, Any], before: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    earlier = before.get((row["owner"], row["table_name"]), {})
    # A recreated table has a new history.
    if row.get("version") is None or (earlier.get("version") or 0) > row["version"]:
        return {}
    return {name: row.get(name) or earlier.get(name) for name in CARRIED_OVER}


def read_snapshots(
    lake: Lake, *, since: dt.date, owner: str = "", table: str = "", columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Returns the snapshots since a date, oldest first."""
    condition = ds.field("taken_on") >= pa.scalar(since, pa.date32())
    if owner:
        condition &= ds.field("owner") == owner
    if table:
        condition &= ds.field("table_name") == table
    rows = lake.rows(paths.table_snapshots(), columns=columns, filters=condition)
    snapshots: list[dict[str, Any]] = [] if rows is None else rows.sort_by("taken_at").to_pylist()
    return snapshots


def last_snapshots(lake: Lake, *, since: dt.date) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the newest snapshot of each table, by owner and table name."""
    columns = ["taken_at", "owner", "table_name", "version", *CARRIED_OVER]
    return {(row["owner"], row["table_name"]): row for row in read_snapshots(lake, since=since, columns=columns)}


def trends(snapshots: Iterable[Mapping[str, Any]]) -> list[Trend]:
    """Returns the growth of each table over ordered snapshots, without snapshots of unreadable tables. Pure."""
    by_table: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in snapshots:
        if row["files"] is not None:
            by_table.setdefault((row["owner"], row["table_name"]), []).append(row)
    return [_trend(rows) for _, rows in sorted(by_table.items())]


def _trend(rows: Sequence[Mapping[str, Any]]) -> Trend:
    first, last = rows[0], rows[-1]
    days = (last["taken_at"] - first["taken_at"]).total_seconds() / 86_400

    def per_day(name: str) -> float | None:
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
        files_per_day=per_day("files"),
        bytes=last["bytes"],
        bytes_per_day=per_day("bytes"),
        log_bytes_per_day=per_day("log_bytes"),
    )


def encode_costs(costs: Mapping[str, float]) -> str:
    """Encodes the costs of a score for a snapshot row."""
    return json.dumps(dict(costs), separators=(",", ":"))


_WRITE_OPERATIONS = ("WRITE", "MERGE", "UPDATE", "DELETE", "STREAMING UPDATE", "RESTORE")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResult:
    """The result for one table. `reason` is its error, or its costliest score part."""

    table: str
    score: int | None
    files: int | None
    bytes: int | None
    reason: str = ""


def snapshot_tables(
    catalog: Catalog,
    *,
    pipeline: str = "",
    list_folders: bool = False,
    now: dt.datetime | None = None,
    report: Callable[[list[TableReport], dt.datetime], None] = lambda reports, taken_at: None,
) -> list[SnapshotResult]:
    """Writes one row for each table that exists or cannot be read, in one commit. Safe at any time.

    Args:
        pipeline: only this pipeline's tables, including control tables.
        list_folders: also count unreferenced files, which requires listing every table's folder.
        report: called with the reports after the write.
    """
    taken_at = now or utc_now()
    reports = report_tables(catalog, pipeline=pipeline, control=True, list_folders=list_folders, now=taken_at)
    written_reports = [
        table_report for table_report in reports if table_report.health is not None or table_report.error
    ]
    if written_reports:
        rows = [snapshot_row(table_report) for table_report in written_reports]
        write_snapshots(Lake(catalog.environment.lake), rows, taken_at=taken_at, pipeline=pipeline)
    report(written_reports, taken_at)
    return [_result(table_report) for table_report in written_reports]


def _result(report: TableReport) -> SnapshotResult:
    health, score = report.health, report.score
    costliest = score.costly[0] if score is not None and score.costly else None
    return SnapshotResult(
        table=f"{report.owner}.{report.name}",
        score=score.value if score is not None else None,
        files=health.files if health is not None else None,
        bytes=health.bytes if health is not None else None,
        reason=report.error or (f"{costliest.name}: {costliest.reason}" if costliest is not None else ""),
    )


def snapshot_row(report: TableReport) -> dict[str, Any]:
    """Converts a report to a snapshot row."""
    row: dict[str, Any] = {
        "owner": report.owner,
        "table_name": report.name,
        "kind": report.kind,
        "error": report.error or None,
        "unordered_share": report.unordered_share,
        "planned_action": report.choice.reason if report.choice is not None else None,
    }
    if report.score is not None:
        row["score"] = report.score.value
        row["score_costs"] = encode_costs({part.name: part.cost for part in report.score.parts})
    if report.unreferenced is not None:
        row["unreferenced_files"] = report.unreferenced.files
        row["unreferenced_bytes"] = report.unreferenced.bytes
    return row | (_health_columns(report.health) if report.health is not None else {})


def _health_columns(health: TableHealth) -> dict[str, Any]:
    row: dict[str, Any] = {
        "version": health.version,
        "files": health.files,
        "bytes": health.bytes,
        "rows": health.rows,
        "size_histogram": list(health.size_histogram),
        "small_files": health.small_files,
        "small_bytes": health.small_bytes,
        "partitions": health.partitions,
        "skew": health.skew,
        "deletion_vector_rows": health.deletion_vector_rows,
        "commits_since_checkpoint": health.commits_since_checkpoint,
        "last_write_at": _newest_operation(health, _WRITE_OPERATIONS),
        "last_optimize_at": _newest_operation(health, ("OPTIMIZE",)),
        "last_vacuum_at": _newest_operation(health, ("VACUUM END",)),
    }
    if health.log is not None:
        row |= {
            "log_commits": health.log.commits,
            "log_bytes": health.log.bytes,
            "checkpoint_at": health.log.checkpoint_at,
        }
    return row


def _newest_operation(health: TableHealth, operations: Sequence[str]) -> dt.datetime | None:
    last: list[LastOperation] = [health.last_operations[name] for name in operations if name in health.last_operations]
    return max((operation.at for operation in last), default=None)


Snapshot = Mapping[str, Any]
LineValue = Callable[[Snapshot], float | None]


def small_file_share(row: Snapshot) -> float | None:
    """Returns the share of files that OPTIMIZE would merge; None if unknown."""
    if not row["files"] or row["small_files"] is None:
        return None
    return float(row["small_files"]) / float(row["files"])


#: Charts: title, axis, and value of a snapshot.
CHARTS: tuple[tuple[str, str, LineValue], ...] = (
    ("Score", "of 100", lambda row: row["score"]),
    ("Files", "files", lambda row: row["files"]),
    ("Share of small files", "share", small_file_share),
    ("Size", "MiB", lambda row: None if row["bytes"] is None else row["bytes"] / (1 << 20)),
)


def worst_tables(snapshots: Iterable[Snapshot], max_tables: int) -> dict[str, list[Snapshot]]:
    """Returns the snapshots of the tables with the lowest current scores, worst first, by `owner.table`. Pure.

    Args:
        snapshots: ordered by time.
    """
    by_table: dict[str, list[Snapshot]] = {}
    for row in snapshots:
        by_table.setdefault(f"{row['owner']}.{row['table_name']}", []).append(row)
    scored = sorted(
        (score, name)
        for name, rows in by_table.items()
        if (score := next((row["score"] for row in reversed(rows) if row["score"] is not None), None)) is not None
    )
    return {name: by_table[name] for _, name in scored[:max_tables]}


def write_trend_chart(path: Path, by_table: Mapping[str, list[Snapshot]]) -> Path:
    """Writes a page with a line per table in each chart, and returns its path. Lines have gaps where a table was
    unreadable.
    """
    times = [row["taken_at"] for rows in by_table.values() for row in rows]
    summary = f"{len(by_table)} tables"
    if times:
        summary += f", {min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC; the worst score comes first"
    sections = (
        _trend_section(title, axis, value_of, by_table, first)
        for title, axis, value_of in CHARTS
        for first in range(0, len(by_table), MAX_SERIES)
    )
    return write_page(path, title="Health of tables over time", summary=f"{summary}.", sections=sections)


def _trend_section(
    title: str, axis: str, value_of: LineValue, by_table: Mapping[str, list[Snapshot]], first: int
) -> str:
    """Renders the lines of the tables from number `first`, as many as colours can distinguish."""
    names = list(by_table)[first : first + MAX_SERIES]
    if len(by_table) > MAX_SERIES:
        title += f", tables {first + 1} to {first + len(names)}"
    data = named_series({name: [(row["taken_at"], value_of(row)) for row in by_table[name]] for name in names})
    options = ChartOptions(title=title, x_title="time, UTC", y_title=axis, wide=True)
    # Snapshots may be taken at any distance, so that only an unreadable table is a gap.
    chart = line_chart(options, data, data.span, from_zero=True, points=True, split_at_gaps=False)
    return section(title, with_legend(chart, data))
