"""Costs: a lower estimate of recent usage, priced if prices are declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.console.pages.costs import estimate_cost
from deltaworks.control.paths import nights_summary, stream_hours, tables_summary
from deltaworks.control.summaries.stream import HourSummary, StreamHours
from deltaworks.specs.environment import PricesSpec
from tests.console_harness import ConsoleHarness, console_harness
from tests.unit.console.summaries_harness import at, night, put_nights, put_tables, table

PRICES = "prices: {currency: EUR, stored_per_tb_month: 20, rewritten_per_tb: 5, core_hour: 0.05}\n"
DAY = 86_400


def put_hours(harness: ConsoleHarness, *ages: float) -> None:
    hours = tuple(HourSummary(at=at(age), batches=60, bytes=10**9, busy_seconds=1_800) for age in ages)
    harness.objects.put(stream_hours("games"), StreamHours(pipeline="games", written_at=at(), hours=hours).encode())


def test_usage_older_than_thirty_days_does_not_count(harness: ConsoleHarness) -> None:
    put_hours(harness, 60 * DAY, 29 * DAY, 2 * DAY, 3_600)
    put_nights(harness.objects, "games", night("r1"), night("r0", seconds_ago=40 * DAY))
    (row,) = harness.view("/costs")["listed"]["rows"]

    assert (row["batches"], row["read_bytes"], row["rewritten_bytes"]) == (180, 3 * 10**9, 38 * 10**9)
    cores = max(1, harness.catalog.environment.shares.of("stream").cores)
    assert row["stream_core_hours"] == 1.5 * cores
    assert sum(row["seconds_by_day"]) == 3 * 1_800


def test_without_prices_no_cost_is_calculated(harness: ConsoleHarness) -> None:
    put_hours(harness, 3_600)
    shown = harness.view("/costs")

    assert (shown["total"], shown["listed"]["rows"][0]["total"]) == (None, None)
    assert "declares no <code>prices</code>" in harness.get("/costs").text


def test_with_prices_the_most_expensive_pipeline_comes_first(project: Path) -> None:
    environment = project / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text() + PRICES)
    harness = console_harness(project)
    put_tables(harness.objects, "edits", table("changes", bytes=10**12, unreferenced_bytes=0))
    put_tables(harness.objects, "games", table("events", bytes=3 * 10**12, unreferenced_bytes=10**12))
    shown = harness.view("/costs")

    assert [(row["pipeline"], row["total"]) for row in shown["listed"]["rows"]] == [("games", 80.0), ("edits", 20.0)]
    assert (shown["total"], shown["currency"]) == (100.0, "EUR")


def test_the_cost_is_the_sum_of_the_usage() -> None:
    prices = PricesSpec(currency="USD", stored_per_tb_month=20, rewritten_per_tb=5, core_hour=0.5)

    assert estimate_cost(prices, stored=2 * 10**12, rewritten=10**12, core_hours=10) == 40 + 5 + 5


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe"])
@pytest.mark.parametrize("key", [stream_hours("games"), tables_summary("games"), nights_summary("games")])
def test_a_damaged_summary_breaks_no_page(harness: ConsoleHarness, key: str, torn: bytes) -> None:
    harness.objects.put(key, torn)

    assert harness.get("/costs").status_code == 200


def test_a_person_sees_only_visible_pipelines(harness: ConsoleHarness) -> None:
    put_hours(harness, 3_600)

    assert harness.view("/costs", by="eve")["listed"]["total"] == 0
