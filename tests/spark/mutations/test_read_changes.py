"""Change readers return every changed row once in its newest state, also during writes and kills.

Counts that each run updates, marked `integration`, have their twin in the random order of events below.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaworks
from deltaworks.errors import ConfigError, ContractError
from deltaworks.tables.changes import ChangePosition
from deltaworks.testing import present
from tests.processes import run_process
from tests.spark.mutations.reader_entry import job
from tests.spark.mutations.tracked_lake import NAME, TrackedLake, states

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def followed(tmp_path: Path, spark: SparkSession) -> TrackedLake:
    return TrackedLake(tmp_path, spark)


def test_each_change_is_read_once_by_the_position_of_the_read_before(followed: TrackedLake) -> None:
    assert followed.changes().is_empty
    followed.land(1, [("e1", "a", "x", 0), ("e2", "b", "y", 0)])
    first = followed.changes()
    assert states(first) == [("e1", "x", False), ("e2", "y", False)]

    followed.land(2, [("e3", "a", "x", 1)])
    followed.mutate(1, "contact_id = 'x'", {"contact_id": "'z'"})
    followed.mutate(2, "event_id = 'e1'", {"contact_id": "'w'"})
    # The position is stored as text, as readers do; two reads from one position are equal.
    second = followed.changes(str(first.position))

    assert states(second) == [("e1", "w", False), ("e3", "z", False)]
    assert states(followed.changes(first.position)) == states(second)
    assert followed.changes(second.position).is_empty
    assert states(followed.changes(second.position)) == []
    assert [row["event_id"] for row in second.snapshot.orderBy("event_id").collect()] == ["e1", "e2", "e3"]


def test_a_change_that_is_not_notified_yet_is_left_for_its_notification(followed: TrackedLake) -> None:
    followed.land(1, [("e1", "a", "x", 0), ("e2", "a", "y", 0)])
    tell_batch = followed.land(2, [("e3", "a", "x", 0)], told=False)
    tell_mutation = followed.mutate(1, "contact_id = 'x' and event_id = 'e1'", {"contact_id": "'z'"}, told=False)

    first = followed.changes()
    tell_mutation()
    second = followed.changes(first.position)
    tell_batch()
    third = followed.changes(second.position)

    assert states(first) == [("e2", "y", False)]
    assert states(second) == [("e1", "z", False)]
    assert states(third) == [("e3", "x", False)]


def test_deleted_rows_are_returned_as_tombstones_on_request(followed: TrackedLake) -> None:
    followed.land(1, [("e1", "a", "x", 0), ("e2", "a", "y", 0)])
    first = followed.changes()
    followed.mutate(1, "event_id = 'e1'", {"_deleted": "true"})

    assert states(followed.changes(first.position)) == []
    assert states(followed.changes(first.position, tombstones=True)) == [("e1", "x", True)]
    assert states(followed.changes()) == [("e2", "y", False)]
    assert states(followed.changes(tombstones=True)) == [("e1", "x", True), ("e2", "y", False)]


def test_only_files_of_the_notified_organisations_and_batches_are_read(followed: TrackedLake) -> None:
    followed.land(1, [(f"e{org}", f"org{org}", "x", 0) for org in range(8)])
    followed.land(2, [("before", "org3", "x", 2), ("other", "org4", "x", 2)])
    first = followed.changes()
    # Same organisation and day as rows read before: only the batch number separates their files.
    followed.land(3, [("late", "org3", "x", 2)])

    changed = followed.changes(first.position).rows

    assert [path.rsplit("/", 2)[-2] for path in changed.inputFiles()] == ["org_id=org3"]
    assert states(followed.changes(first.position)) == [("late", "x", False)]


@pytest.mark.integration
def test_optimize_of_either_table_changes_no_result(followed: TrackedLake, spark: SparkSession) -> None:
    followed.land(1, [("e1", "a", "x", 0)])
    first = followed.changes()
    followed.land(2, [("e2", "a", "x", 1)])
    followed.mutate(1, "event_id = 'e1'", {"contact_id": "'z'"})
    for key in (followed.data_key, followed.told_key):
        spark.sql(f"OPTIMIZE delta.`{followed.lake.storage.spark_uri(key)}`").collect()

    assert states(followed.changes(first.position)) == [("e1", "z", False), ("e2", "x", False)]
    # Files with several batches are opened, because their statistics do not separate the batches.
    assert states(followed.changes()) == [("e1", "z", False), ("e2", "x", False)]


def test_an_invalid_position_is_rejected(followed: TrackedLake) -> None:
    followed.land(1, [("e1", "a", "x", 0)])
    position = followed.changes().position
    followed.land(2, [("e2", "a", "x", 0)])

    for wrong in ("", "2026-01-01", "2:notifications:0:id", "1:elsewhere:0:id", "1:notifications:one:id"):
        with pytest.raises(ConfigError, match="CHANGES_POSITION_UNKNOWN"):
            followed.changes(wrong)
    other = ChangePosition(source="notifications", table_id="another", version=0)
    with pytest.raises(ContractError, match="CHANGES_STARTED_OVER"):
        followed.changes(other)
    log = Path(f"{followed.lake.storage.prefix}/{followed.told_key}/_delta_log/{position.version + 1:020d}.json")
    kept = log.read_bytes()
    opened = present(followed.lake.open(followed.told_key))
    opened.create_checkpoint()
    log.unlink()
    with pytest.raises(ContractError, match="CHANGES_EXPIRED"):
        followed.changes(position)
    log.write_bytes(kept)
    opened.delete("batch = 1")
    with pytest.raises(ContractError, match="CHANGES_STARTED_OVER"):
        followed.changes(position)


def test_a_table_without_notifications_is_rejected_by_name(followed: TrackedLake, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="CHANGES_NOT_ANNOUNCED"):
        deltaworks.read_changes(spark, "engagement.requests", catalog=followed.catalog)
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN"):
        deltaworks.read_changes(spark, "engagement.activity", catalog=followed.catalog)


def test_the_change_data_feed_gives_the_same_rows(tmp_path: Path, spark: SparkSession) -> None:
    followed = TrackedLake(tmp_path, spark, FEED)
    followed.land(1, [("e1", "a", "x", 0), ("e2", "b", "y", 0)])
    first = followed.changes(source="change_feed")
    assert states(first) == [("e1", "x", False), ("e2", "y", False)]
    uri = followed.lake.storage.spark_uri(followed.data_key)
    followed.land(2, [("e3", "a", "x", 1)])
    for number, (where, set_) in enumerate(
        [("contact_id = 'x'", "contact_id = 'z'"), ("event_id = 'e1'", "_deleted = true")], start=1
    ):
        spark.sql(f"UPDATE delta.`{uri}` SET {set_}, _mutation = {number} WHERE {where}").collect()
    spark.sql(f"OPTIMIZE delta.`{uri}`").collect()

    second = followed.changes(str(first.position), source="change_feed", tombstones=True)

    assert states(second) == [("e1", "z", True), ("e3", "z", False)]
    assert followed.changes(second.position, source="change_feed").is_empty
    # Rows deleted by requests are announced then, and not again when they are physically removed.
    spark.sql(f"DELETE FROM delta.`{uri}` WHERE event_id IN ('e1', 'e2')").collect()
    third = followed.changes(second.position, source="change_feed", tombstones=True)
    assert states(third) == [("e2", "y", True)]
    with pytest.raises(ContractError, match="CHANGES_STARTED_OVER"):
        followed.changes(second.position)


def test_a_table_without_a_change_data_feed_is_refused(followed: TrackedLake) -> None:
    followed.land(1, [("e1", "a", "x", 0)])

    with pytest.raises(ConfigError, match="CHANGE_FEED_OFF"):
        followed.changes(source="change_feed")


def test_in_any_order_of_events_each_row_is_read_in_its_latest_state_and_no_state_twice(
    followed: TrackedLake,
) -> None:
    chance = random.Random(7)
    copy: dict[str, tuple[str, bool]] = {}
    seen: set[tuple[str, str, bool]] = set()
    pending: dict[str, list[object]] = {"stream": [], "mutation": []}
    position: ChangePosition | None = None
    batch = mutation = 0
    steps = ["land"] * 4 + ["mutate"] * 4 + ["tell"] * 5 + ["read"] * 3
    chance.shuffle(steps)
    for step in ["land", *steps]:
        match step:
            case "land":
                batch += 1
                rows = [(f"e{batch}-{n}", chance.choice("abc"), f"c{chance.randrange(3)}", n) for n in range(2)]
                pending["stream"].append(followed.land(batch, rows, told=False))
            case "mutate":
                mutation += 1
                values = {"contact_id": f"'m{mutation}'", "_deleted": chance.choice(["true", "false"])}
                pending["mutation"].append(
                    followed.mutate(mutation, f"org_id = '{chance.choice('abc')}'", values, told=False)
                )
            case "tell":
                kind = chance.choice(["stream", "mutation"])
                if pending[kind]:
                    pending[kind].pop(0)()  # type: ignore[operator]
            case _:
                position = _follow(followed, position, copy, seen)
    for tells in pending.values():
        for tell in tells:
            tell()  # type: ignore[operator]
    _follow(followed, position, copy, seen)

    assert copy == {row["event_id"]: (row["contact_id"], bool(row["_deleted"])) for row in followed.rows()}


def _follow(
    followed: TrackedLake,
    position: ChangePosition | None,
    copy: dict[str, tuple[str, bool]],
    seen: set[tuple[str, str, bool]],
) -> ChangePosition:
    changes = followed.changes(position, tombstones=True)
    for state in states(changes):
        assert state not in seen
        seen.add(state)
        copy[state[0]] = state[1:]
    return changes.position


def test_the_package_exports_the_reader_without_loading_spark() -> None:
    offered = "deltaworks.read_changes; print(hasattr(deltaworks, 'x'))"
    program = f"import deltaworks, sys; print('pyspark' in sys.modules); {offered}"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "False"]


ENTRY, ROOT = Path(__file__).with_name("reader_entry.py"), Path(__file__).resolve().parents[3]
#: Changes per organisation and day, as seen by a reader that runs after each step.
CHANGES = {("a", 0): 5, ("a", 1): 3, ("b", 0): 3}


def first_step(followed: TrackedLake) -> None:
    followed.land(1, [("e1", "a", "x", 0), ("e2", "a", "y", 0), ("e3", "b", "y", 0)])
    followed.mutate(1, "event_id = 'e3'", {"contact_id": "'z'"})


def second_step(followed: TrackedLake) -> None:
    followed.land(2, [("e4", "a", "x", 1), ("e5", "b", "x", 0)])
    followed.mutate(2, "contact_id in ('x', 'y') and org_id = 'a'", {"contact_id": "'w'"})
    followed.mutate(3, "event_id = 'e1'", {"_deleted": "true"})


def third_step(followed: TrackedLake) -> None:
    followed.land(3, [("e6", "a", "x", 1)])
    followed.mutate(4, "event_id = 'e1' or event_id = 'e4'", {"_deleted": "false"})
    followed.mutate(5, "event_id = 'e3'", {"_deleted": "true"})


STEPS = (first_step, second_step, third_step)


def counts(followed: TrackedLake) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Returns the sample table's activities, contacts and changes."""
    found = followed.lake.rows(job().KEY)
    rows: list[dict[str, Any]] = [] if found is None else found.to_pylist()
    first = min(row["engagement_date"] for row in rows)
    return {
        (row["org_id"], (row["engagement_date"] - first).days): (row["activities"], row["contacts"], row["changes"])
        for row in rows
    }


def expected(followed: TrackedLake) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Returns the same counts, computed from the data."""
    contacts: dict[tuple[str, int], list[str]] = defaultdict(list)
    rows = followed.rows()
    first = min(row["engagement_date"] for row in rows)
    for row in rows:
        if not row["_deleted"]:
            contacts[row["org_id"], (row["engagement_date"] - first).days].append(row["contact_id"])
    return {day: (len(contacts[day]), len(set(contacts[day])), changes) for day, changes in CHANGES.items()}


def run(root: Path, moment: str, *options: str) -> int:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'include'}:{ROOT}"}
    done = run_process([sys.executable, str(ENTRY), str(root), moment, *options], env=environment)
    assert done.returncode in (0, -9), done.stderr[-3000:]
    return done.returncode


@pytest.mark.integration
def test_counts_are_updated_by_each_run(tmp_path: Path, spark: SparkSession) -> None:
    followed, count_days = TrackedLake(tmp_path, spark), job().count_days
    for step in STEPS:
        step(followed)
        assert count_days(spark, followed.catalog, NAME)

    assert not count_days(spark, followed.catalog, NAME)
    assert counts(followed) == expected(followed)


@pytest.mark.integration
def test_a_reader_that_is_killed_around_its_commit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    followed = TrackedLake(tmp_path, None)
    for step, moment in zip(STEPS, ("before", "after", "during"), strict=True):
        step(followed)
        assert run(tmp_path, moment) == -9
        assert run(tmp_path, "never") == 0

    assert counts(followed) == expected(followed)


@pytest.mark.integration
def test_a_position_stored_outside_the_commit_doubles_the_output_of_a_killed_reader(tmp_path: Path) -> None:
    followed = TrackedLake(tmp_path, None)
    for step, moment in zip(STEPS, ("before", "after", "never"), strict=True):
        step(followed)
        run(tmp_path, moment, "apart")
        run(tmp_path, "never", "apart")

    doubled = {day: found[2] - CHANGES[day] for day, found in counts(followed).items()}
    assert doubled == {("a", 0): 2, ("a", 1): 1, ("b", 0): 1}
