"""A live table of kind `latest` equals the latest rows of bronze within its window, after any sequence of events."""

from __future__ import annotations

import datetime as dt
import tempfile
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from deltaworks.control import paths
from deltaworks.engine.keyed import keyed_catchup, merge, retention_window
from deltaworks.engine.keyed.catchup_threads import KeyedTables
from deltaworks.engine.keyed.retention_window import RetentionWindow
from deltaworks.errors import FencedError
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.log import commit_history
from deltaworks.tables.variant import encode_json
from tests.examples import examples
from tests.unit.engine.keyed.keyed_harness import START
from tests.unit.engine.keyed.latest_harness import NOW, LatestHarness, live_declared, priced, versions
from tests.unit.engine.keyed.owners_machine import OwnersMachine


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LatestHarness:
    monkeypatch.setattr(retention_window, "MIN_EXPIRY_SECONDS", 0.0)
    monkeypatch.setattr(retention_window, "EXPIRY_FRACTION", 0.0)
    return LatestHarness(tmp_path)


def test_undeclared_fields_are_kept_and_expire(harness: LatestHarness) -> None:
    mapping = live_declared().model_dump(mode="json", exclude_unset=True)
    mapping["tables"][0] |= {"evolve": "rescue", "keep_rest": "variant"}
    mapping["live"][0]["keep"] = ["price", "version", "_rest"]
    harness.spec = PipelineSpec.model_validate(mapping)
    for minutes, color in ((0, "red"), (5, "blue"), (60, "green")):
        rest = encode_json(f'{{"color": "{color}"}}')
        harness.append([priced("a", minutes, minutes, _rest=rest), priced(f"b{minutes}", minutes, minutes, _rest=None)])
        harness.follow()

        assert harness.latest() == harness.expected()
        assert [row["_rest"] for row in harness.latest() if row["symbol"] == "a"] == [rest]


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the bronze files read from now on."""
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


def test_the_newest_row_of_each_key_is_kept_with_its_columns(harness: LatestHarness) -> None:
    tables = harness.tables()
    harness.append([priced("a", 0, 1), priced("b", 0, 2), priced("a", 5, 3)])
    harness.follow(tables)
    harness.append([priced("a", 4, 4), priced("c", 1, 5), priced(None, 9, 6)])
    harness.follow(tables)

    assert versions(harness.latest()) == {"a": 3, "b": 2, "c": 5}
    assert harness.latest() == harness.expected()
    assert set(harness.latest()[0]) == {"symbol", "price", "version", "event_time", "_seq", "_position"}


def test_of_rows_with_one_time_the_last_to_arrive_is_kept_and_duplicates_are_ignored(harness: LatestHarness) -> None:
    tables = harness.tables()
    harness.append([priced("a", 0, 1), priced("a", 0, 2)])
    harness.follow(tables)
    harness.append([priced("a", 0, 3, _seq=0, _position=0)])
    harness.follow(tables)
    assert versions(harness.latest()) == {"a": 2}

    harness.append([priced("a", 0, 4)])
    harness.follow(tables)
    assert versions(harness.latest()) == {"a": 4}


def test_a_row_before_the_retention_window_expires_and_does_not_reappear(harness: LatestHarness) -> None:
    tables = harness.tables()
    harness.append([priced("old", 0), priced("edge", 30), priced("new", 59)])
    harness.follow(tables)
    assert set(versions(harness.latest())) == {"edge", "new"}

    harness.append([priced("newest", 60.5)])
    harness.follow(tables)
    assert set(versions(harness.latest())) == {"new", "newest"}
    harness.append([priced("old", 1), priced("edge", 30.4), priced("edge", 30.5)])
    harness.follow(tables)
    assert set(versions(harness.latest())) == {"new", "newest", "edge"}
    assert harness.latest() == harness.expected()


def test_rows_expire_periodically_and_not_at_each_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = LatestHarness(tmp_path)
    tables = harness.tables()
    harness.append([priced("old", 0), priced("a", 20)])
    harness.follow(tables)
    harness.append([priced("b", 45)])
    harness.follow(tables)
    assert set(versions(harness.latest())) == {"old", "a", "b"}

    # Three minutes, a tenth of what is kept, are over.
    passed = retention_window.time.monotonic() + 181
    monkeypatch.setattr(retention_window.time, "monotonic", lambda: passed)
    assert harness.follow(tables) is None
    assert set(versions(harness.latest())) == {"a", "b"}


def test_one_clock_in_the_future_expires_no_rows(harness: LatestHarness) -> None:
    future = dt.datetime.now(dt.UTC) + dt.timedelta(days=400)
    now = dt.datetime.now(dt.UTC)
    harness.append([{**priced("a", 0), "event_time": now}, {**priced("b", 0), "event_time": future}])
    harness.follow()

    assert set(versions(harness.latest())) == {"a", "b"}


def test_the_window_starts_from_the_clock_where_rows_are_in_the_future() -> None:
    bounded = RetentionWindow(30, now=lambda: at(0))
    assert bounded.start is None

    bounded.observe_files([{"stats": '{"maxValues": {"event_time": "2026-01-01T02:00:00.000Z"}}'}, {"stats": None}])
    assert bounded.start == at(-30)
    assert RetentionWindow(None).start is None


def test_a_lost_position_only_rereads_the_retention_window(
    harness: LatestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minutes in (0, 10, 50, 79):
        harness.append([priced("a", minutes), priced(f"at{minutes}", minutes)])
    harness.follow()
    before, read = harness.latest(), files_read(monkeypatch)
    monkeypatch.setattr(keyed_catchup, "keyed_application", lambda *names: "lost")
    followed = harness.follow()

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert len(read) == 2
    assert harness.latest() == before == harness.expected()


def test_files_with_only_expired_rows_are_not_read(harness: LatestHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = harness.tables()
    harness.append([priced("a", 100)])
    harness.follow(tables)
    read = files_read(monkeypatch)
    harness.append([priced("b", 10), priced("c", 69)])
    harness.append([priced("d", 70)])
    harness.follow(tables)

    assert len(read) == 1
    assert harness.latest() == harness.expected()


def test_rows_removed_from_bronze_are_removed_here(harness: LatestHarness) -> None:
    tables = harness.tables()
    harness.append([priced("a", 10, 1), priced("b", 10, 2)])
    harness.append([priced("a", 20, 3)])
    for minutes in range(6):
        harness.append([priced("c", minutes, 9)])
    harness.follow(tables)
    harness.history().delete("version IN (2, 3)")
    followed = harness.follow(tables)

    assert followed is not None
    assert followed.mode == "exact"
    assert versions(harness.latest()) == {"a": 1, "c": 9}


def test_small_files_are_compacted_by_the_merging_thread(
    harness: LatestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_window, "MAX_FILES", 4)
    tables = harness.tables()
    for number in range(9):
        harness.append([priced(f"s{number}", number)])
        harness.follow(tables)

    assert len(harness.latest_table(NOW).file_uris()) < 4
    assert harness.latest() == harness.expected()
    # Its next owner goes on from there, and reads nothing again.
    assert harness.follow() is None


def test_every_commit_has_its_metadata_and_a_former_owner_commits_nothing(harness: LatestHarness) -> None:
    former = harness.tables()
    harness.append([priced("a", 0)])
    harness.follow(former)
    harness.append([priced("b", 60)])
    harness.follow(harness.tables())
    harness.append([priced("c", 61)])
    with pytest.raises(FencedError, match="OWNER_FENCED"):
        harness.follow(former)

    table = harness.latest_table(NOW)
    made = list(commit_history(harness.lake, paths.table("market", NOW), newest=table.version()))
    assert {commit.metadata["operation"] for commit in made} == {"create_table", "raise_owner", "keyed_merge"}
    assert set(versions(harness.latest())) == {"b"}


def test_a_changed_declaration_rebuilds_it(harness: LatestHarness) -> None:
    harness.append([priced("a", 10), priced("b", 50)])
    harness.follow()
    assert set(versions(harness.latest())) == {"b"}
    harness.spec = live_declared(keep=["version", "day"], expire_after_minutes=60)
    followed = harness.follow()

    assert followed is not None
    assert followed.mode == "rebuilt"
    assert {row["symbol"]: row["day"] for row in harness.latest()} == {"a": START.date(), "b": START.date()}


def test_with_the_condition_off_a_late_row_replaces_a_newer_one(
    harness: LatestHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "newer_condition", lambda table, quote: "true")
    tables: KeyedTables = harness.tables()
    harness.append([priced("a", 20, 1)])
    harness.follow(tables)
    harness.append([priced("a", 10, 2)])
    harness.follow(tables)

    assert versions(harness.latest()) == {"a": 2}
    assert harness.latest() != harness.expected()


ROWS = st.lists(
    st.builds(
        priced,
        st.sampled_from(["a", "b", "c", "ü'\\", None]),
        # Around the horizon too, to the minute.
        st.sampled_from([0, 1, 29, 30, 31, 45, 60, 61, 75]),
        st.integers(0, 9),
    ),
    max_size=6,
)


class LatestMachine(OwnersMachine):
    """One bronze table with its live table, and current and former owners."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            mock.patch.object(retention_window, "MIN_EXPIRY_SECONDS", 0.0),
            mock.patch.object(retention_window, "EXPIRY_FRACTION", 0.0),
            mock.patch.object(retention_window, "MAX_FILES", 3),
        ]
        for patch in self.patches:
            patch.start()
        self.folder = tempfile.TemporaryDirectory()
        self.harness = LatestHarness(Path(self.folder.name))
        self.landed: list[list[dict[str, Any]]] = []
        self.former = []
        self.owner = self.harness.tables()

    @initialize()
    def begin(self) -> None:
        self.land([])

    @rule(rows=ROWS)
    def land(self, rows: list[dict[str, Any]]) -> None:
        number = self.harness.append(rows)
        self.landed.append([{**row, "_seq": number, "_position": place} for place, row in enumerate(rows)])
        self.is_current = False

    @rule(data=st.data())
    def land_copies_in_another_order(self, data: st.DataObject) -> None:
        rows = data.draw(st.sampled_from(self.landed))
        self.harness.append(data.draw(st.permutations(rows)))
        self.is_current = False

    @rule()
    def lose_the_place(self) -> None:
        """The position in bronze is lost: everything is read and merged again."""
        self.take_over()
        with mock.patch.object(keyed_catchup, "keyed_application", return_value=f"lost/{uuid.uuid4().hex}"):
            self.harness.follow(self.owner)
        self.is_current = True

    @rule()
    def optimize_bronze(self) -> None:
        self.harness.history().optimize.compact()

    def teardown(self) -> None:
        try:
            self.follow()
            self.is_exact()
        finally:
            self.close()

    def close(self) -> None:
        self.folder.cleanup()
        for patch in self.patches:
            patch.stop()


LatestMachine.TestCase.settings = settings(
    max_examples=examples(6), stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLatestMachine = LatestMachine.TestCase


def test_with_the_condition_off_an_older_row_wins() -> None:
    """The machine detects a missing `newer_condition`."""
    machine = LatestMachine()
    try:
        with mock.patch.object(merge, "newer_condition", return_value="true"):
            machine.land([priced("a", 45, 1)])
            machine.follow()
            machine.what_was_followed_is_exact()
            machine.land([priced("a", 30, 2)])
            machine.follow()
            with pytest.raises(AssertionError):
                machine.what_was_followed_is_exact()
    finally:
        machine.close()
