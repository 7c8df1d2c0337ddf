"""`deltaworks tables`: every table with its size and health, from the Delta logs, without a JVM; and what is held."""

from __future__ import annotations

import getpass
import time
from typing import Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from deltaworks.cli.context import catalog, console
from deltaworks.control import paths
from deltaworks.control.held_tables import HeldTable, ask_to_resume, read_held
from deltaworks.control.lease import LeaseWatch
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.tables.known_tables import KnownTable, all_tables
from deltaworks.tables.lake import Lake


class _ListByDefault(TyperGroup):
    """`tables`, `tables games` and `tables --control` list; the other words are commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(help="Tables with their size and health, and those whose commits are held back.", cls=_ListByDefault)


@app.command("list")
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
    objects = open_objects(project.environment.lake)
    for name in project.pipelines:
        for record in read_held(objects, name).values() if pipeline in ("", name) else ():
            console.print(f"[bold yellow]held:[/] {name}.{_why(record)}", highlight=False)


def _why(record: HeldTable) -> str:
    cause = f": [{record.condition}] {record.message}" if record.condition else ""
    return f"{record.table} since batch {record.since_batch} ({record.reason}, by {record.by}, {record.at}){cause}"


@app.command()
def resume(
    pipeline: str,
    table: str,
    wait_seconds: float = typer.Option(120.0, help="How long to wait for the stream to answer; 0 only asks."),
) -> None:
    """Ask the stream to catch a suspended table up, from its prepared batches and in their order.

    Exits with 11 where the table failed again, and says why.
    """
    project = catalog()
    project.pipeline(pipeline)
    objects = open_objects(project.environment.lake)
    before = read_held(objects, pipeline).get(table)
    if before is None or before.reason != "suspended":
        raise ConfigError(
            "TABLE_NOT_SUSPENDED",
            f"{pipeline}.{table} is not suspended.",
            hint="`deltaworks tables` lists what is held, and why.",
        )
    ask_to_resume(objects, pipeline, table, by=getpass.getuser())
    lease = LeaseWatch(objects, paths.pipeline_control(pipeline, "lease.json"), silent_seconds=60)
    if not lease.runs():
        console.print(f"Asked. The stream of {pipeline} does not run; its next start catches {table} up.")
        return
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        held = read_held(objects, pipeline).get(table)
        if held is None:
            console.print(f"{pipeline}.{table} has caught up.")
            return
        if objects.get(paths.resume_request(pipeline, table)) is None:
            raise ContractError(held.condition or "TABLE_SUSPENDED", held.message, hint=held.hint)
        time.sleep(1)
    console.print(f"Asked. The stream has not finished yet; `deltaworks tables {pipeline}` shows how far it is.")


@app.command()
def orphans(
    pipeline: str,
    dry_run: bool = typer.Option(True, help="Only list them."),
    age_hours: int = typer.Option(168, help="Leave younger files alone; a list may look at younger ones."),
) -> None:
    """List, or remove, files that died batches left: in table folders, in staging, and old prepared batches."""
    from deltaworks.maintenance.orphans import remove_orphans

    results = remove_orphans(catalog(), pipeline, dry_run=dry_run, age_hours=age_hours)
    listing = Table("what", "files", "size", "oldest", "")
    for each in results:
        listing.add_row(each.what, f"{each.files:,}", readable_bytes(each.bytes), each.oldest, each.reason)
    console.print(listing)
    if dry_run:
        console.print("Nothing was removed: --no-dry-run does it.")


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
