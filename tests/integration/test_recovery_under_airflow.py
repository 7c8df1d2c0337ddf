"""Recovery operations by Airflow's forms: reprocess by batches, time and from the start, restore, and clean."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest

from deltaworks.operations.registry import get_operation
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.specs.dag_ids import dag_id
from deltaworks.testing import present
from tests.integration.airflow_harness import wait
from tests.integration.airflow_people import People
from tests.integration.games_project import JOB_SECONDS, MISTAKEN, UNCLAIMED, UNFIT, GamesProject, running_games

pytestmark = pytest.mark.timeout(600)
REPROCESS, BACK = (get_operation(name).dag_id("games") for name in ("reprocess", "restore"))
CLEAN = dag_id("landing", "clean")


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GamesProject]:
    with running_games(tmp_path_factory.mktemp("project")) as games:
        games.check()
        games.mend()
        yield games


@pytest.fixture
def people(games: GamesProject) -> Iterator[People]:
    with games.people() as people:
        yield people


def test_a_reprocess_into_a_shadow_counts_first_and_keeps_the_tables(games: GamesProject, people: People) -> None:
    before = games.versions()
    form = {"from_start": True, "shadow": True, "tables": list(MISTAKEN), "exact": True}
    people.run(REPROCESS, "counted", form, seconds=JOB_SECONDS)
    (count,) = people.results(REPROCESS, "counted", "reprocess")
    rows = {table: games.owed(table).total() for table in MISTAKEN}
    assert {table["table"]: table["rows_in"] for table in count["tables"]} == rows
    assert games.versions() == before

    people.run(REPROCESS, "shadow", form | {"dry_run": False, "id": "beside"}, seconds=JOB_SECONDS)

    games.check()
    assert games.versions() == before
    for table in MISTAKEN:
        assert games.rows(f"{table}__beside") == games.owed(table, read_again=games.keys)


def test_only_selected_batches_are_reprocessed_in_place(games: GamesProject, people: People) -> None:
    # Nothing is replaced if the declaration differs from the stream's.
    games.restart(people)
    keys = games.keys_of_batches(0, 0)
    assert keys < games.keys

    people.run(REPROCESS, "batches", {"batches": "0", "dry_run": False}, seconds=JOB_SECONDS)

    games.note_read_again(keys)
    games.check()


def test_objects_of_a_date_are_reprocessed_and_the_table_is_restored(games: GamesProject, people: People) -> None:
    dates = sorted({event.date for event in games.landed})
    keys = frozenset(event.key for event in games.landed if event.date == dates[1])
    before, then = games.read_again["session_start"], datetime.now(UTC)
    assert games.keys > keys > before & keys

    form = {"events": f"{dates[1]}..{dates[1]}", "dry_run": False}
    people.run(REPROCESS, "events", form, seconds=JOB_SECONDS)
    games.note_read_again(keys)
    games.check()

    back = {"table": "session_start", "to_time": then.isoformat(), "repair": "none", "dry_run": False}
    people.trigger(BACK, conf=back, run_id="back")
    wait(lambda: _state(people, "back", "approve") == "awaiting_input", "nobody is asked", JOB_SECONDS)
    games.check()
    people.answer(BACK, "back", "approve", "Approve")
    assert people.wait_for_run(BACK, "back", timeout_seconds=JOB_SECONDS).state == "success"

    games.read_again["session_start"] = before
    games.check()


def test_a_complete_reprocess_in_place_applies_the_current_declaration(games: GamesProject, people: People) -> None:
    assert games.rows("events") != games.owed("events", read_again=games.keys)

    people.run(REPROCESS, "everything", {"from_start": True, "dry_run": False}, seconds=JOB_SECONDS)

    games.note_read_again(games.keys)
    games.check()


def test_only_old_landed_objects_without_readers_are_removed(games: GamesProject, people: People) -> None:
    landing = games.landing
    old = _age(games, date(2024, 3, 2)) | {UNFIT, UNCLAIMED}
    removable = old - {UNFIT, UNCLAIMED}
    assert landing == games.keys | {UNFIT, UNCLAIMED}
    assert games.keys > removable > frozenset()

    people.run(CLEAN, "counted", {}, seconds=JOB_SECONDS)
    (count,) = people.results(CLEAN, "counted", "clean_source")
    assert (count["removed"], count["in_quarantine"], count["without_reader"]) == (len(removable), 1, 1)
    assert games.landing == landing

    people.run(CLEAN, "removed", {"dry_run": False}, seconds=JOB_SECONDS)
    assert games.landing == landing - removable
    games.check()


def _state(people: People, run_id: str, task_id: str) -> str | None:
    return next(task.state for task in people.task_instances(BACK, run_id) if task.task_id == task_id)


def _age(games: GamesProject, before: date) -> frozenset[str]:
    """Makes objects that landed for earlier dates, and those next to them, a month old."""
    log = present(games.lake.open(file_events_key("landing")))
    prefixes = [f"games/{before - timedelta(days=days):%Y/%m/%d}/" for days in range(1, 4)]
    beside = f"key IN ('{UNFIT}', '{UNCLAIMED}')"
    chosen = " OR ".join([*(f"key LIKE '{prefix}%'" for prefix in prefixes), beside])
    log.update(predicate=chosen, updates={"received_at": "received_at - INTERVAL '30 days'"})
    return frozenset(key for key in games.keys if key.startswith(tuple(prefixes)))
