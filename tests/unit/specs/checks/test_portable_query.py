"""SQL is left to Spark, with the place, if DuckDB may answer it differently.

`tests/spark/gold/test_small_builds.py` compares the answers to allowed SQL.
"""

from __future__ import annotations

import pytest

from deltaworks.specs.checks.portable_query import UnsupportedSqlError, portable_query

EVENTS = {
    "event_date": "date",
    "event_time": "timestamp",
    "name": "string",
    "number": "integer",
    "amount": "decimal(12,2)",
    "speed": "double",
    "tags": "array",
}
INPUTS = {"events": EVENTS, "shops": {"name": "string", "Place": "integer"}}


def reason(sql: str) -> str:
    with pytest.raises(UnsupportedSqlError) as refused:
        portable_query(sql, INPUTS)
    return refused.value.describe(sql)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("sum(speed) AS a", "the sum of floating-point numbers depends on their order: line 1, SUM(events.speed)"),
        ("max(speed) AS a", "may evaluate it differently"),
        ("avg(number) AS a", "may evaluate it differently"),
        ("sum(number) / count(*) AS a", "may evaluate it differently"),
        ("count(DISTINCT speed) AS a", "it compares floating-point numbers"),
        ("count(DISTINCT name, number) AS a", "it counts combinations of several expressions"),
        ("approx_count_distinct(name) AS a", "may evaluate it differently"),
        ("collect_list(name) AS a", "may evaluate it differently"),
        ("first(name) AS a", "may evaluate it differently"),
        ("CAST(sum(amount) AS BIGINT) AS a", "may convert it differently"),
        ("sum(amount * 2) AS a", "only integers are computed alike"),
        ("max(lower(name)) AS a", "may evaluate it differently"),
        ("count_if(name LIKE '%a') AS a", "only the start of a text is compared alike"),
        ("count_if(name LIKE 'a_%') AS a", "only the start of a text is compared alike"),
        ("count_if(name RLIKE 'a') AS a", "may evaluate it differently"),
        ("count_if(name > 1) AS a", "it compares values of different types"),
        ("max(CAST(name AS DATE)) AS a", "may convert it differently"),
        ("max(date_trunc('WEEK', event_time)) AS a", "it truncates to WEEK"),
        ("max(tags) AS a", "values of its type are not compared alike"),
        ("max(unknown) AS a", "it is no column of one of its tables"),
        ("name AS a", "it is neither a group nor in an aggregate"),
        ("max(event_time + INTERVAL 1 DAY) AS a", "may evaluate it differently"),
        ("max(1.5) AS a", "its type differs between Spark and DuckDB"),
        ("count_if(name = 'a\\u0062') AS a", "it has a backslash"),
        ("count(*) AS event_date", "two of its columns have one name"),
        ("count(*)", "a column has no name"),
    ],
)
def test_an_expression_is_refused(columns: str, expected: str) -> None:
    assert expected in reason(f"SELECT event_date, {columns} FROM events GROUP BY event_date")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM events", "a column has no name"),
        ("SELECT event_date FROM events UNION ALL SELECT event_date FROM events", "it is no single SELECT"),
        ("SELECT event_date FROM events ORDER BY event_date", "it has ORDER"),
        ("SELECT event_date FROM events LIMIT 1", "it has LIMIT"),
        ("SELECT event_date FROM events GROUP BY event_date HAVING count(*) > 1", "it has HAVING"),
        ("SELECT event_date FROM events GROUP BY event_date WITH ROLLUP", "its GROUP BY has grouping sets"),
        ("SELECT speed FROM events GROUP BY speed", "it compares floating-point numbers"),
        ("SELECT DISTINCT speed FROM events", "may differ in what is distinct"),
        ("SELECT 1 AS a FROM events GROUP BY a", "it groups by a constant"),
        ("SELECT 1 AS a FROM events GROUP BY 1", "it groups by a constant"),
        ("SELECT e.name FROM events e FULL JOIN shops s ON s.name = e.name", "it is no inner or left join with ON"),
        ("SELECT e.name FROM events e, shops s", "it is no inner or left join with ON"),
        ("SELECT e.number FROM events e JOIN shops s USING (name)", "it is no inner or left join with ON"),
        ("SELECT name FROM events e JOIN shops s ON s.name = e.name", "it is no column of one of its tables"),
        ("SELECT name FROM events TABLESAMPLE (10 PERCENT)", "it reads a table with more than a name"),
        ("SELECT name FROM other.events", "it reads a table with more than a name"),
        ("SELECT name FROM others", "it is no input"),
        ("SELECT e.tag FROM events LATERAL VIEW explode(tags) e AS tag", "it has LATERALS"),
        ("SELECT event_date, explode(tags) AS tag FROM events", "may evaluate it differently"),
        ("SELECT count(*) AS n FROM events", "may evaluate it differently"),
        ("SELECT now() AS n FROM events", "may evaluate it differently"),
        ("SELECT event_date, row_number() OVER (ORDER BY name) AS n FROM events", "two rows may be equal in its order"),
        ("SELECT event_date, sum(number) OVER (PARTITION BY name) AS n FROM events", "it is no row_number() over rows"),
        ("WITH RECURSIVE a AS (SELECT name FROM events) SELECT name FROM a", "it has a recursive CTE"),
        ("SELECT event_date FROM", "its SQL cannot be analysed"),
    ],
)
def test_a_clause_is_refused(sql: str, expected: str) -> None:
    assert expected in reason(sql)


def test_a_place_is_named_with_its_line() -> None:
    assert reason("SELECT event_date,\n  avg(number) AS a\nFROM events GROUP BY 1").endswith(
        "line 2, AVG(events.number)"
    )


def test_an_alias_is_no_group_if_spark_finds_a_column_of_that_name() -> None:
    sql = "SELECT s.name AS place, count(*) AS n FROM shops s GROUP BY place"

    assert "it is no column of one of its tables" in reason(sql), "the column is called Place"
    assert portable_query(sql.replace("place", "town"), INPUTS).sql


def test_an_order_without_equal_rows_may_number_rows() -> None:
    sql = (
        "WITH n AS (SELECT event_date, name, count(*) AS c FROM events GROUP BY event_date, name) "
        "SELECT name, row_number() OVER (PARTITION BY event_date ORDER BY c{}) AS place FROM n"
    )

    assert portable_query(sql.format(", name"), INPUTS).sql
    assert "two rows may be equal in its order" in reason(sql.format(""))
