"""The requests covered by the next batch, and those that wait, derived only from table logs."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.records.mutation import APPLIED, MutationBatch, MutationCompletion
from deltaworks.errors import ConfigError, TransientError
from deltaworks.mutations.backlog_check import read_backlogs, reject_overdue
from deltaworks.mutations.bounds import BatchPlanner, mutable_spec, mutations_spec
from tests.spark.mutations.mutation_harness import DATA, PIPELINE, REQUESTS, START, MutationHarness, declared


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
    first = following(stage, 1)
    assert first is not None
    assert (first.requests.after, first.requests.up_to) == (-1, stage.version(REQUESTS))
    assert [(span.table, span.after, span.up_to) for span in first.tables] == [(DATA, -1, stage.version())]

    end(stage, first)
    assert following(stage, 2) is None
    land(stage, rows=1)
    second = following(stage, 2)
    assert second is not None
    assert second.requests.is_empty
    assert (second.tables[0].after, second.tables[0].up_to) == (first.tables[0].up_to, stage.version())


def test_a_batch_of_one_organisation_bounds_no_later_one(stage: MutationHarness) -> None:
    land(stage, rows=1, requests=1)
    alone = following(stage, 1, organisation="acme")
    assert alone is not None
    end(stage, alone)

    following_one = following(stage, 2)

    assert following_one is not None
    assert following_one.requests == alone.requests


def test_a_batch_takes_at_most_max_requests_and_the_rest_stays_pending(stage: MutationHarness) -> None:
    for _ in range(3):
        land(stage, requests=2)
    assert waiting(stage) == 6
    first = following(stage, 1)
    assert first is not None
    end(stage, first)

    assert waiting(stage) == 4


def test_rows_that_arrive_during_a_run_are_left_to_the_next_one(stage: MutationHarness) -> None:
    land(stage, rows=1, requests=1)
    bounds = BatchPlanner(stage.lake, stage.objects, stage.spec)
    began = bounds.current_versions()
    land(stage, rows=1, requests=1)
    first = bounds.plan_batch(1, max_versions=began)
    assert first is not None
    assert (first.requests.up_to, first.tables[0].up_to) == (began[REQUESTS], began[DATA])
    end(stage, first)

    assert bounds.plan_batch(2, max_versions=began) is None
    later = bounds.plan_batch(2)
    assert later is not None
    assert (later.requests.after, later.requests.up_to) == (began[REQUESTS], stage.version(REQUESTS))


def test_recreated_tables_are_read_from_version_zero(stage: MutationHarness) -> None:
    land(stage, rows=1, requests=1)
    first = following(stage, 1)
    assert first is not None
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
