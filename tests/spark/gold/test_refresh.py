"""A gold table is rebuilt in a shadow and swapped in: readers see the old or the new table, wherever it is killed."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.gold import refresh, table_build
from deltaworks.gold.build import rebuild_gold
from deltaworks.gold.refresh import refresh_gold
from deltaworks.privacy.erasure.purge_table import TablePurger
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.tables import files_commit, rewrite
from deltaworks.tables.commit import Step
from tests.spark.gold.shop_data import SHOP, event
from tests.waiting import eventually

GOLD = """\
gold:
  tables:
    - name: daily
      sql: gold/daily.sql
      reads: [events]
      partition_by: event_date
      checks: {not_null: device_id, max_drop: 0.5}
    - {name: busiest, sql: gold/busiest.sql, reads: [daily], partition_by: event_date}
    - {name: plain, sql: gold/plain.sql, reads: [events], partition_by: event_date}
"""
DAILY = "SELECT event_date, device_id, count(*) AS events FROM events GROUP BY ALL"
EDITED = "SELECT event_date, device_id, count(*) * 10 AS events, 'v2' AS edition FROM events GROUP BY ALL"
BUSIEST = "SELECT event_date, max(events) AS most FROM daily GROUP BY event_date"
SQL = {"daily": DAILY, "busiest": BUSIEST, "plain": DAILY}
KEY = paths.table("shop", "daily")


@pytest.fixture
def shop(spark: SparkSession, make_project: Callable[..., Any]) -> Any:
    """Three built dates, and one unbuilt event of the second date."""
    made = make_project({"shop": (SHOP + GOLD, {f"gold/{name}.sql": sql for name, sql in SQL.items()})})
    made.append("shop", "events", [event(day, f"e{day}") for day in range(3)])
    rebuild_gold(spark, made.catalog, "shop", tables=["daily", "busiest"])
    made.append("shop", "events", [event(1, "late")])
    return made


def edit(shop: Any, sql: str) -> None:
    (shop.root / "include/pipelines/shop/gold/daily.sql").write_text(sql)


def counts(shop: Any, version: int | None = None) -> list[int]:
    table = shop.lake.open(KEY)
    if version is not None:
        table.load_as_version(version)
    return sorted(row["events"] for row in table.to_pyarrow_table().to_pylist())


def shadows(shop: Any) -> list[str]:
    folder = Path(shop.lake.storage.prefix, paths.gold_shadows("shop", "daily"))
    return sorted(each.name for each in folder.glob("[0-9]*"))


class KilledError(BaseException):
    """The process was killed, so nothing handles it as an error of a table."""


def killed_at(point: str) -> Callable[[str], None]:
    def fault(reached: str) -> None:
        if reached == f"daily {point}":
            raise KilledError(point)

    return fault


def test_a_killed_refresh_continues_and_readers_see_the_old_or_new_table(spark: SparkSession, shop: Any) -> None:
    (counted,) = refresh_gold(spark, shop.catalog, "shop", tables=["daily"])
    assert (counted.dry_run, counted.rows_before, counted.reason) == (True, 3, "would be built, checked and swapped in")
    assert shadows(shop) == []
    edit(shop, EDITED)

    for point, expected in [("built", [1, 1, 1]), ("checked", [1, 1, 1]), ("swapped", [10, 10, 20])]:
        with pytest.raises(KilledError):
            refresh_gold(spark, shop.catalog, "shop", tables=["daily"], dry_run=False, fault=killed_at(point))
        assert counts(shop) == expected
        assert shadows(shop) == ["000001"], "it is kept until somebody has looked at the table"
    assert shop.lake.open(paths.gold_shadow("shop", "daily", 1)).version() == 0, "built once, and taken on"
    swapped = shop.lake.open(KEY).version()

    (done,) = refresh_gold(spark, shop.catalog, "shop", tables=["daily"], dry_run=False)

    assert (done.swapped, shadows(shop)) == (True, [])
    assert [counts(shop, version) for version in range(swapped + 1)] == [[1, 1, 1], [10, 10, 20]]
    assert shop.lake.open(KEY).version() == swapped, "nothing was left to be rebuilt"
    assert {row["edition"] for row in shop.rows("shop", "daily")} == {"v2"}
    assert sorted(row["most"] for row in shop.rows("shop", "busiest")) == [10, 10, 20], "what reads it follows"
    assert rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily").skipped


def test_a_refresh_finds_rows_that_a_build_left_wrong(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild_gold(spark, shop.catalog, "shop", tables=["plain"])
    shop.append("shop", "events", [event(2, "later")])
    run = functools.partial(refresh_gold, spark, shop.catalog, "shop", tables=["plain"], dry_run=False)
    (waiting,) = run()
    compute = table_build.compute_answer
    with monkeypatch.context() as wrong:
        wrong.setattr(table_build, "compute_answer", lambda *rest, **options: compute(*rest, **options).limit(2))
        rebuild_gold(spark, shop.catalog, "shop", tables=["plain"], full=True)

    (found,) = run()
    subjects = open_subjects(shop.lake.objects, "GOLD_DIFFERS")
    (mended,) = run()

    assert waiting.differing_rows == 0, "rows that wait for a build are no difference"
    assert (found.differing_rows, subjects) == (1, {"shop.plain"})
    assert (mended.differing_rows, open_subjects(shop.lake.objects, "GOLD_DIFFERS")) == (0, set())


@pytest.mark.integration
def test_a_shadow_catches_up_with_concurrent_builds_before_the_swap(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_meanwhile(reached: str) -> None:
        if reached == "daily checked" and len(shop.rows("shop", "events")) == 4:
            shop.append("shop", "events", [event(2, "meanwhile")])
            rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
            assert counts(shop) == [1, 2, 2]
        if reached == "daily swapped":
            found.append(counts(shop))

    found: list[list[int]] = []
    (done,) = refresh_gold(spark, shop.catalog, "shop", tables=["daily"], dry_run=False, fault=build_meanwhile)
    assert (done.swapped, done.rows, found) == (True, 3, [[1, 2, 2]])

    # Without the check readers lose rows until the next build.
    monkeypatch.setattr(refresh, "is_behind", lambda *_: False)
    shop.append("shop", "events", [event(0, "again")])
    rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
    assert counts(shop) == [2, 2, 2]
    monkeypatch.setattr(refresh, "rebuild_gold", lambda *_, **__: None)

    def build_first(reached: str) -> None:
        if reached == "daily checked":
            shop.append("shop", "events", [event(0, "more")])
            rebuild_gold(spark, shop.catalog, "shop", tables=["daily"])
            assert counts(shop) == [2, 2, 3]

    refresh_gold(spark, shop.catalog, "shop", tables=["daily"], dry_run=False, fault=build_first)
    assert counts(shop) == [2, 2, 2], "gone back, and it says so:"
    monkeypatch.undo()
    assert rebuild_gold(spark, shop.catalog, "shop", tables=["daily"]).table("daily").partitions == ("2025-03-01",)
    assert counts(shop) == [2, 2, 3]


def test_a_shadow_that_fails_its_checks_is_kept_and_not_swapped(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(shop, EDITED + " HAVING event_date = DATE'2025-03-01'")

    with pytest.raises(ContractError, match=r"GOLD_CHECK_FAILED.*2025-03-02 would fall from 1 rows to 0"):
        refresh_gold(spark, shop.catalog, "shop", tables=["daily"], dry_run=False)
    assert (counts(shop), shadows(shop)) == ([1, 1, 1], ["000001"])

    # Without checks readers see incomplete rows.
    monkeypatch.setattr(refresh, "failed_checks", lambda *_: [])
    refresh_gold(spark, shop.catalog, "shop", tables=["daily"], dry_run=False)
    assert counts(shop) == [10]


@pytest.mark.integration
@pytest.mark.parametrize("case", [(table, guarded) for table in ("daily", "plain") for guarded in (True, False)])
def test_a_build_planned_before_the_swap_never_changes_the_new_table(
    spark: SparkSession, shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, bool]
) -> None:
    """The build pauses while its answer is computed: before it is collected if there are checks, else during that."""
    table, guarded = case
    armed, begun, go = tmp_path / "armed", tmp_path / "begun", tmp_path / "go"
    errors: list[str] = []

    def wait_here(value: int) -> int:
        if armed.exists():
            begun.touch()
            for _ in range(1_200):
                if go.exists():
                    break
                time.sleep(0.1)
        return value

    session = spark.newSession()
    session.udf.register("wait_here", wait_here, "bigint")
    sql, edited = DAILY.replace("count(*)", "wait_here(count(*))"), DAILY.replace("count(*)", "count(*) * 10")
    path = shop.root / f"include/pipelines/shop/gold/{table}.sql"
    path.write_text(sql)
    rebuild_gold(session, shop.catalog, "shop", tables=[table])
    monkeypatch.setattr(refresh, "rebuild_gold", lambda *_, **__: None)
    if not guarded:
        monkeypatch.setattr(files_commit, "is_step_committed", lambda state, step: False)
        monkeypatch.setattr(rewrite, "has_changed_metadata", lambda state, expected: False)

    def build() -> None:
        try:
            rebuild_gold(session, shop.catalog, "shop", tables=[table])
        except Exception as error:
            errors.append(f"{type(error).__name__} {error}"[:300])

    builder = threading.Thread(target=build)

    def swap_beside_a_build(reached: str) -> None:
        if reached == f"{table} checked" and not armed.exists():
            # A date missing from both tables, built by the previous definition.
            shop.append("shop", "events", [event(9, "new")])
            path.write_text(sql)
            armed.touch()
            builder.start()
            eventually(begun.exists, "the build is at work")
            path.write_text(edited)
        if reached == f"{table} swapped":
            go.touch()
            builder.join()

    path.write_text(edited)
    refresh_gold(spark, shop.catalog, "shop", tables=[table], dry_run=False, fault=swap_beside_a_build)

    found = sorted(row["events"] for row in shop.rows("shop", table))
    if guarded:
        assert found == [10, 10, 20]
        assert len(errors) == 1
        assert "GOLD_OVERTAKEN" in errors[0]
    else:
        assert (found, errors) == ([1, 10, 10, 20], []), "a row by the old definition among those of the new one"


@pytest.mark.integration
@pytest.mark.parametrize("protected", [True, False])
def test_people_erased_before_the_swap_do_not_reappear(
    spark: SparkSession, shop: Any, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """With another definition the published table does not show it: it may never have contained her rows."""
    ann = "p1_" + "a" * 26
    shop.append("shop", "events", [event(0, "hers", device=ann)])
    edit(shop, EDITED)
    if not protected:
        monkeypatch.setattr(refresh, "was_erased_since", lambda *_: False)
    found: list[set[str]] = []

    def erase_meanwhile(reached: str) -> None:
        if reached == "daily checked":
            objects, key = open_objects(shop.lake.storage), paths.table("shop", "events")
            requests = {"e1": TokenSearch([ann])}
            purger = TablePurger(shop.lake, objects, key, pipeline="shop", table="events", requests=requests)
            purger.purge(Step("shop/erasure/events", 1))
        if reached == "daily swapped":
            found.append({row["device_id"] for row in shop.rows("shop", "daily")})

    refresh_gold(spark, shop.catalog, "shop", tables=["daily"], dry_run=False, fault=erase_meanwhile)

    assert found == [{"d1"} if protected else {"d1", ann}]
    assert {row["device_id"] for row in shop.rows("shop", "daily")} == {"d1"}, "what follows the swap takes her out"
