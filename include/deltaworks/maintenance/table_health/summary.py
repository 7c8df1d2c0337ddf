"""Writes the table summary for the console, from the reports of a health snapshot.

Scores of earlier nights are taken from the previous summary or, if there is none, from the snapshots. The next night is
planned by the same code as the nightly OPTIMIZE.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.base import log_failures, read_summary, truncate, write_summary
from deltaworks.control.summaries.tables import (
    MAX_NIGHTS,
    MAX_TABLES,
    HealthPoint,
    HoldSummary,
    MaintenancePlan,
    ScorePenalty,
    TablesSummary,
    TableSummary,
    add_night,
)
from deltaworks.maintenance.optimize_night import NightPlan, plan_night
from deltaworks.maintenance.partition_choice import TableChoice
from deltaworks.maintenance.table_health.catalog_tables import map_tables
from deltaworks.maintenance.table_health.measure import SIZE_BOUNDS, TableHealth
from deltaworks.maintenance.table_health.report import TableReport
from deltaworks.maintenance.table_health.snapshots import read_snapshots, snapshot_row
from deltaworks.maintenance.vacuum_holds import holds_on
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

#: Kinds of tables on which readers can have holds.
_READ_BY_VERSION = ("bronze", "keyed", "gold", "live")
_TIMES = ("last_write_at", "last_optimize_at", "last_vacuum_at")
_MAX_HOLDS = 20


def write_tables_summary(
    catalog: Catalog, pipeline: str, reports: Sequence[TableReport], *, taken_at: dt.datetime
) -> None:
    """Writes the summary of a pipeline's tables. Errors are only logged. Last writer wins.

    Args:
        reports: of tables that exist or cannot be read; other pipelines are ignored.
        taken_at: timezone-aware.
    """
    with log_failures(f"The summary of the tables of {pipeline}"):
        lake = Lake(catalog.environment.lake)
        home = PipelineHome.open(catalog.environment.lake, pipeline)
        pipeline_reports = [report for report in reports if report.owner == pipeline]
        key = tables_summary(pipeline)
        before, etag = read_summary(TablesSummary, home.objects, key)
        nights = before.nights() if before is not None else _nights_from_snapshots(lake, pipeline, taken_at)
        summary = build_summary(
            pipeline,
            pipeline_reports,
            plan=plan_next_night(catalog, pipeline, pipeline_reports),
            holds=_table_holds(catalog, home.objects, pipeline, pipeline_reports),
            nights=nights,
            taken_at=taken_at,
        )
        if not write_summary(home.objects, key, summary, etag=etag):
            home.objects.put(key, summary.encode())


def plan_next_night(catalog: Catalog, pipeline: str, reports: Sequence[TableReport]) -> NightPlan:
    """Plans the next maintenance night from the reports. Pure."""
    minutes = catalog.pipeline(pipeline).maintenance.optimize_minutes
    choices = [report.choice for report in reports if report.choice is not None]
    return plan_night(choices, budget_seconds=minutes * 60)


def build_summary(
    pipeline: str,
    reports: Sequence[TableReport],
    *,
    plan: NightPlan,
    holds: Mapping[str, tuple[HoldSummary, ...]],
    nights: Mapping[str, Sequence[HealthPoint]],
    taken_at: dt.datetime,
) -> TablesSummary:
    """Builds the summary. Pure.

    Args:
        holds: VACUUM holds by table.
        nights: scores of earlier nights by table.
    """
    tables = [
        _summarize_report(report, plan).replace(holds=holds.get(report.name, ())) for report in reports[:MAX_TABLES]
    ]
    date = taken_at.astimezone(dt.UTC).date().isoformat()
    return TablesSummary(
        pipeline=pipeline,
        at=taken_at.isoformat(timespec="seconds"),
        tables=add_night(tables, nights, date=date),
        size_bounds=SIZE_BOUNDS,
        omitted=max(0, len(reports) - MAX_TABLES),
    )


def _summarize_report(report: TableReport, plan: NightPlan) -> TableSummary:
    named = TableSummary(name=report.name, kind=report.kind, error=truncate(report.error))
    health = report.health
    if health is None:
        return named
    row = snapshot_row(report)
    return named.replace(
        score=row.get("score"),
        costs=_score_costs(report),
        unordered_share=report.unordered_share,
        unreferenced_files=row.get("unreferenced_files"),
        unreferenced_bytes=row.get("unreferenced_bytes"),
        log_commits=row.get("log_commits"),
        next_plan=None if report.choice is None else _table_plan(report.choice, plan),
        **_health_fields(health),
        **{name: _iso_or_empty(row[name]) for name in _TIMES},
    )


def _health_fields(health: TableHealth) -> dict[str, object]:
    return {
        "version": health.version,
        "files": health.files,
        "bytes": health.bytes,
        "rows": health.rows,
        "small_files": health.small_files,
        "partitions": health.partitions,
        "skew": health.skew,
        "size_histogram": health.size_histogram,
        "deleted_rows": health.deletion_vector_rows,
        "commits_since_checkpoint": health.commits_since_checkpoint,
    }


def _score_costs(report: TableReport) -> tuple[ScorePenalty, ...]:
    parts = () if report.score is None else report.score.parts
    return tuple(
        ScorePenalty(name=part.name, weight=part.weight, cost=part.cost, reason=truncate(part.reason)) for part in parts
    )


def _table_plan(choice: TableChoice, plan: NightPlan) -> MaintenancePlan:
    selected = plan.selected_partitions(choice.table)
    return MaintenancePlan(
        reason=truncate(choice.reason),
        order=truncate(choice.order),
        partitions=len(selected),
        files_saved=sum(partition.files_saved for partition in selected),
        bytes_rewritten=sum(partition.bytes_rewritten for partition in selected),
        seconds=sum(partition.cost_seconds for partition in selected),
        deferred=len(plan.deferred_partitions(choice.table)),
    )


def _table_holds(
    catalog: Catalog, objects: ObjectStore, pipeline: str, reports: Sequence[TableReport]
) -> dict[str, tuple[HoldSummary, ...]]:
    """Returns the VACUUM holds of each table, or the error of reading them."""
    home = PipelineHome(objects, pipeline)
    names = [report.name for report in reports if report.health is not None and report.kind in _READ_BY_VERSION]

    def read(lake: Lake, name: str) -> tuple[str, tuple[HoldSummary, ...]]:
        try:
            holds = holds_on(catalog, lake, home, name)
        except Exception as error:  # the holds of other tables are still read
            return name, (HoldSummary(by=truncate(f"unknown: {error}")),)
        return name, tuple(
            HoldSummary(by=truncate(hold.holder), since=_iso_or_empty(hold.since)) for hold in holds[:_MAX_HOLDS]
        )

    return dict(map_tables(catalog.environment.lake, names, read))


def _nights_from_snapshots(lake: Lake, pipeline: str, taken_at: dt.datetime) -> dict[str, tuple[HealthPoint, ...]]:
    since = taken_at.astimezone(dt.UTC).date() - dt.timedelta(days=MAX_NIGHTS)
    columns = ["taken_at", "taken_on", "table_name", "score", "bytes", "error"]
    nights: dict[str, dict[str, HealthPoint]] = {}
    for row in read_snapshots(lake, since=since, owner=pipeline, columns=columns):
        if not row["error"]:
            date = row["taken_on"].isoformat()
            nights.setdefault(row["table_name"], {})[date] = HealthPoint(
                date=date, score=row["score"], bytes=row["bytes"]
            )
    return {name: tuple(points[date] for date in sorted(points)) for name, points in nights.items()}


def _iso_or_empty(at: dt.datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="seconds")
