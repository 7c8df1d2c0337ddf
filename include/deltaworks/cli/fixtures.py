"""`deltaworks pipelines test`: runs the tests in pipelines' folders, or records one from a file of events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import OptionalPipelineArgument, catalog
from deltaworks.cli.output import CommandOutput, OutputPart, listing_command
from deltaworks.control.listing import Listing

if TYPE_CHECKING:
    from deltaworks.fixtures.results import FixtureResult


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
