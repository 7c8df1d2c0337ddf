"""The sessions of the exchange, by its rules."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from generator.trading_days import sessions, write_calendar


def test_the_file_of_the_pipeline_is_what_the_rules_give(tmp_path: Path) -> None:
    assert write_calendar(tmp_path / "xnys.csv") == 7_041

    shipped = PROJECT_ROOT / "include" / "pipelines" / "stocks" / "reference" / "xnys.csv"
    assert shipped.read_text() == (tmp_path / "xnys.csv").read_text()


@pytest.mark.parametrize(
    ("year", "count"), [(2001, 248), (2008, 253), (2012, 250), (2018, 251), (2022, 251), (2024, 252), (2025, 250)]
)
def test_a_year_has_so_many_sessions(year: int, count: int) -> None:
    assert sum(1 for _ in sessions(date(year, 1, 1), date(year, 12, 31))) == count


@pytest.mark.parametrize(
    ("day", "hours"),
    [
        (date(2024, 3, 8), ("14:30", "21:00")),
        (date(2024, 3, 11), ("13:30", "20:00")),  # summer time began
        (date(2024, 7, 3), ("13:30", "17:00")),
        (date(2024, 11, 29), ("14:30", "18:00")),
        (date(2024, 12, 24), ("14:30", "18:00")),
        (date(2020, 7, 2), ("13:30", "20:00")),
        (date(2010, 12, 31), ("14:30", "21:00")),  # New Year's Day was a Saturday
    ],
)
def test_a_session_opens_and_closes_in_new_york(day: date, hours: tuple[str, str]) -> None:
    (session,) = sessions(day, day)

    opens, closes = (datetime.fromisoformat(f"{day}T{hour}:00").replace(tzinfo=UTC) for hour in hours)
    assert (session.opens_at, session.closes_at) == (opens, closes)


@pytest.mark.parametrize(
    "day",
    ["2024-03-29", "2021-12-24", "2022-06-20", "2023-01-02", "2012-10-29", "2001-09-12", "2024-05-27", "2020-07-03"],
)
def test_a_holiday_has_no_session(day: str) -> None:
    assert list(sessions(date.fromisoformat(day), date.fromisoformat(day))) == []
