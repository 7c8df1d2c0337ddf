"""Gold SQL is translated to DuckDB with Spark's values, and what differs is named with its line."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from deltaworks.errors import ConfigError
from deltaworks.gold.translation import translate
from deltaworks.tables.duckdb_session import duckdb_session
from tests.unit.gold.translated_expressions import VALUES, query_of


def answer(sql: str) -> Any:
    with duckdb_session() as session:
        session.execute("SET TimeZone = 'UTC'")
        return session.execute(translate(sql).sql).fetchall()


def failure(sql: str) -> ConfigError:
    translation = translate(sql, source="gold/daily.sql")
    with duckdb_session() as session, pytest.raises(duckdb.Error) as raised:
        session.execute(translation.sql).fetchall()
    return translation.error(raised.value)


def test_expressions_have_the_values_of_spark() -> None:
    values = {expression: answer(query_of(expression))[0][0] for expression in VALUES}

    assert values == VALUES


def test_text_that_is_no_number_fails_as_in_spark() -> None:
    error = failure("SELECT CAST('much' AS INT)")

    assert error.condition == "GOLD_SQL_INVALID"
    assert "much" in error.message


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("xxhash64(a)", "xxhash64()"),
        ("substring_index(a, '.', 1)", "substring_index()"),
        ("window(a, '5 minutes')", "window()"),
    ],
)
def test_a_function_that_duckdb_has_not_is_named_with_its_line(call: str, named: str) -> None:
    error = failure(f"SELECT a,\n  1 AS one,\n  {call} AS x\nFROM (SELECT 'b.c' AS a) AS rows")

    assert error.condition == "GOLD_SQL_NOT_TRANSLATABLE"
    assert error.message.startswith(f"gold/daily.sql:3: DuckDB has no {named}, in: ")
    assert "deltaworks gold build" in error.hint


def test_a_pattern_that_duckdb_has_not_cannot_be_translated() -> None:
    assert failure("SELECT 'ab' RLIKE 'a(?=b)'").condition == "GOLD_SQL_NOT_TRANSLATABLE"


def test_other_spellings_and_other_results_are_listed_by_line() -> None:
    translation = translate(
        "SELECT\n  count_if(a RLIKE 'x') AS n,\n  approx_count_distinct(a) AS estimate,\n  sum(b) / c AS ratio,\n"
        "  CAST(b * 1.5 AS INT) AS rounded,\n  sum(b) / nullif(c, 0) AS safe\nFROM rows GROUP BY c"
    )

    listed = [(one.line, one.note.partition(",")[0]) for one in translation.differences]
    assert listed == [
        (2, ""),
        (3, "both engines estimate"),
        (4, "by zero"),
        (5, "Spark truncates fractions"),
    ]
    assert translation.differences[0].duckdb == "REGEXP_MATCHES(a, 'x')"


@pytest.mark.parametrize(("sql", "place"), [("SELECT a,\nFROM t", ":1:"), ("DROP TABLE t", ":"), ("SELECT 'a", ":")])
def test_what_is_no_query_is_refused(sql: str, place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        translate(sql, source="gold/daily.sql")

    assert raised.value.condition == "GOLD_SQL_INVALID"
    assert raised.value.message.startswith(f"gold/daily.sql{place}")
