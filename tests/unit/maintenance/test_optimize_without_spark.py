"""OPTIMIZE of live, gold and quarantine tables without writer conflicts; a night over small ones needs no JVM."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.errors import ConcurrencyError, ConfigError
from deltaworks.maintenance import optimize
from deltaworks.maintenance import optimize_night as module
from deltaworks.maintenance.layout import optimized_tables, read_layout, select_tables
from deltaworks.maintenance.optimize_night import optimize_tables, read_policy, select_partitions
from deltaworks.maintenance.partition_choice import OptimizePolicy, TableChoice
from deltaworks.maintenance.table_health.measure import table_health
from deltaworks.maintenance.zorder_ledger import ZOrderLedger
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, SHOP, append, make, project

TABLES = """\
tables:
  - {name: orders, when: {name: order}, zorder_by: [event_name]}
  - {name: visits, when: {name: visit}}
  - {name: never, when: {name: never}}
"""
NIGHT = dt.datetime(2026, 1, 10, 3, 30, tzinfo=dt.UTC)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, shop=SHOP + TABLES)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    return Lake(catalog.environment.lake)


def no_spark() -> Any:
    raise AssertionError("a session was opened")


def night(catalog: Catalog, spark: Callable[[], Any] | None = no_spark, **options: Any) -> dict[str, Any]:
    results = optimize_tables(spark, catalog, "shop", now=NIGHT, minutes=60, **options)
    return {result.table: result for result in results}


def columns(catalog: Catalog) -> dict[str, str]:
    return catalog.pipeline("shop").tables[0].column_types()


def ledger_rows(lake: Lake) -> list[tuple[Any, ...]]:
    rows = lake.rows(paths.zorder_ledger("shop"))
    names = ("table_name", "action", "files_before", "files", "round")
    return sorted(tuple(row[name] for name in names) for row in (rows.to_pylist() if rows is not None else []))


def test_small_tables_need_no_session_and_a_second_run_does_nothing(catalog: Catalog, lake: Lake) -> None:
    keys = [make(lake, "shop", name, files=5, days=3, columns=columns(catalog)) for name in ("orders", "visits")]
    before = [lake.open(key).version() for key in keys]  # type: ignore[union-attr]

    first, second = night(catalog), night(catalog)

    for name in ("orders", "visits"):
        done = first[name]
        assert (done.partitions, done.compacted, done.without_spark, done.zordered) == (3, 3, 3, 0)
        assert (done.files_before, done.files_after, done.spark_work_count) == (15, 3, 0)
        assert second[name].skipped
        assert second[name].reason == "nothing to do: 3 partitions of one file"
    assert [lake.open(key).version() for key in keys] == [version + 1 for version in before]  # type: ignore[union-attr]
    assert ledger_rows(lake) == [(name, "compact_small", 5, 1, "daily") for name in ("orders", "visits") for _ in "123"]


def test_a_run_without_spark_counts_partitions_that_need_it(tmp_path: Path) -> None:
    catalog = project(tmp_path, shop=SHOP + TABLES + "maintenance: {zorder_from_bytes: 0}\n")
    lake = Lake(catalog.environment.lake)
    make(lake, "shop", "orders", files=5, days=2, columns=columns(catalog))
    make(lake, "shop", "visits", files=5, days=2, columns=columns(catalog))

    done = night(catalog, None)

    assert {name: (result.partitions, result.spark_work_count) for name, result in done.items()} == {
        "orders": (0, 2),
        "visits": (2, 0),
        "never": (0, 0),
        "quarantine": (0, 0),
    }
    assert {name: result.engine for name, result in done.items() if result.engine} == {
        "orders": "left to Spark: 2 partitions (order)",
        "visits": "this process: 2 partitions compacted (at most 32 MiB of small files each)",
    }


def test_an_unsupported_partition_goes_to_spark_or_is_counted(
    catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make(lake, "shop", "visits", files=5, days=2, columns=columns(catalog))
    path = next(Path(lake.storage.prefix, key).glob("event_date=2026-01-01/*.parquet"))
    path.write_bytes(b"torn")
    commands = []
    monkeypatch.setattr(
        optimize.TableOptimizer, "_run_optimize", lambda self, session, group, left: commands.append((session, left))
    )

    without = night(catalog, None)["visits"]
    append(lake, key, 4, days=(1,))
    with_spark = night(catalog, lambda: "session")["visits"]

    assert (without.partitions, without.without_spark, without.spark_work_count) == (1, 1, 1)
    assert (with_spark.partitions, with_spark.without_spark, with_spark.spark_work_count) == (1, 1, 0)
    assert commands == [("session", [(("event_date", "2026-01-01"),)])]
    own, left = without.engine.split("; ")
    assert own == "this process: 1 partition compacted (at most 32 MiB of small files each)"
    assert left.startswith(f"left to Spark: 1 partition (event_date=2026-01-01/{path.name} cannot be read: ")


def test_a_conflict_defers_the_partition(catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make(lake, "shop", "visits", files=5, days=2, columns=columns(catalog))
    works = optimize.compact_partitions

    def beside_a_delete(*arguments: Any, **options: Any) -> Any:
        def deletes() -> None:
            table = present(lake.open(key))
            table.delete("event_date = CAST('2026-01-01' AS DATE)")

        return works(*arguments, **{**options, "before_commit": once(deletes)})

    monkeypatch.setattr(optimize, "compact_partitions", beside_a_delete)
    done = night(catalog)["visits"]

    assert (done.partitions, done.deferred, done.error) == (1, 1, "")
    health = present(table_health(lake, key))
    assert [(part.partition[0][1], part.files, part.rows) for part in health.partition_health] == [
        ("2026-01-02", 1, 50)
    ]


def once(action: Callable[[], None]) -> Callable[[], None]:
    left = [action]
    return lambda: left.pop()() if left else None


def test_a_run_that_died_between_its_commit_and_its_row_is_completed_from_the_log(
    catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(lake, "shop", "visits", files=5, days=2, columns=columns(catalog))
    works = ZOrderLedger.record

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ZOrderLedger, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        night(catalog)
    monkeypatch.setattr(ZOrderLedger, "record", works)

    assert night(catalog)["visits"].skipped
    assert ledger_rows(lake) == [("visits", "compact_small", 5, 1, "daily")] * 2


def test_a_lost_turn_ends_the_table_before_its_commit(catalog: Catalog, lake: Lake) -> None:
    key = make(lake, "shop", "visits", files=5, days=1, columns=columns(catalog))
    version = lake.open(key).version()  # type: ignore[union-attr]

    class Lost:
        def check(self) -> None:
            raise ConcurrencyError("TURN_LOST", "The write turn was lost.", hint="Run the job again.")

    ledger = ZOrderLedger(lake, optimize.PipelineHome.open(lake.storage, "shop"))
    from contextlib import nullcontext

    from deltaworks.maintenance.optimize_night import select_partitions

    spec = catalog.pipeline("shop")
    (choice,) = select_partitions(lake, spec, policy=OptimizePolicy(), now=NIGHT, tables=["visits"])
    layout = optimize.Layout.from_spec(next(table for table in spec.tables if table.name == "visits"))
    optimizer = optimize.TableOptimizer(
        None, lake, ledger, "shop", layout, policy=OptimizePolicy(), acquire_turn=lambda _: nullcontext(Lost())
    )
    with pytest.raises(ConcurrencyError, match="TURN_LOST"):
        optimizer.run(choice.partitions, optimize.OptimizeResult(table="visits", round="daily"))

    assert lake.open(key).version() == version  # type: ignore[union-attr]


LIVE = """\
tables: [{name: orders, when: {name: order}, zorder_by: [event_name]}]
live: [{name: pulse, reads: orders, window_minutes: 60, watermark_minutes: 1440}]
"""
#: Day 0 ended 27 hours ago, day 1 three hours ago.
THIRD_NIGHT = dt.datetime(2026, 1, 3, 3, 1, tzinfo=dt.UTC)


@pytest.fixture
def live_catalog(tmp_path: Path) -> Catalog:
    return project(tmp_path, shop=SHOP + LIVE + DAILY, sql=DAILY_SQL)


@pytest.fixture
def filled_lake(live_catalog: Catalog) -> Lake:
    """Three days of five files each, and many files on the third day."""
    made = Lake(live_catalog.environment.lake)
    for name in ("pulse", "daily", "quarantine"):
        key = make(made, "shop", name, files=5, days=3)
        append(made, key, 120, days=(2,))
    return made


def chosen(found: list[TableChoice]) -> dict[str, dict[str, str]]:
    """Returns the chosen days of each table, with reasons."""
    return {each.table: {str(choice.partition[0][1]): choice.reason for choice in each.partitions} for each in found}


def test_closed_days_are_merged_and_open_ones_only_without_conflicts(live_catalog: Catalog, filled_lake: Lake) -> None:
    spec = live_catalog.pipeline("shop")

    found = select_partitions(filled_lake, spec, policy=read_policy(spec), now=THIRD_NIGHT)

    first, second, third = "2026-01-01", "2026-01-02", "2026-01-03"
    merged = "5 small files"
    assert chosen(found) == {
        "orders": {},
        # Its watermark is a day behind: the second last day may still change.
        "pulse": {first: merged},
        "daily": {first: merged, second: merged},
        "quarantine": {first: merged, second: merged, third: "still written, with 125 small files"},
    }
    assert all(choice.action == "compact_small" for each in found for choice in each.partitions)
    assert next(each for each in found if each.table == "pulse").reason.endswith("2 partitions still written")


def test_without_only_closed_open_days_would_be_rewritten(
    live_catalog: Catalog, filled_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = live_catalog.pipeline("shop")

    def as_appended(*arguments: object) -> object:
        return replace(read_layout(*arguments), only_closed=False)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_layout", as_appended)

    found = chosen(select_partitions(filled_lake, spec, policy=read_policy(spec), now=THIRD_NIGHT))

    assert all("2026-01-03" in found[name] for name in ("pulse", "daily", "quarantine"))


def test_a_layout_is_declared_or_read_from_disk(live_catalog: Catalog, filled_lake: Lake) -> None:
    tables = optimized_tables(live_catalog.pipeline("shop"))

    assert list(tables) == ["orders", "pulse", "daily", "quarantine"]
    assert read_layout(filled_lake, "shop", tables["orders"]).zorder_by == ("event_name",)
    assert read_layout(filled_lake, "shop", tables["daily"]).partition_by == ("event_date",)
    assert read_layout(filled_lake, "shop", tables["daily"]).date_columns == ("event_date",)


@pytest.mark.parametrize(
    ("name", "hint"), [("dayly", "Did you mean 'daily'?"), ("zzz", "orders, pulse, daily, quarantine")]
)
def test_an_unknown_table_is_rejected_with_the_nearest_or_the_known_ones(
    live_catalog: Catalog, name: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN") as refused:
        select_tables(live_catalog.pipeline("shop"), [name])

    assert hint in refused.value.hint
