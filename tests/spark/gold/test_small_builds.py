"""A date that DuckDB builds in process equals the one that Spark builds: rows, columns and types."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.fixtures.run import FixtureLake
from deltaworks.fixtures.spec import Fixture, load_fixtures
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.pinned_inputs import declared_columns, pin_inputs
from deltaworks.gold.plan import as_declared
from deltaworks.gold.small_build import SmallBuilds, _fits
from deltaworks.gold.table_build import GoldTableResult, TableJob, plan_job
from deltaworks.gold.table_commit import DUCKDB, SPARK
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.checks.portable_query import portable_query
from deltaworks.specs.gold import GoldTableSpec, view_name
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.log import state_at
from deltaworks.testing import present

CATALOG: Catalog = load_catalog("local", root=PROJECT_ROOT)
FIXTURES = [fixture for pipeline in CATALOG.pipelines for fixture in load_fixtures(CATALOG, pipeline)]
#: The shipped tables whose dates need no Spark.
IN_PROCESS = {
    "edits": {"edits_per_hour", "top_pages", "edits_totals"},
    "filings": {"eps_facts"},
    "games": {
        *("events_per_hour", "bookings_per_hour", "events_minute", "bookings_minute", "bookings_per_country"),
        *("daily_active_users", "retention", "player_days"),
    },
    "mobile": {"events_per_day", "bookings_per_day"},
    "revenue": {"revenue_per_day"},
}


def no_spark() -> NoReturn:
    pytest.fail("Spark was started")


class Built:
    """The gold of one fixture's pipeline."""

    def __init__(self, folder: Path, fixture: Fixture) -> None:
        self.held = FixtureLake(CATALOG, folder, fixture)
        self.pipeline, self.catalog, self.lake = fixture.pipeline, self.held.catalog, self.held.lake
        self.spec = self.catalog.pipeline(self.pipeline)

    def rows(self, table: str) -> Counter[str]:
        rows = present(self.lake.rows(paths.table(self.pipeline, table))).to_pylist()
        return Counter(repr(row) for row in rows)

    def schema(self, table: str) -> str:
        return str(state_at(self.lake, self.lake.objects, paths.table(self.pipeline, table)).metadata["schemaString"])

    def dates(self, table: GoldTableSpec) -> frozenset[dt.date]:
        rows = self.lake.rows(paths.table(self.pipeline, table.name), columns=[table.partition_by])
        return frozenset() if rows is None else frozenset(rows.column(table.partition_by).to_pylist())

    def job(self, table: GoldTableSpec, dates: frozenset[dt.date]) -> TableJob:
        inputs, key = pin_inputs(self.lake, self.spec, table.reads), paths.table(self.pipeline, table.name)
        return plan_job(self.catalog, self.spec, self.lake, table, inputs, key=key, dates=dates)

    def build(self, spark: Any, table: str, dates: frozenset[dt.date]) -> GoldTableResult:
        return rebuild_gold(spark, self.catalog, self.pipeline, tables=[table], dates=dates).table(table)


@pytest.mark.integration
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: f"{fixture.pipeline}-{fixture.name}")
def test_dates_of_shipped_tables_are_built_alike(spark: SparkSession, tmp_path: Path, fixture: Fixture) -> None:
    gold = Built(tmp_path, fixture)
    for other in fixture.spec.other_pipelines:
        rebuild_gold(spark, gold.catalog, other)
    rebuild_gold(spark, gold.catalog, fixture.pipeline)
    small = SmallBuilds(gold.lake, gold.spec)
    tables = {table.name: table for table in gold.spec.gold.tables if table.is_partitioned_by_date}
    dates = {name: built for name, table in tables.items() if (built := gold.dates(table))}
    in_process = {name for name, built in dates.items() if not small.reason_for_spark(gold.job(tables[name], built))}

    assert in_process == IN_PROCESS.get(fixture.pipeline, set()) & dates.keys()
    for name in sorted(in_process):
        by_spark = gold.build(spark, name, dates[name])
        rows, schema = gold.rows(name), gold.schema(name)
        by_duckdb = gold.build(no_spark, name, dates[name])

        assert (by_spark.engine, by_duckdb.engine) == (SPARK, DUCKDB)
        assert gold.rows(name) == rows
        assert gold.schema(name) == schema
        assert by_duckdb.version == present(by_spark.version) + 1
        for field in ("partitions", "rows", "duplicates_dropped", "built_from", "reason"):
            assert getattr(by_duckdb, field) == getattr(by_spark, field), f"{name}: {field}"


EVENTS = {
    "event_date": "date",
    "event_time": "timestamp",
    "name": "string",
    "number": "int",
    "large": "long",
    "amount": "decimal(12,2)",
    "speed": "double",
    "is_new": "boolean",
}
SHOPS = {"name": "string", "opened": "date", "place": "int"}
#: Together they use everything that `portable_query` allows.
QUERIES = (
    "SELECT event_date, name, count(*) AS a, count(number) AS b, count(speed) AS c, count(DISTINCT name) AS d, "
    "count(DISTINCT amount) AS e, sum(number) AS f, sum(large) AS g, sum(amount) AS h, count_if(is_new) AS i, "
    "CAST(sum(amount) AS DECIMAL(14, 1)) AS j, CAST(sum(number) AS DECIMAL(20, 3)) AS k, "
    "sum(number) + 1 - count(*) AS l FROM events GROUP BY 1, name",
    "SELECT event_date, min(name) AS a, max(name) AS b, min(event_time) AS c, max(event_date) AS d, max(amount) AS e, "
    "bool_and(is_new) AS f, bool_or(is_new) AS g, coalesce(min(number), -1) AS h, sum(IF(is_new, number, 0)) AS i, "
    "CASE WHEN count(name) > 1 THEN max(number) END AS j, min(number * 2 + 1) AS k FROM events GROUP BY event_date",
    "SELECT event_date, date_trunc('DAY', event_time) AS a, date_trunc('HOUR', event_time) AS b, "
    "date_trunc('MINUTE', event_time) AS c, CAST(event_time AS DATE) AS d, datediff(event_date, event_time) AS e, "
    "date_add(event_date, number) AS f, date_sub(event_date, 7) AS g, speed, name, amount, is_new, large FROM events",
    "SELECT event_date, name LIKE 'a%' AS a, name IN ('a', 'é') AS b, number BETWEEN -1 AND 3 AS c, name < 'b' AS d, "
    "amount >= number AS e, NOT is_new AS f, name <=> 'a' AS g, number IS NULL OR is_new AS h, speed IS NOT NULL AS i, "
    "coalesce(name, '') AS j, CASE WHEN number > 0 THEN amount WHEN is_new THEN -amount ELSE amount END AS k, "
    "coalesce(large, number) AS l, number <> large AS m FROM events WHERE is_new IS NULL OR name <> ''",
    "SELECT DISTINCT e.event_date, s.place, e.name FROM events AS e JOIN shops AS s ON s.name = e.name",
    "WITH named AS (SELECT name, count(*) AS n FROM events GROUP BY name) "
    "SELECT e.event_date, e.name, named.n, s.opened, e.number - s.place AS a FROM events e "
    "LEFT JOIN named ON named.name <=> e.name LEFT OUTER JOIN shops s ON s.name = e.name AND s.opened <= e.event_date",
    "WITH counted AS (SELECT event_date, name, number, count(*) AS n FROM events GROUP BY event_date, name, number) "
    "SELECT event_date, name, number, n, "
    "row_number() OVER (PARTITION BY event_date ORDER BY n DESC, name DESC, number) AS place FROM counted",
    "SELECT event_date, sum(n) AS n FROM "
    "(SELECT event_date, number, count(*) AS n FROM events GROUP BY ALL) AS counted GROUP BY event_date",
)


DAYS = [dt.date(2026, 3, day) for day in (1, 2, 3, 8, 9)] + [dt.date(1969, 12, 31), dt.date(1500, 2, 28)]
TEXTS = ["a", "b", "ab", "", "é", "É", "e\u0301", "z😀", " a", "a ", "purchase", "session_start", "10-K/A"]


def random_value(chosen: random.Random, kind: str) -> Any:
    """Returns a value of a type, or null; always null for types of nested values."""
    day = chosen.choice(DAYS)
    values: dict[str, Any] = {
        "date": day,
        "timestamp": dt.datetime.combine(day, dt.time(chosen.randrange(24), 59, 59, 999_999), dt.UTC),
        "string": chosen.choice(TEXTS),
        "int": chosen.randrange(-5, 5),
        "long": chosen.choice((-(2**40), 3, 2**40)),
        "double": chosen.choice((0.0, -0.0, float("nan"), 1.5)),
        "boolean": chosen.random() < 0.5,
    }
    if kind.startswith("decimal"):
        return None if chosen.random() < 0.1 else Decimal(chosen.randrange(-10_000, 10_000)) / 100
    return None if chosen.random() < 0.1 else values.get(kind)


def random_rows(chosen: random.Random, types: Mapping[str, str], count: int) -> pa.Table:
    rows = [{name: random_value(chosen, kind) for name, kind in types.items()} for _ in range(count)]
    return pa.Table.from_pylist(rows, arrow_schema(dict(types)))


def require_one_answer(spark: SparkSession, sql: str, inputs: Mapping[str, tuple[Mapping[str, str], pa.Table]]) -> None:
    """Fails unless both engines give one answer, with rows, over these inputs: types and rows by view."""
    query = portable_query(sql, {name: types for name, (types, _) in inputs.items()})
    with duckdb_session() as session:
        session.execute("SET TimeZone = 'UTC'")
        for name, (_, rows) in inputs.items():
            session.register(name, rows)
            spark.createDataFrame(rows).createOrReplaceTempView(name)
        computed = session.sql(query.sql).to_arrow_table()
    answer = spark.sql(sql).toArrow()

    assert _fits(computed.schema, answer.schema), f"{computed.schema} is not {answer.schema}"
    fitted = as_declared(computed, answer.schema)
    assert Counter(map(repr, fitted.to_pylist())) == Counter(map(repr, answer.to_pylist()))
    assert answer.num_rows


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("number", range(len(QUERIES)))
def test_allowed_sql_has_one_answer(spark: SparkSession, number: int, seed: int) -> None:
    chosen = random.Random(f"{number} {seed}")
    events, shops = random_rows(chosen, EVENTS, 300), random_rows(chosen, SHOPS, 20)

    require_one_answer(spark, QUERIES[number], {"events": (EVENTS, events), "shops": (SHOPS, shops)})


@pytest.mark.parametrize(("pipeline", "name"), sorted((p, name) for p, names in IN_PROCESS.items() for name in names))
def test_shipped_sql_has_one_answer_over_any_rows(spark: SparkSession, pipeline: str, name: str) -> None:
    spec = CATALOG.pipeline(pipeline)
    table = next(table for table in spec.gold.tables if table.name == name)
    chosen = random.Random(name)
    types = {view_name(read): declared_columns(spec, read) for read in table.reads}
    inputs = {view: (columns, random_rows(chosen, columns, 400)) for view, columns in types.items()}

    require_one_answer(spark, (CATALOG.folder(pipeline) / table.sql).read_text(encoding="utf-8"), inputs)
