"""`deltaworks tables`: every table with its size and health, from the Delta logs, without a JVM."""

from __future__ import annotations

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.tables.health import KnownTable, all_tables
from deltaworks.tables.lake import Lake


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tables)


def tables(
    pipeline: str = typer.Argument("", help="Only this pipeline's tables."),
    control: bool = typer.Option(False, help="The engine's own tables too."),
) -> None:
    """List tables: files, sizes, rows, the share of small files and the last operations."""
    project = catalog()
    if pipeline:
        project.pipeline(pipeline)
    known = all_tables(Lake(project.environment.lake), project, control=control)
    listing = Table("table", "kind", "files", "size", "rows", "small files", "partitions", "version", "last operations")
    for each in known:
        if pipeline in ("", each.owner):
            listing.add_row(*_row(each))
    console.print(listing)


def _row(table: KnownTable) -> tuple[str, ...]:
    name, health = f"{table.owner}.{table.name}", table.health
    if health is None:
        return (name, table.kind, "-", "-", "-", "-", "-", "-", "not created yet")
    operations = sorted(health.last_operations.values(), key=lambda operation: -operation.version)
    return (
        name,
        table.kind,
        f"{health.files:,}",
        readable_bytes(health.bytes),
        "?" if health.rows is None else f"{health.rows:,}",
        f"{health.small_file_share:.0%}",
        str(health.partitions),
        str(health.version),
        ", ".join(f"{operation.operation} {operation.at:%H:%M:%S}" for operation in operations[:3]),
    )


def readable_bytes(count: float) -> str:
    """A count of bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
