"""Runs real gold plans over real tables, with DuckDB in place of Spark.

Plans, input parts, changes and answers are those of the product; only the commit is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from deltaworks.control.provenance import user_metadata
from deltaworks.gold.pinned_inputs import BUILT_FROM, FINGERPRINT, PinnedInput
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.preview import duckdb_condition, planned_rows
from deltaworks.gold.table_build import TableJob
from deltaworks.gold.translation import Translation, translate
from deltaworks.specs.gold import ChecksSpec, DedupeSpec
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.lake import Lake, duckdb_source


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
        replaced = None if before is None else duckdb_condition(job.plan.output.without_hours(), table.partition_by, "")
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
    return planned_rows(lake, plan, _translated(sql), inputs, dedupe)


def in_duckdb(sql: str) -> str:
    """Translates a Spark query to DuckDB; cached."""
    return _translated(sql).sql


@cache
def _translated(sql: str) -> Translation:
    # A translation takes longer than its query over the few rows of a test, and tests build a table many times.
    return translate(sql)


def _written(plan: GoldPlan) -> str:
    """Returns the condition of the rows a build writes."""
    table = plan.table
    time_column = "" if table.grain is None else table.grain.column
    return duckdb_condition(plan.output, table.partition_by, time_column) if table.is_partitioned_by_date else "true"


def _hold(name: str, checks: ChecksSpec, answer: pa.Table) -> None:
    if checks.unique:
        keys = [tuple(row.values()) for row in answer.select(list(checks.unique)).to_pylist()]
        assert len(keys) == len(set(keys)), f"{name}: {checks.unique} is not unique"
    for column in checks.not_null:
        assert answer.column(column).null_count == 0, f"{name}: {column} is null"
