"""Views in Spark: the same values as in DuckDB, for every construct that is translated."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.view_translation import UntranslatableViewError, view_in_spark

UTC = dt.UTC
#: Nulls, zeros, negative numbers, halves, duplicates, and times around the ends of units.
ROWS = pa.table(
    {
        "k": ["a", "b", None, "b", "a", "c", "A", None],
        "i": pa.array([1, -2, 3, None, 0, 7, 2, -5], pa.int32()),
        "j": pa.array([0, 3, None, 4, 2, -2, 2, 0], pa.int64()),
        "x": [0.5, 1.5, 2.5, -0.5, None, 2.675, -2.5, 1e300],
        "m": [None if one is None else Decimal(one) for one in ("5.35", "0.01", None, "-2.50", "1", "9", "7.77", "0")],
        "t": [
            dt.datetime(2026, 2, 28, 23, 59, 59, 999999, UTC), dt.datetime(2026, 3, 1, tzinfo=UTC), None,
            dt.datetime(2026, 3, 1, 12, 30, 30, tzinfo=UTC), dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
            dt.datetime(2026, 3, 2, tzinfo=UTC), dt.datetime(2026, 3, 1, 12, 59, tzinfo=UTC),
            dt.datetime(1969, 12, 31, 23, 0, tzinfo=UTC),
        ],
        "d": [dt.date(2026, 3, 1), dt.date(2024, 2, 29), None, dt.date(1969, 12, 31), *[dt.date(2026, 1, 31)] * 4],
        "f": [True, False, None, True, True, False, None, True],
    },
    schema=pa.schema(
        [("k", pa.string()), ("i", pa.int32()), ("j", pa.int64()), ("x", pa.float64()), ("m", pa.decimal128(12, 2)),
         ("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("f", pa.bool_())]
    ),
)  # fmt: skip
QUERIES = (
    "SELECT i / j, m / j, m / i, x / j, i / 2, 7 / i, -i / j, (i + j) / (i - j) FROM rows",
    "SELECT CAST(x AS BIGINT) FROM rows WHERE x < 100",
    "SELECT CAST(m / nullif(i, 0) AS DECIMAL(12, 2)), CAST(m / 2 AS DECIMAL(9, 1)), CAST(i / 8 AS DECIMAL) FROM rows",
    "SELECT CAST(m AS BIGINT), CAST(m / 2 AS INT), CAST(sum(m) OVER () AS BIGINT), CAST(i AS BIGINT) FROM rows",
    "SELECT sum(i)::BIGINT, sum(x)::DOUBLE, count(*), count(i), count(DISTINCT k), min(x), max(t), avg(m) FROM rows",
    "SELECT k, sum(m), avg(m), median(i), median(x), quantile_cont(i, 0.5), quantile_cont(x, 0.9) FROM rows GROUP BY k",
    "SELECT k, count(*) FILTER (WHERE f), count_if(f), sum(i) FILTER (WHERE i > 0), min(d) FROM rows GROUP BY ALL",
    "SELECT i, row_number() OVER (ORDER BY i, j, t), rank() OVER (PARTITION BY k ORDER BY i DESC) FROM rows",
    "SELECT i, sum(i) OVER (PARTITION BY k ORDER BY j), lag(i) OVER (ORDER BY t), lead(i) OVER (ORDER BY t) FROM rows",
    "SELECT sum(j) OVER (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), i FROM rows",
    "SELECT date_trunc('hour', t), date_trunc('month', t), date_trunc('week', t), date_trunc('minute', t) FROM rows",
    "SELECT time_bucket(INTERVAL 1 HOUR, t), extract(HOUR FROM t), extract(YEAR FROM d), extract(DAY FROM t) FROM rows",
    "SELECT t + INTERVAL 5 MINUTES, t - INTERVAL 7 DAY, t + INTERVAL 1 MONTH, t + INTERVAL 1 MICROSECOND FROM rows",
    "SELECT i FROM rows WHERE t > (SELECT max(t) FROM rows) - INTERVAL 1 DAY AND d > (SELECT min(d) FROM rows)",
    "SELECT t::DATE, CAST(t AS DATE) = d, CAST(i AS DOUBLE) / 3 FROM rows WHERE i IS NULL",
    "SELECT coalesce(k, 'none'), nullif(i, 0), least(i, j), greatest(x, i), lower(k), upper(k), 10 ** i FROM rows",
    "SELECT CASE WHEN i > j THEN 'more' WHEN i IS NULL THEN 'none' ELSE 'less' END, k IN ('a', 'c') FROM rows",
    "SELECT i BETWEEN 0 AND 3, i NOT IN (1, 2), i IS NOT NULL FROM rows",
    "SELECT k LIKE 'a%', k LIKE '_', NOT f, f AND i > 0, f OR i > 0, i <> j, k = 'A' FROM rows",
    "SELECT DISTINCT k FROM rows ORDER BY k DESC LIMIT 2",
    "SELECT k, i FROM rows QUALIFY row_number() OVER (PARTITION BY k ORDER BY i, j) = 1",
    "SELECT a.i, b.j FROM rows a JOIN rows b USING (k) WHERE a.i < b.i",
    "SELECT a.i FROM rows a ANTI JOIN rows b ON a.i = b.j",
    "SELECT a.i, b.j FROM rows a LEFT JOIN rows b ON a.i = b.j",
    "WITH a AS (SELECT i FROM rows WHERE i > 0), b AS (SELECT * FROM a UNION ALL SELECT j FROM rows) SELECT * FROM b",
    "SELECT i FROM rows WHERE EXISTS (SELECT 1 FROM rows r WHERE r.j = rows.i)",
    "SELECT k, any_value(k), 'it''s \\\\ x' FROM rows WHERE k IS NOT NULL GROUP BY k HAVING count(*) > 1",
    "SELECT now() > t, d - INTERVAL 7 DAY < t FROM rows",
)  # fmt: skip


@pytest.fixture(scope="module")
def view(spark: SparkSession) -> Iterator[None]:
    spark.createDataFrame(ROWS).createOrReplaceTempView("rows")
    yield
    spark.catalog.dropTempView("rows")


def plain(value: object) -> object:
    """Returns a value in a form that both engines share: numbers as doubles, dates as times."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None) if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day)
    number = float(value)  # type: ignore[arg-type]
    return float(f"{number + 0:.13g}") if math.isfinite(number) else str(number)


def sorted_rows(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize("query", QUERIES)
def test_a_translated_query_has_the_rows_of_duckdb(spark: SparkSession, query: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", ROWS)

    expected = connection.sql(query).fetchall()
    answer = [tuple(row) for row in spark.sql(view_in_spark(query)).toArrow().to_pydict().values()]

    assert expected, "the query compares nothing"
    assert sorted_rows(list(zip(*answer, strict=True))) == sorted_rows(expected)


def test_every_shipped_view_is_translated_to_valid_sql_or_excluded(spark: SparkSession) -> None:
    catalog, excluded, created = load_catalog("local", root=PROJECT_ROOT), set(), 0
    for name, spec in catalog.pipelines.items():
        for table in spec.tables:
            empty = arrow_schema(table.column_types()).empty_table()
            spark.createDataFrame(empty).createOrReplaceTempView(table.name)
        for view in spec.views:
            sql = (catalog.folder(name) / view.sql).read_text()
            try:
                translated = view_in_spark(sql)
            except UntranslatableViewError:
                excluded.add(view.name)
                continue
            created += 1
            spark._jsparkSession.sessionState().sqlParser().parsePlan(translated)

    assert excluded == {"player_offers", "close_filled", "live_pe"}
    assert created == 16
