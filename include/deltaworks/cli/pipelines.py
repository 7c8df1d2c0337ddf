"""`deltaworks pipelines`: infer specs from event files; check, show, compare and test specs, and record tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import OptionalPipelineArgument, PipelineArgument, catalog
from deltaworks.cli.output import CommandOutput, OutputPart, listing_command, print_document, print_json, print_line
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.provenance import system_user
from deltaworks.errors import ConfigError, ContractError

if TYPE_CHECKING:
    from deltaworks.events.inference.pipeline_proposal import Overrides
    from deltaworks.fixtures.results import FixtureResult
    from deltaworks.scaffolding.pipeline_yaml import InferredPipeline
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.spec_diff import SpecChange
    from deltaworks.specs.spec_errors import SpecError


@listing_command
def run_tests(
    pipeline: OptionalPipelineArgument = "",
    junit: Path | None = typer.Option(None, help="Also write the results to this file, as JUnit XML."),
    record: Path | None = typer.Option(None, help="Write a test from this file of events instead of running tests."),
    name: str = typer.Option("", help="Name of the recorded test; by default that of the file."),
    key: str = typer.Option("", help="Key of the recorded object, with its partition folders."),
    events: int = typer.Option(50, min=1, max=1_000, help="Record at most so many events."),
) -> CommandOutput:
    """Run the tests in `include/pipelines/NAME/tests`: events in, expected rows, quarantine, answers and rules out.

    Needs neither Spark nor a server. Exits with 1 if a result differs, and with 10 if a test is invalid.
    """
    if record is not None:
        return CommandOutput([_record(pipeline, record, name=name, key=key, events=events)])
    from deltaworks.fixtures.results import run_fixtures, write_junit

    results = list(run_fixtures(catalog(required_service=None), pipeline))
    if junit is not None:
        write_junit(results, junit)
    return CommandOutput(_parts(results), exit_code=0 if all(result.passed for result in results) else 1)


def _record(pipeline: str, file: Path, *, name: str, key: str, events: int) -> str:
    from deltaworks.fixtures.record import record_fixture

    if not pipeline:
        raise typer.BadParameter("--record needs the pipeline: pipelines test PIPELINE --record FILE")
    project = catalog(required_service=None)
    default_name = file.name.partition(".")[0].lower().replace("-", "_")
    path = record_fixture(project, pipeline, file, name=name or default_name, key=key, max_events=events)
    return f"Written: {path}. Read its rows before you keep it: they are what the pipeline does now."


def _parts(results: Sequence[FixtureResult]) -> list[OutputPart]:
    listing = Listing(("pipeline", "test", "checks", "seconds", "result"), title="tests")
    differences = Listing(
        ("pipeline", "test", "table", "row", "column", "expected", "actual"), title="differences", layout="blocks"
    )
    for result in results:
        fixture = result.fixture
        failed = sum(bool(check.differences) for check in result.checks)
        verdict = result.error or (f"{failed} differ" if failed else "as expected")
        listing.add(fixture.pipeline, fixture.name, len(result.checks), f"{result.seconds:.2f}", verdict)
        for check in result.checks:
            for one in check.differences:
                row = str(one.row or "")
                differences.add(fixture.pipeline, fixture.name, check.name, row, one.column, one.expected, one.actual)
    passed, seconds = sum(result.passed for result in results), sum(result.seconds for result in results)
    return [listing, differences, f"{passed} of {len(results)} tests are as expected, in {seconds:.1f} s."]


_FILES = "Event files, or folders (recursively)."
_TIME = "Path of the time field; inferred by default."
_TIME_FORMAT = "Format of the time field, in strptime directives; inferred by default."
_TYPE = "Path of the type field; inferred by default."
_ID = "Path of the id field; inferred by default."
_RELAY = "Relay whose bucket receives the files, if there are several."
_MEBIBYTES = "Maximum sample size, in MiB decompressed."


def infer(
    files: list[str] = typer.Argument(help=_FILES),
    write: str = typer.Option("", help="Write include/pipelines/NAME/pipeline.yaml instead of printing it."),
    time: str = typer.Option("", help=_TIME),
    time_format: str = typer.Option("", help=_TIME_FORMAT),
    type: str = typer.Option("", help=_TYPE),  # the parameter's name is the option's name
    id: str = typer.Option("", help=_ID),
    relay: str = typer.Option("", help=_RELAY),
    mebibytes: int = typer.Option(64, min=1, max=4_096, help=_MEBIBYTES),
) -> None:
    """Infer a pipeline from event files: types, times, an id, and a table for each frequent type.

    The spec is tested on the sample; the number of events that it would quarantine is printed, with reasons.
    """
    project = _project()
    fields = _overrides(time=time, time_format=time_format, type=type, id=id)
    inferred = _infer(project, files, write or "events", fields, relay, mebibytes)
    if not write:
        print_document(inferred.text)
        _print_summary(inferred, error=True)
        return
    _write(project, inferred)


def new(
    name: str = typer.Argument(help="Name of the pipeline and of its folder."),
    sample: list[str] = typer.Option(..., "--from", help=f"{_FILES} May be given several times."),
    time: str = typer.Option("", help=_TIME),
    time_format: str = typer.Option("", help=_TIME_FORMAT),
    type: str = typer.Option("", help=_TYPE),
    id: str = typer.Option("", help=_ID),
    relay: str = typer.Option("", help=_RELAY),
    mebibytes: int = typer.Option(64, min=1, max=4_096, help=_MEBIBYTES),
) -> None:
    """Create a pipeline from event files: its folder with a checked pipeline.yaml. Prints the next commands."""
    project = _project()
    fields = _overrides(time=time, time_format=time_format, type=type, id=id)
    inferred = _infer(project, sample, name, fields, relay, mebibytes)
    _write(project, inferred)
    table = f"{name}.{inferred.proposal.tables[0].name}"
    for text in (
        "Next: `deltaworks up` starts its stream; a stack that runs already does so by itself within a minute. Then",
        f"  deltaworks land {name} {' '.join(sample)}",
        f'  deltaworks sql "SELECT event_name, count(*) FROM {table} GROUP BY event_name"',
    ):
        print_line(text)


def _project() -> Catalog:
    """Loads the valid specs. Invalid ones need not be fixed before a new pipeline is created."""
    from deltaworks.specs.project import load_catalog

    return load_catalog(skip_invalid=True, only=())


def _overrides(*, time_format: str, time: str, **fields: str) -> Overrides:
    from deltaworks.events.inference.pipeline_proposal import Overrides
    from deltaworks.specs.times import parse_pattern

    if time_format:
        if not time:
            raise typer.BadParameter("--time-format needs --time")
        try:
            parse_pattern(time_format)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return Overrides(time=time, time_format=time_format, **fields)


def _infer(
    project: Catalog, files: list[str], name: str, overrides: Overrides, relay: str, mebibytes: int
) -> InferredPipeline:
    from deltaworks.scaffolding.pipeline_yaml import infer_pipeline
    from deltaworks.specs.base import NAME_PATTERN

    if not NAME_PATTERN.match(name):
        text = f"{name!r}: use lower-case letters, digits and underscores, starting with a letter"
        raise typer.BadParameter(text)
    return infer_pipeline(project, files, name=name, relay=relay, overrides=overrides, sample_bytes=mebibytes << 20)


def _write(project: Catalog, inferred: InferredPipeline) -> None:
    from deltaworks.scaffolding.pipeline_yaml import write_pipeline
    from deltaworks.specs.project import load_catalog

    path = write_pipeline(project, inferred)
    load_catalog(root=project.root, skip_invalid=True, only=[inferred.name]).pipeline(inferred.name)
    print_line(f"Written: {path}")
    _print_summary(inferred)


def _print_summary(inferred: InferredPipeline, *, error: bool = False) -> None:
    """Prints the inferred choices, and the events of the sample that would be quarantined."""
    proposal, sample = inferred.proposal, inferred.sample
    scope = "" if sample.is_complete else " from the beginning of the files"
    print_line(f"{proposal.events:,} {sample.source.format} events were sampled{scope}.", error=error)
    name = "one name for all" if proposal.type is None else f"type {proposal.type.path_text}"
    ident = "no id" if proposal.id is None else f"id {proposal.id.path_text}"
    tables = len(proposal.tables)
    tables_text = f"{tables} table{'s' * (tables != 1)}"
    time = f"time {proposal.time.path_text} ({proposal.time.form.format or proposal.time.form.unit})"
    print_line(f"{name}, {time}, {ident}; {tables_text}.", error=error)
    print_line(f"{inferred.quarantined.total():,} of them would be quarantined.", error=error)
    for reason, count in inferred.quarantined.most_common(5):
        print_line(f"  {count:,} {reason}", error=error)


app = typer.Typer(no_args_is_help=True)


@app.command()
@listing_command
def check() -> CommandOutput:
    """Check every spec and all gold SQL, and list each error with file and line; exits with 10 on errors."""
    from deltaworks.specs.checks.project import check_project
    from deltaworks.specs.notice_delay import notice_delay

    project = check_project()
    pipelines = Listing(("pipeline", "owner", "source", "tables", "live", "gold", "fingerprint"), title="pipelines")
    for name, spec in project.pipelines.items():
        source = f"{spec.source.kind} {spec.source.display_name()}"
        counts = (len(spec.tables), len(spec.live), len(spec.gold.tables))
        pipelines.add(name, spec.owner, source, *counts, spec.fingerprint())
    rules = Listing(("rule", "reads", "event to notice", "parts in seconds"), title="rules")
    for name, spec in project.pipelines.items():
        for rule in spec.rules:
            delay = notice_delay(spec, rule)
            rules.add(f"{name}.{rule.name}", ", ".join(rule.reads), f"{delay.total_seconds:g} s", delay.describe())
    counts_text = f"{_pluralize(len(project.pipelines), 'pipeline')} and {_pluralize(len(project.relays), 'relay')}"
    summary = f"{counts_text} are valid."
    parts: list[str | Listing] = [
        _error_listing("errors", project.errors),
        _error_listing("warnings", project.warnings),
        pipelines,
        rules,
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


@app.command("list")
@listing_command
def list_pipelines() -> CommandOutput:
    """List the declared pipelines: owner, source, tables, stream group and whether the declaration is valid."""
    from deltaworks.specs.project import load_catalog

    project = load_catalog(skip_invalid=True)
    listing = Listing(("pipeline", "owner", "source", "tables", "gold", "stream group", "state"))
    for name, spec in project.pipelines.items():
        source = f"{spec.source.kind} {spec.source.display_name()}"
        counts = (len(spec.tables), len(spec.gold.tables))
        listing.add(name, spec.owner, source, *counts, spec.stream_group or "", "valid")
    for name, error in project.invalid_pipelines().items():
        listing.add(name, "", "", "", "", "", f"invalid: {error.message}")
    return CommandOutput([listing])


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
    from deltaworks.specs.spec_diff import pipeline_json_schema

    print_json(pipeline_json_schema())


@app.command()
def pools() -> None:
    """Print the pools of this environment's DAGs, for `airflow pools import`."""
    from deltaworks.specs.project import load_catalog
    from deltaworks.specs.shares import airflow_pools

    print_json(airflow_pools(load_catalog(skip_invalid=True, only=()).environment.shares))


app.command("test")(run_tests)
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
    from deltaworks.engine.recovery import check_spec
    from deltaworks.specs.spec_diff import unsafe_changes
    from deltaworks.tables.lake import Lake

    project = catalog()
    spec = project.pipeline(pipeline)
    home = PipelineHome.open(project.environment.lake, pipeline)
    records = home.specs
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
        accepted = records.accept(spec, by=system_user(), reason=reason)
        parts.append(f"Accepted: {', '.join(change.field for change in accepted) or 'nothing needed it'}.")
    rejected = unsafe_changes(changes)
    try:
        starts_over = check_spec(Lake(project.environment.lake), home, spec)
    except ContractError as error:
        parts.append(f"The stream will not start on this: {', '.join(edit.field for edit in rejected)}.")
        return CommandOutput(parts, exit_code=error.exit_code)
    text = "The stream will start on this."
    if starts_over:
        text = "No table has had a row yet: the stream starts over with this, and reads its source from the start."
    return CommandOutput([*parts, text])


def _change_listing(changes: list[SpecChange]) -> Listing:
    listing = Listing(("field", "ran with", "declared", "effect", "what to do"))
    for change in changes:
        old, new = (Cell(value, _short(value)) for value in (change.old, change.new))
        listing.add(change.field, old, new, str(change.effect), change.advice)
    return listing


def _short(value: object, limit: int = 60) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
