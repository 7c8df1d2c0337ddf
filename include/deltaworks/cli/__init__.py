"""The `deltaworks` command: what is declared, what runs, what the tables hold."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import typer
from rich.console import Console

from deltaworks.cli import (
    alerts,
    batches,
    checkpoint,
    collect,
    consumers,
    files,
    gold,
    mutation_batches,
    mutations,
    optimize,
    pipelines,
    quarantine,
    recover,
    reprocess,
    restore,
    sql,
    streams,
    tables,
    wire,
)
from deltaworks.errors import DeltaworksError

app = typer.Typer(
    name="deltaworks",
    help="A self-hosted telemetry lakehouse: events become answers in minutes, unattended.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(pipelines.app, name="pipelines")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(files.app, name="files")
recover.register_check(tables.app)
app.add_typer(tables.app, name="tables")
app.add_typer(recover.app, name="recover")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(consumers.app, name="consumers")
mutation_batches.register(mutations.app)
app.add_typer(mutations.app, name="mutations")
app.add_typer(gold.app, name="gold")
app.add_typer(alerts.app, name="alerts")
for module in (streams, alerts, batches, optimize, reprocess, restore, sql, collect, wire):
    module.register(app)
#: Packages that add commands where they are installed: the embedded stack on a machine that has it, not in an image.
EXTENSIONS = ("sandbox",)
for package in EXTENSIONS:
    if importlib.util.find_spec(package) is not None:
        importlib.import_module(f"{package}.cli").register(app)


def main() -> None:
    """Run the command; an error of ours is printed as its message and next step, and becomes its exit code."""
    try:
        app()
    except DeltaworksError as error:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"[bold red]{error.condition}[/] {error.message}", highlight=False)
        if error.hint:
            console.print(f"[bold]Next:[/] {error.hint}", highlight=False)
        sys.exit(error.exit_code)
