"""`deltaworks pipelines`: check and show what is declared."""

from __future__ import annotations

import getpass
import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.completion import PipelineArgument
from deltaworks.cli.context import catalog
from deltaworks.cli.output import Answer, data, document, line, listing_command
from deltaworks.control.listing import Cell, Listing
from deltaworks.errors import ContractError

if TYPE_CHECKING:
    from deltaworks.operations.column_proposal import Proposal, TableProposal
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


@app.command()
def infer(
    pipeline: PipelineArgument,
    files: int = typer.Option(100, min=1, max=10_000, help="Look at no more objects, in the order of their keys."),
    mebibytes: int = typer.Option(64, min=1, max=4_096, help="Look at no more than about so much."),
    hints: str = typer.Option(
        "", help="Types to use instead, by the paths of fields: 'price DECIMAL(12,2), u.id INT'."
    ),
) -> None:
    """Propose columns for the tables of a pipeline, from what lies in its landing bucket; nothing is changed."""
    from deltaworks.events.inference.hints import parse_hints
    from deltaworks.operations.column_proposal import propose

    try:
        parsed = parse_hints(hints)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--hints") from None
    proposal = propose(catalog(), pipeline, hints=parsed, max_files=files, max_bytes=mebibytes << 20)
    for text in _proposal_lines(proposal):
        line(text)


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


def _proposal_lines(proposal: Proposal) -> Iterator[str]:
    """A proposal as YAML for pipeline.yaml, a comment beside each column; valid YAML whatever the events are called."""
    yield f"# {proposal.objects:,} objects looked at, {proposal.unread:,} values that are no events"
    for name, count in proposal.unrouted.most_common(20):
        yield f"# no table takes {count:,} events called {json.dumps(name)}"
    if proposal.tables:
        yield "tables:"
    for table in proposal.tables:
        yield from _table_lines(table)


def _table_lines(table: TableProposal) -> Iterator[str]:
    yield f"  - name: {table.table}  # {table.events:,} events"
    for conflict in table.conflicts:
        yield f"    # not taken, {json.dumps(conflict.path)}: {conflict.values:,} values are {conflict.kind}"
    yield "    columns:" if table.columns else "    columns: []"
    for column in table.columns:
        share = f"{100 * column.events / max(1, table.events):.1f} % of events"
        declared = ", declared already" if column.declared else ""
        path, kind = json.dumps(column.path), json.dumps(str(column.kind))
        yield f"      - {{name: {column.name}, path: {path}, type: {kind}}}  # {share}{declared}"
