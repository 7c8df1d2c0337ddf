"""Guarded commits: each step is committed once, after any retry and any lost reply; reading commits backwards."""

from __future__ import annotations

import gc
import itertools
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from deltaworks.control.provenance import parse_user_metadata, user_metadata
from deltaworks.errors import ConcurrencyError, FencedError
from deltaworks.tables import commit as commit_module
from deltaworks.tables import log
from deltaworks.tables.commit import (
    Step,
    commit_step,
    ensure_table,
    open_table,
    post_commit_properties,
    raise_owner_epoch,
    refresh,
)
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import local_lake

SCHEMA = pa.schema([("a", pa.int64())])
MADE = user_metadata(pipeline="games", batch="none", operation="create_table")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    folder = tmp_path / "table"
    ensure_table(str(folder), SCHEMA, storage_options={}, user_metadata=MADE)
    return str(folder)


def append(table: DeltaTable, version: int, *values: int, owner: Step | None = None, app_id: str = "games/events"):
    rows = pa.table({"a": pa.array(values, pa.int64())})
    file = write_file(fs.LocalFileSystem(), table.table_uri.removeprefix("file://").rstrip("/"), rows, partition={})
    metadata = user_metadata(pipeline="games", batch=version, operation="append")
    return commit_step(table, [file.add_action()], step=Step(app_id, version), owner=owner, user_metadata=metadata)


def values(uri: str) -> list[int]:
    return sorted(DeltaTable(uri).to_pyarrow_table()["a"].to_pylist())


class LosesReplies:
    """A table whose commits succeed but raise for the caller, `times` times."""

    def __init__(self, table: DeltaTable, times: int = 1) -> None:
        self._table = table
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def create_write_transaction(self, *arguments: Any, **options: Any) -> None:
        self._table.create_write_transaction(*arguments, **options)
        if self._times:
            self._times -= 1
            raise CommitFailedError("the reply was lost")


def unguarded_append(table: Any, value: int) -> None:
    """A writer without the guard: it writes and commits again after a failure."""
    rows = pa.table({"a": pa.array([value], pa.int64())})
    for _ in range(2):
        file = write_file(fs.LocalFileSystem(), table.table_uri.removeprefix("file://").rstrip("/"), rows, partition={})
        table.update_incremental()
        try:
            table.create_write_transaction([file.add_action()], mode="append", schema=table.schema(), partition_by=[])
        except CommitFailedError:
            continue
        return


def test_a_step_is_committed_and_returns_its_version(uri: str) -> None:
    outcome = append(DeltaTable(uri), 1, 7)

    assert (outcome.version, outcome.newly_committed, outcome.attempts) == (1, True, 1)
    assert values(uri) == [7]
    history = DeltaTable(uri).history(1)[0]
    assert parse_user_metadata(history["userMetadata"])["batch"] == "1"


def test_a_step_repeated_lands_once(uri: str) -> None:
    append(DeltaTable(uri), 1, 7)

    again = append(DeltaTable(uri), 1, 7)

    assert not again.newly_committed
    assert values(uri) == [7]


def test_a_step_behind_the_last_one_does_not_land(uri: str) -> None:
    append(DeltaTable(uri), 5, 7)

    assert not append(DeltaTable(uri), 4, 8).newly_committed
    assert append(DeltaTable(uri), 4, 8, app_id="another").newly_committed
    assert values(uri) == [7, 8]


def test_a_stale_handle_is_refreshed_before_the_commit(uri: str) -> None:
    stale = DeltaTable(uri)
    append(DeltaTable(uri), 1, 7)

    assert not append(stale, 1, 7).newly_committed
    assert values(uri) == [7]


def test_a_lost_reply_does_not_double_a_commit(uri: str) -> None:
    outcome = append(LosesReplies(DeltaTable(uri)), 1, 7)  # type: ignore[arg-type]

    assert not outcome.newly_committed
    assert outcome.attempts == 2
    assert values(uri) == [7]


def test_without_the_guard_a_lost_reply_doubles_a_commit(uri: str) -> None:
    unguarded_append(LosesReplies(DeltaTable(uri)), 7)

    assert values(uri) == [7, 7]


def test_a_conflict_with_another_writer_is_retried_from_a_fresh_snapshot(uri: str) -> None:
    other = DeltaTable(uri)

    class Overtaken(LosesReplies):
        def create_write_transaction(self, *arguments: Any, **options: Any) -> None:
            if self._times:
                self._times -= 1
                append(other, 1, 1, app_id="other")
            self._table.create_write_transaction(*arguments, **options)

    outcome = append(Overtaken(DeltaTable(uri), times=2), 1, 7)  # type: ignore[arg-type]

    assert outcome.newly_committed
    assert outcome.attempts > 1
    assert outcome.version == DeltaTable(uri).version()
    assert values(uri) == [1, 7]


def test_a_step_that_another_process_lands_in_between_is_not_landed_again(uri: str) -> None:
    other = DeltaTable(uri)

    class Overtaken(LosesReplies):
        def create_write_transaction(self, *arguments: Any, **options: Any) -> None:
            append(other, 1, 7)
            self._table.create_write_transaction(*arguments, **options)

    assert not append(Overtaken(DeltaTable(uri)), 1, 7).newly_committed  # type: ignore[arg-type]
    assert values(uri) == [7]


def test_concurrent_writers_all_commit_exactly_once(uri: str) -> None:
    def write(number: int) -> None:
        table = DeltaTable(uri)
        for version in range(1, 6):
            append(table, version, number * 10 + version, app_id=f"writer {number}")
            append(table, version, number * 10 + version, app_id=f"writer {number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    assert values(uri) == sorted(n * 10 + v for n in range(4) for v in range(1, 6))


def test_attempts_are_bounded(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "MAX_ATTEMPTS", 3)

    class Contended(LosesReplies):
        def create_write_transaction(self, *arguments: Any, **options: Any) -> None:
            raise CommitFailedError("another writer was first")

    with pytest.raises(ConcurrencyError) as caught:
        append(Contended(DeltaTable(uri)), 1, 7)  # type: ignore[arg-type]

    assert caught.value.condition == "COMMIT_CONTENDED"
    assert caught.value.retryable


class TestOwners:
    """The owner epoch in a table prevents writes of a former owner."""

    def test_an_owner_writes_under_the_epoch_it_raised(self, uri: str) -> None:
        table, owner = DeltaTable(uri), Step("games/owner", 1)
        assert raise_owner_epoch(table, owner, user_metadata=MADE).newly_committed
        assert not raise_owner_epoch(table, owner, user_metadata=MADE).newly_committed

        append(table, 1, 7, owner=owner)

        assert values(uri) == [7]

    def test_a_fenced_owner_is_refused_and_writes_nothing(self, uri: str) -> None:
        former = DeltaTable(uri)
        append(former, 1, 7, owner=Step("games/owner", 1))
        raise_owner_epoch(DeltaTable(uri), Step("games/owner", 2), user_metadata=MADE)
        before = DeltaTable(uri).version()

        with pytest.raises(FencedError) as caught:
            append(former, 2, 8, owner=Step("games/owner", 1))

        assert caught.value.condition == "OWNER_FENCED"
        assert DeltaTable(uri).version() == before
        assert values(uri) == [7]

    def test_an_owner_fenced_between_check_and_commit_is_refused(self, uri: str) -> None:
        class Overtaken(LosesReplies):
            def create_write_transaction(self, *arguments: Any, **options: Any) -> None:
                raise_owner_epoch(DeltaTable(uri), Step("games/owner", 2), user_metadata=MADE)
                self._table.create_write_transaction(*arguments, **options)

        with pytest.raises(FencedError):
            append(Overtaken(DeltaTable(uri)), 1, 7, owner=Step("games/owner", 1))  # type: ignore[arg-type]

        assert values(uri) == []

    def test_without_an_owner_the_same_commit_goes_through(self, uri: str) -> None:
        raise_owner_epoch(DeltaTable(uri), Step("games/owner", 2), user_metadata=MADE)

        append(DeltaTable(uri), 1, 7)

        assert values(uri) == [7]

    def test_a_fenced_owner_raises_even_if_its_successor_committed_the_step(self, uri: str) -> None:
        raise_owner_epoch(DeltaTable(uri), Step("games/owner", 2), user_metadata=MADE)
        append(DeltaTable(uri), 1, 7, owner=Step("games/owner", 2))

        with pytest.raises(FencedError):
            append(DeltaTable(uri), 1, 7, owner=Step("games/owner", 1))

        assert values(uri) == [7]

    def test_commits_before_the_fence_stay_committed(self, uri: str) -> None:
        append(DeltaTable(uri), 1, 7, owner=Step("games/owner", 1))
        raise_owner_epoch(DeltaTable(uri), Step("games/owner", 2), user_metadata=MADE)

        assert not append(DeltaTable(uri), 1, 7, owner=Step("games/owner", 2)).newly_committed


class TestEnsureTable:
    """Creation of tables that may already exist."""

    def test_concurrent_creators_end_with_one_table(self, tmp_path: Path) -> None:
        for attempt in range(10):
            uri = str(tmp_path / f"t{attempt}")
            barrier = threading.Barrier(4)

            def create(_: int, uri: str = uri, barrier: threading.Barrier = barrier) -> DeltaTable:
                barrier.wait()
                return ensure_table(uri, SCHEMA, storage_options={}, user_metadata=MADE)

            with ThreadPoolExecutor(4) as pool:
                tables = list(pool.map(create, range(4)))

            assert {table.version() for table in tables} == {0}
            assert len({str(table.metadata().id) for table in tables}) == 1

    def test_an_existing_table_is_opened_unchanged(self, uri: str) -> None:
        append(DeltaTable(uri), 1, 7)

        table = ensure_table(uri, pa.schema([("other", pa.string())]), storage_options={}, user_metadata=MADE)

        assert table.version() == 1
        assert [field.name for field in table.schema().fields] == ["a"]

    def test_a_new_table_has_the_retention_and_given_properties(self, tmp_path: Path) -> None:
        table = ensure_table(
            str(tmp_path / "t"),
            SCHEMA,
            storage_options={},
            user_metadata=MADE,
            properties={"delta.checkpointInterval": "10"},
        )

        configuration = table.metadata().configuration
        assert configuration["delta.checkpointInterval"] == "10"
        assert configuration["delta.deletedFileRetentionDuration"] == "interval 7 days"
        assert parse_user_metadata(table.history(1)[0]["userMetadata"])["operation"] == "create_table"

    def test_the_cause_of_a_failed_creation_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commit_module, "MAX_ATTEMPTS", 2)

        with pytest.raises(ConcurrencyError) as caught:
            ensure_table(
                str(tmp_path / "t"),
                SCHEMA,
                storage_options={},
                user_metadata=MADE,
                properties={"delta.noSuchProperty": "1"},
            )

        assert caught.value.condition == "TABLE_NOT_CREATED"
        assert "noSuchProperty" in caught.value.message


def test_the_transactions_of_a_commit_survive_a_checkpoint_of_the_log(uri: str) -> None:
    table = DeltaTable(uri)
    append(table, 1, 7, owner=Step("games/owner", 3))
    table.create_checkpoint()
    table.create_write_transaction(
        [], mode="append", schema=table.schema(), partition_by=[], commit_properties=CommitProperties()
    )

    fresh = DeltaTable(uri)

    assert fresh.transaction_version("games/events") == 1
    assert fresh.transaction_version("games/owner") == 3


def test_an_inconsistent_listing_is_retried(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(uri, storage_options={})
    answers = [DeltaError("Expected contiguous commit files, but found gap"), DeltaError("Invalid table version: 3")]
    original = DeltaTable.update_incremental

    def torn_twice(handle: DeltaTable) -> None:
        if answers:
            raise answers.pop()
        original(handle)

    monkeypatch.setattr(DeltaTable, "update_incremental", torn_twice)

    refresh(table)

    assert not answers


@pytest.mark.parametrize("comes", [True, False])
def test_a_checkpoint_behind_its_hint_is_awaited_and_a_lost_one_only_briefly(
    uri: str, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    folder, looks = Path(uri.removeprefix("file://")) / "_delta_log", 0
    DeltaTable(uri).create_checkpoint()
    (checkpoint,) = folder.glob("*.checkpoint.parquet")
    away = checkpoint.rename(folder.parent / checkpoint.name)

    def look(*arguments: Any, **options: Any) -> DeltaTable:
        nonlocal looks
        looks += 1
        if comes and looks == 3:
            away.rename(checkpoint)
        return DeltaTable(*arguments, **options)

    monkeypatch.setattr(commit_module, "DeltaTable", look)
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    if comes:
        assert open_table(uri, storage_options={}).version() == 0
        assert looks == 3
    else:
        with pytest.raises(DeltaError, match="checkpoint"):
            open_table(uri, storage_options={})
        assert looks == commit_module._CHECKPOINT_ATTEMPTS


def test_other_errors_are_not_retried(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(uri, storage_options={})

    def refused(handle: DeltaTable) -> None:
        raise DeltaError("access denied")

    monkeypatch.setattr(DeltaTable, "update_incremental", refused)

    with pytest.raises(DeltaError, match="access denied"):
        refresh(table)


class TestTransactionCache:
    """A log is read for transactions only after other writers' commits, with the same result."""

    @pytest.fixture
    def scans(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The application ids for which a log was read."""
        asked: list[str] = []
        plain = DeltaTable.transaction_version

        def counted(table: DeltaTable, app_id: str) -> int | None:
            asked.append(app_id)
            return plain(table, app_id)

        monkeypatch.setattr(DeltaTable, "transaction_version", counted)
        return asked

    def test_a_writer_alone_reads_its_log_once(self, uri: str, scans: list[str]) -> None:
        table, owner = DeltaTable(uri), Step("games/owner", 3)
        raise_owner_epoch(table, owner, user_metadata=MADE)
        for version in range(1, 6):
            assert append(table, version, version, owner=owner).newly_committed
            assert not append(table, version, version, owner=owner).newly_committed
        assert scans == ["games/owner", "games/events"]
        assert values(uri) == [1, 2, 3, 4, 5]

    def test_commits_of_other_writers_are_read(self, uri: str, scans: list[str]) -> None:
        table = DeltaTable(uri)
        append(table, 1, 1, owner=Step("games/owner", 3))
        append(DeltaTable(uri), 2, 2)
        assert not append(table, 2, 2, owner=Step("games/owner", 3)).newly_committed
        raise_owner_epoch(DeltaTable(uri), Step("games/owner", 4), user_metadata=MADE)
        with pytest.raises(FencedError):
            append(table, 3, 3, owner=Step("games/owner", 3))
        assert values(uri) == [1, 2]

    def test_a_lost_reply_is_read(self, uri: str, scans: list[str]) -> None:
        table = LosesReplies(DeltaTable(uri))
        assert not append(table, 1, 7).newly_committed  # type: ignore[arg-type]
        assert scans == ["games/events", "games/events"]

    def test_closed_tables_leave_no_cache_entry(self, uri: str) -> None:
        before = len(commit_module._TRANSACTION_CACHE)
        for version in range(1, 4):
            append(DeltaTable(uri), version, version)
        gc.collect()
        assert len(commit_module._TRANSACTION_CACHE) <= before

    @given(steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(1, 4)), max_size=20))
    def test_every_handle_sees_the_transactions_of_the_log(self, steps: list[tuple[int, str, int]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            made = ensure_table(folder, SCHEMA, storage_options={}, user_metadata=MADE)
            handles, expected = [made, DeltaTable(folder), DeltaTable(folder)], dict[str, int]()
            for number, app_id, version in steps:
                outcome = append(handles[number], version, version, app_id=app_id)
                assert outcome.newly_committed == (version > expected.get(app_id, 0))
                expected[app_id] = max(version, expected.get(app_id, 0))
            fresh = DeltaTable(folder)
            assert {name: fresh.transaction_version(name) for name in expected} == expected


def test_expired_commits_are_cleaned_up_only_with_a_checkpoint(uri: str) -> None:
    table = DeltaTable(uri)
    looked = []
    for version in range(1, 102):
        looked.append(post_commit_properties(table).cleanup_expired_logs is None)
        append(table, version, version)
        refresh(table)
    due = [version for version, is_due in enumerate(looked, 1) if is_due]
    assert due == [49, 99]
    checkpoints = sorted(Path(uri).glob("_delta_log/*.checkpoint.parquet"))
    assert [int(path.name.split(".")[0]) for path in checkpoints] == due


KEY, COMMITS = "games/events", 40


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake, rows = local_lake(tmp_path), pa.table({"a": [1]})
    table = lake.ensure(KEY, rows.schema, user_metadata="{}")
    for version in range(1, COMMITS):
        lake.append(table, KEY, rows, step=Step("games", version), user_metadata=json.dumps({"batch": str(version)}))
    return lake


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions whose commits were read, one request each."""
    versions: list[int] = []
    plain = log.read_commits

    def counted(lake: Lake, key: str, wanted: Iterable[int]) -> Iterator[Any]:
        numbers = list(wanted)
        versions.extend(numbers)
        return plain(lake, key, numbers)

    monkeypatch.setattr(log, "read_commits", counted)
    return versions


def test_reading_the_newest_commit_reads_no_other(lake: Lake, read: list[int]) -> None:
    newest = next(commit_history(lake, KEY, newest=COMMITS - 1))

    assert (newest.version, newest.metadata) == (COMMITS - 1, {"batch": str(COMMITS - 1)})
    assert read == [COMMITS - 1]


@pytest.mark.parametrize(("asked", "most"), [(2, 5), (5, 5), (6, 21), (22, 37), (40, 40)])
def test_read_ahead_grows_with_the_number_of_commits_read(lake: Lake, read: list[int], asked: int, most: int) -> None:
    commits = itertools.islice(commit_history(lake, KEY, newest=COMMITS - 1), asked)

    assert [commit.version for commit in commits] == list(range(COMMITS - 1, COMMITS - 1 - asked, -1))
    assert len(read) == most
    assert len(set(read)) == most, "none is read twice"


def test_no_more_than_the_limit_is_read(lake: Lake, read: list[int]) -> None:
    assert len(list(commit_history(lake, KEY, newest=COMMITS - 1, limit=3))) == len(read) == 3
