"""Changes between two versions of a table, from its Delta log, and the text form of readers' positions."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConfigError
from deltaworks.tables.changes import ChangePosition, Changes, changed_partitions
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history
from deltaworks.testing import append_rows, present

KEY = "tables/shop/events"
SCHEMA = pa.schema([("event_date", pa.date32()), ("value", pa.int64())])


def append(lake: Lake, batch: int, *days: int | None, partition_by: tuple[str, ...] = ("event_date",)) -> int:
    """Commits a row on each of these days of March 2025; returns the version."""
    made = user_metadata(pipeline="shop", batch=batch, operation="ingest")
    dates = [None if day is None else dt.date(2025, 3, day) for day in days]
    rows = pa.table({"event_date": dates, "value": [batch] * len(days)}, schema=SCHEMA)
    return append_rows(lake, KEY, rows, number=batch, partition_by=partition_by, user_metadata=made)


def dates(changes: Changes) -> frozenset[str | None] | None:
    return changes.partition_values("event_date")


def test_changed_partitions_between_two_versions_are_returned(lake: Lake) -> None:
    first, second, third = append(lake, 1, 1, 2), append(lake, 2, 2), append(lake, 3, 5)

    def between(after: int | None, up_to: int) -> frozenset[str | None] | None:
        return dates(changed_partitions(lake, KEY, after_version=after, up_to_version=up_to))

    assert between(-1, third) == {"2025-03-01", "2025-03-02", "2025-03-05"}
    assert between(first, third) == {"2025-03-02", "2025-03-05"}
    assert between(first, second) == {"2025-03-02"}
    assert between(third, third) == frozenset()
    assert not changed_partitions(lake, KEY, after_version=third, up_to_version=third)
    assert between(None, third) is None


def test_a_null_partition_is_returned_as_none(lake: Lake) -> None:
    version = append(lake, 1, None, 3)

    assert dates(changed_partitions(lake, KEY, after_version=0, up_to_version=version)) == {None, "2025-03-03"}


def test_compaction_does_not_count_as_a_change_and_a_delete_does(lake: Lake) -> None:
    append(lake, 1, 1, 2)
    appended = append(lake, 2, 1, 2)
    table = present(lake.open(KEY))
    assert table.optimize.compact()["numFilesAdded"] == 2
    compacted = table.version()
    table.delete("event_date = '2025-03-02'")

    assert not changed_partitions(lake, KEY, after_version=appended, up_to_version=compacted)
    found = changed_partitions(lake, KEY, after_version=compacted, up_to_version=table.version())
    assert dates(found) == {"2025-03-02"}


def test_a_commit_that_is_no_longer_in_the_log_means_everything_may_have_changed(lake: Lake, tmp_path: Path) -> None:
    append(lake, 1, 1)
    newest = append(lake, 2, 2)
    (Path(lake.storage.prefix, KEY) / "_delta_log" / f"{1:020d}.json").unlink()

    found = changed_partitions(lake, KEY, after_version=0, up_to_version=newest)

    assert (found.is_unbounded, found.reason) == (True, "the commit of version 1 is no longer in the log")
    assert dates(changed_partitions(lake, KEY, after_version=1, up_to_version=newest)) == {"2025-03-02"}


def test_a_table_behind_the_last_read_version_was_recreated(lake: Lake) -> None:
    version = append(lake, 1, 1)

    assert changed_partitions(lake, KEY, after_version=version + 5, up_to_version=version).is_unbounded


def test_a_remove_without_its_partition_means_everything_may_have_changed(lake: Lake, tmp_path: Path) -> None:
    version = append(lake, 1, 1)
    action = {"remove": {"path": "part-0.parquet", "dataChange": True}}
    (Path(lake.storage.prefix, KEY) / "_delta_log" / f"{version + 1:020d}.json").write_text(json.dumps(action) + "\n")

    assert changed_partitions(lake, KEY, after_version=version, up_to_version=version + 1).is_unbounded


def test_a_table_without_that_partition_column_is_unbounded(lake: Lake) -> None:
    version = append(lake, 1, 1, partition_by=())

    found = changed_partitions(lake, KEY, after_version=0, up_to_version=version)

    assert bool(found)
    assert dates(found) is None


def test_commit_history_has_correct_versions_during_concurrent_commits(lake: Lake) -> None:
    append(lake, 1, 1)
    opened = present(lake.open(KEY))
    for batch in range(2, 20):
        append(lake, batch, 1)

    told = {commit.version: commit.metadata["batch"] for commit in commit_history(lake, KEY, newest=opened.version())}
    newest = [commit.version for commit in commit_history(lake, KEY, newest=19, limit=3)]

    assert told == {1: "1", 0: "1"}
    assert newest == [19, 18, 17]


def test_a_restored_table_has_changed_where_it_differs_from_that_version(lake: Lake) -> None:
    first = append(lake, 1, 1, 2)
    before = append(lake, 2, 2, 5)
    table = present(lake.open(KEY))
    table.restore(first)

    found = changed_partitions(lake, KEY, after_version=before, up_to_version=before + 1)

    assert found.is_unbounded or dates(found) == {"2025-03-02", "2025-03-05"}


def test_a_position_is_read_back_from_its_text() -> None:
    for through in ("notifications", "change_feed"):
        position = ChangePosition(source=through, table_id="a:b", version=41)  # type: ignore[arg-type]

        assert ChangePosition.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "41", "2:notifications:1:id", "1:feed:1:id", "1:notifications::id"])
def test_an_invalid_position_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="CHANGES_POSITION_UNKNOWN"):
        ChangePosition.parse(text)
