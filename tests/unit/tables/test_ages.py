"""Age of a table's data: newest row time and last change."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from deltalake import DeltaTable

from deltaworks.control.clock import utc_now
from deltaworks.tables.ages import TableAge, newest_row_time, table_age
from tests.unit.dashboards.dashboard_harness import START, lake_of, put, shop

TODAY = utc_now()
HOUR = dt.timedelta(hours=1)


def test_the_age_is_the_maximum_event_time_and_not_an_engine_column(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    rows = [{"_ingested_at": TODAY, "created": TODAY, "event_time": START + HOUR * number} for number in range(3)]
    key = put(catalog, "orders", rows)

    age = table_age(lake_of(catalog), key, "orders")

    assert age is not None
    assert age.newest_row_at == START + 2 * HOUR
    assert age.last_change_at is not None
    assert abs(age.last_change_at - TODAY) < 10 * HOUR


def test_a_date_counts_to_its_end_and_no_further_than_it_was_written(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    past = put(catalog, "orders", [{"event_date": START.date(), "n": 1}], partition_by=["event_date"])
    open_date = put(catalog, "errors_minute", [{"event_date": TODAY.date() + dt.timedelta(days=1), "n": 1}])

    ended, still_open = (table_age(lake_of(catalog), key, "t") for key in (past, open_date))

    assert ended is not None
    assert still_open is not None
    assert ended.newest_row_at == dt.datetime.combine(START.date() + dt.timedelta(days=1), dt.time(), tzinfo=dt.UTC)
    assert still_open.newest_row_at == still_open.last_change_at is not None


def test_a_fast_clock_does_not_put_data_into_the_future(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    key = put(catalog, "orders", [{"event_time": TODAY + 1000 * HOUR}])

    age = table_age(lake_of(catalog), key, "orders")

    assert age is not None
    assert age.newest_row_at == age.last_change_at is not None


def test_optimize_does_not_make_data_younger(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    for number in range(3):
        key = put(catalog, "orders", [{"event_time": START + HOUR * number}])
    before = table_age(lake_of(catalog), key, "orders")
    table = DeltaTable(catalog.environment.lake.uri(key))
    table.optimize.compact()

    after = table_age(lake_of(catalog), key, "orders")

    assert DeltaTable(catalog.environment.lake.uri(key)).version() == 3
    assert after == before


def test_a_table_without_times_is_as_old_as_its_last_commit(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    key = put(catalog, "orders", [{"n": 1}])

    age = table_age(lake_of(catalog), key, "orders")

    assert age is not None
    assert age.newest_row_at == age.last_change_at is not None


def test_a_missing_table_has_no_age(tmp_path: Path) -> None:
    assert table_age(lake_of(shop(tmp_path)), "tables/shop/orders", "orders") is None


@pytest.mark.parametrize(("times", "newest"), [((), None), ((None,), None), ((START, None, START - HOUR), START)])
def test_the_newest_of_several(times: tuple[dt.datetime | None, ...], newest: dt.datetime | None) -> None:
    assert newest_row_time(TableAge("t", at, None) for at in times) == newest
