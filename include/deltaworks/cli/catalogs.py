"""`deltaworks catalogs` compares the catalogs with the tables; `deltaworks dbt` writes sources for dbt."""

from __future__ import annotations

from pathlib import Path

import typer

from deltaworks.cli.context import OptionalPipelineArgument, catalog
from deltaworks.cli.output import CommandOutput, listing_command, print_document, print_line
from deltaworks.control.listing import Listing

app = typer.Typer(no_args_is_help=True)


@app.callback()
def main() -> None:
    """Catalogs of other engines: Glue, Unity, Hive."""


@app.command()
@listing_command
def diff(pipeline: OptionalPipelineArgument = "") -> CommandOutput:
    """List entries that differ from the tables, without a Hive metastore; exits with 1 if there are any."""
    from deltaworks.catalogs.sync import sync_pipeline

    project = catalog()
    names = [project.pipeline(pipeline).pipeline] if pipeline else list(project.pipelines)
    listing = Listing(("catalog", "table", "action", "what differs"))
    problems: list[str] = []
    for name in names:
        for result in sync_pipeline(project, name, dry_run=True):
            problems += [f"{result.catalog}: {result.error}"] if result.error is not None else []
            for change in result.pending:
                listing.add(change.catalog, change.table, change.action, change.difference)
    if not project.environment.catalogs:
        return CommandOutput(["The environment declares no catalogs.", listing])
    if problems or listing.cells:
        return CommandOutput([*problems, listing], exit_code=1)
    return CommandOutput(["All entries are as the tables.", listing])


dbt_app = typer.Typer(no_args_is_help=True)


@dbt_app.callback()
def dbt() -> None:
    """dbt over the lake: its sources."""


@dbt_app.command()
def sources(
    pipeline: OptionalPipelineArgument = "",
    output: Path | None = typer.Option(None, help="File to write, such as models/sources.yml; by default printed."),
) -> None:
    """Write dbt sources: all tables with descriptions, personal columns and freshness."""
    from deltaworks.scaffolding.other_tools import dbt_sources

    text = dbt_sources(catalog(required_service=None), [pipeline] if pipeline else ())
    if output is None:
        print_document(text)
        return
    output.write_text(text, encoding="utf-8")
    print_line(f"Wrote {output}.")
