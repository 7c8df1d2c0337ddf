"""Constructs of views that Spark lacks or answers in another way, each with its name."""

from __future__ import annotations

import pytest

from deltaworks.tables.view_translation import UntranslatableViewError, view_in_spark


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT id[1] FROM t", "id[1]"),
        ("SELECT round(x) FROM t", "ROUND(x)"),
        ("SELECT dayofweek(d) FROM t", "DAYOFWEEK(d)"),
        ("SELECT extract(second FROM t) FROM t", "EXTRACT(SECOND FROM t)"),
        ("SELECT concat(a, b) FROM t", "CONCAT(a, b)"),
        ("SELECT CAST(x AS VARCHAR) FROM t", "CAST(x AS TEXT)"),
        ("SELECT CAST(x AS DECIMAL(9, 2)) FROM t", "CAST(x AS DECIMAL(9, 2))"),
        ("SELECT x LIKE 'a\\_' FROM t", "x LIKE 'a\\_'"),
        ("SELECT x LIKE y FROM t", "x LIKE y"),
        ("SELECT * EXCLUDE (a) FROM t", "* EXCLUDE (a)"),
        ("SELECT max(x) FILTER (WHERE f) OVER (ORDER BY y) FROM t", "MAX(x) FILTER(WHERE f) OVER (ORDER BY y)"),
        ("SELECT time_bucket(INTERVAL 5 MINUTE, t) FROM t", "TIME_BUCKET("),
        ("SELECT a FROM t ASOF JOIN u ON t.x >= u.x", "ASOF JOIN u"),
        ("SELECT a FROM t NATURAL JOIN u", "NATURAL JOIN u"),
        ("SELECT a FROM t UNION ALL BY NAME SELECT a FROM u", "UNION ALL BY NAME"),
        ("SELECT DISTINCT ON (a) a, b FROM t", "DISTINCT ON (a)"),
        ("WITH RECURSIVE r AS (SELECT 1) SELECT * FROM r", "WITH RECURSIVE"),
        ("SELECT * FROM read_csv('/etc/passwd')", "READ_CSV('/etc/passwd'"),
        ("SELECT getenv('HOME')", "GETENV('HOME')"),
    ],
)
def test_a_view_with_another_answer_in_spark_is_rejected_with_the_construct(query: str, named: str) -> None:
    with pytest.raises(UntranslatableViewError) as caught:
        view_in_spark(query)
    assert str(caught.value).startswith("Spark has no equal of ")
    assert named in str(caught.value)


@pytest.mark.parametrize("query", ["SELECT 1; SELECT 2", "DROP TABLE t", "", "SELECT (", "SELECT 1) UNION (SELECT 2"])
def test_only_one_select_is_translated(query: str) -> None:
    with pytest.raises(UntranslatableViewError):
        view_in_spark(query)


def test_names_are_quoted_as_in_spark_and_nulls_are_sorted_as_in_duckdb() -> None:
    assert view_in_spark('SELECT "odd name" FROM t ORDER BY "odd name"') == (
        "SELECT `odd name` FROM t ORDER BY `odd name` NULLS LAST"
    )
