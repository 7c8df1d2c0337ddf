"""`deltaworks tables`, `tables show`, `tables trend`: health of tables, read from Delta logs without a JVM."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from deltaworks.cli.context import OptionalPipelineArgument, catalog
from deltaworks.cli.output import listing_command, print_heading, print_json, print_line
from deltaworks.cli.output import print_parts as show_parts
from deltaworks.control.clock import utc_now
from deltaworks.control.home import PipelineHome
from deltaworks.control.listing import Cell, Listing, byte_count_cell, count_cell, format_bytes
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.held_tables import HeldTable
from deltaworks.errors import ConfigError
from deltaworks.maintenance.table_health.catalog_tables import declared_tables
from deltaworks.maintenance.table_health.measure import SIZE_BOUNDS, PartitionHealth, TableHealth
from deltaworks.maintenance.table_health.report import TableReport, report_table, report_tables
from deltaworks.maintenance.table_health.snapshots import Trend, read_snapshots, trends
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake

_MAX_PARTITIONS_SHOWN = 20
_AS_JSON = typer.Option(False, "--json", help="Print one JSON document instead of a table.")
_LIST_FOLDERS = typer.Option(
    False, "--unreferenced", help="Also list folders to find unreferenced files; takes longer."
)


def register(app: typer.Typer) -> None:
    """Adds the commands to `deltaworks tables`."""
    app.command("list")(tables)
    app.command()(show)
    app.command()(trend)


@listing_command
def tables(
    pipeline: OptionalPipelineArgument = "",
    control: bool = typer.Option(False, help="Include internal tables."),
    unreferenced: bool = _LIST_FOLDERS,
) -> list[str | Listing]:
    """List tables: score and main penalty, files, size, rows, whether Z-order acts, and the planned maintenance."""
    project = catalog()
    if pipeline and pipeline not in project.relays:
        project.pipeline(pipeline)
    reports = report_tables(project, pipeline=pipeline, control=control, list_folders=unreferenced, now=utc_now())
    columns = (
        "table",
        "kind",
        "score",
        "costs most",
        "files",
        "size",
        "rows",
        "partitions",
        "last",
        "Z-order",
        "maintenance would",
    )
    listing = Listing(
        columns,
        records=[as_record(report) for report in reports],
        details=("maintenance would",),
        minor=("Z-order", "last", "partitions", "kind", "costs most"),
    )
    for report in reports:
        listing.add(*_row(report))
    return [listing, *_held_lines(open_objects(project.environment.lake), project, pipeline)]


def unknown_table_error(project: Catalog, table: str) -> ConfigError:
    """Returns the error for an unknown PIPELINE.TABLE, with the nearest names."""
    names = [f"{declared.owner}.{declared.name}" for declared in declared_tables(project)]
    hint = nearest_names_hint([table], names, prefix="`deltaworks tables --control` lists all, as PIPELINE.TABLE:")
    return ConfigError("TABLE_UNKNOWN", f"There is no table {table!r}.", hint=hint)


def show(
    table: str = typer.Argument(help="As PIPELINE.TABLE."),
    unreferenced: bool = _LIST_FOLDERS,
    as_json: bool = _AS_JSON,
) -> None:
    """Show one table: score by part, files, partitions, log and last operations."""
    project = catalog()
    pipeline, _, name = table.partition(".")
    report = report_table(project, pipeline, name, list_folder=unreferenced, now=utc_now())
    if report is None:
        raise unknown_table_error(project, table)
    if as_json:
        print_json(as_record(report))
        return
    print_heading(table, f"({report.kind}, {report.key})")
    if report.error:
        print_heading("error:", report.error, style="bold red")
    if report.health is None:
        print_line("" if report.error else "Not created yet.")
        return
    health = report.health
    show_parts(
        [_score_listing(report), _table_facts(report, health), _operation_listing(health), *_partition_listing(health)]
    )
    if report.choice is not None:
        print_heading("maintenance would:", _describe_plan(report))
        if report.choice.order:
            print_heading("Z-order:", report.choice.order)


@listing_command
def trend(
    selection: str = typer.Argument("", metavar="[PIPELINE or PIPELINE.TABLE]", help="Only these tables."),
    days: int = typer.Option(14, min=1, help="Number of days."),
    worst: int = typer.Option(8, min=1, help="Tables in the charts, the worst first."),
    chart: Path | None = typer.Option(None, help="HTML file for charts."),
) -> list[str | Listing]:
    """Show the growth and health of tables over time, from nightly snapshots."""
    project = catalog()
    pipeline, _, name = selection.partition(".")
    if pipeline and pipeline not in project.relays:
        project.pipeline(pipeline)
    since = utc_now().date() - dt.timedelta(days=days)
    snapshots = read_snapshots(Lake(project.environment.lake), since=since, owner=pipeline, table=name)
    table_trends = trends(snapshots)
    parts: list[str | Listing] = []
    if chart is not None:
        from deltaworks.maintenance.table_health.snapshots import worst_tables, write_trend_chart

        path = write_trend_chart(chart, worst_tables(snapshots, worst))
        parts.append(f"Charts: {path}")
    listing = Listing(
        ("table", "score", "snapshots", "days", "files", "files a day", "size", "size a day", "log a day"),
        records=[dataclasses.asdict(table_trend) for table_trend in table_trends],
    )
    for table_trend in table_trends:
        listing.add(*_trend_row(table_trend))
    if not table_trends:
        parts.append("There are no snapshots yet; the maintenance DAG takes one each night.")
    return [*parts, listing]


def as_record(report: TableReport) -> dict[str, Any]:
    """Converts a report to plain data."""
    record = dataclasses.asdict(report)
    if report.health is not None:
        record["health"] |= {
            "skew": report.health.skew,
            "commits_since_checkpoint": report.health.commits_since_checkpoint,
            "deletion_vector_share": report.health.deletion_vector_share,
        }
    if report.choice is not None:
        choice = report.choice
        record["choice"] |= {
            "files_saved": choice.files_saved,
            "bytes_rewritten": choice.bytes_rewritten,
            "benefit": choice.benefit,
            "cost_seconds": choice.cost_seconds,
        }
    return record


def _row(report: TableReport) -> tuple[object, ...]:
    name, health = f"{report.owner}.{report.name}", report.health
    if health is None:
        missing = Cell("not created yet", "not created yet", is_minor=True)
        return (name, report.kind, *[Cell(None, "-")] * 8, report.error or missing)
    costliest = report.score.costly[0] if report.score is not None and report.score.costly else None
    last = max(health.last_operations.values(), key=lambda operation: operation.version, default=None)
    return (
        name,
        report.kind,
        Cell(None, "-") if report.score is None else report.score.value,
        "" if costliest is None else f"{costliest.name}: {costliest.cost:g}",
        count_cell(health.files),
        byte_count_cell(health.bytes),
        Cell(None, "?") if health.rows is None else count_cell(health.rows),
        health.partitions,
        "" if last is None else f"{last.operation} {last.at:%m-%d %H:%M}",
        "" if report.choice is None else report.choice.order,
        report.error
        or Cell(plan := _describe_plan(report), plan, is_minor=not (report.choice and report.choice.partitions)),
    )


def _describe_plan(report: TableReport) -> str:
    choice = report.choice
    if choice is None:
        return ""
    if not choice.partitions:
        return choice.reason
    cost = f"{format_bytes(choice.bytes_rewritten)} in {choice.cost_seconds:.0f} s"
    return f"{choice.reason}; saves {choice.files_saved:,} files for {cost}"


def _score_listing(report: TableReport) -> Listing:
    score = report.score
    title = "" if score is None else f"score {score.value}"
    listing = Listing(("part", "weight", "costs", "why"), title=title)
    if score is not None:
        for part in score.parts:
            listing.add(part.name, part.weight, f"{part.cost:g}", part.reason)
    return listing


def _table_facts(report: TableReport, health: TableHealth) -> Listing:
    deleted_rows = health.deletion_vector_rows
    facts = {
        "version": f"{health.version:,}",
        "files": f"{health.files:,} of {format_bytes(health.average_file_bytes)} on average",
        "sizes": ", ".join(_histogram(health)),
        "size": format_bytes(health.bytes),
        "rows": "?" if health.rows is None else f"{health.rows:,}",
        "rows marked as deleted": "?" if deleted_rows is None else f"{deleted_rows:,}",
        "partitions": f"{health.partitions:,} by {', '.join(health.partition_by) or 'nothing'}, skew {health.skew:.1f}",
    }
    if health.log is not None:
        log = health.log
        checkpoint = "none" if log.checkpoint_at is None else f"of {log.checkpoint_at:%Y-%m-%d %H:%M}"
        facts["log"] = f"{log.commits:,} commits, {format_bytes(log.bytes)}"
        facts["checkpoint"] = f"{checkpoint}, {health.commits_since_checkpoint:,} commits since"
    if report.unordered_share is not None:
        facts["not in Z-order"] = f"{report.unordered_share:.0%} of the bytes"
    if report.unreferenced is not None:
        facts["unneeded"] = f"{report.unreferenced.files:,} files, {format_bytes(report.unreferenced.bytes)}"
    listing = Listing(tuple(facts), layout="blocks")
    listing.add(*facts.values())
    return listing


def _histogram(health: TableHealth) -> Iterator[str]:
    for files, bound in zip(health.size_histogram, [*SIZE_BOUNDS, None], strict=True):
        if files:
            where = f"below {format_bytes(bound)}" if bound is not None else "larger"
            yield f"{files:,} {where}"


def _operation_listing(health: TableHealth) -> Listing:
    listing = Listing(("last", "version", "at", "run"))
    for last in sorted(health.last_operations.values(), key=lambda operation: -operation.version):
        listing.add(last.operation, str(last.version), f"{last.at:%Y-%m-%d %H:%M:%S}", last.run or "")
    return listing


def _partition_listing(health: TableHealth) -> Iterator[str | Listing]:
    listing = Listing(("partition", "files", "small files", "size", "rows", "newest file"))
    largest: list[PartitionHealth] = sorted(
        health.partition_health, key=lambda partition: (-partition.small_files, -partition.bytes)
    )
    for partition in largest[:_MAX_PARTITIONS_SHOWN]:
        listing.add(
            "/".join(f"{name}={value}" for name, value in partition.partition) or "(all)",
            f"{partition.files:,}",
            f"{partition.small_files:,}",
            format_bytes(partition.bytes),
            "?" if partition.rows is None else f"{partition.rows:,}",
            f"{partition.newest_file_at:%Y-%m-%d %H:%M}",
        )
    yield listing
    if len(largest) > _MAX_PARTITIONS_SHOWN:
        yield f"and {len(largest) - _MAX_PARTITIONS_SHOWN:,} more; --json has all"


def _trend_row(table_trend: Trend) -> tuple[str, ...]:
    change = "" if not table_trend.score_change else f" ({table_trend.score_change:+d})"
    return (
        f"{table_trend.owner}.{table_trend.table}",
        "-" if table_trend.score is None else f"{table_trend.score}{change}",
        str(table_trend.snapshots),
        f"{table_trend.days:.1f}",
        f"{table_trend.files:,}",
        "" if table_trend.files_per_day is None else f"{table_trend.files_per_day:+,.1f}",
        format_bytes(table_trend.bytes),
        "" if table_trend.bytes_per_day is None else format_bytes(table_trend.bytes_per_day),
        "" if table_trend.log_bytes_per_day is None else format_bytes(table_trend.log_bytes_per_day),
    )


def _held_lines(objects: ObjectStore, project: Catalog, pipeline: str) -> Iterator[str]:
    for name in project.pipelines:
        for record in PipelineHome(objects, name).held.read().values() if pipeline in ("", name) else ():
            yield f"held: {name}.{_describe_hold(record)}"


def _describe_hold(record: HeldTable) -> str:
    cause = f": [{record.condition}] {record.message}" if record.condition else ""
    return f"{record.table} since batch {record.since_batch} ({record.reason}, by {record.by}, {record.at}){cause}"
