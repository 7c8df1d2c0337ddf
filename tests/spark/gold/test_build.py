"""Incremental gold rebuilds match full rebuilds, do nothing without changes, and treat replayed rows alike."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.summaries.gold import late_rows_of
from deltaworks.errors import ConfigError
from deltaworks.gold import event_keys, input_views
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.pinned_inputs import read_built_from
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.tables.log import commit_history
from deltaworks.testing import declare_table, pipeline_spec
from tests.spark.gold.shop_data import SHOP, START, event
from tests.unit.recovery.replay_harness import ReplayHarness

GOLD = """\
    zorder_by: [event_name]
  - name: purchase
    when: {name: purchase}
    columns: [{name: amount, path: amount, type: long}]
gold:
  dedupe: {by: event_id, within_days: 1}
  tables:
    - {name: daily, sql: gold/daily.sql, reads: [events], partition_by: event_date}
    - {name: bookings, sql: gold/bookings.sql, reads: [purchase], partition_by: event_date}
    - name: returning
      sql: gold/returning.sql
      reads: [events]
      partition_by: cohort_date
      affects: {days: [0, -1, -7]}
    - {name: totals, sql: gold/totals.sql, reads: [events, purchase], partition_by: kind, affects: all}
"""
SQL = {
    "gold/daily.sql": "SELECT event_date, device_id, count(*) AS events FROM events GROUP BY ALL",
    "gold/bookings.sql": "SELECT event_date, sum(amount) AS bookings FROM purchase GROUP BY ALL",
    "gold/returning.sql": """
        WITH seen AS (SELECT DISTINCT event_date, device_id FROM events)
        SELECT a.event_date AS cohort_date, count(*) AS users, count(b.device_id) AS day_1, count(c.device_id) AS day_7
        FROM seen AS a
        LEFT JOIN seen AS b ON b.device_id = a.device_id AND b.event_date = date_add(a.event_date, 1)
        LEFT JOIN seen AS c ON c.device_id = a.device_id AND c.event_date = date_add(a.event_date, 7)
        GROUP BY a.event_date
    """,
    "gold/totals.sql": """
        SELECT 'events' AS kind, count(*) AS n FROM events
        UNION ALL SELECT 'purchases', count(*) FROM purchase
    """,
}
Rows = list[dict[str, Any]]


@pytest.fixture
def shop(make_project: Callable[..., Any]) -> Any:
    return make_project({"shop": (SHOP + GOLD, SQL)})


def content(shop: Any, table: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in shop.rows("shop", table))


def deduplicated(rows: Rows, within_days: int) -> Rows:
    """Oracle: a row is a duplicate if an earlier row of its id lies within the window."""
    kept: Rows = []
    for row in rows:
        copies = [other for other in rows if other["event_id"] == row["event_id"] and row["event_id"] is not None]
        near = [o for o in copies if abs((o["event_time"].date() - row["event_time"].date()).days) <= within_days]
        if not any((o["_seq"], o["_position"]) < (row["_seq"], row["_position"]) for o in near):
            kept.append(row)
    return kept


def expected_daily(rows: Rows) -> Counter[tuple[Any, ...]]:
    counts = Counter((row["event_time"].date(), row["device_id"]) for row in rows)
    return Counter({(*key, count): 1 for key, count in counts.items()})


def expected_returning(rows: Rows) -> Counter[tuple[Any, ...]]:
    seen = {(row["event_time"].date(), row["device_id"]) for row in rows}
    cohorts: dict[dt.date, list[int]] = {}
    for date, device in seen:
        counts = cohorts.setdefault(date, [0, 0, 0])
        counts[0] += 1
        counts[1] += (date + dt.timedelta(days=1), device) in seen
        counts[2] += (date + dt.timedelta(days=7), device) in seen
    return Counter({(date, *counts): 1 for date, counts in cohorts.items()})


@pytest.mark.parametrize(
    "most_rows",
    [
        (1_000_000, 0, 1_000_000),
        pytest.param((1_000_000,) * 3, marks=pytest.mark.integration),
        pytest.param((0,) * 3, marks=pytest.mark.integration),
    ],
    ids=["in turn", "held in the driver", "left to Spark"],
)
def test_incremental_rebuilds_after_late_and_duplicate_rows_match_plain_python(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch, most_rows: tuple[int, ...]
) -> None:
    chosen = random.Random(7)
    arrived: Rows = []
    # Arrival numbers are out of order, so that a later duplicate can survive, as after a repair.
    for ordinal, seq in enumerate((3, 1, 2)):
        batch = []
        for position in range(chosen.randint(10, 20)):
            known = chosen.choice(arrived) if arrived and chosen.random() < 0.4 else None
            event_id = known["event_id"] if known else f"e{seq}-{position}"
            day = (known["event_time"] - START).days + chosen.choice([-2, -1, 0, 1, 2]) if known else None
            row = event(
                chosen.randint(0, 30) if day is None else day,
                event_id if chosen.random() < 0.9 else None,
                device=f"d{chosen.randint(1, 4)}",
            )
            batch.append({**row, "_seq": seq, "_position": position})
        arrived += batch
        shop.append("shop", "events", batch)
        monkeypatch.setattr(event_keys, "MAX_KEYS", most_rows[ordinal])
        monkeypatch.setattr(input_views, "MAX_CACHED_ROWS", most_rows[ordinal])

        result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily", "returning"])

        kept = deduplicated(arrived, within_days=1)
        assert content(shop, "daily") == expected_daily(kept)
        assert content(shop, "returning") == expected_returning(kept)
        if ordinal:
            assert result.table("daily").partitions is not None, result.table("daily").reason
    before = {name: content(shop, name) for name in ("daily", "returning")}
    rebuild_gold(spark, shop.catalog, "shop", tables=list(before), full=True)
    assert {name: content(shop, name) for name in before} == before


def test_only_changed_dates_are_rewritten_and_the_commit_records_its_inputs(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(day, f"e{day}") for day in (0, 5, 10)])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    before = set(shop.lake.open(paths.table("shop", "daily")).file_uris())
    version = shop.append("shop", "events", [event(5, "late")])

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily")

    table = shop.lake.open(paths.table("shop", "daily"))
    assert result.partitions == ("2025-03-06",), "a late row is the first of no key beside its date"
    assert result.built_from == {"events": version}
    assert len(before - set(table.file_uris())) == 1
    newest = next(commit_history(shop.lake, paths.table("shop", "daily"), newest=table.version()))
    assert (newest.version, newest.metadata["built_from"]) == (result.version, {"events": version})
    assert {"pipeline": "shop", "operation": "rebuild_gold", "run": "manual"}.items() <= newest.metadata.items()


def test_nothing_is_committed_when_nothing_changed_even_after_optimize(spark: SparkSession, shop: Any) -> None:
    for day in (0, 0, 1):
        shop.append("shop", "events", [event(day, None)])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    spark.sql(f"OPTIMIZE delta.`{shop.lake.storage.spark_uri(paths.table('shop', 'events'))}`")

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily")

    assert (result.skipped, result.reason) == (True, "its inputs have not changed")
    assert shop.lake.open(paths.table("shop", "daily")).version() == 0


def test_a_date_without_rows_is_emptied(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(0, "a"), event(4, "b")])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    shop.lake.open(paths.table("shop", "events")).delete("event_id = 'b'")

    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])

    assert content(shop, "daily") == Counter([(START.date(), "d1", 1)])


def test_the_surviving_duplicate_moves_to_another_date_when_the_first_is_removed(
    spark: SparkSession, shop: Any
) -> None:
    shop.append("shop", "events", [event(0, "same", device="first")])
    shop.append("shop", "events", [event(1, "same", device="second")])
    first = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily")
    assert (content(shop, "daily"), first.duplicates_dropped) == (Counter([(START.date(), "first", 1)]), 1)
    shop.lake.open(paths.table("shop", "events")).delete("device_id = 'first'")

    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])

    assert content(shop, "daily") == Counter([(START.date() + dt.timedelta(days=1), "second", 1)])


def test_rows_without_a_key_are_all_kept(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(0, None), event(0, None), event(0, "x"), event(0, "x")])

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily")

    assert content(shop, "daily") == Counter([(START.date(), "d1", 3)])
    assert (result.rows, result.duplicates_dropped) == (1, 1)


def test_affects_all_rebuilds_everything_and_a_missing_input_is_empty(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(0, "a")])
    result = rebuild_gold(spark, shop.catalog, "shop")
    assert result.table("bookings").reason == "none of its inputs exists yet"
    assert content(shop, "totals") == Counter([("events", 1), ("purchases", 0)])
    shop.append("shop", "purchase", [{"event_id": "p", "event_time": START, "amount": 5}])

    result = rebuild_gold(spark, shop.catalog, "shop")

    assert content(shop, "totals") == Counter([("events", 1), ("purchases", 1)])
    assert content(shop, "bookings") == Counter([(START.date(), 5)])
    assert result.table("daily").skipped


def test_a_new_column_in_the_sql_rebuilds_the_full_table(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(0, "a"), event(9, "b")])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    sql = shop.root / "include/pipelines/shop/gold/daily.sql"
    sql.write_text("SELECT event_date, device_id, count(*) AS events, 'v2' AS edition FROM events GROUP BY ALL")

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily")

    assert result.partitions is None
    assert {row["edition"] for row in shop.rows("shop", "daily")} == {"v2"}
    assert len(shop.rows("shop", "daily")) == 2


def test_a_build_that_turns_full_reads_the_late_rows_of_frozen_dates_too(spark: SparkSession, shop: Any) -> None:
    declaration = shop.root / "include/pipelines/shop/pipeline.yaml"
    text = declaration.read_text()
    frozen = "{name: daily, frozen_after: 1d, description: Orders, "
    declaration.write_text(text.replace("{name: daily, ", frozen))
    catalog = load_catalog("local", root=shop.root)
    shop.append("shop", "events", [event(0, "a"), event(9, "b")])
    rebuild_gold(spark, catalog, "shop", tables=["daily"])
    shop.append("shop", "events", [event(0, "late", "d2")])
    rebuild_gold(spark, catalog, "shop", tables=["daily"])
    sql = shop.root / "include/pipelines/shop/gold/daily.sql"
    sql.write_text("SELECT event_date, device_id, count(*) AS events, 'v2' AS edition FROM events GROUP BY ALL")

    requested = frozenset([(START + dt.timedelta(days=9)).date()])
    result = rebuild_gold(spark, catalog, "shop", tables=["daily"], dates=requested).table("daily")

    assert result.partitions is None
    assert len(shop.rows("shop", "daily")) == 3, "the late row is in the table"
    built = read_built_from(shop.lake, paths.table("shop", "daily"))
    current = shop.lake.open(paths.table("shop", "events")).version()
    assert (built.late_rows, built.versions) == ({}, {"events": current})
    state = PipelineHome.open(catalog.environment.lake, "shop").objects.get(paths.gold_state("shop", "daily"))
    assert late_rows_of(json.loads(state.data)) == {}
    assert shop.lake.open(paths.table("shop", "daily")).metadata().description == "Orders"
    assert rebuild_gold(spark, catalog, "shop", tables=["daily"]).table("daily").skipped


def test_a_restored_gold_table_is_rebuilt_in_full(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(0, "a")])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    shop.append("shop", "events", [event(3, "b")])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    shop.lake.open(paths.table("shop", "daily")).restore(0)
    assert len(content(shop, "daily")) == 1

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily")

    assert "RESTORE" in result.reason
    assert len(content(shop, "daily")) == 2


def test_a_build_reads_pinned_versions_during_appends(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.append("shop", "events", [event(0, "a")])
    from deltaworks.gold import build as module

    pin = module.pin_inputs

    def pin_then_append(*arguments: Any) -> Any:
        pinned = pin(*arguments)
        shop.append("shop", "events", [event(0, "b")])
        return pinned

    monkeypatch.setattr(module, "pin_inputs", pin_then_append)
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    assert content(shop, "daily") == Counter([(START.date(), "d1", 1)])
    monkeypatch.undo()

    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])

    assert content(shop, "daily") == Counter([(START.date(), "d1", 2)])


def test_a_requested_date_is_rebuilt_and_others_stay_pending(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(day, f"e{day}") for day in range(4)])
    rebuild_gold(spark, shop.catalog, "shop")
    shop.append("shop", "events", [event(1, "late1", "d2"), event(3, "late3", "d2")])
    asked = frozenset([(START + dt.timedelta(days=3)).date()])

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily", "totals"], dates=asked)

    assert result.table("daily").partitions == ("2025-03-04",)
    assert result.table("totals").skipped
    assert {row["event_date"].day for row in shop.rows("shop", "daily") if row["device_id"] == "d2"} == {4}

    # The other date is still pending.
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])

    assert {row["event_date"].day for row in shop.rows("shop", "daily") if row["device_id"] == "d2"} == {2, 4}
    incremental = content(shop, "daily")
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"], full=True)
    assert content(shop, "daily") == incremental


def test_a_date_built_after_a_change_of_sql_leaves_the_rest_to_be_rebuilt(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(day, f"e{day}") for day in range(3)])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    path = shop.root / "include" / "pipelines" / "shop" / "gold" / "daily.sql"
    path.write_text(path.read_text().replace("count(*) AS events", "count(*) * 10 AS events"))
    asked = frozenset([START.date()])

    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"], dates=asked)
    assert sorted(row["events"] for row in shop.rows("shop", "daily")) == [1, 1, 10]

    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    assert [row["events"] for row in shop.rows("shop", "daily")] == [10, 10, 10]


def test_requested_dates_of_a_new_table_build_it_in_full(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(day, f"e{day}") for day in range(3)])

    result = rebuild_gold(spark, shop.catalog, "shop", tables=["daily"], dates=frozenset([START.date()]))

    assert result.table("daily").partitions is None
    assert len(shop.rows("shop", "daily")) == 3


def test_sql_that_cannot_run_and_unknown_tables_are_configuration_errors(spark: SparkSession, shop: Any) -> None:
    shop.append("shop", "events", [event(0, "a")])
    sql = shop.root / "include/pipelines/shop/gold/daily.sql"
    conditions, errors = [], []
    for text in (
        "SELECT nothing FROM events",
        "SELECT count(*) AS n FROM events",
        "SELECT event_date,\n  1 AS n\nFROMM events\nWHERE true",
        "SELECT '1' AS event_date",
        "SELECT event_date\nFROM evnts",
    ):
        sql.write_text(text)
        with pytest.raises(ConfigError) as raised:
            rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
        conditions.append(raised.value.condition)
        errors.append(raised.value)
    with pytest.raises(ConfigError, match="GOLD_TABLE_UNKNOWN"):
        rebuild_gold(spark, shop.catalog, "shop", tables=["dayly"])

    assert conditions == [
        "GOLD_SQL_INVALID",
        "GOLD_COLUMN_MISSING",
        "GOLD_SQL_INVALID",
        "GOLD_PARTITION_NOT_DATE",
        "GOLD_SQL_INVALID",
    ]
    assert errors[0].message.startswith(f"daily: {sql}:1: [UNRESOLVED_COLUMN.")
    assert errors[0].message.endswith(", in: SELECT nothing FROM events")
    # The SQL is said once and only where it is wrong, and a syntax error is no question of views.
    assert errors[2].message == (
        f"daily: {sql}:3: [PARSE_SYNTAX_ERROR] Syntax error at or near 'FROMM', in: FROMM events"
    )
    assert errors[2].hint == "Correct the SQL, then run `deltaworks pipelines check`."
    assert errors[4].message.startswith(f"daily: {sql}:2: [TABLE_OR_VIEW_NOT_FOUND]")
    assert errors[4].hint == "Available views: events."


DAY = 86_400
NOON = 1_700_049_600


def spec(*levels: str) -> PipelineSpec:
    orders = declare_table("orders", "level string", rules=[{"name": "known", "check": f"level IN {levels}"}])
    daily = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"}
    return pipeline_spec(
        orders,
        event={"name": {"constant": "order"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"},
        gold={"dedupe": {"by": "event_id", "within_days": 1}, "tables": [daily]},
    )


def test_gold_follows_a_replay_and_keeps_the_first_duplicate(spark: SparkSession, tmp_path: Path) -> None:
    stage = ReplayHarness(tmp_path)
    sql = stage.landing / "include" / "pipelines" / "shop" / "gold" / "daily.sql"
    sql.parent.mkdir(parents=True)
    sql.write_text("SELECT event_date, event_id, level FROM orders")
    first: list[dict[str, Any]] = [
        {"id": "e1", "time": NOON, "level": "new"},
        {"id": "e2", "time": NOON, "level": "old"},
        {"id": "e3", "time": NOON - DAY, "level": "new"},
    ]
    copies = [{"id": "e1", "time": NOON, "level": "old"}, {"id": "e3", "time": NOON, "level": "old"}]
    before, mended = spec("old", "other"), spec("old", "new")
    stage.ingest(before, "".join(map(json.dumps, first)).encode())
    stage.ingest(before, "".join(map(json.dumps, copies)).encode())
    rebuild_gold(spark, stage.catalog(mended), "shop")
    assert answers(spark, stage) == {
        ("2023-11-15", "e1", "old"),
        ("2023-11-15", "e2", "old"),
        ("2023-11-15", "e3", "old"),
    }

    replay_quarantine(stage.catalog(mended), "shop", QuarantineFilter(), dry_run=False)
    result = rebuild_gold(spark, stage.catalog(mended), "shop")

    assert not result.table("daily").skipped
    assert answers(spark, stage) == {
        ("2023-11-15", "e1", "new"),
        ("2023-11-15", "e2", "old"),
        ("2023-11-14", "e3", "new"),
    }


def answers(spark: SparkSession, stage: ReplayHarness) -> set[tuple[str, str, str]]:
    found = spark.read.format("delta").load(stage.environment.lake.spark_uri(paths.table("shop", "daily"))).collect()
    assert len({row["event_id"] for row in found}) == len(found)
    return {(row["event_date"].isoformat(), row["event_id"], row["level"]) for row in found}
