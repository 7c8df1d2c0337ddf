"""A live table of newest rows follows bronze as far back as its horizon, and forgets what lies behind it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.engine.keyed import keyed_catchup, merge, retention_window
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.keyed.retention_window import RetentionWindow
from deltaworks.errors import FencedError
from deltaworks.tables.log import commit_history
from tests.unit.engine.keyed.keyed_stage import START
from tests.unit.engine.keyed.latest_stage import NOW, LatestStage, live_declared, priced, versions


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LatestStage:
    monkeypatch.setattr(retention_window, "MIN_EXPIRY_SECONDS", 0.0)
    monkeypatch.setattr(retention_window, "EXPIRY_FRACTION", 0.0)
    return LatestStage(tmp_path)


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of bronze that are read from now on."""
    paths_read: list[str] = []
    original = keyed_catchup.read_file_rows

    def noting(lake: Any, key: str, types: Any, files: Any, *, columns: Any) -> Any:
        files = list(files)
        paths_read.extend(file["path"] for file in files)
        return original(lake, key, types, files, columns=columns)

    monkeypatch.setattr(keyed_catchup, "read_file_rows", noting)
    return paths_read


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def test_the_newest_row_of_each_key_is_kept_with_its_columns(stage: LatestStage) -> None:
    tables = stage.tables()
    stage.append([priced("a", 0, 1), priced("b", 0, 2), priced("a", 5, 3)])
    stage.follow(tables)
    stage.append([priced("a", 4, 4), priced("c", 1, 5), priced(None, 9, 6)])
    stage.follow(tables)

    assert versions(stage.latest()) == {"a": 3, "b": 2, "c": 5}
    assert stage.latest() == stage.owed()
    assert set(stage.latest()[0]) == {"symbol", "price", "version", "event_time", "_seq", "_position"}


def test_of_rows_of_one_time_the_last_to_arrive_is_kept_and_copies_do_nothing(stage: LatestStage) -> None:
    tables = stage.tables()
    stage.append([priced("a", 0, 1), priced("a", 0, 2)])
    stage.follow(tables)
    stage.append([priced("a", 0, 3, _seq=0, _position=0)])
    stage.follow(tables)
    assert versions(stage.latest()) == {"a": 2}

    stage.append([priced("a", 0, 4)])
    stage.follow(tables)
    assert versions(stage.latest()) == {"a": 4}


def test_a_row_behind_the_horizon_leaves_and_does_not_come_back(stage: LatestStage) -> None:
    tables = stage.tables()
    stage.append([priced("old", 0), priced("edge", 30), priced("new", 59)])
    stage.follow(tables)
    assert set(versions(stage.latest())) == {"edge", "new"}

    stage.append([priced("newest", 60.5)])
    stage.follow(tables)
    assert set(versions(stage.latest())) == {"new", "newest"}
    stage.append([priced("old", 1), priced("edge", 30.4), priced("edge", 30.5)])
    stage.follow(tables)
    assert set(versions(stage.latest())) == {"new", "newest", "edge"}
    assert stage.latest() == stage.owed()


def test_rows_are_forgotten_from_time_to_time_and_not_at_each_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LatestStage(tmp_path)
    tables = stage.tables()
    stage.append([priced("old", 0), priced("a", 20)])
    stage.follow(tables)
    stage.append([priced("b", 45)])
    stage.follow(tables)
    assert set(versions(stage.latest())) == {"old", "a", "b"}

    # Three minutes, a tenth of what is kept, are over.
    passed = retention_window.time.monotonic() + 181
    monkeypatch.setattr(retention_window.time, "monotonic", lambda: passed)
    assert stage.follow(tables) is None
    assert set(versions(stage.latest())) == {"a", "b"}


def test_one_clock_in_the_future_makes_the_table_forget_nothing(stage: LatestStage) -> None:
    future = dt.datetime.now(dt.UTC) + dt.timedelta(days=400)
    now = dt.datetime.now(dt.UTC)
    stage.append([{**priced("a", 0), "event_time": now}, {**priced("b", 0), "event_time": future}])
    stage.follow()

    assert set(versions(stage.latest())) == {"a", "b"}


def test_the_horizon_is_the_clock_s_where_rows_are_ahead_of_it() -> None:
    bounded = RetentionWindow(30, now=lambda: at(0))
    assert bounded.start is None

    bounded.observe_files([{"stats": '{"maxValues": {"event_time": "2026-01-01T02:00:00.000Z"}}'}, {"stats": None}])
    assert bounded.start == at(-30)
    assert RetentionWindow(None).start is None


def test_a_lost_place_costs_a_reading_of_what_is_not_to_be_forgotten(
    stage: LatestStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minutes in (0, 10, 50, 79):
        stage.append([priced("a", minutes), priced(f"at{minutes}", minutes)])
    stage.follow()
    before, read = stage.latest(), files_read(monkeypatch)
    monkeypatch.setattr(keyed_catchup, "keyed_application", lambda *names: "lost")
    followed = stage.follow()

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert len(read) == 2
    assert stage.latest() == before == stage.owed()


def test_files_whose_rows_are_all_old_are_not_read(stage: LatestStage, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = stage.tables()
    stage.append([priced("a", 100)])
    stage.follow(tables)
    read = files_read(monkeypatch)
    stage.append([priced("b", 10), priced("c", 69)])
    stage.append([priced("d", 70)])
    stage.follow(tables)

    assert len(read) == 1
    assert stage.latest() == stage.owed()


def test_rows_that_are_taken_out_of_bronze_are_taken_out_here(stage: LatestStage) -> None:
    tables = stage.tables()
    stage.append([priced("a", 10, 1), priced("b", 10, 2)])
    stage.append([priced("a", 20, 3)])
    for minutes in range(6):
        stage.append([priced("c", minutes, 9)])
    stage.follow(tables)
    stage.history().delete("version IN (2, 3)")
    followed = stage.follow(tables)

    assert followed is not None
    assert followed.mode == "exact"
    assert versions(stage.latest()) == {"a": 1, "c": 9}


def test_small_files_are_made_one_by_the_thread_that_merges(
    stage: LatestStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_window, "MAX_FILES", 4)
    tables = stage.tables()
    for number in range(9):
        stage.append([priced(f"s{number}", number)])
        stage.follow(tables)

    assert len(stage.latest_table(NOW).file_uris()) < 4
    assert stage.latest() == stage.owed()
    # Its next owner goes on from there, and reads nothing again.
    assert stage.follow() is None


def test_every_commit_says_what_made_it_and_a_former_owner_commits_none(stage: LatestStage) -> None:
    former = stage.tables()
    stage.append([priced("a", 0)])
    stage.follow(former)
    stage.append([priced("b", 60)])
    stage.follow(stage.tables())
    stage.append([priced("c", 61)])
    with pytest.raises(FencedError, match="OWNER_FENCED"):
        stage.follow(former)

    table = stage.latest_table(NOW)
    made = list(commit_history(stage.lake, paths.table("market", NOW), newest=table.version()))
    assert {commit.metadata["operation"] for commit in made} == {"create_table", "raise_owner", "keyed_merge"}
    assert set(versions(stage.latest())) == {"b"}


def test_another_declaration_builds_it_anew(stage: LatestStage) -> None:
    stage.append([priced("a", 10), priced("b", 50)])
    stage.follow()
    assert set(versions(stage.latest())) == {"b"}
    stage.spec = live_declared(keep=["version", "day"], expire_after_minutes=60)
    followed = stage.follow()

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert {row["symbol"]: row["day"] for row in stage.latest()} == {"a": START.date(), "b": START.date()}


def test_with_the_condition_off_a_late_row_replaces_a_newer_one(
    stage: LatestStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "newer_condition", lambda table, quote: "true")
    tables: KeyedTables = stage.tables()
    stage.append([priced("a", 20, 1)])
    stage.follow(tables)
    stage.append([priced("a", 10, 2)])
    stage.follow(tables)

    assert versions(stage.latest()) == {"a": 2}
    assert stage.latest() != stage.owed()
