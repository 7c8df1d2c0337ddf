"""All columns that a query may read are found."""

from __future__ import annotations

import pytest

from deltaworks.gold.input_views import may_reference


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("SELECT event_date, count(*) FROM events GROUP BY event_date", "event_date"),
        ("SELECT e.DEVICE_ID FROM events AS e", "device_id"),
        ("SELECT `odd name` FROM events", "odd name"),
        ("SELECT * FROM events", "country"),
        ("SELECT * EXCEPT (country) FROM events", "platform"),
        ("SELECT count(*), events.* FROM events", "country"),
        ("SELECT count(*) FROM events NATURAL JOIN purchase", "country"),
        ("SELECT 1 FROM events PIVOT (count(1) FOR platform IN ('ios'))", "country"),
        ("FROM events |> WHERE platform = 'ios'", "country"),
        ("TABLE events", "country"),
    ],
)
def test_columns_a_query_reads_are_found(sql: str, column: str) -> None:
    assert may_reference(sql, column)


@pytest.mark.parametrize(
    "sql", ["SELECT platform, count(*) FROM events GROUP BY platform", "SELECT COUNT( * ) AS tables FROM events"]
)
def test_columns_no_query_reads_are_omitted(sql: str) -> None:
    assert not may_reference(sql, "country")
