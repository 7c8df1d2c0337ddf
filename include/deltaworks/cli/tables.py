"""`deltaworks tables`: what is held back and made to go on, what died batches left; health is in `table_health`."""

from __future__ import annotations

import getpass
import time
from typing import Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from deltaworks.cli import table_health, table_readers
from deltaworks.cli.context import catalog, console
from deltaworks.cli.sizes import readable_bytes
from deltaworks.control import paths
from deltaworks.control.locks.lease import LeaseWatch
from deltaworks.control.objects import open_objects
from deltaworks.control.records.held import ask_to_resume, read_held
from deltaworks.errors import ConfigError, ContractError


class _ListByDefault(TyperGroup):
    """`tables`, `tables games` and `tables --control` list; the other words are commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(help="Tables with their size and health, and those whose commits are held back.", cls=_ListByDefault)
table_health.register(app)
table_readers.register(app)


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
