"""`deltaworks pipelines`: check and show specs."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.completion import PipelineArgument
from deltaworks.cli.context import catalog
from deltaworks.cli.new_pipeline import infer, new
from deltaworks.cli.output import CommandOutput, listing_command, print_document, print_json
from deltaworks.control.listing import Cell, Listing
from deltaworks.errors import ConfigError, ContractError

if TYPE_CHECKING:
    from deltaworks.specs.spec_diff import SpecChange
    from deltaworks.specs.spec_errors import SpecError

app = typer.Typer(no_args_is_help=True)


@app.command()
@listing_command
def check() -> CommandOutput:
    """Check every spec and all gold SQL, and list each error with file and line; exits with 10 on errors."""
    from deltaworks.specs.checks.project import check_project

    project = check_project()
    pipelines = Listing(("pipeline", "owner", "source", "tables", "live", "gold", "fingerprint"), title="pipelines")
    for name, spec in project.pipelines.items():
        source = f"{spec.source.kind} {spec.source.display_name()}"
        counts = (len(spec.tables), len(spec.live), len(spec.gold.tables))
        pipelines.add(name, spec.owner, source, *counts, spec.fingerprint())
    counts_text = f"{_pluralize(len(project.pipelines), 'pipeline')} and {_pluralize(len(project.relays), 'relay')}"
    summary = f"{counts_text} are valid."
    parts: list[str | Listing] = [
        _error_listing("errors", project.errors),
        _error_listing("warnings", project.warnings),
        pipelines,
        summary,
    ]
    if not project.errors:
        return CommandOutput(parts)
    files = {error.file for error in project.errors}
    parts.append(
        f"{_pluralize(len(project.errors), 'error')} in {_pluralize(len(files), 'file')}. Fix the named lines."
    )
    return CommandOutput(parts, exit_code=ConfigError.exit_code)


def _pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _error_listing(title: str, errors: list[SpecError]) -> Listing:
    records = [{"file": str(m.file), "line": m.line, "key": m.key, "error": m.text} for m in errors]
    listing = Listing(("location", "key", "error"), records=records, title=title, layout="lines")
    for error in errors:
        listing.add(f"{error.file}:{error.line}", error.key, error.text)
    return listing


@app.command()
def show(pipeline: PipelineArgument) -> None:
    """Print the effective spec of a pipeline, with defaults and overrides."""
    from deltaworks.specs.project import load_catalog
    from deltaworks.specs.yaml_reader import dump_yaml

    spec = load_catalog(skip_invalid=True).pipeline(pipeline)
    print_document(dump_yaml(spec.to_dict()))


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipeline.yaml, for editors."""
    from deltaworks.specs.json_schema import pipeline_json_schema

    print_json(pipeline_json_schema())


@app.command()
def pools() -> None:
    """Print the pools of this environment's DAGs, for `airflow pools import`."""
    from deltaworks.specs.project import load_catalog
    from deltaworks.specs.shares import airflow_pools

    print_json(airflow_pools(load_catalog(skip_invalid=True, only=()).environment.shares))


app.command("infer")(infer)
app.command("new")(new)


@app.command()
@listing_command
def diff(
    pipeline: PipelineArgument,
    accept: bool = typer.Option(False, help="Accept that old and new rows will differ in meaning."),
    reason: str = typer.Option("", help="Reason, stored with the acceptance."),
) -> CommandOutput:
    """Compare pipeline.yaml with the spec the stream last ran with, and show the effect of each change.

    Exits with 11 if the stream would refuse to start.
    """
    from deltaworks.control.home import PipelineHome
    from deltaworks.specs.spec_diff import unsafe_changes

    project = catalog()
    spec = project.pipeline(pipeline)
    records = PipelineHome.open(project.environment.lake, pipeline).specs
    if records.current() is None:
        return CommandOutput(
            [f"{pipeline} has not run yet: its first start uses pipeline.yaml as it is.", _change_listing([])]
        )
    changes = records.changes(spec)
    if not changes:
        unchanged = f"{pipeline} last ran with the current pipeline.yaml ({spec.fingerprint()})."
        return CommandOutput([unchanged, _change_listing([])])
    parts: list[str | Listing] = [_change_listing(changes)]
    if accept:
        accepted = records.accept(spec, by=getpass.getuser(), reason=reason)
        parts.append(f"Accepted: {', '.join(change.field for change in accepted) or 'nothing needed it'}.")
    rejected = unsafe_changes(changes)
    try:
        records.check(spec)
    except ContractError as error:
        parts.append(f"The stream will not start on this: {', '.join(edit.field for edit in rejected)}.")
        return CommandOutput(parts, exit_code=error.exit_code)
    return CommandOutput([*parts, "The stream will start on this."])


def _change_listing(changes: list[SpecChange]) -> Listing:
    listing = Listing(("field", "ran with", "declared", "effect", "what to do"))
    for change in changes:
        old, new = (Cell(value, _short(value)) for value in (change.old, change.new))
        listing.add(change.field, old, new, str(change.effect), change.advice)
    return listing


def _short(value: object, limit: int = 60) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
