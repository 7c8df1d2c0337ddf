"""`deltaworks gold`: gold tables built anew beside themselves and swapped in."""

from __future__ import annotations

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console

app = typer.Typer(help="Answers of a pipeline.", no_args_is_help=True)


@app.callback()
def gold() -> None:
    """Answers of a pipeline."""


@app.command()
def refresh(
    pipeline: str,
    tables: str = typer.Argument("", help="Names of gold tables with commas between; empty for all."),
    dry_run: bool = typer.Option(True, help="Say what would be swapped; --no-dry-run builds, checks and swaps it."),
) -> None:
    """Build gold tables anew in shadows, check these, and swap them in: readers see the old table or the new one."""
    from deltaworks.gold.refresh_plan import plan_refresh

    project = catalog()
    names = tables.split(",") if tables else None
    if not dry_run:
        from deltaworks.control.job import print_results
        from deltaworks.gold.refresh import refresh_gold
        from deltaworks.tables.spark.session import build_session

        project.pipeline(pipeline)
        spark = build_session(project.environment, app_name=f"refresh_gold.{pipeline}")
        print_results(refresh_gold(spark, project, pipeline, tables=names, dry_run=False))
        return
    listing = Table("table", "rows now", "MB now", "inputs now", "shadow", "what")
    for found in plan_refresh(project, pipeline, tables=names):
        inputs = ", ".join(f"{name}@{version}" for name, version in found.built_from.items())
        size = f"{found.bytes_before / 1e6:,.1f}"
        listing.add_row(found.table, f"{found.rows_before:,}", size, inputs, found.shadow, found.reason)
    console.print(listing)
    console.print("Nothing was changed: --no-dry-run builds, checks and swaps.")
