"""The dashboard of the games pipeline shows its gold tables."""

from __future__ import annotations

import datetime as dt
import shutil
from decimal import Decimal

import pytest

from deltaworks.charts.drawing import Span
from deltaworks.dashboards.answers import DashboardAnswer, answer_dashboard
from deltaworks.dashboards.page import dashboard_page
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.checks.project import check_project
from deltaworks.testing import RELAY, load_project
from tests.unit.dashboards.dashboard_harness import put

FIRST = dt.date(2024, 3, 1)
DAYS = [FIRST + dt.timedelta(days=number) for number in range(9)]
SPAN = Span(dt.datetime(2024, 3, 2, tzinfo=dt.UTC), dt.datetime(2024, 3, 10, tzinfo=dt.UTC))


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The declared pipeline with gold tables of nine dates."""
    root = tmp_path_factory.mktemp("games")
    include = root / "project" / "include"
    shutil.copytree(PROJECT_ROOT / "include" / "pipelines" / "games", include / "pipelines" / "games")
    catalog = load_project(root / "project", lake=root, relays=[RELAY | {"buckets": ["deltaworks-landing"]}])
    hours = [(day, dt.datetime.combine(day, dt.time(hour), tzinfo=dt.UTC)) for day in DAYS for hour in range(24)]
    rows = {
        "daily_active_users": [{"event_date": day, "users": 100 + day.day} for day in DAYS],
        "bookings_per_hour": [
            {"event_date": day, "hour": hour, "bookings": Decimal("2.50"), "purchases": 1} for day, hour in hours
        ],
        "bookings_per_country": [
            {"event_date": day, "country": country, "bookings": Decimal(amount), "purchases": 4}
            for day in DAYS
            for country, amount in (("DE", "20.00"), ("US", "30.00"), ("JP", "10.00"))
        ],
        "events_per_hour": [
            {"event_date": day, "hour": hour, "event_name": name, "events": 10}
            for day, hour in hours
            for name in ("install", "purchase")
        ],
        "retention": [
            {
                "cohort_date": day,
                "installs": 50,
                "retained_day_1": 20 if day < DAYS[-1] else None,
                "retained_day_7": 5 if day.day < 3 else None,
            }
            for day in DAYS
        ],
    }
    for table, content in rows.items():
        put(catalog, table, content, "games")
    return catalog


@pytest.fixture(scope="module")
def kpis(games: Catalog) -> DashboardAnswer:
    dashboard = next(one for one in games.pipelines["games"].dashboards if one.name == "kpis")
    return answer_dashboard(games, "games", dashboard, SPAN)


def test_the_dashboard_is_valid(games: Catalog) -> None:
    assert check_project("local", root=games.root).errors == []


def test_every_panel_has_rows_of_the_requested_dates(kpis: DashboardAnswer) -> None:
    rows = {panel.panel.title: panel.rows for panel in kpis.panels}

    assert {(panel.problem, panel.missing_tables) for panel in kpis.panels} == {("", ())}
    assert rows["Daily active users"] == tuple((day, 100 + day.day) for day in DAYS[1:])
    assert rows["Bookings of the day"] == tuple((day, Decimal("60.00"), 24) for day in DAYS[1:])
    assert [row[1] for row in rows["Bookings per active user"]] == pytest.approx(
        [60 / (100 + day.day) for day in DAYS[1:]]
    )
    assert rows["Bookings by country"] == tuple(
        (name, Decimal(total)) for name, total in (("US", 240), ("DE", 160), ("JP", 80))
    )
    assert rows["Retention by date of installation"][0] == (DAYS[1], 40.0, 10.0)
    assert rows["Retention by date of installation"][-1] == (DAYS[-1], None, None)
    assert rows["Events by type"][0][2] == 240
    assert len(rows["Events by type"]) == 8 * 2
    assert rows["Cohorts"][0][0] == DAYS[-1]


def test_every_panel_is_drawn_with_its_age(kpis: DashboardAnswer) -> None:
    page = dashboard_page(kpis)

    assert "failed" not in page.partition("</style>")[2]
    assert page.count(">data to 2024-03-") == len(kpis.panels)
    assert ">109<small>2024-03-09</small>" in page
