"""The requests covered by the next batch, those that wait, and arrivals, derived only from table logs."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.mutation import APPLIED, MutationBatch, MutationCompletion
from deltaworks.errors import ConfigError, TransientError
from deltaworks.mutations.backlog_check import read_backlogs, reject_overdue
from deltaworks.mutations.bounds import (
    Arrivals,
    BatchPlanner,
    last_version_within,
    mutable_spec,
    mutations_spec,
    read_arrivals,
)
from deltaworks.operations.base import OperationContext, imported_look
from deltaworks.operations.mutate import look_at_backlogs
from deltaworks.operations.registry import get_operation
from deltaworks.testing import local_lake, present
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, REQUESTS, START, MutationHarness, declared
from tests.unit.tables.log_model import drop_statistics


@pytest.fixture
def stage(tmp_path: Path) -> MutationHarness:
    return MutationHarness(tmp_path, declared(max_requests=3))


def land(stage: MutationHarness, *, rows: int = 0, requests: int = 0) -> None:
    base = {"org_id": "acme", "time": START}
    stage.land(
        rows=[{**base, "event_id": f"e{number}", "id": "a"} for number in range(rows)],
        requests=[{**base, "op": "delete", "id": "a", "seq": number} for number in range(requests)],
    )


def following(stage: MutationHarness, number: int, *, organisation: str | None = None) -> MutationBatch | None:
    return BatchPlanner(stage.lake, stage.objects, stage.spec).plan_batch(number, organisation=organisation)


def end(stage: MutationHarness, batch: MutationBatch) -> None:
    stage.batches.get_or_create(batch)
    done = MutationCompletion(
        pipeline=PIPELINE, number=batch.number, generation=batch.generation, outcome=APPLIED, at=iso_now()
    )
    stage.batches.complete(done)


def waiting(stage: MutationHarness) -> int:
    return BatchPlanner(stage.lake, stage.objects, stage.spec).backlog().requests


def test_a_batch_begins_at_the_end_of_the_last_one_and_needs_arrivals(stage: MutationHarness) -> None:
    assert following(stage, 1) is None
    land(stage, rows=2, requests=1)
    first = present(following(stage, 1))
    assert (first.requests.after, first.requests.up_to) == (-1, stage.version(REQUESTS))
    assert [(span.table, span.after, span.up_to) for span in first.tables] == [(DATA, -1, stage.version())]

    end(stage, first)
    assert following(stage, 2) is None
    land(stage, rows=1)
    second = present(following(stage, 2))
    assert second.requests.is_empty
    assert (second.tables[0].after, second.tables[0].up_to) == (first.tables[0].up_to, stage.version())


def test_a_batch_of_one_organisation_bounds_no_later_one(stage: MutationHarness) -> None:
    land(stage, rows=1, requests=1)
    alone = present(following(stage, 1, organisation="acme"))
    end(stage, alone)

    following_one = following(stage, 2)

    assert following_one is not None
    assert following_one.requests == alone.requests


def test_a_batch_takes_at_most_max_requests_and_the_rest_stays_pending(stage: MutationHarness) -> None:
    for _ in range(3):
        land(stage, requests=2)
    assert waiting(stage) == 6
    first = present(following(stage, 1))
    end(stage, first)

    assert waiting(stage) == 4


def test_rows_that_arrive_during_a_run_are_left_to_the_next_one(stage: MutationHarness) -> None:
    land(stage, rows=1, requests=1)
    bounds = BatchPlanner(stage.lake, stage.objects, stage.spec)
    began = bounds.current_versions()
    land(stage, rows=1, requests=1)
    first = present(bounds.plan_batch(1, max_versions=began))
    assert (first.requests.up_to, first.tables[0].up_to) == (began[REQUESTS], began[DATA])
    end(stage, first)

    assert bounds.plan_batch(2, max_versions=began) is None
    later = present(bounds.plan_batch(2))
    assert (later.requests.after, later.requests.up_to) == (began[REQUESTS], stage.version(REQUESTS))


def test_recreated_tables_are_read_from_version_zero(stage: MutationHarness) -> None:
    land(stage, rows=1, requests=1)
    first = present(following(stage, 1))
    end(stage, first)
    for name in (DATA, REQUESTS):
        (stage.root / paths.table(PIPELINE, name)).rename(stage.root / f"former-{name}")
    land(stage, rows=1, requests=1)

    anew = following(stage, 2)

    assert anew is not None
    assert (anew.everything, anew.requests.after, anew.tables[0].after) == (True, -1, -1)
    assert waiting(stage) == 1


def test_requests_pending_for_too_long_raise_an_alert(stage: MutationHarness) -> None:
    land(stage, requests=2)
    found = read_backlogs(stage.catalog)
    assert found[0].oldest_at is not None

    reject_overdue(stage.catalog, found, now=found[0].oldest_at + dt.timedelta(minutes=29))
    with pytest.raises(TransientError, match=r"MUTATIONS_BEHIND.*crm: 2 requests wait, the oldest for 31 min"):
        reject_overdue(stage.catalog, found, now=found[0].oldest_at + dt.timedelta(minutes=31))


def test_a_pipeline_without_mutations_says_so(stage: MutationHarness) -> None:
    with pytest.raises(ConfigError, match="MUTATIONS_UNDECLARED"):
        mutations_spec(stage.spec.model_copy(update={"mutations": None}))


def test_a_table_that_is_not_mutable_says_so(stage: MutationHarness) -> None:
    table = stage.spec.table(DATA)

    assert mutable_spec(table) == table.mutable
    with pytest.raises(ConfigError, match=rf"MUTATIONS_UNDECLARED.*{DATA}"):
        mutable_spec(table.model_copy(update={"mutable": None}))


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


def test_a_scheduled_run_has_work_if_requests_or_rows_arrived_or_a_batch_has_not_ended(stage: MutationHarness) -> None:
    operation = get_operation("mutate_tables")
    context = OperationContext(operation=operation, catalog=stage.catalog, subject=PIPELINE)

    def look() -> tuple[int, str]:
        found = imported_look(operation.look)(context, operation.options_model()())
        return found.work, found.reason

    assert look() == (0, "No requests since the last batch")
    land(stage, rows=1, requests=1)
    assert look() == (1, "requests wait")

    batch = present(following(stage, 1))
    stage.batches.get_or_create(batch)
    assert look() == (1, "batch 1 has not ended")
    end(stage, batch)
    assert look() == (0, "No requests since the last batch")
    land(stage, rows=1)
    assert look() == (1, "requests wait")


def test_a_look_at_all_backlogs_records_them_and_finds_work_if_one_is_overdue(stage: MutationHarness) -> None:
    land(stage, requests=1)
    assert look_at_backlogs(stage.catalog).work == 0

    found = look_at_backlogs(stage.catalog, now=utc_now() + dt.timedelta(days=1))

    assert (found.work, PIPELINE in found.reason) == (1, True)
    assert stage.objects.get(paths.mutations_summary(PIPELINE)) is not None
