"""Quarantine: open rows, their age and replay command; raw values for people who may reprocess."""

from __future__ import annotations

import html

import pytest

from deltaworks.control.paths import quarantine_summary
from tests.console_harness import ConsoleHarness
from tests.unit.console.summaries_harness import put_quarantine, rows


@pytest.fixture
def with_counts(harness: ConsoleHarness) -> ConsoleHarness:
    put_quarantine(
        harness.objects,
        "games",
        rows("type_mismatch", 1_000, event="purchase", date="2026-03-03"),
        rows("type_mismatch", 100, event="purchase", date="2026-03-01"),
        rows("unknown_event", 104, event="shop_v3"),
        other=7,
    )
    put_quarantine(harness.objects, "edits")
    return harness


def test_groups_are_summed_over_days_largest_first(with_counts: ConsoleHarness) -> None:
    shown = with_counts.view("/quarantine/games")

    assert [(kind["reason"], kind["event"], kind["rows"], kind["since"]) for kind in shown["listed"]["rows"]] == [
        ("type_mismatch", "purchase", 1_100, "2026-03-01"),
        ("unknown_event", "shop_v3", 104, "2026-03-01"),
    ]
    assert (shown["rows"], shown["other_rows"]) == (1_211, 7)
    assert dict(zip(shown["days"], shown["rows_by_day"], strict=True)) == {
        "2026-03-01": 204,
        "2026-03-02": 0,
        "2026-03-03": 1_000,
    }


def test_a_group_has_one_action_that_counts_its_replay(with_counts: ConsoleHarness) -> None:
    page = html.unescape(with_counts.get("/quarantine/games").text)

    assert 'href="/actions/replay_quarantine/games?reason=type_mismatch&event=purchase"' in page
    assert page.count("deltaworks quarantine replay") == 1, "the command for all rows"
    assert 'href="/quarantine/games?only=type_mismatch"' in page, "a link shows one reason"


def test_a_name_that_a_shell_would_read_is_quoted(harness: ConsoleHarness) -> None:
    put_quarantine(harness.objects, "games", rows("unknown_event", 1, event="a; rm -rf $HOME"))

    assert harness.view("/quarantine/games")["listed"]["rows"][0]["command"].endswith("--event 'a; rm -rf $HOME'")


def test_pipelines_with_most_open_rows_come_first_and_those_without_are_listed(with_counts: ConsoleHarness) -> None:
    shown = with_counts.view("/quarantine")

    assert [(row["pipeline"], row["rows"], row["reason"]) for row in shown["listed"]["rows"]] == [
        ("games", 1_211, "type_mismatch")
    ]
    assert shown["pipelines_without_rows"] == ["edits"]


def test_a_person_sees_only_visible_pipelines(with_counts: ConsoleHarness) -> None:
    assert with_counts.view("/quarantine", by="eve")["listed"]["total"] == 0
    assert with_counts.get("/quarantine/games", by="eve").status_code == 404


def test_samples_are_offered_to_people_who_may_reprocess(with_counts: ConsoleHarness) -> None:
    assert with_counts.view("/quarantine/games")["may_sample"]
    assert not with_counts.view("/quarantine/games", by="vic")["may_sample"]
    assert "/quarantine/games/samples" not in with_counts.get("/quarantine/games", by="vic").text


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe"])
def test_a_damaged_summary_is_a_message_on_the_page(with_counts: ConsoleHarness, torn: bytes) -> None:
    with_counts.objects.put(quarantine_summary("games"), torn)

    assert with_counts.view("/quarantine/games")["problem"]
    assert with_counts.get("/quarantine/games").status_code == 200
    assert with_counts.view("/quarantine")["problems"]


def test_a_pipeline_that_was_never_counted_says_so(harness: ConsoleHarness) -> None:
    assert harness.view("/quarantine")["missing"] == ["edits", "games"]
    assert "Nothing has been quarantined" in harness.get("/quarantine/games").text


def test_an_invalid_date_has_no_day(harness: ConsoleHarness) -> None:
    put_quarantine(harness.objects, "games", rows("malformed", 3, date="yesterday"))

    assert harness.view("/quarantine/games")["days"] == []
    assert harness.get("/quarantine/games").status_code == 200


def test_the_field_that_grew_is_a_column_of_its_group(harness: ConsoleHarness) -> None:
    missing = [
        rows("missing_required", 4_034, event="purchase", field="eventParams"),
        rows("missing_required", 2, event="purchase", field="userId"),
    ]
    put_quarantine(harness.objects, "games", *missing)

    shown = harness.view("/quarantine/games")["listed"]["rows"]

    assert [(row["field"], row["rows"]) for row in shown] == [("eventParams", 4_034), ("userId", 2)]
    assert ">eventParams<" in harness.get("/quarantine/games").text
    assert "userId" not in harness.get("/quarantine/games?only=eventParams").text
