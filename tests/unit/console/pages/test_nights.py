"""Maintenance runs: outcome, rewritten and deleted data, and skipped work with its reason."""

from __future__ import annotations

import pytest

from deltaworks.control.paths import nights_summary
from deltaworks.control.summaries.jobs import NightResult, NightTask
from tests.console_harness import ConsoleHarness
from tests.unit.console.summaries_harness import night, put_nights


def test_a_night_shows_rewritten_deleted_and_skipped_data(harness: ConsoleHarness) -> None:
    put_nights(harness.objects, "games", night("r1"))
    shown = harness.view("/nights/games")
    page = harness.get("/nights/games").text

    chosen = shown["selected"]
    assert (chosen["state"], chosen["rewritten_files"], chosen["freed_files"]) == ("complete", 4_102, 22)
    assert chosen["freed_bytes"] == 12 * 10**9, "what was only counted was not freed"
    assert chosen["put_off"] == 2
    assert "stream crm stands at v640" in page
    assert "2 deferred for lack of time" in page


def test_a_failed_night_comes_first_and_names_its_task(harness: ConsoleHarness) -> None:
    put_nights(harness.objects, "edits", night("r1"))
    put_nights(harness.objects, "games", night("r2", failed="vacuum_tables"))
    shown = harness.view("/nights")["listed"]["rows"]

    assert [(row["pipeline"], row["state"]) for row in shown] == [("games", "failed"), ("edits", "complete")]
    assert "failed, vacuum_tables" in harness.get("/nights").text


def test_an_earlier_night_is_shown_by_its_run(harness: ConsoleHarness) -> None:
    put_nights(harness.objects, "games", night("r2"), night("scheduled__2026-03-01T02:10:00+00:00", seconds_ago=90_000))
    page = harness.get("/nights/games").text

    address = "/nights/games?run=scheduled__2026-03-01T02%3A10%3A00%2B00%3A00"
    assert f'href="{address}"' in page
    assert harness.view(address)["selected"]["run"].startswith("scheduled__")
    assert harness.get("/nights/games?run=none").status_code == 404


def test_a_person_sees_only_visible_pipelines(harness: ConsoleHarness) -> None:
    put_nights(harness.objects, "games", night("r1"))

    assert harness.view("/nights", by="eve")["listed"]["total"] == 0
    assert harness.get("/nights/games", by="eve").status_code == 404


@pytest.mark.parametrize("torn", [b"", b"{", b"[]", b"null", b'{"format": 99}', b"\xff\xfe"])
def test_a_damaged_summary_is_a_message_on_the_page(harness: ConsoleHarness, torn: bytes) -> None:
    harness.objects.put(nights_summary("games"), torn)

    assert harness.view("/nights")["problems"]
    assert harness.view("/nights/games")["problem"]
    assert harness.get("/nights/games").status_code == 200


def test_invalid_instants_are_none(harness: ConsoleHarness) -> None:
    put_nights(harness.objects, "games", night("r1", started_at="soon", ended_at=""))

    assert harness.view("/nights/games")["selected"]["seconds"] is None
    assert harness.get("/nights/games").status_code == 200


def test_before_the_first_night_the_page_has_a_message(harness: ConsoleHarness) -> None:
    assert "No maintenance run is recorded yet" in harness.get("/nights/games").text
    assert harness.view("/nights")["missing"] == ["edits", "games"]


def test_results_without_work_are_folded(harness: ConsoleHarness) -> None:
    idle = tuple(NightResult(subject=f"table_{number}", reason="nothing to do: one file") for number in range(38))
    busy = NightResult(subject="level_fail", files=8, files_after=1, bytes=40_000, reason="8 small files")
    failed = NightTask(task="vacuum_tables", state="failed", seconds=3, error="[DATA_FILE] a file is broken")
    tasks = (NightTask(task="optimize_tables", state="success", seconds=9, results=(*idle, busy)), failed)
    put_nights(harness.objects, "games", night("r1").replace(tasks=tasks, failed=("vacuum_tables",)))

    page = harness.get("/nights/games").text

    folded = page.partition("<details")[2].partition("</details>")[0]
    assert "<summary>38 with nothing to do</summary>" in page
    assert folded.count("nothing to do: one file") == 38
    assert "level_fail" not in folded
    assert page.index("a file is broken") < page.index("<h2>"), "what failed stands first"
