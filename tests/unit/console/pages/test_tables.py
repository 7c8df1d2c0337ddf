"""Tables: sorted, filtered and paged by the address; the page of a table."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from deltaworks.console.pages import table as table_page
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import tables_summary
from deltaworks.control.summaries.rule_warnings import RuleWarningsCounter
from deltaworks.maintenance.table_health.catalog_tables import declared_tables
from deltaworks.specs.catalog import Catalog
from tests.console_harness import ConsoleHarness, console_harness, page_context
from tests.unit.console.summaries_harness import held_by, put_tables, table


def names(harness: ConsoleHarness, address: str = "/tables", *, by: str = "ada") -> list[str]:
    return [f"{row['pipeline']}.{row['name']}" for row in harness.view(address, by=by)["listed"]["rows"]]


@pytest.fixture
def tables(harness: ConsoleHarness) -> ConsoleHarness:
    put_tables(
        harness.objects,
        "games",
        table("events", score=41),
        table("items", score=100, costs=(), bytes=7),
        table("torn", score=None, costs=(), bytes=None, error="DeltaError: no log"),
    )
    put_tables(
        harness.objects, "edits", table("changes", score=90, bytes=9), table("new", score=None, bytes=None, costs=())
    )
    return harness


def test_the_lowest_scores_come_first_and_tables_without_a_score_last(tables: ConsoleHarness) -> None:
    assert names(tables) == ["games.torn", "games.events", "edits.changes", "games.items", "edits.new"]


@pytest.mark.parametrize(
    ("query", "first"),
    [("sort=size", "games.items"), ("sort=size&order=down", "games.events"), ("sort=table&order=down", "games.torn")],
)
def test_the_address_says_how_they_are_sorted(tables: ConsoleHarness, query: str, first: str) -> None:
    assert names(tables, f"/tables?{query}")[0] == first


def test_a_header_sorts_by_its_column_and_then_reverses(tables: ConsoleHarness) -> None:
    page = tables.get("/tables?only=games&sort=size").text

    assert 'aria-sort="ascending"><a href="/tables?only=games&amp;sort=size&amp;order=down"' in page
    assert 'href="/tables?only=games&amp;sort=table&amp;order=up"' in page


def test_all_words_of_the_filter_must_match(tables: ConsoleHarness) -> None:
    assert names(tables, "/tables?only=GAMES+ev") == ["games.events"]
    assert names(tables, "/tables?only=nothing+like+it") == []
    assert "No table matches." in tables.get("/tables?only=nothing+like+it").text


def test_a_hundred_are_on_a_page(harness: ConsoleHarness) -> None:
    put_tables(harness.objects, "games", *(table(f"t{number:04d}", score=50) for number in range(300)))
    shown = harness.view("/tables?page=3&sort=table")["listed"]

    assert (len(shown["rows"]), shown["pages"], shown["total"]) == (100, 3, 300)
    assert shown["rows"][0]["name"] == "t0200"
    assert 'rel="prev"' in harness.get("/tables?page=3&sort=table").text
    for page in ("-1", "11", "²", "9" * 30):
        assert len(harness.view(f"/tables?page={page}")["listed"]["rows"]) == 100


def test_a_person_sees_the_tables_of_visible_pipelines(tables: ConsoleHarness) -> None:
    assert names(tables, by="eve") == ["edits.changes", "edits.new"]
    assert tables.view("/tables", by="eve")["listed"]["total"] == 2
    assert tables.get("/tables/games/events", by="eve").status_code == 404
    assert "games" not in tables.get("/tables", by="eve").text


def test_pipelines_without_a_snapshot_are_named(harness: ConsoleHarness) -> None:
    put_tables(harness.objects, "games", table("events"))

    assert harness.view("/tables")["missing"] == ["edits"]


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe"])
def test_a_damaged_summary_is_a_message_on_the_page(tables: ConsoleHarness, torn: bytes) -> None:
    tables.objects.put(tables_summary("games"), torn)
    shown = tables.view("/tables")

    assert [problem.split(":")[0] for problem in shown["problems"]] == ["games"]
    assert names(tables) == ["edits.changes", "edits.new"]
    assert tables.get("/tables/games/events").status_code == 200, "a declared table has a page"
    assert tables.get("/tables/games/none").status_code == 404


def test_a_table_page_shows_score_sizes_plan_and_holders(harness: ConsoleHarness) -> None:
    put_tables(harness.objects, "games", table("events", holds=held_by("the stream of crm")))
    shown = harness.view("/tables/games/events")
    page = harness.get("/tables/games/events").text

    assert [cost["name"] for cost in shown["costs"]] == ["order", "log"]
    assert shown["sizes"][0] == ["below 1.0 MB", 10]
    assert shown["sizes"][-1] == ["1.1 GB or more", 1]
    assert [hold["by"] for hold in shown["holds"]] == ["the stream of crm"]
    assert "400 files fewer" in page
    assert "the stream of crm" in page
    assert "deltaworks vacuum games --tables events" in page
    assert page.count("<svg") >= 3


def test_a_table_that_cannot_be_read_has_a_page_with_its_error(tables: ConsoleHarness) -> None:
    page = tables.get("/tables/games/torn")

    assert page.status_code == 200
    assert "DeltaError: no log" in page.text


def test_deferred_partitions_are_shown(harness: ConsoleHarness) -> None:
    plan = table("events").next_plan
    assert plan is not None
    put_tables(harness.objects, "games", table("events", next_plan=plan.replace(partitions=0, deferred=3)))

    assert "3 partitions are deferred" in harness.get("/tables/games/events").text


def test_no_table_and_no_snapshot_say_what_to_do(harness: ConsoleHarness) -> None:
    put_tables(harness.objects, "edits")

    assert "deltaworks tables snapshot games" in harness.get("/tables/games/events").text
    assert "has no table" in harness.get("/tables/edits/none").text


@pytest.mark.parametrize("name", ["events", "purchase", "events_per_hour", "quarantine"])
def test_a_declared_table_has_a_page_before_it_is_measured_and_is_measured_from_there(
    harness: ConsoleHarness, name: str
) -> None:
    page = harness.get(f"/tables/games/{name}")

    assert page.status_code == 200
    assert "No snapshot of games has been taken yet" in page.text
    assert "/actions/snapshot_health/games" in page.text
    assert "/actions/snapshot_health/games" in harness.get("/tables").text


def test_every_declared_table_has_a_page_before_it_is_measured(catalog: Catalog, tmp_path: Path) -> None:
    objects, declared = LocalObjects(tmp_path), declared_tables(catalog, control=False)

    for one in declared:
        context = page_context(catalog, objects, values={"pipeline": one.owner, "table": one.name})
        assert table_page.view(context).table["kind"] == one.kind
    assert {"bronze", "gold", "live", "keyed", "reference", "quarantine"} <= {one.kind for one in declared}


def test_a_table_page_shows_its_rules_and_the_trend_of_those_that_warn(project: Path) -> None:
    file = project / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared = yaml.safe_load(file.read_text())
    name = declared["tables"][0]["name"]
    declared["tables"][0]["rules"] = [
        {"name": "dated", "check": "event_time IS NOT NULL", "on_fail": "warn", "alert_percent": 2},
        {"name": "named", "check": "event_name <> ''"},
    ]
    file.write_text(yaml.safe_dump(declared, sort_keys=False))
    harness, now = console_harness(project), utc_now()
    counter = RuleWarningsCounter(harness.objects, "games", {name: ["dated"]}, generation=1)
    for batch, (days, failed) in enumerate([(2, 1), (1, 2), (0, 30)]):
        counter.add(batch, {name: 1_000}, {f"{name}.dated": failed}, at=now - timedelta(days=days))
    counter.write(now, force=True)

    rules = harness.view(f"/tables/games/{name}")["rules"]
    page = harness.get(f"/tables/games/{name}").text

    assert [(rule["name"], rule["on_fail"], rule["shares"]) for rule in rules] == [
        ("dated", "warn", [0.001, 0.002, 0.03]),
        ("named", "quarantine", []),
    ]
    assert (rules[0]["last_hour"]["failed"], rules[0]["last_hour"]["rows"]) == (30, 1_000)
    assert "warn, alert above 2.0 %" in page
    assert f"dated: share of failed rows by day since {(now - timedelta(days=2)).date()}" in page
    assert "event_name &lt;&gt; &#39;&#39;" in page, "a check is shown as text"
