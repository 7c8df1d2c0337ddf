"""`deltaworks dbt`: what a dbt project next to the lake needs."""

from __future__ import annotations

from pathlib import Path

import typer

from deltaworks.cli.context import OptionalPipelineArgument, catalog
from deltaworks.cli.output import print_document, print_line

app = typer.Typer(no_args_is_help=True)


@app.callback()
def main() -> None:
    """dbt over the lake: its sources."""


@app.command()
def sources(
    pipeline: OptionalPipelineArgument = "",
    output: Path | None = typer.Option(None, help="File to write, such as models/sources.yml; by default printed."),
) -> None:
    """Write dbt sources: all tables with descriptions, personal columns and freshness."""
    from deltaworks.scaffolding.dbt_sources import dbt_sources

    text = dbt_sources(catalog(required_service=None), [pipeline] if pipeline else ())
    if output is None:
        print_document(text)
        return
    output.write_text(text, encoding="utf-8")
    print_line(f"Wrote {output}.")
