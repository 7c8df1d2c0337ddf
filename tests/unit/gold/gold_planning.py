"""Runs real gold plans over real tables, with DuckDB in place of Spark.

Plans, input parts and changes are those of the product; only the SQL is translated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from deltalake import CommitProperties, write_deltalake

from deltaworks.control.provenance import user_metadata
from deltaworks.gold.input_views import BUILT_FROM, FINGERPRINT, PinnedInput
from deltaworks.gold.parts import Part
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.table_build import TableJob
from deltaworks.specs.gold import ChecksSpec, DedupeSpec, view_name
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.lake import Lake, duckdb_source

#: The first row of each id to arrive within the window.
_ORIGINALS = """
    SELECT * FROM {around} QUALIFY {by} IS NULL OR (_seq, _position) = min((_seq, _position)) OVER (
        PARTITION BY {by} ORDER BY {near} RANGE BETWEEN {across} PRECEDING AND {across} FOLLOWING
    )
"""
_INSTANT = "TIMESTAMPTZ '"


def empty_database() -> duckdb.DuckDBPyConnection:
    """Opens a DuckDB session in UTC that sees only registered relations."""
    session = duckdb_session()
    session.execute("SET TimeZone = 'UTC'")
    return session


def build_planned(lake: Lake, pipeline: str, job: TableJob, dedupe: DedupeSpec | None = None) -> None:
    """Runs a planned job in one commit.

    Raises:
        AssertionError: a check failed, other than `max_drop` and `intervals`.
    """
    table = job.plan.table
    answer = planned_answer(lake, job.plan, job.sql, job.inputs, dedupe)
    _hold(table.name, table.checks, answer)
    written = _written(job.plan)
    with empty_database() as connection:
        before = None if job.plan.full or not table.is_partitioned_by_date else lake.open(job.key)
        replaced = None if before is None else _sql(job.plan.output.without_hours(), table.partition_by, "")
        if before is not None and table.grain is not None:
            # delta-rs cannot compare timestamps when overwriting: complete dates are written, with their remaining
            # rows.
            connection.register("before", duckdb_source(lake, before))
            connection.register("answer", answer)
            answer = connection.sql(
                f"SELECT * FROM answer UNION ALL BY NAME SELECT * FROM before WHERE ({replaced}) AND NOT ({written})"
            ).to_arrow_table()
    origin: Mapping[str, Any] = {BUILT_FROM: job.built_from, FINGERPRINT: job.fingerprint}
    made = user_metadata(pipeline=pipeline, batch="", operation="rebuild_gold", **origin)
    write_deltalake(
        lake.storage.uri(job.key).removeprefix("file://"),
        answer,
        mode="overwrite",
        partition_by=[table.partition_by],
        predicate=replaced,
        schema_mode="overwrite" if replaced is None else None,
        commit_properties=CommitProperties(custom_metadata={"userMetadata": made}),
    )


def planned_answer(
    lake: Lake, plan: GoldPlan, sql: str, inputs: Mapping[str, PinnedInput], dedupe: DedupeSpec | None
) -> pa.Table:
    """Returns the planned rows of a gold table over its pinned inputs."""
    with empty_database() as connection:
        for name in plan.table.reads:
            _register(connection, lake, plan, inputs[name], dedupe)
        return connection.sql(f"SELECT * FROM ({in_duckdb(sql)}) WHERE {_written(plan)}").to_arrow_table()


@cache
def in_duckdb(sql: str) -> str:
    """Translates a Spark query to DuckDB; cached."""
    (translated,) = sqlglot.transpile(sql, read="spark", write="duckdb")
    return translated


def _written(plan: GoldPlan) -> str:
    """Returns the condition of the rows a build writes."""
    table = plan.table
    return (
        _sql(plan.output, table.partition_by, "" if table.grain is None else table.grain.column)
        if table.is_partitioned_by_date
        else "true"
    )


def _register(
    connection: duckdb.DuckDBPyConnection, lake: Lake, plan: GoldPlan, pinned: PinnedInput, dedupe: DedupeSpec | None
) -> None:
    """Registers an input view with the pinned version and planned part, without duplicates."""
    view, opened, part = view_name(pinned.name), lake.open(pinned.key), plan.input_of(pinned.name)
    if opened is None or pinned.version is None:
        connection.register(view, arrow_schema(dict(pinned.columns)).empty_table())
        return
    opened.load_as_version(pinned.version)
    connection.register(f"all_{view}", duckdb_source(lake, opened))
    rows = f"all_{view}"
    if dedupe is not None and pinned.has_events:
        by_hours = plan.table.grain is not None
        across = (dedupe.within_hours or 0) if by_hours else dedupe.within_days
        near = part.widen_hours(across) if by_hours else part.widen_days(across)
        unit = "hour" if by_hours else "day"
        originals = _ORIGINALS.format(
            around=f"(SELECT * FROM {rows} WHERE {condition(near, pinned)})",
            by=dedupe.by,
            near=f"datediff('{unit}', TIMESTAMP '1970-01-01', event_time::TIMESTAMP)",
            across=across,
        )
        rows = f"({originals})"
    connection.execute(f"CREATE TEMP VIEW {view} AS SELECT * FROM {rows} WHERE {condition(part, pinned)}")


def condition(part: Part, pinned: PinnedInput) -> str:
    """Returns the condition of a part's rows in an input; true without a date column."""
    if part.is_hourly and not pinned.time_column:
        part = part.without_hours()
    return _sql(part, pinned.date_column, pinned.time_column) if pinned.date_column else "true"


def _sql(part: Part, column: str, time_column: str) -> str:
    if part.values is None:
        return "true"
    return (
        part.condition(column, time_column).replace("`", "").replace("DATE'", "DATE '").replace("TIMESTAMP'", _INSTANT)
    )


def _hold(name: str, checks: ChecksSpec, answer: pa.Table) -> None:
    if checks.unique:
        keys = [tuple(row.values()) for row in answer.select(list(checks.unique)).to_pylist()]
        assert len(keys) == len(set(keys)), f"{name}: {checks.unique} is not unique"
    for column in checks.not_null:
        assert answer.column(column).null_count == 0, f"{name}: {column} is null"
