"""Arrivals in a table are read from its log by version, for any batch, without the product's own commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from deltaworks.control.provenance import user_metadata
from deltaworks.mutations.bounds import Arrivals, last_version_within, read_arrivals
from deltaworks.testing import local_lake
from tests.unit.tables.log_model import drop_statistics

KEY = "tables/crm/activities"
TYPES = {"org_id": "string", "_batch_id": "long"}


class Log:
    def __init__(self, root: Path) -> None:
        self.uri = str(root / KEY)
        self.lake = local_lake(root)

    def append(self, batch: int, *orgs: str, operation: str = "ingest") -> int:
        rows = pa.table({"org_id": list(orgs), "_batch_id": pa.array([batch] * len(orgs), pa.int64())})
        made = user_metadata(pipeline="crm", batch=batch, operation=operation)
        properties = CommitProperties(custom_metadata={"userMetadata": made})
        write_deltalake(self.uri, rows, mode="append", partition_by=["org_id"], commit_properties=properties)
        return self.table.version()

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.uri)

    def came(self, after: int, up_to: int | None = None) -> Arrivals:
        newest = self.table.version() if up_to is None else up_to
        return read_arrivals(self.lake, KEY, after=after, up_to=newest)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_rows_are_counted_by_partition_and_minimum_batch(log: Log) -> None:
    log.append(1, "acme")
    log.append(7, "acme", "o'neil")
    log.append(8, "o'neil")

    came = log.came(0)

    assert (came.rows, came.has_removals, came.is_unbounded) == (3, False, False)
    assert came.condition(TYPES) == "`_batch_id` >= 7 AND (`org_id` IN ('acme', 'o\\'neil'))"
    assert came.first_at is not None
    assert log.came(2) == Arrivals()


def test_late_rows_of_an_old_batch_are_detected_by_version(log: Log) -> None:
    log.append(5, "acme")
    before = log.append(9, "acme")
    log.append(2, "acme")

    assert log.came(before).condition(TYPES) == "`_batch_id` >= 2 AND (`org_id` IN ('acme'))"


@pytest.mark.parametrize("operation", ["mutate", "optimize", "purge_deleted"])
def test_rows_written_by_mutations_and_maintenance_are_no_arrivals(log: Log, operation: str) -> None:
    before = log.append(1, "acme")
    log.append(1, "acme", operation=operation)

    assert log.came(before) == Arrivals()


def test_removed_rows_are_reported(log: Log) -> None:
    before = log.append(1, "acme", "bolt")
    log.table.delete("org_id = 'acme'")

    assert log.came(before).has_removals


def test_without_the_old_log_arrivals_are_unbounded(log: Log) -> None:
    log.append(1, "acme")
    log.append(2, "acme")
    Path(log.uri, "_delta_log", f"{0:020d}.json").unlink()

    came = read_arrivals(log.lake, KEY, after=-1, up_to=1)

    assert (came.is_unbounded, came.condition(TYPES)) == (True, "true")


def test_a_batch_takes_complete_commits_up_to_its_bound_and_at_least_one(log: Log) -> None:
    for batch in range(4):
        log.append(batch, "acme", "bolt")

    assert last_version_within(log.lake, KEY, after=-1, up_to=3, max_rows=5) == 1
    assert last_version_within(log.lake, KEY, after=1, up_to=3, max_rows=100) == 3
    assert last_version_within(log.lake, KEY, after=-1, up_to=3, max_rows=1) == 0


def test_rows_that_the_log_does_not_count_are_counted_in_the_files(log: Log) -> None:
    for batch in range(4):
        log.append(batch, "acme", "acme", "acme")
    drop_statistics(log.lake, KEY)

    assert log.came(-1).rows == 12
    assert last_version_within(log.lake, KEY, after=-1, up_to=3, max_rows=6) == 1
    assert last_version_within(log.lake, KEY, after=-1, up_to=3, max_rows=2) == 0


def test_a_commit_whose_rows_cannot_be_counted_fills_a_batch(log: Log) -> None:
    for batch in range(4):
        log.append(batch, "acme")
    drop_statistics(log.lake, KEY)
    for path in Path(log.uri).rglob("*.parquet"):
        path.unlink()

    assert last_version_within(log.lake, KEY, after=-1, up_to=3, max_rows=100) == 0


@pytest.mark.parametrize("info", [{}, {"commitInfo": {"timestamp": None}}])
def test_requests_of_a_commit_without_time_are_as_old_as_their_files(log: Log, info: dict[str, Any]) -> None:
    log.append(1, "acme")
    path = Path(log.uri, "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    (added,) = (action["add"] for action in actions if "add" in action)
    others = [action for action in actions if "commitInfo" not in action]
    path.write_text("".join(json.dumps(action) + "\n" for action in (info, *others) if action))

    first_at = log.came(-1).first_at
    assert first_at is not None
    assert int(first_at.timestamp() * 1000) == added["modificationTime"]
