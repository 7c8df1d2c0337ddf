"""`deltaworks pipelines`: check and show what is declared."""

from __future__ import annotations

import getpass
import io
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.completion import PipelineArgument
from deltaworks.cli.context import catalog
from deltaworks.cli.new_pipeline import infer, new
from deltaworks.cli.output import Answer, data, document, listing_command
from deltaworks.control.listing import Cell, Listing
from deltaworks.errors import ContractError

if TYPE_CHECKING:
    from deltaworks.specs.changes import SpecChange

app = typer.Typer(no_args_is_help=True)


@app.command()
@listing_command
def check() -> list[str | Listing]:
    """Read every spec of the project; exits with 10 and says file, line and key where one is wrong."""
    from deltaworks.specs.catalog import load_catalog

    catalog = load_catalog()
    listing = Listing(("pipeline", "owner", "source", "tables", "live", "gold", "fingerprint"))
    for name, spec in catalog.pipelines.items():
        source = f"{spec.source.kind} {spec.source.place()}"
        counts = (len(section) for section in (spec.tables, spec.live, spec.gold.tables))
        listing.add(name, spec.owner, source, *counts, spec.fingerprint())
    return [listing, f"{len(catalog.pipelines)} pipelines and {len(catalog.relays)} relays are declared correctly."]


@app.command()
def show(pipeline: PipelineArgument) -> None:
    """Print the effective spec of one pipeline: defaults and overrides included."""
    from ruamel.yaml import YAML

    from deltaworks.specs.catalog import load_catalog

    spec = load_catalog().pipeline(pipeline)
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(spec.as_mapping(), text)
    document(text.getvalue())


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipeline.yaml, for editors."""
    from deltaworks.specs.json_schema import pipeline_json_schema

    data(pipeline_json_schema())


app.command("infer")(infer)
app.command("new")(new)


@app.command()
@listing_command
def diff(
    pipeline: PipelineArgument,
    accept: bool = typer.Option(False, help="Let the stream start although old and new rows will differ in meaning."),
    reason: str = typer.Option("", help="Kept with the acceptance."),
) -> Answer:
    """Compare pipeline.yaml with what the stream last ran with, and show what each edit needs.

    Exits with 11 where the stream would refuse to start.
    """
    from deltaworks.control.home import PipelineHome
    from deltaworks.specs.changes import unsafe

    project = catalog()
    spec = project.pipeline(pipeline)
    records = PipelineHome.open(project.environment.lake, pipeline).specs
    if records.current() is None:
        return Answer(
            [f"{pipeline} has not run yet: its first start takes pipeline.yaml as it is.", _change_listing([])]
        )
    changes = records.changes(spec)
    if not changes:
        unchanged = f"{pipeline} last ran with pipeline.yaml as it is ({spec.fingerprint()})."
        return Answer([unchanged, _change_listing([])])
    parts: list[str | Listing] = [_change_listing(changes)]
    if accept:
        accepted = records.accept(spec, by=getpass.getuser(), reason=reason)
        parts.append(f"Accepted: {', '.join(change.field for change in accepted) or 'nothing needed it'}.")
    refused = unsafe(changes)
    try:
        records.check(spec)
    except ContractError as error:
        parts.append(f"The stream will not start on this: {', '.join(edit.field for edit in refused)}.")
        return Answer(parts, exit_code=error.exit_code)
    return Answer([*parts, "The stream will start on this."])


def _change_listing(changes: list[SpecChange]) -> Listing:
    listing = Listing(("field", "ran with", "declared", "effect", "what to do"))
    for change in changes:
        old, new = (Cell(value, _short(value)) for value in (change.old, change.new))
        listing.add(change.field, old, new, str(change.effect), change.advice)
    return listing


def _short(value: object, limit: int = 60) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
