"""Builds single dates of gold tables in this process, where DuckDB has Spark's answer and the inputs are small.

A Spark session takes 15 to 25 seconds to open, which is most of a small build. What may differ between the engines, or
needs more than single dates of a table that exists, is left to Spark with the reason. The commit is that of any build.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.errors import DeltaworksError, FencedError, TransientError
from deltaworks.gold.answer import MAX_EXAMPLES, describe_counts, describe_duplicates
from deltaworks.gold.file_scan import has_plain_files
from deltaworks.gold.pinned_inputs import InputSizes, PinnedInput
from deltaworks.gold.plan import Answer
from deltaworks.gold.preview import planned_answer
from deltaworks.gold.table_build import GoldTableResult, TableJob, commit_answer, may_be_empty, unpublished
from deltaworks.gold.table_commit import DUCKDB
from deltaworks.gold.translation import Translation
from deltaworks.specs.checks.portable_query import PortableQuery, UnsupportedSqlError, portable_query
from deltaworks.specs.gold import ChecksSpec, view_name
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.duckdb_session import free_memory_bytes
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import TableState, parse_schema_string, state_at
from deltaworks.tables.rewrite import SparkRequiredError

#: Most bytes of input files that a build reads in this process. Spark reads more in parallel.
MAX_INPUT_BYTES: Final = 64 << 20
#: Memory per byte of input files, and the share of free memory that a build may use.
_MEMORY_BYTES_PER_FILE_BYTE: Final = 10
_MAX_MEMORY_SHARE: Final = 0.5
#: Errors of inputs or of the answer. Spark reads them, or fails with an error of its own.
_LEFT_TO_SPARK = (DeltaworksError, duckdb.Error, pa.ArrowException, OSError, LookupError, ValueError)


class SmallBuilds:
    """Builds of one pipeline's gold tables in this process. Used by one thread."""

    def __init__(self, lake: Lake, spec: PipelineSpec) -> None:
        self._lake, self._spec = lake, spec

    def reason_for_spark(self, job: TableJob) -> str:
        """Returns why only Spark can build a job, as far as logs and SQL show; empty if this process may try."""
        try:
            self._query(job)
        except SparkRequiredError as error:
            return str(error)
        return ""

    def build(self, job: TableJob) -> GoldTableResult:
        """Builds a planned job in one commit like `build_table`; commits nothing if a check fails.

        Raises:
            SparkRequiredError: Spark must build it; nothing was committed.
            ConcurrencyError: GOLD_OVERTAKEN, another build or a refresh has committed since planning.
            TransientError, FencedError: nothing can be read or built now.
        """
        started, query = time.monotonic(), self._query(job)
        try:
            state = state_at(self._lake, self._lake.objects, job.key)
            answer = self._answer(job, query, state)
            failures = failed_checks(job.plan.table.checks, answer.rows, allow_empty=may_be_empty(job, state))
        except (TransientError, FencedError):
            raise
        except _LEFT_TO_SPARK as error:
            raise SparkRequiredError(f"DuckDB cannot compute it: {error}") from error
        if failures:
            return unpublished(job, failures, seconds=time.monotonic() - started)
        committed = commit_answer(self._lake, self._spec, job, answer, engine=DUCKDB)
        if committed is None:
            raise SparkRequiredError("only Spark may write the table, or so many rows")
        return replace(committed, seconds=time.monotonic() - started)

    def _query(self, job: TableJob) -> PortableQuery:
        """Returns the query of a job that this process may build.

        Raises:
            SparkRequiredError
        """
        reason = next(chain(_reasons_against(job), _reasons_against_inputs(job)), "")
        if not reason:
            reason = _reason_against_size(InputSizes(job.inputs, self._spec.gold.dedupe).bytes_of(job.plan))
        if reason:
            raise SparkRequiredError(reason)
        try:
            return portable_query(job.sql, {view_name(name): _types(pinned) for name, pinned in job.inputs.items()})
        except UnsupportedSqlError as error:
            raise SparkRequiredError(error.describe(job.sql)) from error

    def _answer(self, job: TableJob, query: PortableQuery, state: TableState) -> Answer:
        """Returns the rows of the planned dates.

        Raises:
            SparkRequiredError: its columns are not those of the table, which Spark would rebuild.
        """
        translation = Translation(query.sql, (), query.tree, str(job.sql_path))
        answer = planned_answer(
            self._lake, job.plan, translation, job.inputs, self._spec.gold.dedupe, count_duplicates=True
        )
        if answer.rows is None or not _fits(answer.rows.schema, parse_schema_string(state.metadata["schemaString"])):
            raise SparkRequiredError("the columns of its answer changed")
        return answer


def _reasons_against(job: TableJob) -> Iterator[str]:
    """Yields why a job is none of single dates that this process can check."""
    plan, checks = job.plan, job.plan.table.checks
    if plan.full:
        yield f"it computes all rows: {plan.reason}"
    elif plan.keys is not None or not plan.table.is_partitioned_by_date:
        yield f"it is not built by date, but by values of {plan.table.partition_by}"
    elif plan.since is not None:
        yield f"it computes all dates from {plan.since} on"
    if plan.table.grain is not None:
        yield "it declares a grain, whose hours Spark checks"
    if checks.intervals is not None or checks.max_drop is not None:
        yield f"Spark checks its {'intervals' if checks.intervals is not None else 'max_drop'}"
    if job.previous_build is not None and job.previous_build.fingerprint != job.fingerprint:
        yield "its definition changed, or an input was recreated"


def _reasons_against_inputs(job: TableJob) -> Iterator[str]:
    """Yields why this process does not read the inputs of a job as Spark does."""
    for pinned in job.inputs.values():
        if pinned.scored_input is not None:
            yield f"{pinned.name} is a model, whose scores Spark computes"
        elif DELETED_COLUMN in pinned.columns:
            yield f"rows of {pinned.name} are changed by mutations"
        elif pinned.delta_table is not None and not has_plain_files(pinned.delta_table):
            yield f"{pinned.name} has rows that are not those of its files"


def _reason_against_size(size: int) -> str:
    if size > MAX_INPUT_BYTES:
        return f"it reads {size:,} bytes of input files, more than {MAX_INPUT_BYTES:,}"
    free = free_memory_bytes()
    if size * _MEMORY_BYTES_PER_FILE_BYTE > free * _MAX_MEMORY_SHARE:
        return f"it reads {size:,} bytes of input files, too many for the {free:,} bytes of memory that are free"
    return ""


def _types(pinned: PinnedInput) -> Mapping[str, str]:
    """Returns the types of an input's columns: those of the table, or as declared if it does not exist."""
    if pinned.delta_table is None:
        return pinned.columns
    fields = pinned.delta_table.schema().fields
    return {field.name: str(getattr(field.type, "type", "")) for field in fields}


def _fits(computed: pa.Schema, declared: pa.Schema) -> bool:
    """Whether Spark's answer has the columns of the table, from the columns of DuckDB's."""
    return computed.names == declared.names and all(map(_is_same_type, computed.types, declared.types))


def _is_same_type(computed: pa.DataType, declared: pa.DataType) -> bool:
    if pa.types.is_decimal(computed) and pa.types.is_decimal(declared):
        return bool(computed.scale == declared.scale)  # sums have 38 digits in DuckDB, and ten more in Spark
    if pa.types.is_timestamp(computed) and pa.types.is_timestamp(declared):
        return declared.tz is not None
    return bool(computed == declared)


def failed_checks(checks: ChecksSpec, rows: pa.Table, *, allow_empty: bool = False) -> list[str]:
    """Returns the declared checks that rows fail, in the words of `answer.failed_checks`.

    Args:
        allow_empty: whether no row is right, in spite of `min_rows`.

    Raises:
        LookupError: a check names a column that the rows do not have.
    """
    nulls = {column: rows.column(column).null_count for column in checks.not_null}
    failures = describe_counts(checks, rows.num_rows, nulls, allow_empty=allow_empty)
    if checks.unique:
        failures += _uniqueness_failures(checks, rows)
    return failures


def _uniqueness_failures(checks: ChecksSpec, rows: pa.Table) -> list[str]:
    counted = rows.group_by(list(checks.unique)).aggregate([([], "count_all")])
    duplicated = counted.filter(pc.greater(counted.column("count_all"), 1))
    if not duplicated.num_rows:
        return []
    examples = duplicated.slice(0, MAX_EXAMPLES).to_pylist()
    return [describe_duplicates(checks, duplicated.num_rows, examples)]
