"""The demo reports the checks that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.demo.answers import Answer
from sandbox.demo.dashboards import DashboardPage
from sandbox.demo.provenance_check import ProvenanceReport
from sandbox.demo.report import DemoReport


def report(
    *,
    is_right: bool = True,
    lists: int = 1,
    unnamed: tuple[str, ...] = (),
    health: str = "healthy",
    failed: tuple[str, ...] = (),
) -> DemoReport:
    answer = Answer("games", "bookings in all", 1, 1, is_right)
    provenance = ProvenanceReport(commits=3, tables=1, runs=frozenset({"run"}), commits_without_origin=unnamed)
    page = DashboardPage("games", "kpis", panels=3, panels_with_rows=2, failed_panels=failed, path=Path("kpis.html"))
    return DemoReport(answers=[answer], provenance=provenance, landing_lists=lists, health=health, dashboards=[page])


@pytest.mark.parametrize("lists", [0, 1])
def test_a_run_is_right_where_only_the_relay_listed_the_bucket(lists: int) -> None:
    assert report(lists=lists).is_right


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (report(is_right=False), "games: bookings in all"),
        (report(lists=2), "the landing bucket was listed 2 times"),
        (report(lists=-1), "the landing bucket was listed -1 times"),
        (report(unnamed=("bronze/a 3",)), "not every commit names its pipeline, batch and run"),
        (report(health="unhealthy"), "the streams are unhealthy"),
        (report(failed=("Bookings: no such column",)), "dashboard games kpis: Bookings: no such column"),
        (DemoReport(landing_lists=0, health="healthy"), "there are no answers"),
    ],
)
def test_what_did_not_hold_is_named(broken: DemoReport, promise: str) -> None:
    assert not broken.is_right
    assert promise in broken.failures()
