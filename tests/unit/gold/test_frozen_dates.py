"""Events of frozen dates are counted and rebuild nothing; removals and requests rebuild the dates."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, write_deltalake

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.control.summaries.jobs import late_rows_of
from deltaworks.errors import ConfigError
from deltaworks.gold.pinned_inputs import BUILT_FROM, FINGERPRINT, LATE_ROWS, pin_inputs, read_built_from
from deltaworks.gold.refresh import pending_gold
from deltaworks.gold.table_build import TableJob, plan_job
from deltaworks.specs.base import describe_duration, parse_duration
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.gold.gold_planning import planned_answer
from tests.unit.maintenance.table_data import DAILY_SQL, FIRST, ORDERS, SHOP, append, make, project

ORDERS_KEY, DAILY_KEY = paths.table("shop", "orders"), paths.table("shop", "daily")
#: Dates 0 to 4 are frozen, dates 5 to 9 are not.
NOW = dt.datetime.combine(FIRST + dt.timedelta(days=10), dt.time(12), dt.UTC)


def declared(frozen_after: str = "5d", more: str = "") -> str:
    freeze = f", frozen_after: {frozen_after}" if frozen_after else ""
    table = f"{{name: daily, sql: gold/daily.sql, reads: [orders], partition_by: event_date{freeze}{more}}}"
    return f"{SHOP}{ORDERS}gold:\n  tables:\n  - {table}\n"


class Shop:
    """A lake with ten dates of orders and the gold table that is built from them, in one row a date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog: Catalog = project(folder, shop=declared(), sql=DAILY_SQL)
        self.lake = Lake(self.catalog.environment.lake)
        make(self.lake, "shop", "orders", files=1, days=10)
        self.build()

    def declare(self, text: str) -> None:
        self.catalog = project(self.folder, shop=text, sql=DAILY_SQL)

    def plan(self, *, now: dt.datetime = NOW, **options: Any) -> TableJob:
        spec = self.catalog.pipeline("shop")
        (table,) = spec.gold.tables
        inputs = pin_inputs(self.lake, spec, table.reads)
        return plan_job(self.catalog, spec, self.lake, table, inputs, key=DAILY_KEY, now=now, **options)

    def build(self, **options: Any) -> list[int]:
        """Commits a planned build and returns the numbers of the rebuilt dates."""
        job = self.plan(**options)
        if not job.plan.has_work:
            return []
        recorded = job.previous_build
        origin: Mapping[str, Any] = {
            BUILT_FROM: dict(job.built_from if recorded is None else recorded.versions),
            FINGERPRINT: job.fingerprint,
            LATE_ROWS: dict(job.late_rows),
        }
        metadata = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", **origin)
        answer = planned_answer(self.lake, job.plan, job.sql, job.inputs, None)
        condition = None if job.plan.full else job.plan.output.condition("event_date", "").replace("`", "")
        if condition is not None:
            condition = condition.replace("DATE'", "'")
        write_deltalake(
            self.lake.storage.uri(DAILY_KEY).removeprefix("file://"),
            answer,
            mode="overwrite",
            partition_by=["event_date"],
            predicate=condition,
            commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata}),
        )
        return sorted((date - FIRST).days for date in answer.column("event_date").to_pylist())

    def counts(self) -> dict[int, int]:
        rows = present(self.lake.rows(DAILY_KEY)).to_pylist()
        return {(row["event_date"] - FIRST).days: row["n"] for row in rows}

    def late(self) -> dict[int, int]:
        return {number_of(date): rows for date, rows in self.plan().missing_late_rows.items()}


def number_of(date: str) -> int:
    return (dt.date.fromisoformat(date) - FIRST).days


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_late_rows_of_frozen_dates_are_counted_and_rebuild_nothing(shop: Shop) -> None:
    append(shop.lake, ORDERS_KEY, 1, days=[1, 4, 5])

    assert shop.build() == [5]
    assert (shop.counts()[1], shop.counts()[4], shop.counts()[5]) == (10, 10, 20)
    assert shop.late() == {1: 10, 4: 10}

    append(shop.lake, ORDERS_KEY, 2, days=[1])
    assert shop.build() == [], "the table is not written for them"
    assert shop.late() == {1: 30, 4: 10}
    append(shop.lake, ORDERS_KEY, 1, days=[9])
    assert shop.build() == [9]
    assert shop.late() == {1: 30, 4: 10}, "none is counted again"
    assert read_built_from(shop.lake, DAILY_KEY).late_rows == {str(FIRST + dt.timedelta(days=1)): 30, "2026-01-05": 10}


def test_without_frozen_after_late_rows_rebuild_their_date(shop: Shop) -> None:
    shop.declare(declared(""))
    append(shop.lake, ORDERS_KEY, 1, days=[1])

    assert shop.build() == [1]
    assert shop.late() == {}


def test_a_removal_rebuilds_a_frozen_date_with_its_late_rows(shop: Shop) -> None:
    append(shop.lake, ORDERS_KEY, 1, days=[1, 2])
    assert shop.build() == []
    present(shop.lake.open(ORDERS_KEY)).delete("event_date = '2026-01-02' AND id = 'id0'")

    assert shop.build() == [1], "nobody's erased rows stay in a frozen answer"
    assert shop.counts()[1] == 18
    assert shop.late() == {2: 10}


def test_a_requested_date_is_rebuilt_and_its_rows_are_not_counted_again(shop: Shop) -> None:
    append(shop.lake, ORDERS_KEY, 1, days=[1, 2])

    assert shop.build(dates=frozenset([FIRST + dt.timedelta(days=1)])) == [1]
    assert (shop.counts()[1], shop.late()) == (20, {2: 10})
    append(shop.lake, ORDERS_KEY, 1, days=[1, 9])
    assert shop.late() == {1: 10, 2: 10}
    assert shop.build() == [9]
    assert shop.late() == {1: 10, 2: 10}
    assert shop.build(full=True) == list(range(10))
    assert (shop.counts()[1], shop.late()) == (30, {})


def test_a_date_that_is_no_longer_frozen_gets_its_late_rows(shop: Shop) -> None:
    append(shop.lake, ORDERS_KEY, 1, days=[1, 4, 9])
    assert shop.build() == [9]
    shop.declare(declared("7d"))

    assert shop.build() == [4], "date 4 ended less than seven days ago, and date 1 did not"
    assert shop.late() == {1: 10}
    shop.declare(declared(""))
    assert shop.build() == [1]


def test_what_the_look_without_spark_finds_is_recorded_for_pages(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltaworks.gold.table_build.utc_now", lambda: NOW)
    append(shop.lake, ORDERS_KEY, 1, days=[1])

    (result,) = pending_gold(shop.catalog, "shop")
    stored = present(shop.lake.objects.get(paths.gold_state("shop", "daily")))

    assert (result.spark_work_count, result.reason.endswith("1 of the affected date(s) are frozen")) == (0, True)
    assert late_rows_of(json.loads(stored.data)) == {"2026-01-02": 10}


@pytest.mark.parametrize("now", [NOW, NOW + dt.timedelta(days=1)])
def test_a_date_is_frozen_when_it_ended_so_long_ago(now: dt.datetime) -> None:
    table = GoldTableSpec.model_validate(
        {"name": "daily", "sql": "x.sql", "reads": ["events"], "partition_by": "event_date", "frozen_after": "5d"}
    )

    assert table.frozen_before(now) == now.date() - dt.timedelta(days=5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (declared("12h"), "the shortest duration is 1d"),
        (declared("30"), "write a duration with its unit"),
        (declared("5d", ", affects: all"), "only dates can be frozen"),
        (declared("5d", ", refresh: full"), "remove one of the two"),
    ],
)
def test_a_declaration_that_cannot_freeze_dates_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        project(tmp_path, shop=text, sql=DAILY_SQL).pipeline("shop")


@pytest.mark.parametrize("text", ["1s", "90s", "15m", "6h", "36h", "30d"])
def test_a_duration_is_written_as_it_was_declared(text: str) -> None:
    assert describe_duration(parse_duration(text)) == text


def test_grain_tables_freeze_the_hours_of_a_date(shop: Shop) -> None:
    from deltaworks.gold.plan import plan_rebuild
    from deltaworks.tables.changes import Changes

    table = GoldTableSpec.model_validate(
        {
            "name": "minutes",
            "sql": "x.sql",
            "reads": ["events"],
            "partition_by": "event_date",
            "grain": {"column": "minute"},
            "affects": {"hours": [0, 1]},
            "frozen_after": "5d",
        }
    )
    old, new = ((("event_date", f"2026-01-{day:02}"),) for day in (4, 8))
    hours = {
        old: frozenset([dt.datetime(2026, 1, 4, 23, tzinfo=dt.UTC)]),
        new: frozenset([dt.datetime(2026, 1, 8, 3, tzinfo=dt.UTC)]),
    }
    changes = Changes(frozenset([old, new]), hours=hours, added_rows={old: 7, new: 1})

    plan = plan_rebuild(table, {"events": changes}, None, frozen_before=dt.date(2026, 1, 5))

    assert plan.late_rows == ((dt.date(2026, 1, 4), 7),)
    assert sorted(hour.isoformat() for hour in plan.output_hours) == [
        "2026-01-05T00:00:00+00:00",
        "2026-01-08T03:00:00+00:00",
        "2026-01-08T04:00:00+00:00",
    ]
