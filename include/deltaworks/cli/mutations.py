"""`deltaworks mutations`: final ids of a request file, and the mutation batches of a pipeline."""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import listing_command, print_line
from deltaworks.control.listing import Listing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.mutations.request_file import RequestFile

app = typer.Typer(no_args_is_help=True)

#: Maximum number of listed batches.
_MAX_BATCHES_SHOWN = 10
ENTITY_COLUMNS = ("org_id", "origin_id", "final_id", "hops", "component_id", "component_size")
INTERVAL_COLUMNS = ("org_id", "id", "valid_from", "valid_to", "final_id", "deleted", "fields", "hops")


class OutputFormat(StrEnum):
    """The output format of rows."""

    CSV = "csv"
    JSON = "json"


@app.command()
def resolve(
    file: Path = typer.Argument(help="CSV: ts, old_id, new_id; optional org_id, seq, commit, op, fields."),
    as_csv: bool = typer.Option(False, "--csv", help="Print CSV (default)."),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON array of objects."),
    show_all: bool = typer.Option(False, "--all", help="Print every id and time interval with its final id."),
) -> None:
    """Print every entity of a request file: its first id, and its final id.

    An id that two entities used in turn gives two rows; a deleted entity has no final id.
    """
    from deltaworks.mutations.local_resolve import MAX_REQUESTS, resolve_entities_locally
    from deltaworks.mutations.request_file import read_request_file

    if as_csv and as_json:
        raise typer.BadParameter("use either --csv or --json")
    form = OutputFormat.JSON if as_json else OutputFormat.CSV
    requests = read_request_file(file)
    if requests.ignored_columns:
        print_line(f"Ignored columns: {', '.join(requests.ignored_columns)}", error=True)
    if len(requests.requests) <= MAX_REQUESTS:
        rows_without_spark = small_intervals(requests) if show_all else resolve_entities_locally(requests.requests)
        print_rows(rows_without_spark, INTERVAL_COLUMNS if show_all else ENTITY_COLUMNS, form, sys.stdout)
        return
    rows, columns = (resolved_intervals, INTERVAL_COLUMNS) if show_all else (resolved_entities, ENTITY_COLUMNS)
    from deltaworks.mutations.requests import resolve_settings

    session = _session()
    with resolve_settings(session, request_count=len(requests.requests)):
        print_rows(rows(session, requests), columns, form, sys.stdout)


@app.command()
@listing_command
def status(pipeline: PipelineArgument) -> list[str | Listing]:
    """Show the last batches, the pending requests, the age of the oldest, and the last pause of the stream."""
    from deltaworks.control.clock import utc_now
    from deltaworks.control.objects import open_objects
    from deltaworks.control.records.mutation import MutationBatches
    from deltaworks.mutations.bounds import BatchPlanner
    from deltaworks.operations.mutate import batch_listing
    from deltaworks.tables.lake import Lake

    project = catalog()
    spec, storage = project.pipeline(pipeline), project.environment.lake
    objects = open_objects(storage)
    waiting = BatchPlanner(Lake(storage), objects, spec).backlog()
    batches = MutationBatches(objects, pipeline)
    fixed, ended = batches.numbers()
    recorded = [batches.completion(number) for number in range(max(1, ended - _MAX_BATCHES_SHOWN + 1), ended + 1)]
    ends = [end for end in recorded if end is not None]
    parts: list[str | Listing] = [batch_listing(ends)]
    if fixed > ended:
        parts.append(f"Batch {fixed} is incomplete; the next run completes it.")
    if not waiting.requests:
        parts.append("No requests are pending.")
    else:
        minutes = waiting.age_seconds(utc_now()) / 60
        parts.append(f"{waiting.requests:,} requests are pending, the oldest for {minutes:.0f} minutes.")
    if ends:
        parts.append(f"The last batch kept the stream from a table for {ends[-1].pause_seconds:.1f} s.")
    return parts


def resolved_entities(spark: SparkSession, file: RequestFile) -> Iterator[dict[str, Any]]:
    """Yields the entities of a file, by organisation, origin and time."""
    from deltaworks.mutations.entities import resolve_entities

    entities = resolve_entities(spark.createDataFrame(file.to_arrow())).orderBy("org_id", "origin_id", "valid_from")
    for row in entities.toLocalIterator():
        yield {name: row[name] for name in ENTITY_COLUMNS}


def resolved_intervals(spark: SparkSession, file: RequestFile) -> Iterator[dict[str, Any]]:
    """Yields the intervals of a file, by organisation, id and time, with times as the file writes them.

    Empty intervals, between two commits at the same time, are omitted.
    """
    from deltaworks.mutations.entities import resolve as resolve_requests

    intervals = resolve_requests(spark.createDataFrame(file.to_arrow())).orderBy("org_id", "id", "valid_from")
    for row in intervals.toLocalIterator():
        written = _interval_row(row.asDict(), file)
        if written["valid_from"] is None or written["valid_from"] != written["valid_to"]:
            yield written


def small_intervals(file: RequestFile) -> Iterator[dict[str, Any]]:
    """Yields the intervals of a small file as `resolved_intervals` does, without Spark."""
    from deltaworks.mutations.local_resolve import resolve_locally

    for interval in resolve_locally(file.requests):
        written = _interval_row({name: getattr(interval, name) for name in INTERVAL_COLUMNS}, file)
        if written["valid_from"] is None or written["valid_from"] != written["valid_to"]:
            yield written


def _interval_row(row: Mapping[str, Any], file: RequestFile) -> dict[str, Any]:
    times = {name: file.original_time(row[name]) for name in ("valid_from", "valid_to")}
    return {name: row[name] for name in INTERVAL_COLUMNS} | times


def print_rows(rows: Iterable[Mapping[str, Any]], columns: tuple[str, ...], form: OutputFormat, to: TextIO) -> None:
    """Writes rows as CSV with a header, or as a JSON array with one object per line."""
    if form is OutputFormat.JSON:
        separator = "["
        for row in rows:
            to.write(f"{separator}\n{json.dumps(row, ensure_ascii=False)}")
            separator = ","
        to.write("[]\n" if separator == "[" else "\n]\n")
        return
    writer = csv.DictWriter(to, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _session() -> SparkSession:
    """Creates a local Spark session that needs neither stack nor lake."""
    from deltaworks.specs.environment import EnvironmentSpec, SparkSpec
    from deltaworks.specs.storage import AwsSpec, StorageSpec
    from deltaworks.tables.spark_session import build_session

    temporary_storage = StorageSpec(root=f"file://{tempfile.gettempdir()}")
    environment = EnvironmentSpec(
        environment="file",
        lake=temporary_storage,
        landing=temporary_storage,
        messaging=AwsSpec(),
        spark=SparkSpec(driver_memory="2g"),
    )
    return build_session(environment, app_name="mutations.resolve")
