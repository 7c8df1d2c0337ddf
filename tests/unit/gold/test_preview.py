"""A gold table is answered by DuckDB from the rows that a build would read, and nothing is written."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaworks.cli import models
from deltaworks.control import paths
from deltaworks.errors import ConfigError
from deltaworks.gold.preview import preview_gold
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, declare_pipeline, declare_table, load_project, present
from tests.commands import invoke

FIRST = dt.date(2026, 3, 1)
DAILY = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"}
WEEKLY = {
    "name": "weekly",
    "sql": "gold/weekly.sql",
    "reads": ["daily", "shops"],
    "partition_by": "week",
    "affects": "all",
}
SQL = {
    "pipelines/shop/gold/daily.sql": (
        "SELECT event_date, shop, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY 1, 2"
    ),
    "pipelines/shop/gold/weekly.sql": (
        "SELECT CAST(date_trunc('WEEK', event_date) AS DATE) AS week, city, sum(amount) AS amount\n"
        "FROM daily JOIN shops USING (shop) GROUP BY 1, 2"
    ),
    "pipelines/shop/shops.csv": "shop,city\na,Delft\nb,Gent\n",
}
SHOPS = {
    "name": "shops",
    "file": "shops.csv",
    "key": ["shop"],
    "columns": [{"name": "shop", "type": "string"}, {"name": "city", "type": "string"}],
}
SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("event_date", pa.date32()),
        ("_seq", pa.int64()),
        ("_position", pa.int64()),
        ("shop", pa.string()),
        ("amount", pa.int64()),
    ]
)


def declared(**edits: Any) -> dict[str, Any]:
    gold = {"dedupe": {"by": "event_id", "within_days": 1}, "tables": [DAILY | edits, WEEKLY]}
    orders = declare_table("orders", "shop string", "amount long")
    event = {"name": {"path": "name"}, "time": {"path": "time"}, "id": "id"}
    return declare_pipeline(orders, gold=gold, references=[SHOPS], event=event)


def order(seq: int, event_id: str | None, day: int, shop: str, amount: int) -> dict[str, Any]:
    date = FIRST + dt.timedelta(days=day)
    time = dt.datetime.combine(date, dt.time(12), dt.UTC)
    return dict(
        zip(SCHEMA.names, (event_id, time, date, seq, 0, shop, amount), strict=True),
    )


def append(catalog: Catalog, number: int, *rows: dict[str, Any]) -> None:
    lake, key = Lake(catalog.environment.lake), paths.table("shop", "orders")
    append_rows(lake, key, rows, schema=SCHEMA, partition_by=["event_date"], number=number)


@pytest.fixture
def shop(tmp_path: Path) -> Catalog:
    catalog = load_project(tmp_path, declared(), files=SQL)
    append(catalog, 1, order(1, "e1", 0, "a", 10), order(2, "e2", 0, "b", 5), order(3, None, 0, "a", 1))
    append(catalog, 2, order(4, "e1", 1, "a", 99), order(5, None, 1, "a", 2), order(6, "e2", 2, "b", 7))
    return catalog


def rows_of(catalog: Catalog, name: str, dates: Sequence[int] = ()) -> list[tuple[Any, ...]]:
    wanted = frozenset(FIRST + dt.timedelta(days=day) for day in dates) or None
    answer = preview_gold(catalog, "shop", name, dates=wanted)
    return sorted(tuple(row.values()) for row in answer.rows.to_pylist())


def test_of_copies_within_the_window_the_first_to_arrive_counts(shop: Catalog) -> None:
    # The copy of e1 comes a day later, that of e2 two days later; rows without an id have no copies.
    assert rows_of(shop, "daily") == [
        (FIRST, "a", 2, 11),
        (FIRST, "b", 1, 5),
        (FIRST + dt.timedelta(days=1), "a", 1, 2),
        (FIRST + dt.timedelta(days=2), "b", 1, 7),
    ]


def test_a_requested_date_needs_the_dates_around_it_and_no_others(shop: Catalog) -> None:
    lake = Lake(shop.environment.lake)
    table = present(lake.open(paths.table("shop", "orders")))
    for file in table.file_uris():
        if f"event_date={FIRST + dt.timedelta(days=2)}" in file:
            Path(file.removeprefix("file://")).unlink()

    assert rows_of(shop, "daily", [0]) == [(FIRST, "a", 2, 11), (FIRST, "b", 1, 5)]
    with pytest.raises(Exception, match="orders"):
        rows_of(shop, "daily", [1])


def test_gold_that_is_not_built_and_files_are_answered_first(shop: Catalog) -> None:
    answer = preview_gold(shop, "shop", "weekly")

    monday = dt.date(2026, 2, 23)
    assert sorted(tuple(row.values()) for row in answer.rows.to_pylist()) == [
        (monday, "Delft", 11),
        (monday, "Gent", 5),
        (monday + dt.timedelta(days=7), "Delft", 2),
        (monday + dt.timedelta(days=7), "Gent", 7),
    ]
    assert (answer.dates, answer.versions) == (None, {"daily": None, "shops": None})
    lake = Lake(shop.environment.lake)
    assert [lake.open(paths.table("shop", name)) for name in ("daily", "weekly", "shops")] == [None] * 3


def test_the_newest_hours_of_an_input_preview_the_dates_that_their_range_affects(tmp_path: Path) -> None:
    sql = SQL | {
        "pipelines/shop/gold/daily.sql": (
            "SELECT CAST(date_add(event_date, 1) AS DATE) AS event_date, event_time + INTERVAL 12 HOURS AS hour,\n"
            "count(*) AS orders FROM orders GROUP BY 1, 2"
        )
    }
    hourly = declared(grain={"column": "hour", "part": "hour"}, affects={"hours": [0, 12]})
    hourly["gold"]["dedupe"]["within_hours"] = 24
    catalog = load_project(tmp_path, hourly, files=sql)
    append(catalog, 1, order(1, "e1", 0, "a", 10))

    next_day = FIRST + dt.timedelta(days=1)
    assert rows_of(catalog, "daily") == [(next_day, dt.datetime.combine(next_day, dt.time(), dt.UTC), 1)]


def test_a_column_named_like_the_mark_of_deleted_rows_hides_no_row_of_a_gold_table(shop: Catalog) -> None:
    schema = pa.schema([("event_date", pa.date32()), ("shop", pa.string()), ("amount", pa.int64())])
    marked = schema.append(pa.field("_deleted", pa.bool_()))
    row = {"event_date": FIRST, "shop": "a", "amount": 4, "_deleted": True}
    lake, key = Lake(shop.environment.lake), paths.table("shop", "daily")
    append_rows(lake, key, [row], schema=marked, partition_by=["event_date"], number=1)

    assert rows_of(shop, "weekly") == [(dt.date(2026, 2, 23), "Delft", 4)]


def test_without_rows_the_answer_is_empty(tmp_path: Path) -> None:
    assert rows_of(load_project(tmp_path, declared(), files=SQL), "daily") == []


def test_changed_sql_is_answered_before_a_build(shop: Catalog) -> None:
    (shop.folder("shop") / "gold/daily.sql").write_text("SELECT event_date, max(amount) AS most FROM orders GROUP BY 1")

    assert [row[1] for row in rows_of(shop, "daily")] == [10, 2, 7]


@pytest.mark.parametrize(
    ("name", "dates", "condition", "text"),
    [
        ("dayly", (), "GOLD_TABLE_UNKNOWN", "Did you mean 'daily'?"),
        ("weekly", (0,), "GOLD_DATES_INVALID", "not built by date"),
    ],
)
def test_what_cannot_be_previewed_is_refused(
    shop: Catalog, name: str, dates: Sequence[int], condition: str, text: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        rows_of(shop, name, dates)

    assert raised.value.condition == condition
    assert text in str(raised.value)


def test_a_construct_without_translation_is_named_with_file_and_line(shop: Catalog) -> None:
    file = shop.folder("shop") / "gold/daily.sql"
    file.write_text("SELECT event_date,\n  max(xxhash64(shop)) AS h FROM orders GROUP BY 1")

    with pytest.raises(ConfigError) as raised:
        rows_of(shop, "daily")

    assert raised.value.condition == "GOLD_SQL_NOT_TRANSLATABLE"
    assert f"{file}:2: DuckDB has no xxhash64(), in: " in raised.value.message


def test_the_command_prints_rows_versions_and_differences(shop: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "catalog", lambda: shop)

    printed = invoke("gold", "preview", "shop.daily", "--dates", "2026-03-01", "--explain", "--json")
    shown = invoke("gold", "preview", "shop.daily", "--limit", "1", columns=200)

    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout) == [
        {"event_date": "2026-03-01", "shop": "a", "orders": 2, "amount": 11},
        {"event_date": "2026-03-01", "shop": "b", "orders": 1, "amount": 5},
    ]
    assert "from orders version 2" in printed.stderr
    assert "DuckDB's query: SELECT event_date" in printed.stderr
    assert "4 rows, of which the first 1, of shop.daily" in shown.stdout
    assert invoke("gold", "preview", "daily").exit_code == 2
