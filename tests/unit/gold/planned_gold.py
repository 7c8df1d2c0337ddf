"""Gold that is planned as ever, over real tables, and built by DuckDB in place of Spark.

What is rebuilt, what of the inputs is read and what counts as a change are those of a build; the SQL is translated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import sqlglot
from deltalake import CommitProperties, write_deltalake

from deltaworks.control.provenance import user_metadata
from deltaworks.gold.inputs import BUILT_FROM, FINGERPRINT, PinnedInput
from deltaworks.gold.parts import Part
from deltaworks.gold.table_build import TableJob
from deltaworks.specs.gold import DedupeSpec
from deltaworks.tables.lake import Lake, relation_of

#: Rows that another one of their id precedes, at most so many hours away.
_COPIES = """
    SELECT * FROM {rows} r WHERE NOT EXISTS (
        SELECT 1 FROM {around} o
        WHERE o.event_id = r.event_id AND (o._seq, o._position) < (r._seq, r._position)
        AND abs(datediff('hour', date_trunc('hour', o.event_time), date_trunc('hour', r.event_time))) <= {hours}
    )
"""


def build_planned(lake: Lake, pipeline: str, job: TableJob, dedupe: DedupeSpec | None = None) -> None:
    """Do what a job says, in one commit. Copies are left out of tables with a grain alone."""
    table, grain = job.plan.table, job.plan.table.grain
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, pinned in job.inputs.items():
            opened = lake.open(pinned.key)
            assert opened is not None
            opened.load_as_version(pinned.version or 0)
            connection.register(f"all_{name}", relation_of(opened))
            part = job.plan.input_of(name)
            rows = f"(SELECT * FROM all_{name} WHERE {condition(part, pinned)})"
            if grain is not None and dedupe is not None:
                hours = dedupe.across_hours or 0
                around = f"(SELECT * FROM all_{name} WHERE {condition(part.widened_by_hours(hours), pinned)})"
                rows = f"({_COPIES.format(rows=rows, around=around, hours=hours)})"
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {rows}")
        (sql,) = sqlglot.transpile(job.sql, read="spark", write="duckdb")
        time_column = "" if grain is None else grain.column
        written = _sql(job.plan.output, table.partition_by, time_column) if table.by_date else "true"
        before = None if job.plan.full else lake.open(job.key)
        query = f"SELECT * FROM ({sql}) WHERE {written}"
        if before is not None:
            # delta-rs compares no timestamps in the predicate of an overwrite.
            connection.register("before", relation_of(before))
            query = f"{query} UNION ALL BY NAME SELECT * FROM before WHERE NOT ({written})"
        answer = connection.sql(query).to_arrow_table()
    origin: Mapping[str, Any] = {BUILT_FROM: job.built_from, FINGERPRINT: job.fingerprint}
    made = user_metadata(pipeline=pipeline, batch="", operation="rebuild_gold", **origin)
    write_deltalake(
        lake.storage.uri(job.key).removeprefix("file://"),
        answer,
        mode="overwrite",
        partition_by=[table.partition_by],
        schema_mode="overwrite",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": made}),
    )


def condition(part: Part, pinned: PinnedInput) -> str:
    """What rows of an input meet that are in a part."""
    if part.by_hours and not pinned.time_column:
        part = part.whole_dates()
    return _sql(part, pinned.date_column, pinned.time_column)


def _sql(part: Part, column: str, time_column: str) -> str:
    if part.values is None:
        return "true"
    return (
        part.condition(column, time_column).replace("`", "").replace("DATE'", "DATE '").replace("TIMESTAMP'", _INSTANT)
    )


_INSTANT = "TIMESTAMPTZ '"
