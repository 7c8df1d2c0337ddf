"""The sample reader's counts match the table after every run, including runs killed at any moment."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.processes import run_process
from tests.spark.mutations.reader_entry import job
from tests.spark.mutations.tracked_lake import NAME, TrackedLake

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
