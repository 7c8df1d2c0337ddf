"""Re-reads landed objects, or records of streams, and replaces their rows in place or in shadow tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from deltaworks.control.clock import parse_time_range
from deltaworks.control.listing import Cell, Listing, count_cell, format_bytes
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import OnlyFor, Options, Section, TableNames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.recovery.reprocess.dry_run import ReprocessCount, TableCount
    from deltaworks.recovery.reprocess.plan import ReprocessRequest

_MAX_KEYS_SHOWN = 10
SPARK_UNAVAILABLE = "SPARK_UNAVAILABLE"
_SELECTION_SECTION = Section("Other selections")
_ROWS_SECTION = Section("Target tables and rows")


class ReprocessOptions(Options):
    """Options of a reprocess."""

    events: str | None = Field(
        None,
        description=(
            "Objects or batches with events of these dates, such as 2026-01-01..2026-01-02 (both included), or between "
            "two times."
        ),
    )
    arrived: str | None = Field(
        None,
        description=(
            "Objects or batches that arrived on these dates, both included, or between two times, such as "
            "2026-01-01T10:00..2026-01-01T12:00."
        ),
    )
    tables: Annotated[tuple[str, ...], TableNames(("bronze",))] = Field(
        (), description="Only these tables; by default all, and quarantine."
    )
    batches: Annotated[str | None, _SELECTION_SECTION] = Field(
        None, description="The first and the last batch, such as 10-20."
    )
    files: Annotated[tuple[str, ...], _SELECTION_SECTION, OnlyFor("objects")] = Field(
        (), description="Keys of objects, or patterns such as games/2026/01/02/*."
    )
    file_list: Annotated[str | None, _SELECTION_SECTION, OnlyFor("objects")] = Field(
        None, description="A file on the job's host with one key or pattern on each line."
    )
    offsets: Annotated[tuple[str, ...], _SELECTION_SECTION, OnlyFor("records")] = Field(
        (), description="Records such as topic/0/100-200 or stream/shard/first-last."
    )
    from_start: Annotated[bool, _SELECTION_SECTION] = Field(False, description="All landed objects or records.")
    shadow: Annotated[bool, _ROWS_SECTION] = Field(
        False, description="Write to new tables <table>__<id> and keep the existing ones unchanged."
    )
    allow_missing: Annotated[bool, _ROWS_SECTION] = Field(
        False, description="Keep the rows of objects and records that no longer exist."
    )
    exact: Annotated[bool, _ROWS_SECTION] = Field(
        False, description=("Count by reading all objects instead of a sample.")
    )
    id: Annotated[str | None, _ROWS_SECTION] = Field(
        None, description="Continue the reprocess with this id, or start it with this id."
    )
    spark: Annotated[bool, _ROWS_SECTION] = Field(
        True, description="Off: process only what is small enough without Spark, and report whether work remains."
    )
    dry_run: bool = Field(
        True, description=("Only count the rows that would be replaced; the stream continues in either case.")
    )


def reprocess(context: OperationContext, options: ReprocessOptions) -> Report:
    """Re-reads landed objects and replaces their rows, with one commit per table.

    Idempotent per id: a repeated run with the same id continues it.
    """
    request = build_request(options)
    if options.dry_run:
        if request is None:
            raise _invalid(
                "The selection is empty.",
                "Give --batches, --files, --file-list, --offsets, --events, --arrived or --from-start.",
            )
        try:
            return _count(context, request, exact=options.exact, spark=options.spark)
        except DeltaworksError as error:
            if error.condition != "REPROCESS_EMPTY" and not _has_no_batch(context):
                raise
            # A result, because a task without one continues with Spark.
            return Report(parts=[error.message, "Nothing would be replaced."], results=[ReprocessRemainder.nothing()])
    from deltaworks.control.records.reprocess import new_reprocess_id, reprocess_id_for_run
    from deltaworks.recovery.quarantine.open_rows import recount_quarantine
    from deltaworks.recovery.reprocess.run import Reprocess

    # The id is the same for every try of an Airflow task, so each try continues the previous one.
    name = options.id or (reprocess_id_for_run(context.run_id) if context.run_id else new_reprocess_id())
    context.echo(
        f"Reprocess {name}; if it is interrupted: deltaworks reprocess {context.subject} --id {name} --no-dry-run"
    )
    spark = context.spark if options.spark else _refuse_spark
    try:
        result = Reprocess(spark, context.catalog, context.subject).run(name, request)
    except TransientError as error:
        if error.condition != SPARK_UNAVAILABLE or options.spark:
            raise
        return Report(parts=[f"The rest of {name} needs Spark."], results=[ReprocessRemainder(id=name)])
    recount_quarantine(context.catalog.environment.lake, context.subject)
    listing = Listing(("table", "written to", "outcome", "rows out", "rows in", "dates", "version", "seconds"))
    for table in result.tables:
        counts = (f"{table.rows_out:,}", f"{table.rows_in:,}", str(len(table.dates)), str(table.version))
        listing.add(table.table, table.target, table.outcome, *counts, f"{table.seconds:.1f}")
    summary = f"{_describe_input(result.objects, result.bytes, result.origins)}, {result.seconds:.1f} s."
    rest = _skipped_lines(result.missing_keys, result.unmatched, result.still_quarantined)
    return Report(parts=[listing, summary, *rest], results=[result])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessRemainder:
    """The result of a reprocess that needs Spark for the rest. The Spark job continues it by its id."""

    id: str
    spark_work_count: int = 1

    @classmethod
    def nothing(cls) -> ReprocessRemainder:
        """Returns the result of a reprocess that selects nothing."""
        return cls(id="", spark_work_count=0)


def _refuse_spark() -> SparkSession:
    raise TransientError(SPARK_UNAVAILABLE, "The amount of data to read or replace needs Spark.")


def build_request(options: ReprocessOptions) -> ReprocessRequest | None:
    """Returns the request that the options describe; None if they select nothing, which continues the planned
    reprocess.

    Raises:
        ConfigError: REPROCESS_SELECTION_INVALID.
    """
    selected = (options.batches, options.files, options.file_list, options.offsets, options.events, options.arrived)
    if not any(selected) and not options.from_start:
        return None
    from deltaworks.recovery.reprocess.plan import ReprocessRequest
    from deltaworks.recovery.reprocess.selection import Selection

    return ReprocessRequest(
        selection=Selection(
            batches=_parse_batch_range(options.batches) if options.batches else None,
            files=options.files + (_read_key_file(options.file_list) if options.file_list else ()),
            events=_parse_time_range(options.events) if options.events else None,
            from_start=options.from_start,
            offsets=options.offsets,
            arrived=_parse_time_range(options.arrived) if options.arrived else None,
        ),
        tables=options.tables,
        shadow=options.shadow,
        allow_missing=options.allow_missing,
    )


def _parse_batch_range(text: str) -> tuple[int, int]:
    numbers = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if numbers is None:
        raise _invalid(f"{text!r} is not a batch range.", "Write the first and the last, such as 10-20.")
    first = int(numbers[1])
    last = int(numbers[2]) if numbers[2] else first
    if last < first:
        raise _invalid(f"The batch range {text!r} is empty.", "Write the first and the last, such as 10-20.")
    return first, last


def _read_key_file(path: str) -> tuple[str, ...]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _invalid(f"Cannot read {path}: {error.strerror}.", "Give a file with one key on each line.") from error
    return tuple(line.strip() for line in lines if line.strip())


def _parse_time_range(text: str) -> tuple[str, str]:
    try:
        start, end = parse_time_range(text)
    except ValueError as error:
        hint = "Write first and last date, such as 2026-01-01..2026-01-02, or two times."
        raise _invalid(f"{text!r} is not a time range: {error}.", hint) from error
    return start.isoformat(), end.isoformat()


def _has_no_batch(context: OperationContext) -> bool:
    """Returns whether no batch of the current generation is complete, as before the first start."""
    from deltaworks.control.home import PipelineHome
    from deltaworks.tables.lake import Lake
    from deltaworks.tables.steps import read_last_completed

    lake = context.catalog.environment.lake
    generation = PipelineHome.open(lake, context.subject).generations.current()
    return read_last_completed(Lake(lake), context.subject, generation) is None


def _invalid(message: str, hint: str) -> ConfigError:
    return ConfigError("REPROCESS_SELECTION_INVALID", message, hint=hint)


def _count(context: OperationContext, request: ReprocessRequest, *, exact: bool, spark: bool) -> Report:
    from deltaworks.control.home import PipelineHome
    from deltaworks.recovery.reprocess.dry_run import ReprocessCounter
    from deltaworks.recovery.reprocess.plan import ReprocessPlanner, open_record_resolver
    from deltaworks.recovery.reprocess.reread import open_landing
    from deltaworks.tables.lake import Lake

    environment, spec = context.catalog.environment, context.catalog.pipeline(context.subject)
    lake, home = Lake(environment.lake), PipelineHome.open(environment.lake, spec.pipeline)
    records = open_record_resolver(context.catalog, spec, lake, home)
    counter = ReprocessCounter(ReprocessPlanner(lake, home.objects, spec, records=records), lake, home.objects, spec)
    if records is not None and not spark:
        return Report(parts=["Reading records of a stream needs Spark."], results=[ReprocessRemainder(id="")])
    if records is not None:
        count = counter.count_records(context.spark(), request, exact=exact)
    else:
        count = counter.count_objects(request, open_landing(environment, spec), exact=exact)
    return Report(parts=_count_parts(count), results=[count])


def _count_parts(count: ReprocessCount) -> list[str | Listing]:
    row_source = "exact, all read" if count.exact else f"≈, estimated from {count.sampled} of them"
    if count.origins and not count.exact:
        row_source = "not counted; --exact reads them"
    listing = Listing(("table", "rows out", "rows in"))
    for table in count.tables:
        listing.add(
            table.table,
            "?" if table.rows_out is None else f"{table.rows_out:,}",
            _rows_in_cell(table, is_sampled=not count.origins),
        )
    return [
        f"{_describe_input(count.objects, count.bytes, count.origins)}, up to batch {count.through_batch}; "
        f"rows in: {row_source}.",
        listing,
        *_list_keys("from the archive", count.archive_frame),
        *_skipped_lines(count.missing_keys, count.unmatched, 0),
        "Nothing was changed. Use --no-dry-run to apply it.",
    ]


def _rows_in_cell(table: TableCount, *, is_sampled: bool) -> Cell:
    """Returns added rows: a number if all was read, otherwise a range."""
    if table.rows_in is None:
        return Cell(None, "too few in the sample" if is_sampled else "?")
    if table.rows_in_low is None or table.rows_in_high is None:
        return count_cell(table.rows_in)
    return Cell(table.rows_in, f"≈ {table.rows_in_low:,} to {table.rows_in_high:,}")


def _describe_input(objects: int, size: int, origins: Mapping[str, int]) -> str:
    """Returns the amount of input: objects, or for a stream batches and the origins of their ranges."""
    if not origins:
        return f"{objects} objects, {format_bytes(size)}"
    parts = ", ".join(f"{ranges} {origin}" for origin, ranges in origins.items())
    return f"{objects} batches; ranges of records: {parts}"


def _list_keys(label: str, keys: tuple[str, ...]) -> list[str]:
    more = ", …" * (len(keys) > _MAX_KEYS_SHOWN)
    return [f"{len(keys)} {label}: {', '.join(keys[:_MAX_KEYS_SHOWN])}{more}"] if keys else []


def _skipped_lines(missing: tuple[str, ...], unmatched: int, still_quarantined: int) -> list[str]:
    lines = []
    if missing:
        lines += _list_keys("can no longer be read", missing)
    if unmatched:
        lines.append(f"{unmatched} events do not belong to the selected tables.")
    if still_quarantined:
        lines.append(
            f"{still_quarantined} rows stay in quarantine, since they belong to tables not asked for too: "
            "reprocess without --tables to take them out."
        )
    return lines
