"""Column lineage of gold through subqueries, joins, aliases and expressions."""

from __future__ import annotations

import pytest

from deltaworks.lineage.datasets import Column, Dataset, column_origins
from deltaworks.specs.catalog import PROJECT_ROOT

EVENTS = Dataset("s3://lake", "tables/games/events", {"event_date": "date", "device_id": "string", "amount": "double"})
INSTALL = Dataset("s3://lake", "tables/games/install", {"event_date": "date", "device_id": "string"})
READS = {"events": EVENTS, "install": INSTALL}


def origins(sql: str) -> dict[str, list[str]]:
    matched = column_origins(sql, READS)
    return {
        name: [f"{item.dataset.rpartition('/')[2]}.{item.name}" for item in columns]
        for name, columns in matched.items()
    }


@pytest.mark.parametrize(
    ("sql", "matched"),
    [
        ("SELECT event_date AS day, amount FROM events", {"day": ["events.event_date"], "amount": ["events.amount"]}),
        (
            "SELECT event_date, sum(amount) AS turnover, count(*) AS n FROM events GROUP BY 1",
            {"event_date": ["events.event_date"], "turnover": ["events.amount"]},
        ),
        ("WITH a AS (SELECT amount * 2 AS twice FROM events) SELECT twice + 1 AS x FROM a", {"x": ["events.amount"]}),
        (
            "SELECT coalesce(e.device_id, i.device_id) AS device FROM events e JOIN install i USING (event_date)",
            {"device": ["events.device_id", "install.device_id"]},
        ),
        (
            "SELECT device_id FROM events UNION ALL SELECT device_id FROM install",
            {"device_id": ["events.device_id", "install.device_id"]},
        ),
        ("SELECT * FROM install", {"event_date": ["install.event_date"], "device_id": ["install.device_id"]}),
        ("SELECT window(event_date, '1 hour').start AS hour FROM events", {"hour": ["events.event_date"]}),
        ("SELECT amount FROM EVENTS", {"amount": ["events.amount"]}),
        ("this is no SQL", {}),
    ],
)
def test_column_lineage_reaches_the_inputs(sql: str, matched: dict[str, list[str]]) -> None:
    assert {name: sorted(item) for name, item in origins(sql).items()} == matched


def test_self_joins_are_traced() -> None:
    sql = (PROJECT_ROOT / "include" / "pipelines" / "games" / "gold" / "retention.sql").read_text(encoding="utf-8")
    matched = column_origins(sql, READS)
    assert matched["cohort_date"] == (Column("s3://lake", "tables/games/install", "event_date"),)
    assert EVENTS.column("device_id") in matched["retained_day_1"]
