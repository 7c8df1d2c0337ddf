"""Published gold is compared with its SQL within limits; what cannot be compared is never taken as equal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.summaries.jobs import GoldVerification, read_gold_verification
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.gold import verification
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.gold.plan import GoldPlan
from deltaworks.gold.row_differences import CURRENT, DUCKDB, REBUILT, RowComparison
from deltaworks.gold.table_build import plan_job
from deltaworks.gold.verification import (
    ALL_ROWS,
    Comparison,
    GoldVerificationResult,
    NotComparableError,
    VerificationLimits,
    select_partitions,
    verify_gold,
)
from deltaworks.operations.base import OperationContext, imported_look
from deltaworks.operations.gold import VerifyOptions
from deltaworks.operations.registry import get_operation
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake, duckdb_source
from deltaworks.testing import present
from tests.unit.gold.gold_planning import build_planned, empty_database, planned_answer
from tests.unit.maintenance.table_data import DAILY, DAILY_SQL, FIRST, ORDERS, SHOP, append, compacted, make, project

NOW = dt.datetime(2026, 1, 12, 4, tzinfo=dt.UTC)
LIMITS = VerificationLimits(partitions=100, bytes=1 << 30)
TOTAL = "  - {name: total, sql: gold/total.sql, reads: [orders], partition_by: year, affects: all}\n"
BY_ID = "  - {name: by_id, sql: gold/by_id.sql, reads: [orders], partition_by: event_date, affects: {days: [0, 1]}}\n"
SQL = DAILY_SQL | {
    "gold/total.sql": "SELECT 2026 AS year, count(*) AS n FROM orders",
    "gold/by_id.sql": (
        "SELECT CAST(date_add(event_date, 1) AS DATE) AS event_date, id, count(*) AS n FROM orders GROUP BY 1, 2"
    ),
}
ORDERS_KEY, DAILY_KEY = paths.table("shop", "orders"), paths.table("shop", "daily")


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    tables = DAILY.replace("tables: [", "tables:\n  - ").replace("}]", "}")
    return project(tmp_path, shop=SHOP + ORDERS + tables + TOTAL + BY_ID, sql=SQL)


@pytest.fixture
def lake(catalog: Catalog) -> Lake:
    """A lake with five dates of orders, from which the three gold tables are built."""
    lake = Lake(catalog.environment.lake)
    make(lake, "shop", "orders", files=2, days=5)
    build(catalog, lake)
    return lake


def build(catalog: Catalog, lake: Lake, *names: str) -> None:
    spec = catalog.pipeline("shop")
    for table in spec.gold.tables:
        if not names or table.name in names:
            inputs = pin_inputs(lake, spec, table.reads)
            job = plan_job(catalog, spec, lake, table, inputs, key=paths.table("shop", table.name))
            if job.plan.has_work:
                build_planned(lake, "shop", job)


def comparer(lake: Lake) -> Callable[[Comparison], Mapping[str, int]]:
    """Compares with DuckDB in place of Spark."""

    def compare(comparison: Comparison) -> dict[str, int]:
        plan = comparison.job.plan
        answer = planned_answer(lake, plan, comparison.job.sql, comparison.job.inputs, None)
        column = plan.table.partition_by
        with empty_database() as session:
            session.register(REBUILT, answer)
            session.register("published", duckdb_source(lake, comparison.published))
            is_compared = "true" if plan.output.values is None else plan.output.condition(column, "").replace("`", '"')
            session.execute(f"CREATE TEMP VIEW {CURRENT} AS SELECT * FROM published WHERE {is_compared}")
            by = f"'{ALL_ROWS}'" if plan.table.affects == "all" else f'"{column}"'
            columns = {name: "" for name in answer.column_names}
            found = RowComparison(columns=columns, by=by, dialect=DUCKDB).count(
                lambda sql: session.execute(sql).fetchall()
            )
        return {str(label): rows for label, rows in found.items()}

    return compare


def verify(
    catalog: Catalog, lake: Lake, *, limits: VerificationLimits = LIMITS, now: dt.datetime = NOW
) -> dict[str, GoldVerificationResult]:
    results = verify_gold(catalog, "shop", limits=limits, compare=comparer(lake), now=now)
    return {result.table: result for result in results}


def record(lake: Lake, table: str = "daily") -> GoldVerification:
    return present(read_gold_verification(lake.objects, "shop", table))


def damage(lake: Lake, *, day: int, key: str = DAILY_KEY) -> None:
    """Changes rows of a date as a build that computes it wrong, in a commit that names the versions of the build."""
    table = present(lake.open(key))
    metadata = table.history(1)[0]["userMetadata"]
    table.update(
        {"n": "n + 1"},
        predicate=f"event_date = '{date(day)}'",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata}),
    )


def date(day: int) -> str:
    return str(FIRST + dt.timedelta(days=day))


def test_tables_as_their_sql_have_no_differing_rows(catalog: Catalog, lake: Lake) -> None:
    results = verify(catalog, lake)

    assert {name: (len(one.partitions), one.differing_rows, one.reason) for name, one in results.items()} == {
        "daily": (5, 0, ""),
        "total": (1, 0, ""),
        "by_id": (6, 0, ""),
    }
    assert open_subjects(lake.objects, "GOLD_DIFFERS") == set()
    assert record(lake).newest_at == NOW
    assert not record(lake).is_due(NOW + dt.timedelta(days=6))
    assert record(lake).is_due(NOW + dt.timedelta(days=7, minutes=-10))


def test_a_date_that_was_built_wrong_is_found_by_date_and_alerts_until_it_is_right_again(
    catalog: Catalog, lake: Lake
) -> None:
    damage(lake, day=2)

    results = verify(catalog, lake)

    assert results["daily"].differing == {date(2): 2}, "the wrong row, and the right one"
    assert [results[name].differing_rows for name in ("daily", "total", "by_id")] == [2, 0, 0]
    assert open_subjects(lake.objects, "GOLD_DIFFERS") == {"shop.daily"}

    # One partition of a run: the wrong one comes first, and the alert stays while others are right.
    one = VerificationLimits(partitions=1, bytes=1 << 30)
    assert verify(catalog, lake, limits=one)["daily"].differing == {date(2): 2}
    append(lake, ORDERS_KEY, 1, days=[2])
    assert verify(catalog, lake, limits=one)["daily"].partitions == (date(0),), "date 2 waits for a build"
    assert open_subjects(lake.objects, "GOLD_DIFFERS") == {"shop.daily"}
    build(catalog, lake)
    assert verify(catalog, lake, limits=one)["daily"].partitions == (date(2),)
    assert open_subjects(lake.objects, "GOLD_DIFFERS") == set()
    assert record(lake).differing == {}


def test_missing_and_extra_dates_are_differences(catalog: Catalog, lake: Lake) -> None:
    table = present(lake.open(DAILY_KEY))
    properties = CommitProperties(custom_metadata={"userMetadata": table.history(1)[0]["userMetadata"]})
    table.delete(f"event_date = '{date(1)}'", commit_properties=properties)

    assert verify(catalog, lake)["daily"].differing == {date(1): 1}


def test_rows_that_wait_for_a_build_are_not_compared(catalog: Catalog, lake: Lake) -> None:
    append(lake, ORDERS_KEY, 1, days=[4])

    results = verify(catalog, lake)

    assert (results["daily"].partitions, results["daily"].differing_rows) == (tuple(map(date, (3, 0, 2, 1))), 0)
    assert results["total"].differing_rows is None
    assert results["total"].reason.startswith("its next build computes all rows: its inputs changed")
    assert set(results["by_id"].partitions) == {date(day) for day in (0, 1, 2, 3)}, "dates 4 and 5 read it"


def test_open_dates_are_left_to_later_runs(catalog: Catalog, lake: Lake) -> None:
    early = dt.datetime.combine(FIRST + dt.timedelta(days=2), dt.time(9), dt.UTC)

    assert set(verify(catalog, lake, now=early)["daily"].partitions) == {date(0), date(1)}


def test_compacted_and_vacuumed_inputs_are_still_compared(catalog: Catalog, lake: Lake) -> None:
    compacted(lake, ORDERS_KEY, "night")
    table = present(lake.open(ORDERS_KEY))
    removed = table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert len(removed) == 10
    damage(lake, day=3)

    assert verify(catalog, lake)["daily"].differing == {date(3): 2}


def _lose_log(catalog: Catalog, lake: Lake) -> None:
    append(lake, ORDERS_KEY, 1, days=[4])
    table = present(lake.open(ORDERS_KEY))
    table.create_checkpoint()
    folder = Path(lake.storage.prefix, ORDERS_KEY, "_delta_log")
    for version in range(table.version() + 1):
        (folder / f"{version:020d}.json").unlink()


def _edit_sql(catalog: Catalog, lake: Lake) -> None:
    (catalog.folder("shop") / "gold/daily.sql").write_text(DAILY_SQL["gold/daily.sql"] + " HAVING count(*) > 1")


def _restore(catalog: Catalog, lake: Lake) -> None:
    append(lake, ORDERS_KEY, 1, days=[4])
    build(catalog, lake, "daily")
    present(lake.open(DAILY_KEY)).restore(0)


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        (_lose_log, "is no longer in the log"),
        (_edit_sql, "its definition changed"),
        (_restore, "(RESTORE) is not a build"),
    ],
)
def test_what_cannot_be_compared_has_a_reason_and_is_not_equal(
    catalog: Catalog, lake: Lake, happened: Callable[[Catalog, Lake], None], reason: str
) -> None:
    verify(catalog, lake)
    happened(catalog, lake)

    result = verify(catalog, lake, now=NOW + dt.timedelta(days=7))["daily"]

    assert (result.partitions, result.differing_rows) == ((), None)
    assert reason in result.reason
    assert (record(lake).reason, record(lake).partitions) == (result.reason, ())
    assert record(lake).newest_at == NOW, "when it was last compared is kept"


def test_a_table_that_was_never_built_is_not_compared(tmp_path: Path) -> None:
    catalog = project(tmp_path, shop=SHOP + ORDERS + DAILY, sql=DAILY_SQL)

    (result,) = verify(catalog, Lake(catalog.environment.lake)).values()

    assert (result.differing_rows, result.reason) == (None, "it does not exist yet")


def test_an_error_of_one_table_does_not_stop_the_others_and_records_nothing(catalog: Catalog, lake: Lake) -> None:
    compare = comparer(lake)

    def fail(comparison: Comparison) -> Mapping[str, int]:
        if comparison.job.plan.table.name == "daily":
            raise ContractError("DATA_FILE_MISSING", "a file of shop.orders does not exist")
        return compare(comparison)

    with pytest.raises(DeltaworksError, match="DATA_FILE_MISSING"):
        verify_gold(catalog, "shop", limits=LIMITS, compare=fail, now=NOW)

    assert read_gold_verification(lake.objects, "shop", "daily") is None
    assert record(lake, "total").differing_rows == 0


def test_an_answer_that_does_not_fit_is_not_comparable(catalog: Catalog, lake: Lake) -> None:
    def refuse(comparison: Comparison) -> Mapping[str, int]:
        raise NotComparableError("the columns of its answer changed")

    results = verify_gold(catalog, "shop", limits=LIMITS, compare=refuse, now=NOW)

    assert {(one.differing_rows, one.reason) for one in results} == {(None, "the columns of its answer changed")}


def test_a_run_reads_no_more_than_its_limit_of_bytes(catalog: Catalog, lake: Lake) -> None:
    size = verify(catalog, lake)["daily"].bytes // 5
    append(lake, ORDERS_KEY, 20, days=[2])
    build(catalog, lake, "daily")

    result = verify(catalog, lake, limits=VerificationLimits(partitions=100, bytes=2 * size + 10))["daily"]

    assert len(result.partitions) == 2
    assert result.bytes <= 2 * size + 10
    assert result.deferred == 3
    assert date(2) not in result.partitions
    assert verify(catalog, lake, limits=VerificationLimits(partitions=100, bytes=10))["daily"].reason.startswith(
        f"{date(0)}"
    )


@given(weeks=st.integers(20, 40), new_dates=st.integers(0, 7), partitions=st.integers(2, 9), size=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_every_partition_is_compared_in_time_however_many_new_ones_come(
    weeks: int, new_dates: int, partitions: int, size: int
) -> None:
    held = GoldVerification(pipeline="shop", table="daily", at="")
    closed = [f"{number:05d}" for number in range(30)]
    limits = VerificationLimits(partitions=partitions, bytes=size * partitions)
    for week in range(weeks):
        chosen = select_partitions(closed, held, limits, size_of=lambda label: size)
        assert len(chosen.partitions) == len(set(chosen.partitions)) <= partitions
        assert chosen.bytes <= limits.bytes
        held = held.replace(verified_at={**held.verified_at, **dict.fromkeys(chosen.partitions, f"{week:05d}")})
        closed += [f"{len(closed) + number:05d}" for number in range(new_dates)]

    # At least half of each run advances through the oldest.
    oldest_compared = weeks * (partitions // 2)
    assert set(closed[: min(oldest_compared, 30)]) <= held.verified_at.keys()


def test_a_scheduled_run_compares_weekly(catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    look = imported_look(get_operation("verify_gold").look)
    context = OperationContext(operation=get_operation("verify_gold"), catalog=catalog, subject="shop")
    today = dt.datetime.now(dt.UTC)

    def work() -> tuple[int, str]:
        looked: Any = look(context, VerifyOptions())  # type: ignore[call-arg]
        return looked.work, looked.reason

    assert work() == (3, "daily, total, by_id to compare")
    verify(catalog, lake, now=today)
    assert work() == (0, "all gold tables were compared within a week")
    verify(catalog, lake, now=today - dt.timedelta(days=7))
    assert work()[0] == 3


def test_without_the_pending_changes_a_waiting_row_would_be_a_false_alarm(
    catalog: Catalog, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, ORDERS_KEY, 1, days=[4])
    monkeypatch.setattr(verification, "plan_job", _plan_without_changes)

    assert verify(catalog, lake)["daily"].differing == {date(4): 2}


def _plan_without_changes(*arguments: Any, **options: Any) -> Any:
    job = plan_job(*arguments, **options)
    return replace(job, plan=GoldPlan(job.plan.table, frozenset(), frozenset(), ""))
