"""`deltaworks pipelines`: check and show what is declared."""

from __future__ import annotations

import io

import typer
from rich.table import Table
from ruamel.yaml import YAML

from deltaworks.cli.context import console
from deltaworks.specs.catalog import load_catalog

app = typer.Typer(help="What is declared under include/pipelines.", no_args_is_help=True)


@app.command()
def check() -> None:
    """Read every spec of the project; exits with 10 and says file, line and key where one is wrong."""
    catalog = load_catalog()
    table = Table("pipeline", "owner", "source", "tables", "live", "gold", "fingerprint")
    for name, spec in catalog.pipelines.items():
        source = f"{spec.source.kind} {spec.source.bucket}/{spec.source.prefix}"
        counts = (str(len(each)) for each in (spec.tables, spec.live, spec.gold.tables))
        table.add_row(name, spec.owner, source, *counts, spec.fingerprint())
    console.print(table)
    console.print(f"{len(catalog.pipelines)} pipelines and {len(catalog.relays)} relays are well declared.")


@app.command()
def show(pipeline: str) -> None:
    """Print the effective spec of one pipeline: defaults and overrides included."""
    spec = load_catalog().pipeline(pipeline)
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(spec.as_mapping(), text)
    console.print(text.getvalue(), highlight=False, markup=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipeline.yaml, for editors."""
    from deltaworks.specs.json_schema import pipeline_json_schema

    console.print_json(data=pipeline_json_schema())
