"""Keeps what every table was like: writes the report of now as snapshots. Needs no JVM."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deltaworks.control.clock import utc_now
from deltaworks.maintenance.table_health.measure import LastOperation, TableHealth
from deltaworks.maintenance.table_health.report import TableReport, report_tables
from deltaworks.maintenance.table_health.snapshots import costs_text, write_snapshots
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

_WRITES = ("WRITE", "MERGE", "UPDATE", "DELETE", "STREAMING UPDATE", "RESTORE")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResult:
    """What one table was found like. `reason` is its error, or what costs its score most."""

    table: str
    score: int | None
    files: int | None
    bytes: int | None
    reason: str = ""


def snapshot_tables(
    catalog: Catalog, *, pipeline: str = "", list_folders: bool = False, now: dt.datetime | None = None
) -> list[SnapshotResult]:
    """Write one row for each table that exists or cannot be read. Safe beside everything; one commit.

    Args:
        pipeline: only this one's tables, the engine's own among them.
        list_folders: look for files that nothing needs, which lists every table's folder.
    """
    taken_at = now or utc_now()
    reports = report_tables(catalog, pipeline=pipeline, control=True, list_folders=list_folders, now=taken_at)
    kept = [report for report in reports if report.health is not None or report.error]
    if kept:
        rows = [snapshot_row(report) for report in kept]
        write_snapshots(Lake(catalog.environment.lake), rows, taken_at=taken_at, of=pipeline)
    return [_result(report) for report in kept]


def _result(report: TableReport) -> SnapshotResult:
    health, judged = report.health, report.score
    dearest = judged.costly[0] if judged is not None and judged.costly else None
    return SnapshotResult(
        table=f"{report.owner}.{report.name}",
        score=judged.value if judged is not None else None,
        files=health.files if health is not None else None,
        bytes=health.bytes if health is not None else None,
        reason=report.error or (f"{dearest.name}: {dearest.why}" if dearest is not None else ""),
    )


def snapshot_row(report: TableReport) -> dict[str, Any]:
    """A report by the columns of the snapshots."""
    row: dict[str, Any] = {
        "owner": report.owner,
        "table_name": report.name,
        "kind": report.kind,
        "error": report.error or None,
        "unordered_share": report.unordered_share,
        "would_do": report.choice.reason if report.choice is not None else None,
    }
    if report.score is not None:
        row["score"] = report.score.value
        row["score_costs"] = costs_text({part.name: part.cost for part in report.score.parts})
    if report.unreferenced is not None:
        row["unreferenced_files"] = report.unreferenced.files
        row["unreferenced_bytes"] = report.unreferenced.bytes
    return row | (_of_health(report.health) if report.health is not None else {})


def _of_health(health: TableHealth) -> dict[str, Any]:
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
        "last_write_at": _newest(health, _WRITES),
        "last_optimize_at": _newest(health, ("OPTIMIZE",)),
        "last_vacuum_at": _newest(health, ("VACUUM END",)),
    }
    if health.log is not None:
        row |= {
            "log_commits": health.log.commits,
            "log_bytes": health.log.bytes,
            "checkpoint_at": health.log.checkpoint_at,
        }
    return row


def _newest(health: TableHealth, operations: Sequence[str]) -> dt.datetime | None:
    last: list[LastOperation] = [health.last_operations[name] for name in operations if name in health.last_operations]
    return max((operation.at for operation in last), default=None)
