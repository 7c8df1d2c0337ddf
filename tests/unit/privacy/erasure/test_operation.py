"""The erase operation: dry runs count, and rows are purged at night unless requested otherwise."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control import clock
from deltaworks.control.listing import Listing
from deltaworks.control.provenance import PERSON_VARIABLE, RUN_VARIABLE
from deltaworks.errors import ConfigError
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


@pytest.fixture
def shared(lake: PeopleLake) -> PeopleLake:
    """Five players with one email."""
    email = lake.token("email", "all@example.org")
    lake.identities(*((lake.token("player", f"player{number}"), "email", email) for number in range(5)))
    return lake


def texts(report: Report) -> str:
    return "\n".join(part for part in report.parts if not isinstance(part, Listing))


def test_a_dry_run_shows_how_many_subjects_a_request_erases_and_spares(shared: PeopleLake) -> None:
    ask(shared, "player", "ann")
    ask(shared, "email", "all@example.org")

    shown = texts(run(shared))

    assert shown.count("It erases 1 subject:") == 2
    assert "it spares 5 subjects:" in shown
    assert shared.token("player", "player1") in shown


def test_the_triggering_user_of_the_dag_confirms_a_request(shared: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(shared, "email", "all@example.org")
    run(shared, dry_run=False)
    assert request_of(shared, request).state == "resolved"
    monkeypatch.setenv(RUN_VARIABLE, "players__erase/manual__1/erase/1")
    monkeypatch.setenv(PERSON_VARIABLE, "tests")
    with pytest.raises(ConfigError, match="ERASURE_NOT_CONFIRMED"):
        run(shared, dry_run=False, confirm=(request.request_id,))
    monkeypatch.setenv(PERSON_VARIABLE, "grace")

    run(shared, dry_run=False, confirm=(request.request_id,), window="never")

    confirmed = request_of(shared, request)
    assert (confirmed.state, confirmed.is_confirmed) == ("shredded", True)
    assert [step.by for step in confirmed.steps if step.state == "confirmed"] == ["grace"]


def test_a_dry_run_confirms_nothing(shared: PeopleLake) -> None:
    request = ask(shared, "email", "all@example.org")
    run(shared, dry_run=False)

    run(shared, confirm=(request.request_id,))

    assert not request_of(shared, request).is_confirmed


def test_an_unknown_request_is_not_confirmed(lake: PeopleLake) -> None:
    with pytest.raises(ConfigError, match="ERASURE_UNKNOWN"):
        run(lake, dry_run=False, confirm=("e20260101-0000000000",))
