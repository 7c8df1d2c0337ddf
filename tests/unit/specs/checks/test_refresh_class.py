"""How a gold table is refreshed follows from its SQL, with the reason and the line if it needs more than new rows."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.specs.checks.refresh_class import Refresh, classify
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.testing import declare_columns, declare_table, pipeline_spec

COLUMNS = declare_columns(
    "device_id string", "amount decimal(12,2)", "level int", "speed double", "is_new boolean", "tags array<string>"
)


def shop(**gold: Any) -> PipelineSpec:
    declared = {"name": "daily", "sql": "gold/daily.sql", "reads": ["events"], "partition_by": "event_date"}
    return pipeline_spec(
        declare_table("events", *COLUMNS, catch_all=True),
        declare_table("purchase", *COLUMNS, when="purchase"),
        gold={"dedupe": {"by": "event_id", "within_hours": 1}, "tables": [declared | gold]},
    )


def refresh_of(sql: str, **gold: Any) -> Refresh:
    spec = shop(**gold)
    return classify(spec.gold.tables[0], sql, spec)


def selecting(columns: str, rest: str = "GROUP BY event_date") -> str:
    return f"SELECT event_date, {columns}\nFROM events {rest}"


@pytest.mark.parametrize(
    "column",
    [
        "count(*) AS n",
        "count(level) AS n",
        "sum(level) AS n",
        "CAST(sum(amount) AS DECIMAL(18, 2)) AS n",
        "coalesce(max(level), 0) AS n",
        "min(event_time) AS n",
        "count_if(level > 1 AND device_id IN ('a', 'b')) AS n",
        "bool_or(is_new) AS n, bool_and(is_new IS NULL OR NOT is_new) AS m",
        "sum(CASE WHEN level BETWEEN 1 AND 3 THEN amount ELSE amount END) AS n",
        "sum(IF(device_id = 'a', level, -1)) AS n",
    ],
)
def test_sums_counts_and_extremes_are_linear(column: str) -> None:
    assert refresh_of(selecting(column)).refresh_class == "linear"


@pytest.mark.parametrize("counted", ["device_id", "level", "coalesce(device_id, '')", "date_trunc('HOUR', event_time)"])
def test_different_values_are_counted_by_sets(counted: str) -> None:
    assert refresh_of(selecting(f"count(DISTINCT {counted}) AS n")).refresh_class == "distinct"


@pytest.mark.parametrize(
    "sql",
    [
        selecting("date_trunc('HOUR', event_time) AS hour, count(*) AS n", "GROUP BY 1, 2"),
        "SELECT e.event_date, e.level AS l, count(*) AS n FROM events AS e GROUP BY e.event_date, l",
        selecting(
            "CAST(_ingested_at AS DATE) AS day, count(*) AS n", "GROUP BY event_date, CAST(_ingested_at AS DATE)"
        ),
        selecting("count(*) AS n", "WHERE device_id <=> 'a' GROUP BY event_date"),
    ],
)
def test_groups_may_be_named_by_expression_alias_or_position(sql: str) -> None:
    assert refresh_of(sql).query is not None, refresh_of(sql).reason


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (selecting("sum(speed) AS n"), "the sum of floating-point numbers depends on their order: line 1, SUM(speed)"),
        (selecting("avg(level) AS n"), "its partial results cannot be combined: line 1"),
        (selecting("percentile(level, 0.5) AS n"), "its partial results cannot be combined"),
        (selecting("CAST(sum(amount) AS BIGINT) AS n"), "it is neither a group nor a sum"),
        (selecting("count(*) AS n", "WHERE device_id = 'a\\u0062' GROUP BY 1"), "it has a backslash"),
        (selecting("count(DISTINCT device_id, level) AS n"), "it counts combinations of several expressions"),
        (selecting("count(DISTINCT speed) AS n"), "it counts different floating-point numbers"),
        (selecting("lower(device_id) AS n, count(*) AS m", "GROUP BY 1, 2"), "may evaluate it differently: line 1"),
        (selecting("speed, count(*) AS m", "GROUP BY 1, 2"), "it groups by a floating-point number"),
        (selecting("tags, count(*) AS m", "GROUP BY 1, 2"), "its type is array<string>"),
        (selecting("count(*) AS n", "WHERE level = '1' GROUP BY 1"), "it compares values of different types: line 2"),
        (selecting("count(*) AS n", "WHERE level / 2 > 1 GROUP BY 1"), "may evaluate it differently"),
        (selecting("count(*) AS n", "GROUP BY ROLLUP (event_date)"), "ROLLUP (event_date)"),
        (selecting("count(*) AS n", "GROUP BY event_date WITH ROLLUP"), "grouping sets"),
        (selecting("count(*) AS n", "GROUP BY 1 HAVING count(*) > 1"), "it has HAVING"),
        (selecting("count(*) AS n", "GROUP BY 1 LIMIT 3"), "it has LIMIT"),
        (selecting("count(*) AS n", "JOIN purchase USING (event_id) GROUP BY 1"), "it has JOINS"),
        (selecting("count(*) + 1 AS n"), "it is neither a group nor a sum"),
        (selecting("max(level) OVER () AS n"), "it is neither a group nor a sum"),
        ("SELECT event_date, count(*) AS n FROM (SELECT * FROM events) GROUP BY 1", "it does not read events alone"),
        ("SELECT event_date, count(*) AS n FROM events TABLESAMPLE (5 ROWS) GROUP BY 1", "it reads its input with"),
        ("SELECT event_date, device_id FROM events", "it has no GROUP BY"),
        ("WITH a AS (SELECT 1) SELECT event_date, count(*) AS n FROM events GROUP BY 1", "it has WITH"),
        ("SELECT event_date, 1 AS n FROM events UNION SELECT event_date, 1 FROM events", "it is no single SELECT"),
        (
            "SELECT to_date(event_time) AS event_date, count(*) AS n FROM events GROUP BY 1",
            "is not the event_date",
        ),
        ("SELECT DISTINCT event_date, count(*) AS n FROM events GROUP BY 1", "it has DISTINCT"),
        ("SELECT event_date, sum(amount FROM events", "its SQL cannot be analysed"),
    ],
)
def test_other_sql_is_left_to_spark_with_the_reason(sql: str, reason: str) -> None:
    refresh = refresh_of(sql)

    assert (refresh.refresh_class, refresh.query) == ("partition", None)
    assert reason in refresh.reason


@pytest.mark.parametrize(
    ("gold", "refresh_class", "reason"),
    [
        ({"affects": "all"}, "whole", "an event affects other dates than its own"),
        ({"affects": {"days": [0, 1]}}, "partition", "an event affects other dates than its own"),
        ({"reads": ["events", "purchase"]}, "partition", "it reads 2 tables"),
        ({"grain": {"column": "hour"}}, "partition", "it declares a grain"),
        ({"refresh": "full"}, "whole", "it declares refresh: full"),
    ],
)
def test_what_a_table_declares_decides_too(gold: dict[str, Any], refresh_class: str, reason: str) -> None:
    refresh = refresh_of(selecting("count(*) AS n"), **gold)

    assert refresh.refresh_class == refresh_class
    assert reason in refresh.reason


def test_gold_that_the_stream_of_games_refreshes_needs_new_rows_alone() -> None:
    catalog = load_catalog(skip_invalid=True)
    games = catalog.pipeline("games")

    def query(table: GoldTableSpec) -> object:
        return classify(table, (catalog.folder("games") / table.sql).read_text(), games).query

    assert [table.name for table in games.gold.stream_refreshed_tables if query(table) is None] == []
