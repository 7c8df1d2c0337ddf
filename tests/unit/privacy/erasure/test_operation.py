"""The erase operation: dry runs count, and rows are purged at night unless requested otherwise."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control import clock
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.privacy import EraseOptions, erase
from deltaworks.operations.registry import get_operation
from tests.unit.privacy.erasure.people_lake import PeopleLake
from tests.unit.privacy.erasure.test_erasure_run import ask, request_of


@pytest.fixture
def lake(tmp_path: Path) -> PeopleLake:
    lake = PeopleLake(tmp_path)
    lake.orders(("ann", None, None, 1), ("bob", None, None, 2))
    return lake


def run(lake: PeopleLake, **options: object) -> Report:
    context = OperationContext(operation=get_operation("erase"), catalog=lake.catalog, subject="players")
    return erase(context, EraseOptions.model_validate(options))


def test_a_dry_run_counts_rows_and_dates_by_table(lake: PeopleLake) -> None:
    request = ask(lake, "player", "ann")
    (counted,) = run(lake).results
    shown = (counted.table, counted.rows, counted.first_date)  # type: ignore[attr-defined]
    assert shown == ("orders", 1, "2026-03-01")
    assert request_of(lake, request).state == "received"
    assert lake.amounts() == [1, 2]


@pytest.mark.parametrize(("hour", "state"), [(3, "purged"), (14, "shredded")])
def test_rows_are_purged_at_night(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch, hour: int, state: str) -> None:
    request = ask(lake, "player", "ann")
    at = dt.datetime.now(dt.UTC).replace(hour=hour)
    monkeypatch.setattr(clock, "utc_now", lambda: at)
    run(lake, dry_run=False)
    assert request_of(lake, request).state == state


def test_rows_are_purged_immediately_on_request(lake: PeopleLake) -> None:
    ask(lake, "player", "ann")
    run(lake, dry_run=False, window="now")
    assert lake.amounts() == [2]
